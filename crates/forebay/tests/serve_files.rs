//! `forebay serve` with files: which are found, which bytes are sent, and which files nobody can
//! get.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use support::{Forebay, pattern, serve_arguments, site};

const ROUTE: &str = "[[site.route]]\npath = \"/*\"\nfiles = \"htdocs\"\n";

fn htdocs() -> Folder {
    let folder = Folder::new();
    folder.write("secret.txt", "secret");
    folder.write("htdocs/index.html", "<p>index");
    folder.write("htdocs/a.txt", "0123456789");
    folder.write("htdocs/style.css", "a{}");
    folder.write("htdocs/logo.svg", "<svg/>");
    folder.write("htdocs/no-extension", "x");
    folder.write("htdocs/dir/index.html", "<p>dir");
    folder.write("htdocs/dir/b.txt", "b");
    folder.write("htdocs/bare/c.txt", "c");
    folder
}

fn files() -> Forebay {
    site(htdocs(), ROUTE)
}

fn head(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
}

#[test]
fn a_directory_without_index_is_listed_where_it_was_named_on_the_command_line() {
    let folder = Folder::new();
    folder.write("htdocs/some.txt", "text");
    folder.write("htdocs/with/index.html", "index");
    let htdocs = folder.path().join("htdocs").to_str().unwrap().to_owned();
    let forebay = serve_arguments(folder, &[&htdocs, "--listen", "127.0.0.1:0"]);
    let reply = forebay.get("/");
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("<a href=\"./some.txt\">"), "{}", reply.text());
    assert_eq!(forebay.get("/with/").text(), "index");
    let (_, folder) = forebay.stop();
    let forebay = site(folder, "[[site.route]]\npath = \"/*\"\nfiles = \"htdocs\"\n");
    assert_eq!(forebay.get("/").status, 403, "a file has to ask for it");
}

#[test]
fn a_directory_as_argument_is_served() {
    let folder = htdocs();
    let htdocs = folder.path().join("htdocs").to_str().unwrap().to_owned();
    let forebay = serve_arguments(folder, &[&htdocs, "--listen", "127.0.0.1:0"]);
    assert_eq!(forebay.get("/dir/b.txt").text(), "b");
    forebay.stop();
}

#[test]
fn no_location_leads_to_another_host() {
    let folder = htdocs();
    for evil in ["evil.com/dir", "\\evil.com/dir", "%2fevil.com/dir", "\tevil.com/dir"] {
        folder.write(&format!("htdocs/{evil}/x"), "");
    }
    let forebay = site(folder, ROUTE);
    for target in [
        "//evil.com/dir",
        "///evil.com/dir",
        "/%2Fevil.com/dir",
        "//evil.com/%2e%2e/dir",
        "/\\evil.com/dir",
        "/%5Cevil.com/dir",
        "/.//evil.com/dir",
        "/%2e//evil.com/dir",
        "/dir/..//evil.com/dir",
        "/%09evil.com/dir",
        "/dir%0d%0aSet-Cookie:%20a=b",
        "http://h//evil.com/dir",
    ] {
        let reply = forebay.ask(head(target, ""));
        assert!(matches!(reply.status, 301 | 400 | 403 | 404), "{target}: {}", reply.status);
        assert!(reply.header("Set-Cookie").is_none(), "{target}");
        if let Some(location) = reply.header("Location") {
            let second = location.as_bytes()[1];
            assert!(location.starts_with('/'), "{target}: {location}");
            assert!(!matches!(second, b'/' | b'\\' | b'\t'), "{target}: {location}");
        }
    }
}

#[test]
fn nothing_outside_the_root_is_sent() {
    let forebay = files();
    for target in [
        "/../secret.txt",
        "/dir/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/.%2e/secret.txt",
        "/..%2fsecret.txt",
        "/..%2Fsecret.txt",
        "/dir/..%2f..%2fsecret.txt",
        "/..%5csecret.txt",
        "/..\\secret.txt",
        "/%252e%252e/secret.txt",
        "/%c0%ae%c0%ae/secret.txt",
        "/dir%2f..%2f..%2fsecret.txt",
        "/a.txt%00.html",
        "/%00",
        "/a.txt/",
        "/a.txt/x",
        "/dir%2fb.txt",
        "/%",
        "/%zz",
    ] {
        let reply = forebay.get(target);
        assert!(matches!(reply.status, 400 | 403 | 404), "{target}: {}", reply.status);
        assert!(!reply.text().contains("secret"), "{target}");
    }
    assert_eq!(forebay.get("/%2e/dir/./b.txt").text(), "b");
}

#[test]
fn names_that_are_not_utf8_are_served() {
    let folder = htdocs();
    let name = OsStr::from_bytes(b"caf\xe9 \xff.txt");
    fs::write(folder.path().join("htdocs").join(name), "latin").unwrap();
    fs::write(folder.path().join("htdocs/\u{20ac}.txt"), "euro").unwrap();
    let forebay = site(folder, ROUTE);
    assert_eq!(forebay.get("/caf%e9%20%ff.txt").text(), "latin");
    assert_eq!(forebay.get("/%e2%82%ac.txt").text(), "euro");
    // A target contains only ASCII; other bytes must be percent-encoded.
    assert_eq!(forebay.ask(b"GET /\xe2\x82\xac.txt HTTP/1.1\r\nHost: h\r\n\r\n").status, 400);
}

