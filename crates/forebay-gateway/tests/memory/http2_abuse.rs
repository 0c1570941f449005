//! Abuse by HTTP/2 clients: it ends their streams or their connection, and affects nothing else.

use std::time::{Duration, Instant};

use forebay_net::limit::Limit;
use forebay_net::memory::Link;
use forebay_wire::http2::hpack::Encoder;
use forebay_wire::http2::{Config, ErrorCode};

use crate::http2_client::Http2Client;
use crate::world::{World, in_memory};

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const FIXED: &str = "[[site.route]]\npath = \"/*\"\nrespond = \"here\"\n";

/// Returns a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns a HEADERS frame that ends head and stream, without checks.
fn headers(stream: u32, fields: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut encoder, mut block) = (Encoder::new(0), Vec::new());
    encoder.begin(&mut block);
    for (name, value) in fields {
        encoder.pair(&mut block, name.as_bytes(), value);
    }
    frame(1, 0x5, stream, &block)
}

/// Returns a connection after the exchange of settings, for raw frames.
async fn connect(world: &World) -> Http2Client {
    let link = world.gateway.connect(0, "192.0.2.7:4000".parse().unwrap());
    let mut client = Http2Client::over(link, Config::default());
    client.until(|client| client.has_settings).await;
    client.flush();
    client
}

/// Returns all bytes until the connection ends.
async fn everything(link: &Link) -> Vec<u8> {
    let mut seen = Vec::new();
    while matches!(link.read(&mut seen).await, Ok(1..)) {}
    seen
}

/// Returns true if an ordinary request on a new connection succeeds.
async fn is_served(world: &World) -> bool {
    let mut client = Http2Client::connect(world).await;
    let stream = client.get("/");
    client.reply(stream).await.status == 200
}

#[test]
fn a_head_that_is_two_requests_in_http1_is_refused() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let base: [(&str, &[u8]); 4] = [
            (":method", b"GET"),
            (":scheme", b"http"),
            (":authority", b"a.example"),
            (":path", b"/"),
        ];
        let with = |at: usize, value: &'static [u8]| {
            let mut fields = base.to_vec();
            fields[at].1 = value;
            fields
        };
        let plus = |name: &'static str, value: &'static [u8]| {
            let mut fields = base.to_vec();
            fields.push((name, value));
            fields
        };
        for fields in [
            with(0, b"GET / HTTP/1.1\r\nX:"),
            with(0, b"G ET"),
            with(1, b"http://a\r\n"),
            with(2, b"a.example\r\nX: y"),
            with(2, b"a b"),
            with(2, b"user@a.example"),
            with(3, b"/ HTTP/1.1\r\nX: y"),
            with(3, b"/a b"),
            with(3, b"/a\0"),
            with(3, b"a"),
            with(3, b"*"),
            with(3, b""),
            plus("x-a", b"b\r\nY: z"),
            plus("x-a", b"b\nY: z"),
            plus("x-a", b"b\0c"),
            plus("x-a", b" b"),
            plus("x a", b"b"),
            plus("x:a", b"b"),
            plus("x\r\na", b"b"),
            plus("X-A", b"b"),
            plus("", b"b"),
            plus("connection", b"close"),
            plus("keep-alive", b"1"),
            plus("proxy-connection", b"close"),
            plus("transfer-encoding", b"chunked"),
            plus("upgrade", b"websocket"),
            plus("te", b"gzip"),
            plus("host", b"other.example"),
            plus("content-length", b"5"),
            plus("content-length", b"-1"),
            plus("content-length", b"0, 0"),
            plus("transfer_encoding", b"chunked"),
            plus(":path", b"/other"),
            plus(":status", b"200"),
        ] {
            let mut client = connect(world).await;
            client.send_raw(headers(1, &fields));
            // The answer to this PING shows that the frames before it were processed.
            client.send_raw(frame(6, 0, 0, b"12345678"));
            let mut seen = Vec::new();
            while !seen.windows(8).any(|bytes| bytes == b"12345678") {
                assert!(client.link.read(&mut seen).await.unwrap() > 0, "{fields:?}");
            }
            let reset = frame(3, 0, 1, &ErrorCode::PROTOCOL_ERROR.0.to_be_bytes());
            assert!(seen.windows(reset.len()).any(|bytes| bytes == reset), "{fields:?}");
        }
        assert!(!backend.has_visitor(), "no backend heard of them");
    });
}

#[test]
fn data_that_differs_from_its_announced_length_resets_the_stream() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (data, ends) in [(&b"abcd"[..], true), (b"ab", true)] {
            let mut client = Http2Client::connect(world).await;
            let stream = client.ask("POST", "/", &[("content-length", "3")], false);
            let mut connection = client.during(backend.accept()).await;
            client.send_data(stream, data, ends);
            let reply = client.reply(stream).await;
            assert!(reply.reset.is_some() && reply.status == 0, "{reply:?}");
            let (asked, _) = client.during(connection.rest()).await;
            assert!(!asked.ends_with(b"abc"), "no whole request");
        }
    });
}

