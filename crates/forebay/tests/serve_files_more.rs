//! `forebay serve` with files: compressed siblings, several ranges, fallback chains, and files that
//! an application names for sending.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use support::{Forebay, site};

fn head(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
}

fn compressed() -> Forebay {
    let folder = Folder::new();
    folder.write("htdocs/a.js", "plain script");
    folder.write("htdocs/a.js.br", "brotli");
    folder.write("htdocs/a.js.zst", "zstandard");
    folder.write("htdocs/a.js.gz", "gzipped");
    folder.write("htdocs/b.css", "plain style");
    folder.write("htdocs/b.css.gz", "gz style");
    folder.write("htdocs/c.txt", "only plain");
    folder.write("htdocs/index.html", "plain page");
    folder.write("htdocs/index.html.gz", "gz page");
    let route = "[[site.route]]\nfiles = { root = \"htdocs\", precompressed = true }\n";
    site(folder, route)
}

#[test]
fn a_sibling_that_comes_and_goes_is_noticed() {
    let forebay = compressed();
    let ask = || forebay.ask(head("/c.txt", "Accept-Encoding: gzip\r\n")).body;
    assert_eq!(ask(), b"only plain");
    let file = forebay.folder.write("htdocs/c.txt.gz", "squeezed");
    assert!(eventually(|| ask() == b"squeezed"));
    std::fs::remove_file(file).unwrap();
    assert!(eventually(|| ask() == b"only plain"));
}

const ECHO: &str = "#!/bin/sh\necho Content-Type: text/plain\necho\n\
    echo \"$REQUEST_METHOD $PATH_INFO $CONTENT_TYPE $CONTENT_LENGTH\"\ncat\n";

fn chain() -> Forebay {
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "file");
    folder.write("htdocs/dir/index.html", "index");
    folder.write("htdocs/bare/b.txt", "b");
    folder.script("cgi/app.sh", ECHO);
    let routes = "
        [[site.route]]
        path = \"/*\"
        fallback = true
        files = \"htdocs\"
        max_body = 10
        [[site.route]]
        path = \"/app.sh/*\"
        fallback = true
        cgi = \"nowhere\"
        [[site.route]]
        path = \"/*\"
        fallback = true
        cgi = \"cgi\"
        [[site.route]]
        path = \"/last/*\"
        respond = \"the end\"
    ";
    std::fs::create_dir(folder.path().join("nowhere")).unwrap();
    site(folder, routes)
}

#[test]
fn a_request_without_a_file_goes_to_the_next_route() {
    let forebay = chain();
    let mut client = forebay.connect();
    for (target, status, body) in [
        ("/a.txt", 200, "file"),
        ("/dir/", 200, "index"),
        ("/app.sh/x", 200, "GET /x  \n"),
        ("/last/thing", 200, "the end"),
    ] {
        let reply = client.get(target);
        assert_eq!((reply.status, reply.text()), (status, body), "{target}");
    }
    assert_eq!(client.get("/dir").status, 301);
    for target in ["/missing", "/bare", "/bare/", "/a.txt/"] {
        assert_eq!(client.get(target).status, 404, "{target}");
    }
    forebay.stop();
}

#[test]
fn the_body_reaches_the_route_that_takes_it() {
    let forebay = chain();
    let mut client = forebay.connect();
    let post = |framing: &str, body: &str| {
        format!(
            "POST /app.sh/p HTTP/1.1\r\nHost: h\r\nContent-Type: t/x\r\n{framing}\r\n\r\n{body}"
        )
    };
    client.send(post("Content-Length: 14", "some body here"));
    assert_eq!(client.reply().text(), "POST /p t/x 14\nsome body here");
    client.send(post("Transfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n"));
    assert_eq!(client.reply().text(), "POST /p t/x 3\nabc");
    let large = String::from_utf8(vec![b'x'; 200_000]).unwrap();
    client.send(post(&format!("Content-Length: {}", large.len()), &large));
    assert_eq!(client.reply().text(), format!("POST /p t/x 200000\n{large}"));
    // A file accepts no POST, so the route below gets the request. The path is none of its scripts.
    client.send("POST /a.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.reply().status, 404);
    assert_eq!(client.get("/a.txt").text(), "file");
}

fn sending(name: &str, value: &str, more: &str) -> Vec<ScriptStep> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nETag: \"app\"\r\nX-Accel-Buffering: no\r\n\
         Set-Cookie: a=b\r\n{name}: {value}\r\n{more}\r\nunused"
    );
    vec![ScriptStep::ReadHead, ScriptStep::send(head)]
}

