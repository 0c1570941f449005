//! `error_pages`, `intercept`, `maintenance` and `cors`.

use tempfile::TempDir;

use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

fn pages() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        (
            "404.html",
            "<style>a{color:red}</style><p>{status} {reason}: {path} {query.q} {header.X-A}",
        ),
        ("5xx.html", "sorry {status}"),
        ("own.json", "{\"status\": {status}, \"path\": \"{query.q}\"}"),
        ("plain.txt", "{path}"),
        ("closed.html", "<h1>closed</h1>"),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn site(dir: &TempDir, text: &str) -> String {
    let text = text.replace("DIR", &dir.path().display().to_string());
    format!("[[site]]\nlisten = \"127.0.0.1:80\"\n{text}")
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

const PAGES: &str = "error_pages = { 404 = \"DIR/404.html\", \"5xx\" = \"DIR/5xx.html\" }\n";

#[test]
fn errors_of_forebay_get_the_pages_of_route_and_site() {
    let dir = pages();
    let routes = "[[site.route]]\npath = \"/files/*\"\nfiles = \"DIR\"\nset_headers = { X-A = \"1\" }\n\
                  [[site.route]]\npath = \"/json/*\"\nfiles = \"DIR\"\n\
                  error_pages = { \"4xx\" = \"DIR/own.json\" }\n\
                  [[site.route]]\npath = \"/down\"\nproxy = \"http://10.0.0.1:3000\"\n\
                  [[site.route]]\npath = \"/denied\"\nallow = [\"10.0.0.0/8\"]\nrespond = \"x\"\n\
                  error_pages = { 403 = \"DIR/plain.txt\" }\n\
                  [[site.route]]\npath = \"/fixed\"\nrespond = { status = 404 }\n\
                  [[site.route]]\npath = \"/text\"\nrespond = { status = 404, body = \"own\" }\n";
    in_memory(&site(&dir, &format!("{PAGES}{routes}")), async |world| {
        let style = "<style>a{color:red}</style><p>404 Not Found: ";
        for (target, status, kind, text) in [
            ("/files/none", 404, "text/html; charset=utf-8", &*format!("{style}/files/none  ")),
            ("/nowhere", 404, "text/html; charset=utf-8", &format!("{style}/nowhere  ")),
            ("/fixed", 404, "text/html; charset=utf-8", &format!("{style}/fixed  ")),
            ("/text", 404, "text/plain; charset=utf-8", "own"),
            ("/down", 502, "text/html; charset=utf-8", "sorry 502"),
            ("/denied", 403, "text/plain; charset=utf-8", "/denied"),
            (
                "/json/none?q=%22%0a",
                404,
                "application/json",
                "{\"status\": 404, \"path\": \"\\u0022\\u000a\"}",
            ),
        ] {
            let reply = get(world, target, "").await;
            assert_eq!((reply.status(), reply.text()), (status, text), "{target}");
            assert_eq!(reply.field("content-type"), Some(kind), "{target}");
            assert_eq!(reply.field("x-a"), None, "{target}");
        }
        let evil = get(world, "/none?q=%3Cscript%3E", "X-A: \"><script>\r\n").await;
        assert!(evil.text().ends_with("/none &lt;script&gt; &quot;&gt;&lt;script&gt;"));
        let mut client = world.client();
        client.send("HEAD /files/none HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let head = client.reply("HEAD ").await;
        assert_eq!((head.status(), head.field("content-length")), (404, Some("58")));
        client.send("GET /files/plain.txt HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.reply("GET").await.text(), "{path}");
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/down");
        let reply = client.reply(stream).await;
        assert_eq!((reply.status, reply.text()), (502, "sorry 502"));
    });
}

#[test]
fn errors_of_backends_are_replaced_only_if_the_route_says_so() {
    let dir = pages();
    let routes = "[[site.route]]\npath = \"/kept/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
                  [[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\nintercept = true\n\
                  set_headers = { X-Always = { value = \"1\", always = true } }\n";
    in_memory(&site(&dir, &format!("{PAGES}{routes}")), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let reply = |status: &str, fields: &str| {
            format!("HTTP/1.1 {status}\r\n{fields}Content-Length: 7\r\n\r\nsecrets")
        };
        let down = reply("500 Oops", "Retry-After: 9\r\nX-Trace: secret\r\nSet-Cookie: a=b\r\n");
        let (_, kept) = world.pass(&mut backend, get("/kept/a"), &down).await;
        assert_eq!((kept.status(), kept.text()), (500, "secrets"));
        let (_, page) = world.pass(&mut backend, get("/a"), &down).await;
        assert_eq!((page.status(), page.text()), (500, "sorry 500"));
        assert_eq!(page.values("retry-after"), ["9"]);
        assert_eq!(page.values("set-cookie"), ["a=b"]);
        assert_eq!((page.field("x-trace"), page.field("x-always")), (None, Some("1")));
        let (_, missing) = world.pass(&mut backend, get("/a"), reply("404 No", "")).await;
        assert!(missing.text().contains("404 Not Found: /a"));
        // There is no page for 403.
        let (_, other) = world.pass(&mut backend, get("/a"), reply("403 No", "")).await;
        assert_eq!((other.status(), other.text()), (403, "secrets"));
        let (_, fine) = world.pass(&mut backend, get("/a"), reply("200 OK", "")).await;
        assert_eq!(fine.text(), "secrets");
    });
}

#[test]
fn an_intercepted_connection_to_the_backend_is_used_again() {
    let dir = pages();
    let routes = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\nintercept = true\n";
    in_memory(&site(&dir, &format!("{PAGES}{routes}")), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        let get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        client.send(get).await;
        let down = "HTTP/1.1 500 Oops\r\nContent-Length: 7\r\n\r\nsecrets";
        let (_, mut connection) = backend.answer(down).await;
        assert_eq!(client.reply("GET").await.text(), "sorry 500");
        client.send(get).await;
        connection.request().await;
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(client.reply("GET").await.text(), "ok");
    });
}

#[test]
fn a_closed_site_has_one_page_for_all_but_a_few() {
    let dir = pages();
    let keys = "maintenance = { page = \"DIR/closed.html\", retry_after = \"30m\", \
                except = [\"10.0.0.0/8\"], while_exists = \"DIR/closed\" }\n";
    let routes = "[[site.route]]\npath = \"/health\"\nmaintenance = false\nrespond = \"fine\"\n\
                  [[site.route]]\nallow = [\"10.0.0.0/8\", \"192.0.2.0/24\"]\nrespond = \"open\"\n";
    let site = site(&dir, &format!("{keys}{routes}"));
    in_memory(&site, async |world| {
        assert_eq!(get(world, "/a", "").await.text(), "open");
    });
    std::fs::write(dir.path().join("closed"), "").unwrap();
    in_memory(&site, async |world| {
        let closed = get(world, "/a", "").await;
        assert_eq!((closed.status(), closed.text()), (503, "<h1>closed</h1>"));
        assert_eq!(closed.values("retry-after"), ["1800"]);
        assert_eq!(get(world, "/health", "").await.text(), "fine");
        let mut client = world.client_from("10.0.0.5:1");
        client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.reply("GET").await.text(), "open");
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/a");
        assert_eq!(client.reply(stream).await.status, 503);
    });
}

const CORS: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
    cors = { origins = [\"https://app.example\", \"https://*.example.org\"], credentials = true, \
    expose = \"X-Total\" }\ndeny = [\"198.51.100.0/24\"]\n";

#[test]
fn pages_of_listed_origins_may_read_replies_and_errors() {
    in_memory(CORS, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (origin, is_allowed) in [
            ("https://app.example", true),
            ("https://a.example.org", true),
            ("https://a.b.example.org", true),
            ("https://example.org", false),
            ("http://app.example", false),
            ("https://app.example.evil", false),
            ("https://evil-example.org", false),
            ("https://evil.test/.example.org", false),
            ("null", false),
            ("", false),
        ] {
            for status in ["200 OK", "404 Not Found"] {
                let request = format!("GET / HTTP/1.1\r\nHost: h\r\nOrigin: {origin}\r\n\r\n");
                let own = format!(
                    "HTTP/1.1 {status}\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 2\r\n\r\nok"
                );
                let (_, reply) = world.pass(&mut backend, request, own).await;
                let expected: &[&str] = if is_allowed { &[origin] } else { &[] };
                assert_eq!(reply.values("access-control-allow-origin"), expected, "{origin}");
                let credentials = reply.field("access-control-allow-credentials");
                assert_eq!(credentials, is_allowed.then_some("true"), "{origin}");
                let exposed = reply.field("access-control-expose-headers");
                assert_eq!(exposed, is_allowed.then_some("X-Total"), "{origin}");
                assert_eq!(reply.values("vary"), ["Origin"], "{origin}");
            }
        }
    });
}

#[test]
fn preflight_requests_are_answered_without_the_backend() {
    in_memory(CORS, async |world| {
        let ask = |origin: &str| {
            format!(
                "OPTIONS /x HTTP/1.1\r\nHost: h\r\nOrigin: {origin}\r\n\
                 Access-Control-Request-Method: PUT\r\n\
                 Access-Control-Request-Headers: x-a,content-type\r\n\r\n"
            )
        };
        let reply = world.ask(&ask("https://app.example")).await;
        assert_eq!(reply.status(), 204);
        assert_eq!(reply.field("access-control-allow-origin"), Some("https://app.example"));
        assert_eq!(reply.field("access-control-allow-headers"), Some("x-a,content-type"));
        assert_eq!(reply.field("access-control-max-age"), Some("600"));
        assert!(reply.field("access-control-allow-methods").unwrap().contains("PUT"));
        let refused = world.ask(&ask("https://evil.example")).await;
        assert_eq!(refused.status(), 204);
        assert!(refused.fields.iter().all(|(name, _)| !name.starts_with("access-control")));
        // Other OPTIONS requests are the application's.
        let mut backend = world.backend("10.0.0.1:3000");
        let plain = "OPTIONS /x HTTP/1.1\r\nHost: h\r\nOrigin: https://app.example\r\n\r\n";
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let (asked, _) = world.pass(&mut backend, plain, ok).await;
        assert_eq!(asked.start, "OPTIONS /x HTTP/1.1");
    });
}

#[test]
fn any_origin_may_read_but_not_with_a_login() {
    let route = "[[site.route]]\nrespond = \"x\"\ncors = { origins = \"*\" }\n";
    in_memory(route, async |world| {
        let reply = get(world, "/", "Origin: https://a.example\r\n").await;
        assert_eq!(reply.values("access-control-allow-origin"), ["*"]);
        assert_eq!(reply.field("access-control-allow-credentials"), None);
    });
}

#[test]
fn a_page_may_change_the_status() {
    let dir = pages();
    std::fs::write(dir.path().join("users"), "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n").unwrap();
    let routes = "[[site.route]]\npath = \"/in\"\nbasic_auth = { file = \"DIR/users\" }\nrespond = \"in\"\n\
                  error_pages = { 401 = { file = \"DIR/5xx.html\", status = 403 } }\n\
                  [[site.route]]\npath = \"/login\"\nbasic_auth = { file = \"DIR/users\" }\nrespond = \"in\"\n\
                  error_pages = { 401 = \"DIR/5xx.html\" }\n\
                  [[site.route]]\npath = \"/app\"\nproxy = \"http://10.0.0.1:3000\"\nintercept = true\n\
                  error_pages = { \"5xx\" = { file = \"DIR/plain.txt\", status = 200 } }\n";
    in_memory(&site(&dir, routes), async |world| {
        let reply = get(world, "/in", "").await;
        assert_eq!((reply.status(), reply.text()), (403, "sorry 403"));
        assert_eq!(reply.field("www-authenticate"), None);
        let reply = get(world, "/login", "").await;
        assert_eq!((reply.status(), reply.text()), (401, "sorry 401"));
        assert!(reply.field("www-authenticate").is_some());
        let mut backend = world.backend("10.0.0.1:3000");
        let failed = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\noops";
        let asked = "GET /app HTTP/1.1\r\nHost: h\r\n\r\n";
        let (_, reply) = world.pass(&mut backend, asked, failed).await;
        assert_eq!((reply.status(), reply.text()), (200, "/app"));
    });
}
