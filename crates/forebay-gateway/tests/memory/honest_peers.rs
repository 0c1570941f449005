//! What browsers, libraries and applications send without any ill intent does not hit a limit, and
//! a limit that is hit names its key.

use std::time::Duration;

use forebay_wire::http2::{Cause, ErrorCode};
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

/// The same over HTTP/3 is in `serve_http3.rs`, because QUIC needs real sockets.
#[test]
fn the_status_of_a_refused_upload_reaches_a_client_that_sends_all_first() {
    const ROUTES: &str = "[[site.route]]\npath = \"/closed\"\nallow = \"10.0.0.0/8\"\n\
        proxy = \"http://10.0.0.1:9000\"\n\
        [[site.route]]\npath = \"/login\"\nbasic_auth = { file = \"FILE\" }\n\
        proxy = \"http://10.0.0.1:9000\"\n\
        [[site.route]]\npath = \"/moved\"\nredirect = \"/new\"\n\
        [[site.route]]\npath = \"/*\"\nscgi = { to = \"10.0.0.1:9000\" }\n";
    let dir = tempfile::tempdir().unwrap();
    let passwords = dir.path().join("htpasswd");
    std::fs::write(
        &passwords,
        "ann:$2y$05$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234\n",
    )
    .unwrap();
    let routes = ROUTES.replace("FILE", passwords.to_str().unwrap());
    let refusals = [
        ("/", 20 << 20, 413),
        ("/closed", 3 << 20, 403),
        ("/login", 3 << 20, 401),
        ("/moved", 3 << 20, 302),
    ];
    for (path, size, status) in refusals {
        for is_announced in [true, false] {
            in_memory(&routes, async |world| {
                let mut client = world.client();
                let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\n");
                let framing = if is_announced {
                    format!("Content-Length: {size}\r\n\r\n")
                } else {
                    format!("Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n")
                };
                client.send(head + &framing).await;
                client.send(vec![b'x'; size]).await;
                if !is_announced {
                    client.send("\r\n0\r\n\r\n").await;
                }
                let reply = client.reply("POST").await;
                assert_eq!(reply.status(), status, "HTTP/1.1 {path} {is_announced}");
            });
            in_memory(&routes, async |world| {
                let mut client = Http2Client::connect(world).await;
                let length = size.to_string();
                let fields: &[_] =
                    if is_announced { &[("content-length", length.as_str())] } else { &[] };
                let stream = client.ask("POST", path, fields, false);
                client.send_body(stream, vec![b'x'; size]);
                client.until(|client| client.has_sent(stream)).await;
                let reply = client.reply(stream).await;
                let found = (reply.status, reply.is_whole, reply.reset);
                assert_eq!(found, (status, true, None), "HTTP/2 {path} {is_announced}");
                let next = client.get("/moved");
                assert_eq!(client.reply(next).await.status, 302, "HTTP/2 {path} {is_announced}");
            });
        }
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
    in_memory(&format!("{limits}{HELLO}"), async |world| {
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/", &[], false);
        client.send_body(stream, vec![b'x'; 5 << 20]);
        client.until(|client| client.so_far(stream).reset.is_some()).await;
        let reply = client.so_far(stream);
        let no_error = Some(Cause::Peer(ErrorCode::NO_ERROR));
        assert_eq!((reply.status, reply.is_whole, reply.reset), (200, true, no_error));
        assert!(!client.has_sent(stream));
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
