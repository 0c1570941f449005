//! Compressed replies: the clients that get them, the replies that are compressed, and the changes
//! of heads. The encoders' own libraries decode them here, and curl decodes one in
//! `crates/forebay/tests`.

use std::io::Read;

use tempfile::TempDir;

use crate::world::{Backend, Message, World, in_memory};

const ROUTE: &str =
    "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\ncompress = true\n";

fn text(length: usize) -> String {
    let mut text: String = (0..length).map(|n| format!("line {} of it\n", n * n % 977)).collect();
    text.truncate(length);
    text
}

fn decode(coding: &str, bytes: &[u8]) -> String {
    let mut decoded = Vec::new();
    match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut decoded).map(drop),
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut decoded).map(drop),
        "zstd" => zstd::stream::copy_decode(bytes, &mut decoded),
        other => panic!("{other} is no coding"),
    }
    .unwrap();
    String::from_utf8(decoded).unwrap()
}

fn request(method: &str, accepted: &str) -> String {
    format!("{method} / HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {accepted}\r\n\r\n")
}

/// Returns a backend's reply with these field lines.
fn reply(lines: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{lines}\r\n{body}", body.len())
}

async fn pass(world: &World, backend: &mut Backend, accepted: &str, reply: String) -> Message {
    world.pass(backend, request("GET", accepted), reply).await.1
}

#[test]
fn each_coding_decodes_to_what_the_backend_sent() {
    in_memory(ROUTE, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (accepted, coding) in [
            ("gzip, deflate, br, zstd", "zstd"),
            ("gzip, br", "br"),
            ("gzip", "gzip"),
            ("zstd;q=0.1, gzip;q=0.2", "gzip"),
            ("*;q=0.5, zstd;q=0", "br"),
            ("identity;q=0, gzip", "gzip"),
        ] {
            for length in [512, 20_000, 400_000] {
                let text = text(length);
                let lines = "Content-Type: text/html; charset=utf-8\r\nETag: \"v1\"\r\n\
                             Accept-Ranges: bytes\r\nVary: Cookie\r\n";
                let got = pass(world, &mut backend, accepted, reply(lines, &text)).await;
                assert_eq!(got.values("content-encoding"), [coding], "{accepted}");
                assert_eq!(got.values("vary"), ["Cookie", "Accept-Encoding"]);
                assert_eq!(got.field("etag"), Some("W/\"v1\""));
                assert_eq!((got.field("content-length"), got.field("accept-ranges")), (None, None));
                assert!(decode(coding, &got.body) == text, "{accepted} {length}");
                assert!(got.body.len() < length / 2, "{accepted} {length}: {}", got.body.len());
            }
        }
    });
}

#[test]
fn clients_that_accept_no_coding_get_the_plain_reply() {
    in_memory(ROUTE, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let text = text(3_000);
        for accepted in ["identity", "gzip;q=0", "*;q=0", "deflate", "gzip;q=0.1, identity;q=0.5"] {
            let sent = reply("Content-Type: text/html\r\nETag: \"v1\"\r\n", &text);
            let got = pass(world, &mut backend, accepted, sent).await;
            assert_eq!(got.field("content-encoding"), None, "{accepted}");
            assert_eq!(got.values("vary"), ["Accept-Encoding"], "a cache has to know");
            assert_eq!((got.field("etag"), got.text()), (Some("\"v1\""), &*text));
            assert_eq!(got.field("content-length"), Some("3000"));
        }
        let old = "GET / HTTP/1.0\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n";
        let sent = reply("Content-Type: text/html\r\n", &text);
        let (_, got) = world.pass(&mut backend, old, sent).await;
        assert_eq!((got.field("content-encoding"), got.text()), (None, &*text));
    });
}