#[test]
fn streams_opened_and_reset_without_end_end_the_connection() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let mut count = 0;
        while client.goaway.is_none() && !client.has_ended {
            assert!(count < 5_000, "nobody ends it");
            for _ in 0..50 {
                if client.codec.available() == 0 {
                    break;
                }
                let stream = client.get("/");
                client.codec.reset(stream, ErrorCode::CANCEL, Instant::now());
                count += 1;
            }
            client.flush();
            tokio::task::yield_now().await;
            while client.link.has_input() && client.turn().await {}
        }
        client.end().await;
        assert_eq!(client.goaway, Some(ErrorCode::ENHANCE_YOUR_CALM));
        assert_eq!(world.gateway.reached(Limit::Http2Frames), 1);
        assert!(world.errors().iter().any(|line| line.contains("192.0.2.7")));
        while backend.has_visitor() {
            drop(backend.accept().await);
        }
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/");
        let answer = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let (_, _connection) = client.during(answer).await;
        assert_eq!(client.reply(stream).await.status, 200);
    });
}

#[test]
fn frames_of_no_use_end_the_connection() {
    in_memory(FIXED, async |world| {
        for (name, frames) in [
            ("settings", frame(4, 0, 0, b"")),
            ("pings", frame(6, 0, 0, b"12345678")),
            ("priorities", frame(2, 0, 1, &[0, 0, 0, 3, 16])),
            ("unknown", frame(0x77, 0, 0, b"")),
        ] {
            let mut client = connect(world).await;
            for _ in 0..200 {
                client.send_raw(frames.repeat(100));
            }
            let seen = everything(&client.link).await;
            let goaway = [&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0, 0, 0, 0xb]].concat();
            assert!(seen.ends_with(&goaway), "{name}");
        }
        assert_eq!(world.gateway.reached(Limit::Http2Frames), 4);
        assert!(is_served(world).await);
    });
}

#[test]
fn a_head_that_never_ends_is_given_up_in_time() {
    let limits = "[server.timeouts]\nhead = \"10s\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n";
    in_memory(&format!("{limits}{FIXED}"), async |world| {
        let whole = headers(1, &[(":method", b"GET"), (":scheme", b"http"), (":path", b"/")]);
        // Cut within a frame, and between HEADERS and its CONTINUATION.
        let mut open = whole.clone();
        open[4] = 0x1;
        for start in [&whole[..12], &open[..]] {
            let mut client = connect(world).await;
            let since = tokio::time::Instant::now();
            client.send_raw(start);
            client.end().await;
            assert_eq!(since.elapsed().as_secs(), 10);
            assert_eq!(client.goaway, Some(ErrorCode::NO_ERROR));
        }
        assert_eq!(world.gateway.reached(Limit::Head), 2);
    });
}

#[test]
fn more_streams_than_allowed_are_refused_and_the_others_answered() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let streams: Vec<_> = (0..100).map(|_| client.get("/")).collect();
        assert_eq!(client.codec.available(), 0);
        let mut connections = Vec::new();
        for _ in &streams {
            connections.push(client.during(backend.accept()).await);
        }
        for connection in &mut connections {
            client.during(connection.request()).await;
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
        for stream in streams {
            assert_eq!(client.reply(stream).await.status, 200);
        }
    });
}

#[test]
fn a_broken_rule_ends_the_connection_with_its_reason() {
    in_memory(FIXED, async |world| {
        for (frames, code) in [
            (frame(0, 0, 0, b"x"), ErrorCode::PROTOCOL_ERROR),
            (frame(9, 4, 1, b"x"), ErrorCode::PROTOCOL_ERROR),
            (frame(1, 5, 2, b"\x82"), ErrorCode::PROTOCOL_ERROR),
            (frame(1, 5, 1, b"\xff\xff\xff\xff\xff"), ErrorCode::COMPRESSION_ERROR),
            (frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), ErrorCode::FLOW_CONTROL_ERROR),
            (vec![0xff; 9], ErrorCode::FRAME_SIZE_ERROR),
        ] {
            let mut client = connect(world).await;
            client.send_raw(frames);
            client.end().await;
            assert_eq!(client.goaway, Some(code));
        }
        assert!(is_served(world).await);
    });
}

/// The windows are open, so that only the connection itself delays the reply.
#[test]
fn a_client_that_takes_nothing_off_its_connection_is_cut_off() {
    const BODY: usize = 16 << 20;
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let windows = Config {
            stream_window: 1 << 30,
            stream_window_limit: 1 << 30,
            connection_window: 1 << 30,
            connection_window_limit: 1 << 30,
            ..Config::default()
        };
        let mut client = Http2Client::connect_with(world, windows).await;
        client.get("/");
        client.flush();
        let mut connection = backend.accept().await;
        connection.request().await;
        let sending = tokio::task::spawn_local(async move {
            connection.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n")).await;
            connection.send(vec![b'x'; BODY]).await;
        });
        tokio::time::sleep(Duration::from_secs(300)).await;
        let came = everything(&client.link).await.len();
        assert!(came < BODY, "{came} bytes: the time for writing did not end");
        sending.abort();
    });
}
