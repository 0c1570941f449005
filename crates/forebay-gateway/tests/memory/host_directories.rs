//! `hosts_from`: a site for each directory, whose name is the host.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::world::{World, in_memory};

/// Directories with a page each, and a configuration with a default site.
fn sites(hosts: &[&str], keys: &str) -> (TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    for host in hosts {
        let htdocs = root.path().join("srv").join(host).join("htdocs");
        std::fs::create_dir_all(&htdocs).unwrap();
        std::fs::write(htdocs.join("index.html"), format!("page of {host}")).unwrap();
    }
    std::fs::create_dir_all(root.path().join("srv")).unwrap();
    std::fs::write(root.path().join("srv/secret.txt"), "secret").unwrap();
    let path = root.path().display();
    let configuration = format!(
        "[[site]]\nlisten = \"127.0.0.1:80\"\nhosts_from = \"{path}/srv/*/htdocs\"\n{keys}\n\
         [[site.route]]\npath = \"/moved\"\nredirect = \"https://{{host}}/new\"\n\
         [[site.route]]\nfiles = \"{path}/srv/{{host}}/htdocs\"\n\
         [[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nrespond = \"default\"\n"
    );
    (root, configuration)
}

async fn get(world: &World, host: &str, path: &str) -> (u16, String) {
    let mut client = world.client();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(&request).await;
    let reply = client.reply(&request).await;
    (reply.status(), String::from_utf8_lossy(&reply.body).into_owned())
}

#[test]
fn each_directory_is_a_site() {
    let (root, text) = sites(&["a.example", "b.example", "xn--bcher-kva.example"], "");
    in_memory(&text, async |world| {
        for host in ["a.example", "b.example", "xn--bcher-kva.example"] {
            assert_eq!(get(world, host, "/").await, (200, format!("page of {host}")));
        }
        for (host, page) in [
            ("A.Example:80", "page of a.example"),
            ("a.example.", "page of a.example"),
            ("c.example", "default"),
            ("www.a.example", "default"),
            ("10.0.0.1", "default"),
        ] {
            assert_eq!(get(world, host, "/").await.1, page, "{host}");
        }
        let htdocs = root.path().join("srv/c.example/htdocs");
        std::fs::create_dir_all(&htdocs).unwrap();
        std::fs::write(htdocs.join("index.html"), "new").unwrap();
        std::fs::remove_dir_all(root.path().join("srv/a.example")).unwrap();
        world.reload_as(&text);
        assert_eq!(get(world, "c.example", "/").await.1, "new");
        assert_eq!(get(world, "a.example", "/").await.1, "default");
    });
}

#[test]
fn hostile_hosts_reach_no_directory() {
    let hosts = ["a.example", ".git", "lost+found", "B.example", "-x", "y-", "a..b", "_dmarc.a"];
    let (root, text) = sites(&hosts, "");
    let outside = root.path().join("htdocs");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("index.html"), "outside").unwrap();
    in_memory(&text, async |world| {
        for host in [
            "..",
            ".",
            "../a.example",
            "a.example/..",
            "a.example/../a.example",
            "..%2fa.example",
            "%2e%2e",
            "a.example%2f..",
            "a.example\\..",
            ".git",
            "lost+found",
            "b.example",
            "-x",
            "y-",
            "a..b",
            "_dmarc.a",
            "*",
            "{host}",
            "",
            "a.example\u{0}",
            "[::1]",
            "a.example@x",
            "x@a.example",
            "a.example:..",
            "secret.txt",
        ] {
            let (status, body) = get(world, host, "/").await;
            assert!(status == 400 || body == "default", "{host}: {status} {body}");
        }
        for path in ["/../secret.txt", "/..%2fsecret.txt", "/../../secret.txt", "/%2e%2e/htdocs/"] {
            let (status, body) = get(world, "a.example", path).await;
            assert!(status >= 400, "{path}: {status} {body}");
        }
        // An absolute target replaces the field.
        let target = "http://../htdocs/index.html";
        let (status, body) = get(world, "a.example", target).await;
        assert!(status == 400 || body == "default", "{status} {body}");
    });
}

#[test]
fn a_site_cannot_link_its_root_elsewhere() {
    let (root, text) = sites(&["a.example", "b.example"], "");
    let never = text.replace("files = \"", "files = { follow_symlinks = \"never\", root = \"");
    let never = never.replace("/htdocs\"\n[[site]]", "/htdocs\" }\n[[site]]");
    in_memory(&never, async |world| {
        assert_eq!(get(world, "a.example", "/").await.1, "page of a.example");
        // The owner of a site replaces its root after the start.
        let htdocs = root.path().join("srv/a.example/htdocs");
        std::fs::remove_dir_all(&htdocs).unwrap();
        symlink(root.path().join("srv/b.example/htdocs"), &htdocs).unwrap();
        world.reload();
        assert_eq!(get(world, "a.example", "/").await.0, 403);
        assert_eq!(get(world, "b.example", "/").await.1, "page of b.example");
    });
}

#[test]
fn other_sites_keep_their_hosts() {
    let (_root, text) = sites(&["a.example", "b.example"], "");
    let own = "[[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"A.example\"\n\
               [[site.route]]\nrespond = \"own\"\n";
    in_memory(&format!("{text}{own}"), async |world| {
        assert_eq!(get(world, "a.example", "/").await.1, "own");
        assert_eq!(get(world, "b.example", "/").await.1, "page of b.example");
    });
}
