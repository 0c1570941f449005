//! What browsers, libraries and applications send without any ill intent does not hit a limit, and
//! a limit that is hit names its key.

use std::time::Duration;

use tokio::time::sleep;

use crate::fastcgi::{end, stdout};
use crate::http2_client::Http2Client;
use crate::world::in_memory;

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:9000\"\n";
const HELLO: &str = "[[site.route]]\npath = \"/*\"\nrespond = \"hello\"\n";

/// Routes to 10.0.0.1:9000, each with a function that makes the bytes of its protocol from the
/// lines of a head and the beginning of a body.
type Kind = (&'static str, String, fn(&str, &str) -> Vec<u8>);

fn kinds() -> Vec<Kind> {
    let route = |form: &str| format!("[[site.route]]\npath = \"/*\"\n{form}\n");
    let script = |lines: &str, body: &str| format!("{lines}\r\n{body}").into_bytes();
    vec![
        (
            "fastcgi",
            route("fastcgi = { to = \"10.0.0.1:9000\", root = \"/x\", scripts = \"*\" }"),
            |lines, body| {
                let text = format!("{lines}\r\n{body}");
                let parts = text.as_bytes().chunks(30_000);
                parts.flat_map(|part| stdout(1, std::str::from_utf8(part).unwrap())).collect()
            },
        ),
        ("scgi", route("scgi = { to = \"10.0.0.1:9000\" }"), script),
        ("uwsgi", route("uwsgi = { to = \"10.0.0.1:9000\" }"), script),
        ("proxy", PROXIED.to_owned(), |lines, body| {
            format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}").into_bytes()
        }),
    ]
}

#[test]
fn the_cookies_of_a_browser_over_http2_are_one_field() {
    in_memory(HELLO, async |world| {
        let mut client = Http2Client::connect(world).await;
        let crumbs: Vec<_> = (0..180).map(|n| format!("cookie{n}=value{n}")).collect();
        let fields: Vec<_> = crumbs.iter().map(|crumb| ("cookie", crumb.as_str())).collect();
        let stream = client.ask("GET", "/", &fields, true);
        assert_eq!(client.reply(stream).await.status, 200);
        // 100 fields in addition to the pseudo-fields, but not 101.
        for (count, status) in [(100, 200), (101, 431)] {
            let fields = vec![("x-field", "value"); count];
            let stream = client.ask("GET", "/", &fields, true);
            assert_eq!(client.reply(stream).await.status, status, "{count}");
        }
    });
}

#[test]
fn large_heads_of_replies_pass_and_larger_ones_name_the_key() {
    let link = "Link: </a>; rel=preload\r\n";
    let lines = |count: usize| format!("Content-Type: text/plain\r\n{}", link.repeat(count));
    let wide = format!("Content-Type: text/plain\r\nX-Wide: {}\r\n", "w".repeat(40_000));
    for (kind, route, bytes) in kinds() {
        for (lines, passes) in [
            (lines(150), true),
            (lines(990), true),
            (wide.clone(), true),
            (lines(1001), false),
            (format!("X-Wide: {}\r\n", "w".repeat(70_000)), false),
        ] {
            in_memory(&route, async |world| {
                let mut backend = world.backend("10.0.0.1:9000");
                let mut client = world.client();
                client.send(GET).await;
                let mut connection = backend.accept().await;
                connection.more().await.unwrap();
                let mut reply = bytes(&lines, "ok");
                if kind == "fastcgi" {
                    reply.extend(end(1));
                }
                let answering = async move {
                    let _ = connection.link.write(&reply).await;
                    connection.link.finish();
                    let _ = connection.rest().await;
                };
                let ((), reply) = tokio::join!(answering, client.reply(GET));
                let errors = world.errors();
                let names_key = errors.iter().any(|line| line.contains("reply_head_size"));
                let expected = if passes { (200, false) } else { (502, true) };
                assert_eq!((reply.status(), names_key), expected, "{kind}: {errors:?}");
            });
        }
    }
}

