//! `forebay serve` with files: compressed siblings, several ranges, fallback chains, and files that
//! an application has sent.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Reply;
use forebay_testkit::process::eventually;
use forebay_testkit::scripted::{Backend, Step};
use support::{Forebay, pattern, site};

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
fn the_sibling_that_the_client_likes_best_is_sent() {
    let forebay = compressed();
    for (target, accepts, body, coding) in [
        ("/a.js", "gzip, deflate, br, zstd", "brotli", Some("br")),
        ("/a.js", "gzip, zstd;q=0.9", "gzipped", Some("gzip")),
        ("/a.js", "zstd", "zstandard", Some("zstd")),
        ("/a.js", "br;q=0, *;q=0.1", "zstandard", Some("zstd")),
        ("/a.js", "deflate", "plain script", None),
        ("/a.js", "identity, gzip;q=0.5", "plain script", None),
        ("/a.js", "gzip;q=0", "plain script", None),
        ("/b.css", "br, gzip", "gz style", Some("gzip")),
        ("/c.txt", "br, gzip", "only plain", None),
        ("/", "gzip", "gz page", Some("gzip")),
    ] {
        let reply = forebay.ask(head(target, &format!("Accept-Encoding: {accepts}\r\n")));
        assert_eq!((reply.status, reply.text()), (200, body), "{target} {accepts}");
        assert_eq!(reply.header("Content-Encoding"), coding, "{target} {accepts}");
        assert_eq!(reply.headers_named("Vary"), ["Accept-Encoding"], "{target} {accepts}");
    }
    let js = forebay.get("/a.js");
    let br = forebay.ask(head("/a.js", "Accept-Encoding: br\r\n"));
    assert_eq!(js.header("Content-Type"), br.header("Content-Type"));
    assert_ne!(js.header("ETag"), br.header("ETag"));
    let sibling = forebay.get("/a.js.br");
    assert_eq!((sibling.text(), sibling.header("Content-Encoding")), ("brotli", None));
    forebay.stop();
}

