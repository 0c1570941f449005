//! HTTP/2 in cleartext for clients: it has the routes, origins and rules of HTTP/1.1.

use std::time::Duration;

use forebay_net::limit::Limit;
use forebay_wire::http2::{Cause, Config, ErrorCode, RequestPseudo};
use tokio::time::sleep;

use crate::http2_client::Http2Client;
use crate::world::in_memory;

const FIXED: &str = "[[site.route]]\npath = \"/*\"\nrespond = \"here\"\n";
const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
/// Length of a body, in bytes: more than windows and links hold together.
const LARGE: usize = 1 << 20;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Returns a route to a directory with a small file, a large one and an empty one.
fn files(root: &tempfile::TempDir) -> String {
    std::fs::write(root.path().join("a.txt"), "0123456789").unwrap();
    std::fs::write(root.path().join("large"), pattern(LARGE)).unwrap();
    std::fs::write(root.path().join("empty"), "").unwrap();
    format!("[[site.route]]\npath = \"/*\"\nfiles = {{ root = \"{}\" }}\n", root.path().display())
}

#[test]
fn a_client_that_begins_with_the_preface_is_answered_by_http2() {
    in_memory(&format!("[log]\naccess = \"stdout\"\n{}", site(FIXED)), async |world| {
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("GET", "/x?y", &[("user-agent", "test")], true);
        let reply = client.reply(stream).await;
        assert_eq!((reply.status, reply.text()), (200, "here"));
        assert_eq!(reply.field("content-length"), Some("4"));
        assert!(reply.field("date").is_some());
        for name in ["connection", "transfer-encoding", "keep-alive"] {
            assert_eq!(reply.field(name), None);
        }
        let stream = client.ask("HEAD", "/", &[], true);
        let reply = client.reply(stream).await;
        assert_eq!(
            (reply.status, reply.text(), reply.field("content-length")),
            (200, "", Some("4"))
        );
        let lines = world.gateway.access_lines();
        assert!(lines[0].contains("\"GET /x?y HTTP/2.0\" 200 4"), "{lines:?}");
    });
}

#[test]
fn a_get_that_announces_a_body_is_refused_as_over_http1() {
    in_memory(FIXED, async |world| {
        let mut client = Http2Client::connect(world).await;
        let get = "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(world.ask(get).await.status(), 400);
        for method in ["GET", "HEAD"] {
            let stream = client.ask(method, "/", &[("content-length", "3")], false);
            assert_eq!(client.reply(stream).await.status, 400, "{method}");
        }
        assert_eq!(world.gateway.reached(Limit::GetBody), 3);
        for (method, body, status) in [("GET", "a", 400), ("HEAD", "a", 400), ("GET", "", 200)] {
            let stream = client.ask(method, "/", &[], false);
            client.send_data(stream, body.as_bytes(), true);
            assert_eq!(client.reply(stream).await.status, status, "{method} {body}");
        }
        assert_eq!(world.gateway.reached(Limit::GetBody), 5);
        let stream = client.ask("GET", "/", &[("content-length", "0")], true);
        assert_eq!(client.reply(stream).await.status, 200);
    });
}

/// Returns a site with these routes.
fn site(routes: &str) -> String {
    format!("[[site]]\nlisten = \"127.0.0.1:80\"\n{routes}")
}

#[test]
fn a_preface_in_pieces_is_waited_for_and_what_only_begins_like_it_is_http1() {
    in_memory(FIXED, async |world| {
        let mut client = world.client();
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
            client.send([*byte]).await;
            sleep(Duration::from_millis(1)).await;
        }
        let settings = client.exactly(9).await.unwrap();
        assert_eq!(settings[3], 4, "a frame of settings");
        drop(client);
        for (text, status) in [
            ("PRI * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("PRINT / HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ] {
            assert_eq!(world.ask(text).await.status(), status, "{text}");
        }
        // The bytes after the preface's first line must be those of HTTP/2.
        for text in ["PRI * HTTP/2.0\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\n"] {
            let mut client = world.client();
            client.send(text).await;
            let (sent, _) = client.rest().await;
            let goaway = sent.len() - 17;
            assert_eq!((sent[3], sent[goaway + 3]), (4, 7), "settings, and GOAWAY");
            assert_eq!(sent[goaway + 13..], 1_u32.to_be_bytes(), "PROTOCOL_ERROR");
        }
        // Later in a connection, the preface is an unknown version.
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        assert_eq!(client.reply("GET ").await.status(), 200);
        assert_eq!(client.reply("GET ").await.status(), 505);
        // An incomplete preface is a slow head.
        let mut client = world.client();
        client.send("PRI * HTTP/2").await;
        assert_eq!(client.reply("").await.status(), 408);
        assert_eq!(world.gateway.reached(Limit::Head), 1);
    });
}