#[test]
fn links_are_followed_as_the_route_says() {
    let folder = htdocs();
    symlink(folder.path().join("secret.txt"), folder.path().join("htdocs/out.txt")).unwrap();
    symlink("dir", folder.path().join("htdocs/linked")).unwrap();
    symlink("loop", folder.path().join("htdocs/loop")).unwrap();
    symlink("/etc/passwd", folder.path().join("htdocs/passwd")).unwrap();
    let route = |policy: &str| {
        format!(
            "[[site.route]]\npath = \"/{policy}/*\"\n\
             files = {{ root = \"htdocs\", follow_symlinks = \"{policy}\" }}\n"
        )
    };
    let routes = route("always") + &route("owner") + &route("never");
    let forebay = site(folder, &routes);
    assert_eq!(forebay.get("/always/out.txt").text(), "secret");
    assert_eq!(forebay.get("/owner/out.txt").text(), "secret");
    assert_eq!(forebay.get("/never/out.txt").status, 403);
    assert_eq!(forebay.get("/always/linked/b.txt").text(), "b");
    assert_eq!(forebay.get("/never/linked/b.txt").status, 403);
    assert_eq!(forebay.get("/never/dir/b.txt").text(), "b");
    for policy in ["always", "owner", "never"] {
        let status = forebay.get(&format!("/{policy}/loop")).status;
        assert!(matches!(status, 403 | 404), "{policy}: {status}");
    }
}

#[test]
fn a_link_to_anothers_file_is_not_followed_for_owner() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = htdocs();
    let own = folder.path().join("htdocs/foreign");
    symlink("a.txt", &own).unwrap();
    std::os::unix::fs::lchown(&own, Some(65534), Some(65534)).unwrap();
    let forebay = site(folder, ROUTE);
    assert_eq!(forebay.get("/foreign").status, 403, "the default");
    assert_eq!(forebay.get("/a.txt").status, 200);
}

#[test]
fn a_changed_file_is_seen_soon() {
    let forebay = files();
    let first = forebay.get("/a.txt");
    assert_eq!(first.text(), "0123456789");
    forebay.folder.write("htdocs/a.txt", "9876543210");
    let mut second = None;
    assert!(eventually(|| {
        let reply = forebay.get("/a.txt");
        let is_new = reply.text() == "9876543210";
        second = Some(reply);
        is_new
    }));
    assert_ne!(first.header("ETag"), second.unwrap().header("ETag"));
    fs::remove_file(forebay.folder.path().join("htdocs/a.txt")).unwrap();
    assert!(eventually(|| forebay.get("/a.txt").status == 404));
}

#[test]
fn large_files_are_whole_and_shrinking_ones_are_cut() {
    let folder = htdocs();
    let content = pattern(5_000_000);
    folder.write("htdocs/large", &content);
    let forebay = site(folder, ROUTE);
    let mut client = forebay.connect();
    for _ in 0..2 {
        assert_eq!(client.get("/large").body, content);
    }
    let reply = forebay.ask(head("/large", "Range: bytes=4999990-\r\n"));
    assert_eq!(reply.body, content[4_999_990..]);

    let mut client = forebay.connect();
    client.send(head("/large", ""));
    assert_eq!(client.reply_to_head().header("Content-Length"), Some("5000000"));
    let file = fs::OpenOptions::new().write(true).open(forebay.folder.path().join("htdocs/large"));
    file.unwrap().set_len(10).unwrap();
    assert!(client.rest().len() < 5_000_000, "cut, not filled up");
}

#[test]
fn special_files_are_refused_without_waiting() {
    let folder = htdocs();
    let fifo = folder.path().join("htdocs/fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    symlink("/dev/zero", folder.path().join("htdocs/zero")).unwrap();
    let forebay = site(folder, ROUTE);
    assert_eq!(forebay.get("/fifo").status, 403);
    assert_eq!(forebay.get("/zero").status, 403);
    assert_eq!(forebay.get("/bare/").status, 403);
    assert_eq!(forebay.get("/missing").status, 404);
    let long = format!("/{}", "x".repeat(5000));
    assert_eq!(forebay.get(&long).status, 404);
}

#[test]
fn a_file_in_the_place_of_a_socket_stays_and_is_named() {
    let folder = Folder::new();
    let file = folder.write("precious", "text");
    let output = support::command(&[".", "--listen", &format!("unix:{}", file.display())])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("a file with this name exists and is no socket"), "{error}");
    assert_eq!(std::fs::read(file).unwrap(), b"text");
}

#[test]
fn a_malformed_address_is_told_with_what_to_write() {
    let output = support::command(&[".", "--listen", "127.0.0.1:x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = error.lines().map(str::trim_start).collect();
    assert_eq!(lines[0], "forebay: --listen 127.0.0.1:x is not an address", "{error}");
    assert!(lines[2].starts_with("help: "), "{error}");
    assert_eq!(lines.len(), 3, "{error}");
}

#[test]
fn curl_decodes_what_is_compressed_on_the_way() {
    if !peer::has(&["curl"]) {
        return;
    }
    let folder = htdocs();
    let text: String = (0..40_000).map(|line| format!("line {line}\n")).collect();
    folder.write("htdocs/long.txt", &text);
    let forebay = site(folder, &format!("{ROUTE}compress = true\n"));
    let url = format!("http://{}/long.txt", forebay.address);
    let sizes = ["--write-out", "%{stderr}%{size_download} %{http_code}"];
    let output = Command::new("curl")
        .args(["--silent", "--compressed", "--noproxy", "*", "--max-time", "20"])
        .args(sizes)
        .arg(url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout == text.as_bytes(), "{} bytes", output.stdout.len());
    let written = String::from_utf8(output.stderr).unwrap();
    let (size, status) = written.split_once(' ').unwrap();
    assert_eq!(status, "200");
    assert!(size.parse::<usize>().unwrap() < text.len() / 2, "{written}");
    forebay.stop();
}
