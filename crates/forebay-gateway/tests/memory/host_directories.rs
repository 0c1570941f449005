//! `hosts_from`: a site for each directory, whose name is the host. `users_from`: a route for each
//! user.

use std::os::unix::fs::{chown, symlink};
use std::path::Path;

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

/// A user of every Debian, with another name than those of the other directories.
const USERS: [(&str, u32); 2] = [("games", 5), ("backup", 34)];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a home with a page, which belongs to `uid`.
fn home(root: &Path, name: &str, uid: u32) {
    let home = root.join("home").join(name);
    let public = home.join("public_html");
    std::fs::create_dir_all(public.join("sub")).unwrap();
    std::fs::write(home.join("private.txt"), "private").unwrap();
    std::fs::write(public.join("index.html"), format!("page of {name}")).unwrap();
    std::fs::write(public.join("sub/a.txt"), "a").unwrap();
    for path in ["", "private.txt", "public_html", "public_html/index.html", "public_html/sub"] {
        chown(home.join(path), Some(uid), None).unwrap();
    }
}

fn homes(root: &Path) -> String {
    let path = root.display();
    format!(
        "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nusers_from = \"{path}/home/*/public_html\"\n\
         path = \"/~{{owner}}/*\"\nfiles = \"{path}/home/{{owner}}/public_html\"\n\
         set_headers = {{ \"X-Owner\" = \"{{owner}}\" }}\n"
    )
}

#[test]
fn each_user_has_a_route() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let [(user, uid), (other, other_uid)] = USERS;
    home(root.path(), user, uid);
    // Names of users whose directories belong to somebody else, and of nobody.
    for (name, owner) in [("daemon", uid), ("root", 0), ("nobody-here", uid), (".hidden", uid)] {
        home(root.path(), name, owner);
    }
    // A home whose public directory is another user's.
    home(root.path(), "mail", 8);
    chown(root.path().join("home/mail/public_html"), Some(uid), None).unwrap();
    in_memory(&homes(root.path()), async |world| {
        let page = format!("page of {user}");
        for path in ["/~games/", "/%7egames/", "/%7Egames/index.html", "/~games/sub/../index.html"]
        {
            assert_eq!(get(world, "a", path).await, (200, page.clone()), "{path}");
        }
        assert_eq!(get(world, "a", "/~games/sub/a.txt").await, (200, "a".to_owned()));
        // What a user without a public directory gets: byte for byte that of no user.
        let nobody = get(world, "a", "/~no-such-user/").await;
        assert_eq!(nobody.0, 404);
        let long = format!("/~{}/", "a".repeat(5000));
        for path in [
            "/~daemon/",
            "/~root/",
            "/~nobody-here/",
            "/~.hidden/",
            "/~mail/",
            "/~GAMES/",
            "/~Games/",
            "/~/",
            "/~",
            "/~*/",
            "/~{owner}/",
            "/~backup/",
            "/games/",
            "/~.",
            "/~..",
            &long,
        ] {
            assert_eq!(get(world, "a", path).await, nobody, "{path}");
        }
        for path in [
            "/~../private.txt",
            "/~games/../private.txt",
            "/~games/..%2fprivate.txt",
            "/~games/%2e%2e/private.txt",
            "/~games/%2e%2e%2fprivate.txt",
            "/~games%2f..%2fgames/private.txt",
            "/~games/sub/../../private.txt",
            "/~games%00/",
            "/~games/%00",
            "/~games/..\\private.txt",
            "/~games/.%2e/private.txt",
            "/~%2e%2e/home/games/private.txt",
            "/~games/..;/private.txt",
        ] {
            let (status, body) = get(world, "a", path).await;
            assert!(
                status >= 400 && !body.contains("private\n") && body != "private",
                "{path}: {body}"
            );
        }
        // Users come and go.
        home(root.path(), other, other_uid);
        std::fs::remove_dir_all(root.path().join("home/games")).unwrap();
        world.reload_as(&homes(root.path()));
        assert_eq!(get(world, "a", "/~backup/").await, (200, "page of backup".to_owned()));
        assert_eq!(get(world, "a", "/~games/").await, nobody);
    });
}

#[test]
fn a_user_links_to_no_files_of_others() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let [(user, uid), (other, other_uid)] = USERS;
    home(root.path(), user, uid);
    home(root.path(), other, other_uid);
    let public = root.path().join("home").join(user).join("public_html");
    let own = root.path().join("home").join(user).join("private.txt");
    let theirs = root.path().join("home").join(other).join("private.txt");
    for (name, target) in
        [("own", own.as_path()), ("theirs", &theirs), ("passwd", Path::new("/etc/passwd"))]
    {
        symlink(target, public.join(name)).unwrap();
        std::os::unix::fs::lchown(public.join(name), Some(uid), None).unwrap();
    }
    in_memory(&homes(root.path()), async |world| {
        assert_eq!(get(world, "a", "/~games/own").await, (200, "private".to_owned()));
        for path in ["/~games/theirs", "/~games/passwd"] {
            let (status, body) = get(world, "a", path).await;
            assert!([403, 404].contains(&status) && !body.contains("root:"), "{path}: {status}");
        }
        // The public directory itself becomes a link to another user's.
        std::fs::remove_dir_all(&public).unwrap();
        symlink(root.path().join("home").join(other).join("public_html"), &public).unwrap();
        std::os::unix::fs::lchown(&public, Some(uid), None).unwrap();
        world.reload_as(&homes(root.path()));
        let (status, body) = get(world, "a", "/~games/").await;
        assert!([403, 404].contains(&status), "{status} {body}");
        assert_eq!(get(world, "a", "/~backup/").await.1, "page of backup");
    });
}

#[test]
fn a_site_belongs_to_the_owner_of_its_directory() {
    if !is_root() {
        return;
    }
    let (root, text) =
        sites(&["a.example", "b.example", "c.example", "d.example", "e.example"], "");
    let srv = root.path().join("srv");
    let own =
        |path: &str, uid: u32| std::os::unix::fs::lchown(srv.join(path), Some(uid), None).unwrap();
    let [(_, uid), (_, other_uid)] = USERS;
    // a: all is the user's. b: root made the site, and its files are the user's. c: root's alone.
    // d: two users. e: the user's link to another site.
    for path in ["a.example", "a.example/htdocs", "b.example/htdocs", "d.example", "e.example"] {
        own(path, uid);
    }
    own("d.example/htdocs", other_uid);
    std::fs::remove_dir_all(srv.join("e.example/htdocs")).unwrap();
    symlink(srv.join("d.example/htdocs"), srv.join("e.example/htdocs")).unwrap();
    own("e.example/htdocs", uid);
    let text = text.replace(
        "path = \"/moved\"\nredirect = \"https://{host}/new\"",
        "path = \"/who\"\nrespond = \"{owner} {host}\"",
    );
    in_memory(&text, async |world| {
        assert_eq!(get(world, "a.example", "/who").await.1, "games a.example");
        assert_eq!(get(world, "b.example", "/who").await.1, "games b.example");
        for host in ["c.example", "d.example"] {
            assert_eq!(get(world, host, "/who").await.1, "default", "{host}");
        }
        assert_eq!(get(world, "e.example", "/who").await.1, "games e.example");
        let (status, body) = get(world, "e.example", "/").await;
        assert!([403, 404].contains(&status), "{status} {body}");
    });
}