#[test]
fn files_of_any_size_arrive_whole_as_windows_open() {
    let root = tempfile::tempdir().unwrap();
    in_memory(&files(&root), async |world| {
        let mut client = Http2Client::connect(world).await;
        let small = client.get("/a.txt");
        let large = client.get("/large");
        let empty = client.get("/empty");
        let missing = client.get("/missing");
        let part = client.ask("GET", "/large", &[("range", "bytes=100-199")], true);
        let parts = client.ask("GET", "/a.txt", &[("range", "bytes=0-1,5-6")], true);
        assert_eq!(client.reply(small).await.text(), "0123456789");
        assert_eq!(client.reply(empty).await.field("content-length"), Some("0"));
        assert_eq!(client.reply(missing).await.status, 404);
        let part = client.reply(part).await;
        assert_eq!((part.status, &part.body[..]), (206, &pattern(200)[100..]));
        let parts = client.reply(parts).await;
        assert_eq!(parts.status, 206);
        assert!(parts.text().contains("56\r\n"), "{parts:?}");
        let reply = client.reply(large).await;
        assert!(reply.body == pattern(LARGE), "the large file arrives");
        let etag = reply.field("etag").unwrap().to_owned();
        let stream = client.ask("GET", "/large", &[("if-none-match", &etag)], true);
        let reply = client.reply(stream).await;
        assert_eq!((reply.status, reply.body.len()), (304, 0));
    });
}

#[test]
fn a_hundred_streams_are_answered_over_one_connection() {
    let root = tempfile::tempdir().unwrap();
    in_memory(&files(&root), async |world| {
        let mut client = Http2Client::connect(world).await;
        for _ in 0..3 {
            let streams: Vec<_> = (0..100).map(|_| client.get("/a.txt")).collect();
            for stream in streams {
                assert_eq!(client.reply(stream).await.text(), "0123456789");
            }
        }
        assert_eq!(world.gateway.connections(), 1);
        assert_eq!(client.codec.streams(), 0);
    });
}

#[test]
fn a_backend_of_http1_is_asked_as_for_any_client() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let fields = [("cookie", "a=1"), ("cookie", "b=2"), ("te", "trailers"), ("x-a", "b")];
        let stream = client.ask("GET", "/p?q", &fields, true);
        let mut connection = client.during(backend.accept()).await;
        let asked = client.during(connection.request()).await;
        assert_eq!(asked.start, "GET /p?q HTTP/1.1");
        assert_eq!(asked.values("host"), ["a.example"]);
        assert_eq!(asked.values("cookie"), ["a=1; b=2"]);
        assert_eq!(
            (asked.field("x-a"), asked.field("x-forwarded-proto")),
            (Some("b"), Some("http"))
        );
        assert_eq!(asked.field("content-length"), None);
        connection
            .send(
                "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\
                 Transfer-Encoding: chunked\r\nConnection: close\r\nTrailer: X-Sum\r\n\
                 X-Mixed: Case\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n",
            )
            .await;
        let reply = client.reply(stream).await;
        assert_eq!(reply.interim.len(), 1);
        assert_eq!(reply.interim[0].0, 103);
        assert_eq!((reply.status, reply.text()), (200, "abc"));
        assert_eq!((reply.field("x-mixed"), reply.field("connection")), (Some("Case"), None));
        assert_eq!(reply.trailers, [("x-sum".to_owned(), "6".to_owned())]);
    });
}

#[test]
fn uploads_larger_than_the_window_wait_for_their_backend() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let length = LARGE.to_string();
        for fields in [&[("content-length", &*length)][..], &[]] {
            let stream = client.ask("POST", "/", fields, false);
            client.send_body(stream, pattern(LARGE));
            let mut connection = client.during(backend.accept()).await;
            let asked = client.during(connection.request()).await;
            assert_eq!(asked.field("content-length"), fields.first().map(|field| field.1));
            assert!(asked.body == pattern(LARGE), "the body arrives");
            connection.send("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
            let reply = client.reply(stream).await;
            assert_eq!((reply.status, reply.field("content-length")), (204, None));
        }
    });
}