fn store(backend: &ScriptedBackend, root: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("store/in/a b.txt", "0123456789");
    folder.write("secret.txt", "secret");
    let url = format!("http://127.0.0.1:{}", backend.port());
    site(folder, &format!("[[site.route]]\nproxy = \"{url}\"\n{root}\n"))
}

#[test]
fn a_backend_has_a_file_sent() {
    let mut upload = sending("X-Accel-Redirect", "/in/a%20b.txt", "");
    upload.insert(1, ScriptStep::Read(3));
    let backend = ScriptedBackend::tcp([
        sending("X-Accel-Redirect", "/in/a%20b.txt?x", ""),
        sending("x-sendfile", "in/a b.txt", "Content-Type: text/x-own\r\n"),
        sending("X-Sendfile", "in/a b.txt", ""),
        upload,
    ]);
    let forebay = store(&backend, "sendfile_root = \"store\"");
    let plain = forebay.get("/download");
    assert_eq!((plain.status, plain.text()), (200, "0123456789"));
    assert!(plain.header("Content-Type").unwrap().starts_with("text/plain"));
    assert_eq!(plain.header("Set-Cookie"), Some("a=b"));
    assert_ne!(plain.header("ETag"), Some("\"app\""));
    assert_eq!(plain.headers_named("ETag").len(), 1);
    for hidden in ["X-Accel-Redirect", "X-Accel-Buffering"] {
        assert_eq!(plain.header(hidden), None);
    }
    let part = forebay.ask(head("/download", "Range: bytes=2-3\r\n"));
    assert_eq!((part.status, part.text()), (206, "23"));
    assert_eq!(part.headers_named("Content-Type"), ["text/x-own"]);
    let etag = plain.header("ETag").unwrap();
    let same = forebay.ask(head("/download", &format!("If-None-Match: {etag}\r\n")));
    assert_eq!(same.status, 304);
    let mut client = forebay.connect();
    client.send("POST /download HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.reply().text(), "0123456789");
    backend.finish();
}

#[test]
fn no_file_outside_the_root_is_sent() {
    let bad = ["/etc/passwd", "../secret.txt", "in/../../secret.txt", "/store/../secret.txt", ""];
    let scripts: Vec<_> = bad.iter().map(|name| sending("X-Sendfile", name, "")).collect();
    let backend = ScriptedBackend::tcp(scripts);
    let mut forebay = store(&backend, "sendfile_root = \"store\"");
    for name in bad {
        let reply = forebay.get("/x");
        assert!(matches!(reply.status, 403 | 404 | 502), "{name}: {}", reply.status);
        assert!(!reply.text().contains("secret"), "{name}");
    }
    forebay.wait_for_output("asked for a file outside");
    let bad = ["/../secret.txt", "/%2e%2e/secret.txt", "/in%2f..%2f..%2fsecret.txt", "http://h/"];
    let scripts: Vec<_> = bad.iter().map(|name| sending("X-Accel-Redirect", name, "")).collect();
    let backend = ScriptedBackend::tcp(scripts);
    let forebay = store(&backend, "sendfile_root = \"store\"");
    for name in bad {
        let reply = forebay.get("/x");
        assert!(matches!(reply.status, 404 | 502), "{name}: {}", reply.status);
    }
}