#[test]
fn replies_that_gain_nothing_or_must_not_change_are_left_alone() {
    in_memory(ROUTE, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let text = text(3_000);
        for lines in [
            "Content-Type: image/png\r\n",
            "",
            "Content-Type: text/html\r\nContent-Encoding: br\r\n",
            "Content-Type: text/html\r\nCache-Control: public, no-transform\r\n",
        ] {
            let got = pass(world, &mut backend, "gzip", reply(lines, &text)).await;
            assert!(got.field("content-encoding").is_none_or(|coding| coding == "br"), "{lines}");
            assert_eq!((got.field("vary"), got.text()), (None, &*text), "{lines}");
        }
        let small = reply("Content-Type: text/html\r\n", &text[..511]);
        let got = pass(world, &mut backend, "gzip", small).await;
        assert_eq!((got.field("content-encoding"), got.body.len()), (None, 511));
        let part = reply("Content-Type: text/html\r\nContent-Range: bytes 0-2999/9000\r\n", &text);
        let part = part.replace("200 OK", "206 Partial Content");
        let got = pass(world, &mut backend, "gzip", part).await;
        assert_eq!((got.status(), got.field("content-encoding"), got.text()), (206, None, &*text));
        assert_eq!(got.field("vary"), Some("Accept-Encoding"), "others get it compressed");
        let part = reply("Content-Type: image/png\r\nContent-Range: bytes 0-2999/9000\r\n", &text);
        let part = part.replace("200 OK", "206 Partial Content");
        let got = pass(world, &mut backend, "gzip", part).await;
        assert_eq!((got.status(), got.field("vary")), (206, None));
        for status in ["204 No Content", "304 Not Modified"] {
            let sent =
                format!("HTTP/1.1 {status}\r\nContent-Type: text/html\r\nETag: \"v\"\r\n\r\n");
            let got = pass(world, &mut backend, "gzip", sent).await;
            assert_eq!((got.field("content-encoding"), got.body.len()), (None, 0));
            assert_eq!(got.field("vary").is_some(), status.starts_with("304"), "{status}");
        }
    });
}

#[test]
fn the_reply_to_head_has_the_head_of_the_reply_to_get() {
    in_memory(ROUTE, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let lines =
            "Content-Type: text/css\r\nETag: \"v\"\r\nDate: Sun, 22 Nov 2026 10:00:00 GMT\r\n";
        let text = text(3_000);
        let get = pass(world, &mut backend, "br", reply(lines, &text)).await;
        let sent = reply(lines, "").replace("Content-Length: 0", "Content-Length: 3000");
        let (_, head) = world.pass(&mut backend, request("HEAD", "br"), sent).await;
        let fields = |message: &Message| -> Vec<_> {
            let kept = message.fields.iter().filter(|(name, _)| name != "transfer-encoding");
            kept.cloned().collect()
        };
        assert_eq!(fields(&head), fields(&get));
        assert_eq!(
            (head.field("content-encoding"), head.field("content-length")),
            (Some("br"), None)
        );
    });
}

#[test]
fn clients_read_parts_of_a_reply_before_its_end() {
    for coding in ["gzip", "br", "zstd"] {
        in_memory(ROUTE, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send(request("GET", coding)).await;
            let mut connection = backend.accept().await;
            connection.request().await;
            connection
                .send(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                     Transfer-Encoding: chunked\r\n\r\n",
                )
                .await;
            let head = client.head().await.unwrap();
            assert_eq!(head.field("content-encoding"), Some(coding));
            let mut body = Vec::new();
            for number in 0..3 {
                connection.send(format!("9\r\nevent {number}\n\n\r\n")).await;
                let size = usize::from_str_radix(&client.line().await.unwrap(), 16).unwrap();
                body.extend(client.exactly(size + 2).await.unwrap());
                body.truncate(body.len() - 2);
                let read = prefix(coding, &body);
                assert_eq!(read.matches("event").count(), number + 1, "{coding}: {read:?}");
            }
        });
    }
}

/// Returns a decoder's output for a body that has not ended.
fn prefix(coding: &str, bytes: &[u8]) -> String {
    let mut reader: Box<dyn Read> = match coding {
        "gzip" => Box::new(flate2::read::GzDecoder::new(bytes)),
        "br" => Box::new(brotli::Decompressor::new(bytes, 4096)),
        _ => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
    };
    let (mut decoded, mut piece) = (Vec::new(), [0; 256]);
    while let Ok(count @ 1..) = reader.read(&mut piece) {
        decoded.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(decoded).unwrap()
}

#[test]
fn a_reply_that_breaks_off_is_cut_off_compressed_as_well() {
    in_memory(ROUTE, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for accepted in ["gzip", "br", "zstd"] {
            let sent =
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 99999\r\n\r\n";
            let sent = sent.to_owned() + &text(90_000);
            let (_, got) = world.try_pass(&mut backend, request("GET", accepted), sent).await;
            assert!(got.is_err(), "{accepted}: {got:?}");
        }
        let got =
            pass(world, &mut backend, "gzip", reply("Content-Type: text/html\r\n", &text(999)));
        assert_eq!(decode("gzip", &got.await.body), text(999));
    });
}

#[test]
fn a_redirect_or_error_of_the_gateway_is_not_compressed() {
    in_memory(ROUTE, async |world| {
        let got = world.ask(&request("GET", "gzip")).await;
        assert_eq!((got.status(), got.field("content-encoding")), (502, None));
        assert!(got.text().contains("502"));
    });
}