#[test]
fn a_backend_that_does_not_read_stops_its_stream_alone() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let upload = client.ask("POST", "/slow", &[], false);
        client.send_body(upload, pattern(LARGE));
        let mut slow = client.during(backend.accept()).await;
        slow.link.limit_room(1000);
        assert_eq!(client.during(slow.line()).await.unwrap(), "POST /slow HTTP/1.1");
        client.during(sleep(Duration::from_secs(5))).await;
        let other = client.get("/fast");
        let (_, _connection) =
            client.during(backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!")).await;
        assert_eq!(client.reply(other).await.text(), "!");
        assert_eq!(client.so_far(upload).status, 0);
    });
}

#[test]
fn a_client_waits_for_100_continue() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let fields = [("expect", "100-continue"), ("content-length", "3")];
        let stream = client.ask("POST", "/", &fields, false);
        let mut connection = client.during(backend.accept()).await;
        client.until(|client| !client.so_far(stream).interim.is_empty()).await;
        client.send_data(stream, b"abc", true);
        assert_eq!(client.during(connection.request()).await.text(), "abc");
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(client.reply(stream).await.status, 200);
    });
}

#[test]
fn a_body_that_is_too_large_is_refused_and_its_stream_reset() {
    let routes = format!("{PROXIED}max_body = \"1 kB\"\n");
    in_memory(&routes, async |world| {
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/", &[("content-length", "5000")], false);
        client.until(|client| client.so_far(stream).reset.is_some()).await;
        let reply = client.so_far(stream);
        assert_eq!((reply.status, reply.is_whole), (413, true));
        assert_eq!(reply.reset, Some(Cause::Peer(ErrorCode::NO_ERROR)));
    });
}

#[test]
fn the_rest_of_an_answered_upload_is_dropped_and_the_end_of_a_get_is_waited_for() {
    in_memory(FIXED, async |world| {
        let mut client = Http2Client::connect(world).await;
        let since = tokio::time::Instant::now();
        let stream = client.ask("POST", "/", &[("content-length", "500000")], false);
        client.send_body(stream, pattern(500_000));
        let reply = client.reply(stream).await;
        assert_eq!((reply.status, reply.is_whole, reply.reset), (200, true, None));
        assert!(since.elapsed().is_zero(), "no tick is waited for");
        let stream = client.ask("GET", "/", &[], false);
        client.during(sleep(Duration::from_secs(1))).await;
        assert_eq!(client.so_far(stream).status, 0, "a body may still come");
        client.send_data(stream, b"", true);
        let reply = client.reply(stream).await;
        assert_eq!((reply.status, reply.reset), (200, None));
        let stream = client.ask("GET", "/", &[], false);
        client.until(|client| client.so_far(stream).reset.is_some()).await;
        let reply = client.so_far(stream);
        assert_eq!((reply.status, reply.reset), (408, Some(Cause::Peer(ErrorCode::NO_ERROR))));
    });
}

#[test]
fn a_stream_that_is_reset_is_given_up() {
    in_memory(&format!("[log]\naccess = \"stdout\"\n{}", site(PROXIED)), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/");
        let mut connection = client.during(backend.accept()).await;
        client.during(connection.request()).await;
        client.codec.reset(stream, ErrorCode::CANCEL, std::time::Instant::now());
        assert!(client.during(connection.is_closed()).await);
        let lines = world.gateway.access_lines();
        assert!(lines[0].contains("HTTP/2.0\" 499"), "{lines:?}");
        let stream = client.get("/again");
        let answer = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let (_, _connection) = client.during(answer).await;
        assert_eq!(client.reply(stream).await.status, 200);
    });
}

#[test]
fn a_reply_that_breaks_off_resets_its_stream_alone() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/");
        let answer = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        let (_, connection) = client.during(answer).await;
        client.until(|client| !client.so_far(stream).body.is_empty()).await;
        drop(connection);
        let reply = client.reply(stream).await;
        assert_eq!(reply.reset, Some(Cause::Peer(ErrorCode::INTERNAL_ERROR)));
        let stream = client.get("/");
        let answer = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!");
        let (_, _connection) = client.during(answer).await;
        assert_eq!(client.reply(stream).await.text(), "!");
    });
}

