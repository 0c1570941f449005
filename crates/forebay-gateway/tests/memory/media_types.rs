//! `types` and `default_type` of files, and `charset` of a route.

use tempfile::TempDir;

use crate::world::{Message, World, in_memory};

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

fn folder() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in ["a.html", "b.FOO", "c.tar.foo", "d.foo.txt", ".foo", "unknown", "e.png", "f.json"]
    {
        std::fs::write(root.path().join(name), "0123456789").unwrap();
    }
    root
}

#[test]
fn own_types_precede_the_built_in_ones_and_longer_ends_come_first() {
    let root = folder();
    let dir = root.path().display();
    let types = "types = { \".foo\" = \"application/x-foo\", \".tar.foo\" = \"application/x-archive\", \
                 \".HTML\" = \"text/html; charset=koi8-r\" }";
    let route = format!(
        "[[site.route]]\npath = \"/*\"\ncharset = \"utf-8\"\n\
         files = {{ root = \"{dir}\", hidden = true, default_type = \"text/plain\", {types} }}\n"
    );
    in_memory(&route, async |world| {
        for (target, kind) in [
            ("/a.html", "text/html; charset=koi8-r"),
            ("/b.FOO", "application/x-foo"),
            ("/c.tar.foo", "application/x-archive"),
            ("/d.foo.txt", "text/plain; charset=utf-8"),
            ("/.foo", "application/x-foo"),
            ("/unknown", "text/plain; charset=utf-8"),
            ("/e.png", "image/png"),
            ("/f.json", "application/json"),
        ] {
            // The first reply reads the file, and the second comes from memory.
            for _ in 0..2 {
                let reply = get(world, target, "").await;
                assert_eq!(
                    (reply.status(), reply.field("content-type")),
                    (200, Some(kind)),
                    "{target}"
                );
                assert_eq!(reply.text(), "0123456789");
            }
        }
    });
}

#[test]
fn files_without_a_type_have_no_content_type() {
    let root = folder();
    let dir = root.path().display();
    let route = format!(
        "[[site.route]]\npath = \"/*\"\ncharset = \"utf-8\"\n\
         files = {{ root = \"{dir}\", default_type = \"\" }}\n"
    );
    in_memory(&route, async |world| {
        let reply = get(world, "/unknown", "").await;
        assert_eq!((reply.status(), reply.field("content-type")), (200, None));
        let reply = get(world, "/unknown", "Range: bytes=0-1,4-5\r\n").await;
        assert_eq!(reply.status(), 206);
        let text = reply.text();
        assert_eq!(text.matches("Content-Range: bytes ").count(), 2, "{text}");
        assert_eq!(text.matches("Content-Type").count(), 0, "{text}");
        assert_eq!(get(world, "/unknown", "Range: bytes=2-3\r\n").await.text(), "23");
    });
}

#[test]
fn texts_of_a_backend_get_the_charset() {
    let route = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\ncharset = \"utf-8\"\n\
                 set_headers = { X-A = \"1\" }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (given, sent) in [
            (Some("text/html"), Some("text/html; charset=utf-8")),
            (Some("text/html;charset=\"latin1\""), Some("text/html;charset=\"latin1\"")),
            (Some("application/octet-stream"), Some("application/octet-stream")),
            (Some("text/html; a=\"x; charset=y\""), Some("text/html; a=\"x; charset=y\"")),
            (None, None),
        ] {
            let field = given.map(|kind| format!("Content-Type: {kind}\r\n")).unwrap_or_default();
            for status in ["200 OK", "404 Not Found"] {
                let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n{field}\r\nok");
                let asked = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
                let (_, reply) = world.pass(&mut backend, asked, reply).await;
                assert_eq!(reply.field("content-type"), sent, "{given:?}");
                assert_eq!(reply.text(), "ok");
            }
        }
    });
}
