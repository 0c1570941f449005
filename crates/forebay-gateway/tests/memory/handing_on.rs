//! Routes that leave a request to others, and backends that name a file to send.

use std::path::Path;

use tempfile::TempDir;

use crate::world::{Message, World, in_memory};

fn folder(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

fn below(root: &Path, routes: &str) -> String {
    routes.replace("ROOT", &root.display().to_string())
}

const CHAIN: &str = "[[site.route]]\npath = \"/*\"\nfallback = true\nfiles = \"ROOT\"\n\
    max_body = 10\n[[site.route]]\npath = \"/app/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
    [[site.route]]\npath = \"/last/*\"\nrespond = \"the end\"\n";

fn chain() -> TempDir {
    folder(&[("a.txt", "file"), ("dir/index.html", "index"), ("bare/b.txt", "b")])
}

#[test]
fn a_request_without_a_file_goes_to_the_next_route() {
    let root = chain();
    in_memory(&below(root.path(), CHAIN), async |world| {
        for (target, status, body) in
            [("/a.txt", 200, "file"), ("/dir/", 200, "index"), ("/last/thing", 200, "the end")]
        {
            let reply = get(world, target, "").await;
            assert_eq!((reply.status(), reply.text()), (status, body), "{target}");
        }
        assert_eq!(get(world, "/dir", "").await.status(), 301);
        for target in ["/missing", "/bare", "/bare/", "/a.txt/"] {
            assert_eq!(get(world, target, "").await.status(), 404, "{target}");
        }
    });
}

#[test]
fn the_body_reaches_the_route_that_takes_it_by_the_limit_of_that() {
    let root = chain();
    in_memory(&below(root.path(), CHAIN), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let post = "POST /app/p HTTP/1.1\r\nHost: h\r\n";
        for (sent, body) in [
            ("Content-Length: 14\r\n\r\nsome body here".to_owned(), "some body here".to_owned()),
            ("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".into(), "abc".into()),
            (format!("Content-Length: 200000\r\n\r\n{}", "x".repeat(200_000)), "x".repeat(200_000)),
        ] {
            let (asked, _) = world.pass(&mut backend, format!("{post}{sent}"), ok).await;
            assert!(asked.text() == body);
        }
        // `files` takes no POST, so the routes below are tried.
        let mut client = world.client();
        client.send("POST /a.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!(client.reply("").await.status(), 404);
        client.send("GET /a.txt HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.reply("").await.text(), "file");
    });
}

#[test]
fn a_single_page_build_answers_for_all_paths_with_its_page() {
    let root = folder(&[("index.html", "<p>page"), ("assets/app.js", "script")]);
    let routes = "[[site.route]]\npath = \"/assets/*\"\nexpires = \"1h\"\n\
                  fallback_to = \"/index.html\"\nfiles = \"ROOT/assets\"\n\
                  [[site.route]]\nfallback_to = \"/index.html\"\nfiles = \"ROOT\"\n";
    in_memory(&below(root.path(), routes), async |world| {
        let page = get(world, "/index.html", "").await;
        for target in ["/", "/deep/link?x=1", "/assets/missing.js", "/index.html/x", "/assets"] {
            let reply = get(world, target, "").await;
            assert_eq!((reply.status(), reply.text()), (200, "<p>page"), "{target}");
            assert!(reply.field("content-type").unwrap().starts_with("text/html"), "{target}");
            assert_eq!(reply.field("etag"), page.field("etag"), "{target}");
            let by_its_route = reply.field("cache-control");
            assert_eq!(by_its_route, None, "by the route of the page: {target}");
        }
        let etag = page.field("etag").unwrap();
        let again = get(world, "/deep/link", &format!("If-None-Match: {etag}\r\n")).await;
        assert_eq!(again.status(), 304);
        let script = get(world, "/assets/app.js", "").await;
        assert_eq!(
            (script.text(), script.field("cache-control")),
            ("script", Some("max-age=3600"))
        );
        let mut client = world.client();
        client.send("HEAD /deep HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.reply("HEAD ").await.field("content-length"), Some("7"));
        client.send("POST /deep HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody").await;
        assert!(matches!(client.reply("").await.status(), 404 | 405));
        client.send("GET /deep HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.reply("").await.text(), "<p>page");
    });
}

#[test]
fn a_front_controller_that_is_not_there_is_no_loop() {
    let root = folder(&[("a/x", "x"), ("b/y", "y")]);
    let routes = "[[site.route]]\npath = \"/a/*\"\nfallback_to = \"/b/none\"\nfiles = \"ROOT/a\"\n\
                  [[site.route]]\npath = \"/b/*\"\nfallback_to = \"/a/none\"\nfiles = \"ROOT/b\"\n\
                  [[site.route]]\npath = \"/self/*\"\nfallback_to = \"/self/none\"\nfiles = \"ROOT/a\"\n";
    in_memory(&below(root.path(), routes), async |world| {
        for target in ["/a/missing", "/b/missing", "/self/missing", "/self/none"] {
            assert_eq!(get(world, target, "").await.status(), 404, "{target}");
        }
        assert_eq!(get(world, "/a/x", "").await.text(), "x");
        assert_eq!(get(world, "/b/y", "").await.text(), "y");
    });
}

#[test]
fn names_that_begin_with_a_dot_are_not_there_unless_hidden_is_true() {
    let root = folder(&[
        (".env", "SECRET=1"),
        (".git/config", "[secret]"),
        ("sub/.htpasswd", "secret"),
        (".well-known/acme", "token"),
        (".well-known/.secret", "secret"),
    ]);
    let routes = "[[site.route]]\npath = \"/all/*\"\nfiles = { root = \"ROOT\", hidden = true }\n\
                  [[site.route]]\npath = \"/*\"\nfiles = { root = \"ROOT\", listing = true }\n";
    in_memory(&below(root.path(), routes), async |world| {
        for hidden in
            [".env", ".git/config", ".git/", ".git", "sub/.htpasswd", ".well-known/.secret"]
        {
            assert_eq!(get(world, &format!("/{hidden}"), "").await.status(), 404, "{hidden}");
            let shown = get(world, &format!("/all/{hidden}"), "").await.status();
            assert!(matches!(shown, 200 | 301 | 403), "{hidden}: {shown}");
        }
        assert_eq!(get(world, "/%2eenv", "").await.status(), 404);
        assert_eq!(get(world, "/.well-known/acme", "").await.text(), "token");
    });
}

const STORE: &str =
    "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\nsendfile_root = \"ROOT/store\"\n";

fn store() -> TempDir {
    folder(&[("store/in/a b.txt", "0123456789"), ("secret.txt", "secret")])
}

/// Returns the client's reply to `request` if the backend answers with this field and `more`.
async fn sent(world: &World, request: &str, field: &str, more: &str) -> Message {
    let reply = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nETag: \"app\"\r\nX-Accel-Buffering: no\r\n\
         Set-Cookie: a=b\r\n{field}\r\n{more}\r\nunused"
    );
    world.pass(&mut world.backend("10.0.0.1:3000"), request, reply).await.1
}

const GET: &str = "GET /download HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn a_backend_has_a_file_sent() {
    let root = store();
    in_memory(&below(root.path(), STORE), async |world| {
        let accel = "X-Accel-Redirect: /in/a%20b.txt?x";
        let plain = sent(world, GET, accel, "").await;
        assert_eq!((plain.status(), plain.text()), (200, "0123456789"));
        assert!(plain.field("content-type").unwrap().starts_with("text/plain"));
        assert_eq!(plain.field("set-cookie"), Some("a=b"));
        assert_ne!(plain.field("etag"), Some("\"app\""));
        assert_eq!(plain.values("etag").len(), 1);
        for hidden in ["x-accel-redirect", "x-accel-buffering"] {
            assert_eq!(plain.field(hidden), None);
        }
        let range = GET.replace("Host", "Range: bytes=2-3\r\nHost");
        let own = "Content-Type: text/x-own\r\n";
        let part = sent(world, &range, "x-sendfile: in/a b.txt", own).await;
        assert_eq!((part.status(), part.text()), (206, "23"));
        assert_eq!(part.values("content-type"), ["text/x-own"]);
        let etag = plain.field("etag").unwrap();
        let condition = GET.replace("Host", &format!("If-None-Match: {etag}\r\nHost"));
        assert_eq!(sent(world, &condition, "X-Sendfile: in/a b.txt", "").await.status(), 304);
        let post = "POST /download HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(sent(world, post, accel, "").await.text(), "0123456789");
    });
}

#[test]
fn a_file_that_cannot_be_sent_is_a_separate_error() {
    let root = store();
    in_memory(&below(root.path(), STORE), async |world| {
        for place in ["/nothing", "/in", "/in/", "/"] {
            let field = format!("X-Accel-Redirect: {place}");
            let reply = sent(world, GET, &field, "Content-Type: text/x-own\r\n").await;
            assert_eq!((reply.status(), reply.field("location")), (404, None), "{place}");
            assert_eq!(reply.values("content-type"), ["text/html; charset=utf-8"], "{place}");
            assert_eq!(reply.field("cache-control"), None, "{place}");
        }
        let errors = world.errors();
        assert!(
            errors.iter().any(|e| e.contains("no file \"nothing\", asked for as")),
            "{errors:?}"
        );
    });
}

#[test]
fn no_file_outside_the_root_is_sent() {
    let root = store();
    in_memory(&below(root.path(), STORE), async |world| {
        for name in
            ["/etc/passwd", "../secret.txt", "in/../../secret.txt", "/store/../secret.txt", ""]
        {
            let reply = sent(world, GET, &format!("X-Sendfile: {name}"), "").await;
            assert!(matches!(reply.status(), 403 | 404 | 502), "{name}: {}", reply.status());
            assert!(!reply.text().contains("secret"), "{name}");
        }
        let errors = world.errors();
        assert!(errors.iter().any(|e| e.contains("asked for a file outside")), "{errors:?}");
        for name in
            ["/../secret.txt", "/%2e%2e/secret.txt", "/in%2f..%2f..%2fsecret.txt", "http://h/"]
        {
            let reply = sent(world, GET, &format!("X-Accel-Redirect: {name}"), "").await;
            assert!(matches!(reply.status(), 404 | 502), "{name}: {}", reply.status());
        }
    });
}

#[test]
fn without_the_key_no_file_is_sent() {
    let root = store();
    let route = STORE.lines().take(2).collect::<Vec<_>>().join("\n");
    in_memory(&below(root.path(), &route), async |world| {
        let reply = sent(world, GET, "X-Sendfile: in/a b.txt", "").await;
        assert_eq!((reply.text(), reply.field("x-sendfile")), ("unused", None));
    });
}
