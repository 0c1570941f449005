//! `replace`: the replies whose texts change, and the visitors that get the values.

use std::io::Read;

use tempfile::TempDir;

use crate::application::Application;
use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

fn route(keys: &str) -> String {
    format!("[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n{keys}\n")
}

fn page(lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n{lines}\r\n{body}"
    )
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn texts_change_in_pages_of_a_backend() {
    let keys = "replace = { texts = { \"http://old\" = \"https://{host}\", \"</p>\" = \"\" } }";
    in_memory(&route(keys), async |world| {
        let lines = "ETag: \"a\"\r\nLast-Modified: x\r\nAccept-Ranges: bytes\r\n";
        let body = "<a href=http://old/x>http://old</p>http://ol".repeat(3_000);
        let expected = "<a href=https://h/x>https://hhttp://ol".repeat(3_000);
        let _application = Application::start(world, move |request, _| {
            assert_eq!(request.field("accept-encoding"), None);
            page(lines, &body)
        });
        let reply = get(world, "/", "Accept-Encoding: gzip\r\n").await;
        assert!(reply.text() == expected);
        for name in ["content-length", "etag", "last-modified", "accept-ranges", "cache-control"] {
            assert_eq!(reply.field(name), None, "{name}");
        }
        assert_eq!(reply.field("transfer-encoding"), Some("chunked"));
        let head = world.ask("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(
            (head.status(), head.field("content-length"), head.field("etag")),
            (200, None, None)
        );
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/");
        let reply = client.reply(stream).await;
        assert_eq!((reply.field("content-length"), reply.field("etag")), (None, None));
        assert!(
            reply.text() == expected.replace("https://h", "https://a.example"),
            "{:.200}",
            reply.text()
        );
    });
}

#[test]
fn other_replies_stay_as_they_are() {
    let keys = "replace = { texts = { a = \"b\" }, last_modified = true }";
    in_memory(&route(keys), async |world| {
        let _application = Application::start(world, |request, _| {
            let path = request.start.split(' ').nth(1).unwrap();
            let html = "Content-Type: text/html\r\n";
            let (status, lines, body) = match path {
                "/png" => ("200 OK", "Content-Type: image/png\r\n".to_owned(), "a"),
                "/gzip" => ("200 OK", format!("{html}Content-Encoding: gzip\r\n"), "a"),
                "/part" => {
                    let range = "Content-Range: bytes 0-0/9\r\n";
                    ("206 Partial Content", format!("{html}{range}"), "a")
                }
                "/same" => ("304 Not Modified", String::new(), ""),
                "/none" => ("204 No Content", String::new(), ""),
                _ => ("200 OK", html.to_owned(), ""),
            };
            let length = match status {
                "304 Not Modified" | "204 No Content" => String::new(),
                _ => format!("Content-Length: {}\r\n", body.len()),
            };
            format!("HTTP/1.1 {status}\r\n{lines}{length}ETag: \"a\"\r\n\r\n{body}")
        });
        for target in ["/png", "/gzip", "/part", "/same", "/none", "/empty"] {
            let reply = get(world, target, "").await;
            assert!(["a", ""].contains(&reply.text()), "{target}");
            assert!(reply.values("etag").contains(&"\"a\""), "{target}");
        }
        let errors = world.errors().join("\n");
        assert!(errors.contains("Content-Encoding"), "{errors}");
    });
}

#[test]
fn values_of_a_visitor_are_escaped_and_never_stored() {
    let keys = "cache = true\nreplace = { texts = { NAME = \"{query.name}\", AGENT = \"{header.X-Me}\" } }";
    in_memory(&route(keys), async |world| {
        let application = Application::start(world, |_, number| {
            page("Cache-Control: max-age=60\r\n", &format!("{number}: NAME AGENT"))
        });
        let one = get(world, "/?name=%3Cscript%3E&NAME", "X-Me: \"'&NAME\r\n").await;
        assert_eq!(one.text(), "1: &lt;script&gt; &quot;&#39;&amp;NAME");
        assert_eq!(one.values("cache-control"), ["max-age=60", "private"]);
        // The stored reply has the texts of the origin, so that each visitor gets their own values.
        let two = get(world, "/?name=%3Cscript%3E&NAME", "X-Me: two\r\n").await;
        assert_eq!(two.text(), "1: &lt;script&gt; two");
        assert_eq!(two.field("cache-status"), Some("forebay; hit; ttl=60"));
        assert_eq!(application.asked(), 1);
        let none = get(world, "/?name=%3Cscript%3E&NAME", "").await;
        assert_eq!(none.text(), "1: &lt;script&gt; ");
    });
}

#[test]
fn files_change_in_every_slice_and_are_compressed_afterwards() {
    let root = TempDir::new().unwrap();
    let text = "<title>Old site</title>".repeat(20_000);
    std::fs::write(root.path().join("a.html"), &text).unwrap();
    std::fs::write(root.path().join("a.html.gz"), "not for this route").unwrap();
    std::fs::write(root.path().join("a.css"), "Old site").unwrap();
    std::fs::write(root.path().join("small.html"), "Old site, old site, Old site").unwrap();
    let dir = root.path().display();
    let keys = "replace = { texts = { \"old site\" = \"New\" }, ignore_case = true, once = true }\n\
                compress = true\n[[site.route]]\npath = \"/all/*\"\nreplace = { texts = { \"Old \" = \"\" } }\n";
    let files = format!("{{ root = \"{dir}\", precompressed = true }}");
    let (first, second) = keys.split_once("[[site.route]]").unwrap();
    let route = format!(
        "[[site.route]]{second}rewrite = \"/{{rest}}\"\nfiles = {files}\n[[site.route]]\nfiles = {files}\n{first}"
    );
    in_memory(&route, async |world| {
        let reply = get(world, "/a.html", "Accept-Encoding: gzip\r\n").await;
        assert_eq!(reply.field("content-encoding"), Some("gzip"));
        let mut decoded = String::new();
        flate2::read::GzDecoder::new(&reply.body[..]).read_to_string(&mut decoded).unwrap();
        assert!(decoded == text.replacen("Old site", "New", 1));
        let all = get(world, "/all/a.html", "").await;
        assert!(all.text() == text.replace("Old ", ""));
        assert_eq!(get(world, "/small.html", "").await.text(), "New, old site, Old site");
        assert_eq!(get(world, "/a.css", "").await.text(), "Old site");
        // The range refers to the changed page, so it is ignored.
        let part = get(world, "/small.html", "Range: bytes=0-2\r\nIf-None-Match: *\r\n").await;
        assert_eq!((part.status(), part.text()), (200, "New, old site, Old site"));
        let part = get(world, "/a.css", "Range: bytes=0-2\r\n").await;
        assert_eq!((part.status(), part.text()), (206, "Old"));
        // Pages of Forebay itself do not change.
        assert_eq!(get(world, "/missing.html", "").await.status(), 404);
    });
}

#[test]
fn a_reply_that_is_cut_off_does_not_look_complete() {
    in_memory(&route("replace = { texts = { a = \"b\" } }"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let mut peer = backend.accept().await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\naaa")
            .await;
        drop(peer);
        let (bytes, _) = client.rest().await;
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("\r\n0\r\n\r\n"), "{text}");
    });
}