#[test]
fn a_route_says_what_is_compressed_and_how() {
    let route = ROUTE.replace(
        "true",
        "{ algorithms = [\"br\", \"gzip\"], types = [\"application/*\"], min_size = \"10\", \
         levels = { br = 0, gzip = 9 } }",
    );
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (kind, accepted, coding) in [
            ("application/pdf", "gzip, br, zstd", Some("br")),
            ("application/pdf", "gzip", Some("gzip")),
            ("application/pdf", "zstd", None),
            ("text/html", "br", None),
        ] {
            let sent = reply(&format!("Content-Type: {kind}\r\n"), "0123456789");
            let got = pass(world, &mut backend, accepted, sent).await;
            assert_eq!(got.field("content-encoding"), coding, "{kind} {accepted}");
            let body =
                coding.map_or_else(|| got.text().to_owned(), |coding| decode(coding, &got.body));
            assert_eq!(body, "0123456789");
        }
    });
}

fn files(keys: &str) -> (TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("small.txt"), text(2_000)).unwrap();
    std::fs::write(root.path().join("large.txt"), text(300_000)).unwrap();
    std::fs::write(root.path().join("large.txt.gz"), "a sibling").unwrap();
    std::fs::write(root.path().join("monotonous.txt"), "x".repeat(8 << 20)).unwrap();
    let path = root.path().display();
    let fixed = "[[site.route]]\npath = \"/fixed\"\nrespond = \"fixed\"\n";
    let files = format!("files = {{ root = \"{path}\"{keys} }}\ncompress = true\n");
    let route = format!("{fixed}[[site.route]]\npath = \"/*\"\n{files}");
    (root, route)
}

async fn get(world: &World, path: &str, fields: &str) -> Message {
    world.ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn files_are_compressed_and_their_parts_are_not() {
    let (_root, route) = files("");
    in_memory(&route, async |world| {
        for (path, length) in [("/small.txt", 2_000), ("/large.txt", 300_000)] {
            for _ in 0..2 {
                let got = get(world, path, "Accept-Encoding: gzip\r\n").await;
                assert!(decode("gzip", &got.body) == text(length), "{path}");
                // A file in memory is compressed before its head is sent.
                let known = (path == "/small.txt").then(|| got.body.len().to_string());
                assert_eq!(got.field("content-length"), known.as_deref(), "{path}");
                assert_eq!(got.field("transfer-encoding").is_none(), known.is_some(), "{path}");
                let etag = got.field("etag").unwrap();
                assert!(etag.starts_with("W/\""), "{etag}");
                let fields = format!("Accept-Encoding: gzip\r\nIf-None-Match: {etag}\r\n");
                let again = get(world, path, &fields).await;
                assert_eq!((again.status(), again.field("vary")), (304, Some("Accept-Encoding")));
            }
            let fields = "Accept-Encoding: gzip\r\nRange: bytes=10-19\r\n";
            let part = get(world, path, fields).await;
            assert_eq!((part.status(), part.field("content-encoding")), (206, None));
            assert_eq!(part.text(), &text(20)[10..]);
            assert_eq!(part.values("vary"), ["Accept-Encoding"]);
            let parts = get(world, path, "Range: bytes=0-1,10-19\r\n").await;
            assert_eq!((parts.status(), parts.values("vary")), (206, vec!["Accept-Encoding"]));
        }
    });
}

#[test]
fn a_sibling_that_was_compressed_beforehand_is_preferred() {
    let (_root, route) = files(", precompressed = true");
    in_memory(&route, async |world| {
        let got = get(world, "/large.txt", "Accept-Encoding: gzip\r\n").await;
        assert_eq!((got.field("content-encoding"), got.text()), (Some("gzip"), "a sibling"));
        assert_eq!(got.values("vary"), ["Accept-Encoding"]);
        let got = get(world, "/large.txt", "Accept-Encoding: br\r\n").await;
        assert_eq!(got.values("vary"), ["Accept-Encoding"]);
        assert!(decode("br", &got.body) == text(300_000), "no sibling has this coding");
    });
}

#[test]
fn others_are_answered_while_a_large_reply_is_compressed() {
    let (_root, route) = files("");
    in_memory(&route, async |world| {
        for coding in ["gzip", "br", "zstd"] {
            let answered = std::cell::Cell::new(false);
            let large = async {
                // The compressed reply is smaller than the amount that the gateway gathers before a
                // write.
                let fields = format!("Accept-Encoding: {coding}\r\n");
                let got = get(world, "/monotonous.txt", &fields).await;
                assert!(answered.get(), "{coding}: the other request waits for all of the reply");
                assert_eq!(decode(coding, &got.body).len(), 8 << 20);
            };
            let small = async {
                assert_eq!(get(world, "/fixed", "").await.text(), "fixed");
                answered.set(true);
            };
            tokio::join!(large, small);
        }
    });
}