#[test]
fn a_slow_stream_holds_no_backend_where_its_reply_is_kept() {
    let routes = format!("{PROXIED}buffer = true\n");
    in_memory(&routes, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        client.holds_windows = true;
        let stream = client.ask("GET", "/", &[("te", "trailers")], true);
        let mut connection = client.during(backend.accept()).await;
        client.during(connection.request()).await;
        let sending = async {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
            connection.send(format!("{LARGE:x}\r\n")).await;
            connection.send(pattern(LARGE)).await;
            connection.send("\r\n0\r\nX-Sum: 1\r\n\r\n").await;
        };
        client.during(sending).await;
        // The connection is free again for another request.
        let other = client.get("/other");
        assert_eq!(client.during(connection.request()).await.start, "GET /other HTTP/1.1");
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(client.reply(other).await.status, 200);
        assert!(client.received < LARGE);
        client.release();
        let reply = client.reply(stream).await;
        assert!(reply.body == pattern(LARGE), "the reply arrives unchanged");
        assert_eq!(reply.trailers.len(), 1);
    });
}

#[test]
fn a_websocket_is_carried_by_a_stream() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        assert!(client.codec.peer_takes_extended_connect());
        let stream = client.ask_as(&websocket(), &[("sec-websocket-version", "13")], false);
        let mut server = client.during(backend.accept()).await;
        let asked = client.during(server.request()).await;
        assert_eq!(asked.start, "GET /chat HTTP/1.1");
        assert_eq!(asked.field("upgrade"), Some("websocket"));
        assert_eq!(asked.field("connection"), Some("upgrade"));
        assert_eq!(asked.field("sec-websocket-version"), Some("13"));
        assert_eq!(asked.field("sec-websocket-key").map(str::len), Some(24));
        server
            .send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: chat\r\n\r\nhello",
            )
            .await;
        client.until(|client| client.so_far(stream).body == b"hello").await;
        let reply = client.so_far(stream);
        assert_eq!((reply.status, reply.field("sec-websocket-protocol")), (200, Some("chat")));
        assert_eq!((reply.field("sec-websocket-accept"), reply.field("upgrade")), (None, None));
        client.send_data(stream, b"up", false);
        assert_eq!(client.during(server.exactly(2)).await.unwrap(), b"up");
        client.send_data(stream, b"", true);
        assert!(client.during(server.is_closed()).await);
        server.send("last words").await;
        drop(server);
        let reply = client.reply(stream).await;
        assert_eq!((reply.text(), reply.reset), ("hellolast words", None));
    });
}

fn websocket() -> RequestPseudo<'static> {
    RequestPseudo {
        method: b"CONNECT",
        scheme: b"http",
        authority: b"a.example",
        path: b"/chat",
        protocol: b"websocket",
    }
}

#[test]
fn no_reply_but_a_tunnel_is_taken_for_one() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        for (reply, status) in [("403 Forbidden", 403), ("200 OK", 501)] {
            let stream = client.ask_as(&websocket(), &[], false);
            let reply =
                format!("HTTP/1.1 {reply}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let (_, _connection) = client.during(backend.answer(&reply)).await;
            let reply = client.reply(stream).await;
            assert_eq!((reply.status, reply.is_whole), (status, true));
        }
        let connect = RequestPseudo { method: b"CONNECT", authority: b"a:1", ..Default::default() };
        let stream = client.ask_as(&connect, &[], false);
        assert_eq!(client.reply(stream).await.status, 501);
    });
}

#[test]
fn an_idle_connection_is_told_goodbye() {
    let limits = format!("[server.timeouts]\nkeep_alive = \"5s\"\n{}", site(FIXED));
    in_memory(&limits, async |world| {
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/");
        client.reply(stream).await;
        let since = tokio::time::Instant::now();
        client.end().await;
        assert_eq!(client.goaway, Some(ErrorCode::NO_ERROR));
        assert_eq!(since.elapsed().as_secs(), 5);
        assert_eq!(world.gateway.reached(Limit::KeepAlive), 1);
        // A client that sends no request.
        let mut client = Http2Client::connect(world).await;
        client.end().await;
        assert_eq!(client.goaway, Some(ErrorCode::NO_ERROR));
        assert_eq!(world.gateway.reached(Limit::Head), 1);
    });
}

#[test]
fn a_connection_carries_as_many_requests_as_it_may() {
    let limits = format!("[server.limits]\nkeepalive_requests = 3\n{}", site(FIXED));
    in_memory(&limits, async |world| {
        let mut client = Http2Client::connect(world).await;
        let streams: Vec<_> = (0..3).map(|_| client.get("/")).collect();
        for stream in streams {
            assert_eq!(client.reply(stream).await.text(), "here");
        }
        client.end().await;
        assert_eq!(client.goaway, Some(ErrorCode::NO_ERROR));
        assert_eq!(world.gateway.reached(Limit::KeepaliveRequests), 1);
    });
}