#[test]
fn a_silent_event_stream_is_not_cut() {
    for (kind, route, bytes) in kinds() {
        in_memory(&route, async |world| {
            let mut backend = world.backend("10.0.0.1:9000");
            let mut client = world.client();
            client.send(GET).await;
            let mut connection = backend.accept().await;
            connection.more().await.unwrap();
            connection.send(bytes("Content-Type: text/event-stream\r\n", "data: 1\n\n")).await;
            client.head().await.unwrap();
            sleep(Duration::from_secs(50 * 60)).await;
            let last = match kind {
                "fastcgi" => [stdout(1, "data: 2\n\n"), end(1)].concat(),
                _ => b"data: 2\n\n".to_vec(),
            };
            connection.send(last).await;
            connection.link.finish();
            drop(connection);
            let rest = String::from_utf8(client.rest().await.0).unwrap_or_default();
            assert!(rest.contains("data: 2"), "{kind}: {rest} {:?}", world.errors());
        });
    }
}

#[test]
fn an_upgrade_with_a_body_is_an_ordinary_request() {
    for protocol in ["websocket", "h2c", "TLS/1.0"] {
        for (method, framing) in [
            ("POST", "Content-Length: 3\r\n\r\nabc"),
            ("PUT", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        ] {
            in_memory(PROXIED, async |world| {
                let mut backend = world.backend("10.0.0.1:9000");
                let request = format!(
                    "{method} / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\
                     {framing}"
                );
                let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                let (asked, reply) = world.pass(&mut backend, request, ok).await;
                assert_eq!((asked.text(), asked.field("upgrade")), ("abc", None), "{protocol}");
                assert_eq!(reply.status(), 200, "{protocol}");
            });
        }
    }
}

#[test]
fn a_client_that_sends_all_before_it_reads_gets_the_status_of_its_refused_upload() {
    let refused = "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\npath = \"/closed/*\"\n\
                   allow = \"10.0.0.0/8\"\nproxy = \"http://10.0.0.1:9000\"\n\
                   [[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:9000\"\n";
    for (path, size, status) in [("/", 20 << 20, 413), ("/closed/x", 3 << 20, 403)] {
        in_memory(refused, async |world| {
            let mut client = world.client();
            let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n");
            client.send(head).await;
            client.send(vec![b'x'; size]).await;
            assert_eq!(client.reply("POST").await.status(), status);
        });
    }
}

#[test]
fn a_client_that_never_stops_sending_is_cut_off_and_the_key_named() {
    let limits = "[server.limits]\nlinger_size = \"1MiB\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n";
    in_memory(&format!("{limits}{HELLO}"), async |world| {
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\n\r\n").await;
        while client.link.write(&[b'x'; 65_536]).await.is_ok() {}
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("linger_size")), "{errors:?}");
    });
}

#[test]
fn a_head_over_a_limit_is_logged_with_the_key() {
    let get_body = "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx".to_owned();
    let ajp = "[[site.route]]\npath = \"/*\"\najp = \"10.0.0.1:9000\"\n";
    let with = |field: String| format!("GET / HTTP/1.1\r\nHost: h\r\n{field}\r\n");
    for (route, request, status, key) in [
        (HELLO, with(format!("X-Wide: {}\r\n", "w".repeat(40_000))), 431, "head_size"),
        (HELLO, with("X-Field: v\r\n".repeat(101)), 431, "fields"),
        (HELLO, format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "t".repeat(9000)), 414, "target"),
        (HELLO, get_body, 400, "get_body"),
        (ajp, with(format!("X-Wide: {}\r\n", "w".repeat(9000))), 431, "packet_size"),
    ] {
        in_memory(route, async |world| {
            assert_eq!(world.ask(&request).await.status(), status, "{key}");
            let errors = world.errors();
            assert!(errors.iter().any(|line| line.contains(key)), "{key}: {errors:?}");
        });
    }
}