#[test]
fn a_sibling_has_its_own_validators_and_ranges() {
    let forebay = compressed();
    let ask = |fields: String| forebay.ask(head("/a.js", &fields));
    let etag = |fields: &str| ask(fields.into()).header("ETag").unwrap().to_owned();
    let (plain, br) = (etag(""), etag("Accept-Encoding: br\r\n"));
    let same = ask(format!("Accept-Encoding: br\r\nIf-None-Match: {br}\r\n"));
    assert_eq!((same.status, same.header("ETag")), (304, Some(&br[..])));
    assert_eq!(same.header("Vary"), Some("Accept-Encoding"));
    let other = ask(format!("Accept-Encoding: br\r\nIf-None-Match: {plain}\r\n"));
    assert_eq!((other.status, other.text()), (200, "brotli"));
    for (fields, status, body) in [
        ("Range: bytes=0-2\r\n".to_owned(), 206, "pla"),
        (format!("Range: bytes=0-2\r\nIf-Range: {br}\r\n"), 206, "bro"),
        (format!("Range: bytes=0-2\r\nIf-Range: {plain}\r\n"), 206, "pla"),
        ("Range: bytes=0-2\r\nIf-Range: \"x\"\r\n".to_owned(), 200, "plain script"),
    ] {
        let reply = ask(format!("Accept-Encoding: br\r\n{fields}"));
        assert_eq!((reply.status, reply.text()), (status, body), "{fields}");
    }
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

/// The parts of a `multipart/byteranges` body: `Content-Range` and content.
fn parts(reply: &Reply) -> Vec<(String, Vec<u8>)> {
    let kind = reply.header("Content-Type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect(kind);
    let text: String = reply.body.iter().map(|&b| b as char).collect();
    let end = format!("\r\n--{boundary}--\r\n");
    let text = text.strip_suffix(&end).expect("the closing boundary");
    let delimiter = format!("\r\n--{boundary}\r\n");
    let parts = text.split(&delimiter[..]).skip(1);
    parts
        .map(|part| {
            let (head, body) = part.split_once("\r\n\r\n").expect("a part has a head");
            assert!(head.contains("Content-Type: text/plain"), "{head}");
            let (_, range) = head.split_once("Content-Range: ").expect("a range");
            (range.lines().next().unwrap().into(), body.chars().map(|c| c as u8).collect())
        })
        .collect()
}

#[test]
fn several_ranges_are_sent_in_parts() {
    let folder = Folder::new();
    folder.write("htdocs/small.txt", "0123456789");
    let large = pattern(300_000);
    folder.write("htdocs/large.txt", &large);
    let forebay = site(folder, "[[site.route]]\nfiles = \"htdocs\"\n");
    let mut client = forebay.connect();
    client.send(head("/small.txt", "Range: bytes=0-1, -2,4-4\r\n"));
    let reply = client.reply();
    assert_eq!(reply.status, 206);
    assert_eq!(reply.header("Content-Range"), None);
    let expected = [("bytes 0-1/10", "01"), ("bytes 8-9/10", "89"), ("bytes 4-4/10", "4")];
    let expected = expected.map(|(range, body)| (range.to_owned(), body.as_bytes().to_vec()));
    assert_eq!(parts(&reply), expected);
    client.send(head("/large.txt", "Range: bytes=1000-200999,299999-\r\n"));
    let expected = [
        ("bytes 1000-200999/300000".to_owned(), large[1000..201_000].to_vec()),
        ("bytes 299999-299999/300000".to_owned(), large[299_999..].to_vec()),
    ];
    assert_eq!(parts(&client.reply()), expected);
    assert_eq!(client.get("/small.txt").text(), "0123456789", "the connection goes on");
}

#[test]
fn too_many_and_overlapping_ranges_get_the_whole_file() {
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "0123456789");
    let forebay = site(folder, "[[site.route]]\nfiles = \"htdocs\"\n");
    let many = format!("bytes=0-0{}", ",2-2".repeat(1000));
    for (range, status) in [
        ("bytes=0-5,5-6", 200),
        ("bytes=0-,0-,0-,0-,0-", 200),
        (&many[..], 200),
        ("bytes=0-1,,3-4", 200),
        ("bytes=0-1,50-60", 206),
        ("bytes=10-,20-30", 416),
    ] {
        let reply = forebay.ask(head("/a.txt", &format!("Range: {range}\r\n")));
        assert_eq!(reply.status, status);
        match status {
            200 => assert_eq!(reply.text(), "0123456789"),
            206 => assert_eq!(
                (reply.text(), reply.header("Content-Range")),
                ("01", Some("bytes 0-1/10"))
            ),
            _ => assert_eq!(reply.header("Content-Range"), Some("bytes */10")),
        }
    }
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
fn what_is_not_a_file_goes_on_to_the_next_route() {
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
    // A file takes no POST, so the route below is asked; the path is no script of its.
    client.send("POST /a.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.reply().status, 404);
    assert_eq!(client.get("/a.txt").text(), "file");
}

fn sending(name: &str, value: &str, more: &str) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nETag: \"app\"\r\nX-Accel-Buffering: no\r\n\
         Set-Cookie: a=b\r\n{name}: {value}\r\n{more}\r\nunused"
    );
    vec![Step::ReadHead, Step::send(head)]
}

fn store(backend: &Backend, root: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("store/in/a b.txt", "0123456789");
    folder.write("secret.txt", "secret");
    let url = format!("http://127.0.0.1:{}", backend.port());
    site(folder, &format!("[[site.route]]\nproxy = \"{url}\"\n{root}\n"))
}

#[test]
fn a_backend_has_a_file_sent() {
    let mut upload = sending("X-Accel-Redirect", "/in/a%20b.txt", "");
    upload.insert(1, Step::Read(3));
    let backend = Backend::tcp([
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
fn what_is_no_file_to_send_is_an_error_of_its_own() {
    let places = ["/nothing", "/in", "/in/", "/"];
    let own = "Content-Type: text/x-own\r\n";
    let scripts = places.map(|place| sending("X-Accel-Redirect", place, own));
    let backend = Backend::tcp(scripts);
    let mut forebay = store(&backend, "sendfile_root = \"store\"");
    for place in places {
        let reply = forebay.get("/x");
        assert_eq!((reply.status, reply.header("Location")), (404, None), "{place}");
        assert_eq!(reply.headers_named("Content-Type"), ["text/html; charset=utf-8"], "{place}");
        assert_eq!(reply.header("Set-Cookie"), None, "{place}");
    }
    forebay.wait_for_output("no such file, asked for as");
}

#[test]
fn no_file_outside_the_root_is_sent() {
    let bad = ["/etc/passwd", "../secret.txt", "in/../../secret.txt", "/store/../secret.txt", ""];
    let scripts: Vec<_> = bad.iter().map(|name| sending("X-Sendfile", name, "")).collect();
    let backend = Backend::tcp(scripts);
    let mut forebay = store(&backend, "sendfile_root = \"store\"");
    for name in bad {
        let reply = forebay.get("/x");
        assert!(matches!(reply.status, 403 | 404 | 502), "{name}: {}", reply.status);
        assert!(!reply.text().contains("secret"), "{name}");
    }
    forebay.wait_for_output("asked for a file outside");
    let bad = ["/../secret.txt", "/%2e%2e/secret.txt", "/in%2f..%2f..%2fsecret.txt", "http://h/"];
    let scripts: Vec<_> = bad.iter().map(|name| sending("X-Accel-Redirect", name, "")).collect();
    let backend = Backend::tcp(scripts);
    let forebay = store(&backend, "sendfile_root = \"store\"");
    for name in bad {
        let reply = forebay.get("/x");
        assert!(matches!(reply.status, 404 | 502), "{name}: {}", reply.status);
    }
}

#[test]
fn without_the_key_no_file_is_sent() {
    let backend = Backend::tcp([sending("X-Sendfile", "in/a b.txt", "")]);
    let forebay = store(&backend, "");
    let reply = forebay.get("/x");
    assert_eq!((reply.text(), reply.header("X-Sendfile")), ("unused", None));
}

/// nginx keeps the first sort from clients, too.
#[test]
fn what_is_said_to_the_gateway_reaches_no_client() {
    let reply = "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /secret/a\r\nX-Accel-Buffering: no\r\n\
                 x-sendfile: /srv/secret/a\r\nX-Accelerate: 1\r\nContent-Length: 2\r\n\r\nhi";
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(reply)]]);
    let forebay = site(
        Folder::new(),
        &format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", backend.port()),
    );
    let reply = forebay.get("/");
    assert_eq!((reply.status, reply.text()), (200, "hi"));
    for name in ["X-Accel-Redirect", "X-Accel-Buffering", "X-Sendfile"] {
        assert_eq!(reply.header(name), None);
    }
    assert_eq!(reply.header("X-Accelerate"), Some("1"));
    forebay.stop();
}