#[test]
fn a_stopping_server_answers_what_is_under_way_and_closes() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let mut idle = Http2Client::connect(world).await;
        let stream = client.get("/");
        let mut connection = client.during(backend.accept()).await;
        client.during(connection.request()).await;
        world.gateway.stop();
        idle.end().await;
        assert_eq!(idle.goaway, Some(ErrorCode::NO_ERROR));
        client.until(|client| client.goaway.is_some()).await;
        client.during(sleep(Duration::from_secs(2))).await;
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").await;
        assert_eq!(client.reply(stream).await.text(), "done");
        client.end().await;
        drop((client, idle));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(world.gateway.connections(), 0);
    });
}

#[test]
fn a_window_that_stays_closed_ends_its_stream_in_time() {
    let root = tempfile::tempdir().unwrap();
    let limits = format!("[server.timeouts]\nwrite = \"7s\"\n{}", site(&files(&root)));
    let own = format!("{}timeouts = {{ write = \"7s\" }}\n", site(&files(&root)));
    for limits in [limits, own] {
        end_a_stream_with_a_closed_window(&limits);
    }
}

/// Checks that a stream ends after 7 s with a closed window.
fn end_a_stream_with_a_closed_window(limits: &str) {
    in_memory(limits, async |world| {
        let mut client = Http2Client::connect(world).await;
        client.holds_windows = true;
        let since = tokio::time::Instant::now();
        let stream = client.get("/large");
        let reply = client.reply(stream).await;
        assert_eq!(reply.reset, Some(Cause::Peer(ErrorCode::CANCEL)));
        assert_eq!(since.elapsed().as_secs(), 7);
        assert_eq!(world.gateway.reached(Limit::Write), 1);
        // The connection stays open.
        let stream = client.get("/a.txt");
        assert_eq!(client.reply(stream).await.text(), "0123456789");
    });
}

#[test]
fn a_body_that_stops_coming_ends_its_stream_in_time() {
    let limits = format!("[server.timeouts]\nbody_idle = \"3s\"\n{}", site(PROXIED));
    let own = format!("{}timeouts = {{ body_idle = \"3s\" }}\n", site(PROXIED));
    for limits in [limits, own] {
        end_a_stream_without_its_body(&limits);
    }
}

/// Checks that a stream ends after 3 s without bytes of its body.
fn end_a_stream_without_its_body(limits: &str) {
    in_memory(limits, async |world| {
        let since = tokio::time::Instant::now();
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/", &[("content-length", "10")], false);
        client.send_data(stream, b"abc", false);
        let mut connection = client.during(backend.accept()).await;
        let reply = client.reply(stream).await;
        assert_eq!((reply.status, since.elapsed().as_secs()), (408, 3));
        assert_eq!(world.gateway.reached(Limit::BodyIdle), 1);
        let (rest, _) = client.during(connection.rest()).await;
        assert!(rest.ends_with(b"abc"));
    });
}

#[test]
fn heads_over_the_limits_are_answered_and_the_connection_goes_on() {
    let limits = "[server.limits]\ntarget = \"1KiB\"\nhead_size = \"2KiB\"\n";
    in_memory(&format!("{limits}{}", site(FIXED)), async |world| {
        let mut client = Http2Client::connect(world).await;
        let long = format!("/{}", "x".repeat(1500));
        let stream = client.get(&long);
        assert_eq!(client.reply(stream).await.status, 414);
        let stream = client.ask("GET", "/", &[("x-long", &"x".repeat(3000))], true);
        assert_eq!(client.reply(stream).await.status, 431);
        let stream = client.ask("POST", "/", &[("expect", "something")], false);
        assert_eq!(client.reply(stream).await.status, 417);
        assert_eq!(world.gateway.reached(Limit::Target), 1);
        assert_eq!(world.gateway.reached(Limit::HeadSize), 1);
        let stream = client.get("/");
        assert_eq!(client.reply(stream).await.status, 200);
    });
}

#[test]
fn the_first_of_several_streams_does_not_shut_out_the_others() {
    let root = tempfile::tempdir().unwrap();
    in_memory(&files(&root), async |world| {
        let config =
            Config { stream_window: 4 << 20, stream_window_limit: 4 << 20, ..Config::default() };
        let mut client = Http2Client::connect_with(world, config).await;
        let streams: Vec<_> = (0..6).map(|_| client.get("/large")).collect();
        for stream in streams {
            assert!(client.reply(stream).await.body == pattern(LARGE));
        }
    });
}
