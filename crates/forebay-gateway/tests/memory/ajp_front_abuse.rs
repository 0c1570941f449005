//! AJP listeners and packets that no web server may send, floods and slow senders.

use std::time::Duration;

use forebay_net::limit::Limit;
use tokio::time::{Instant, sleep};

use crate::ajp_web_server::{
    Ask, GET, HELLO, PING, PONG, POST, PROXIED, Sent, ask, data, next, packet, reply, site,
};
use crate::world::in_memory;

#[test]
fn requests_that_http_11_refuses_are_refused() {
    let server = "[server.limits]\ntarget = 1024\n";
    in_memory(&format!("{server}{}", site("", PROXIED)), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let long = format!("/{}", "a".repeat(1000));
        let heads: [(Ask<'_>, u16); 16] = [
            (Ask::new(GET, "nowhere"), 400),
            (Ask::new(GET, "/a b"), 400),
            (Ask::new(GET, "/a\r\nX: y"), 400),
            (Ask::new(GET, "/a?b"), 400),
            (Ask::new(GET, "/").attribute(5, b"a b"), 400),
            (Ask::new(GET, "/").fields(&[("Host", "a"), ("Host", "b")]), 400),
            (Ask::new(GET, "/").fields(&[("Host", "a b")]), 400),
            (Ask::new(GET, "/").fields(&[("Host", "h"), ("X", "a\r\nY: b")]), 400),
            (Ask::new(GET, "/").fields(&[("Host", "h"), ("X y", "a")]), 400),
            (Ask::new(GET, "/").fields(&[("Host", "h"), ("X", "a\0")]), 400),
            (Ask::new(POST, "/").fields(&[("Host", "h"), ("Content-Length", "+1")]), 400),
            (
                Ask::new(POST, "/").fields(&[
                    ("Host", "h"),
                    ("Content-Length", "1"),
                    ("Transfer-Encoding", "chunked"),
                ]),
                400,
            ),
            (Ask::new(POST, "/").fields(&[("Host", "h"), ("Transfer-Encoding", "gzip")]), 400),
            (Ask::new(GET, "/").fields(&[("Host", "h"), ("Content-Length", "5")]), 400),
            (Ask { client: b"nobody", ..Ask::new(GET, "/") }, 400),
            (Ask { server: b"a\r\nX: y", ..Ask::new(GET, "/").fields(&[]) }, 400),
        ];
        for (ask, status) in &heads {
            let mut peer = world.client();
            peer.send([ask.packet(), Ask::new(GET, "/smuggled").packet()].concat()).await;
            let reply = reply(&mut peer, b"").await;
            let uri = String::from_utf8_lossy(ask.uri);
            assert_eq!((reply.status, reply.reuse), (*status, false), "{uri} {:?}", ask.fields);
            assert!(peer.is_closed().await, "{uri}");
        }
        let mut peer = world.client();
        peer.send(Ask::new(GET, &long).attribute(5, &[b'q'; 150]).packet()).await;
        assert_eq!(reply(&mut peer, b"").await.status, 414);
        assert!(!backend.has_visitor(), "nothing of it was passed on");
    });
}

#[test]
fn packets_that_nobody_may_send_end_the_connection_without_harm() {
    let request = Ask::new(GET, "/").packet();
    let too_large = [&b"\x12\x34\x20\0"[..], &[2; 8192]].concat();
    let mut unknown_attribute = Ask::new(GET, "/");
    unknown_attribute.attributes = vec![0x42, 0, 1, b'a', 0];
    let twice = Ask::new(GET, "/").attribute(3, b"a").attribute(3, b"b");
    let long_string = packet(&[2, 2, 0xff, 0xfe, b'a']);
    let broken: Vec<(Vec<u8>, Option<u16>)> = vec![
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), None),
        (b"AB\0\x01\x0a".to_vec(), None),
        (too_large, None),
        (packet(&[7]), None),
        (packet(&[8]), None),
        (packet(&[42, 1, 2, 3]), None),
        (data(b"nobody has asked"), None),
        (packet(b""), Some(400)),
        (long_string, Some(400)),
        (unknown_attribute.packet(), Some(400)),
        (twice.packet(), Some(400)),
        (packet(&[&request[4..], b"more"].concat()), Some(400)),
        (packet(&request[4..request.len() - 1]), Some(400)),
        (packet(b"\x0amore"), Some(400)),
    ];
    in_memory(&site("", HELLO), async |world| {
        for (at, (bytes, status)) in broken.iter().enumerate() {
            let mut peer = world.client();
            peer.send(&request).await;
            assert_eq!(reply(&mut peer, b"").await.status, 200);
            peer.send([&bytes[..], &request].concat()).await;
            if let Some(status) = status {
                let reply = reply(&mut peer, b"").await;
                assert_eq!((reply.status, reply.reuse), (*status, false), "{at}");
            }
            assert!(peer.is_closed().await, "{at}");
        }
        assert_eq!(ask(world, &Ask::new(GET, "/")).await.status, 200);
    });
}

#[test]
fn bodies_of_another_length_than_announced_are_cut_off_before_the_backend_takes_them_for_whole() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let pieces: [&[u8]; 4] = [
            // More than announced, an early end, another packet, a wrong length.
            &data(&[b'a'; 101]),
            &packet(b""),
            &Ask::new(GET, "/").packet(),
            &packet(&[0, 9, b'a']),
        ];
        for (at, piece) in pieces.into_iter().enumerate() {
            let mut peer = world.client();
            let fields = [("Host", "h"), ("Content-Length", "100")];
            peer.send(Ask::new(POST, "/").fields(&fields).packet()).await;
            sleep(Duration::from_secs(1)).await;
            peer.send(piece).await;
            let (rest, _) = peer.rest().await;
            assert!(!rest.ends_with(b"\x05\x01"), "{at}: the connection is of no use");
            if backend.has_visitor() {
                let mut connection = backend.accept().await;
                let (sent, _) = connection.rest().await;
                let text = String::from_utf8_lossy(&sent);
                let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                assert!(body.len() < 100, "{at}: {text}");
            }
        }
    });
}

#[test]
fn pings_in_a_flood_end_the_connection() {
    in_memory(&site("", HELLO), async |world| {
        let mut peer = world.client();
        for _ in 0..3 {
            peer.send(PING.repeat(100)).await;
            for _ in 0..100 {
                assert_eq!(next(&mut peer).await, Some(Sent::Pong));
            }
            peer.send(Ask::new(GET, "/").packet()).await;
            assert!(reply(&mut peer, b"").await.reuse);
        }
        peer.send(PING.repeat(101)).await;
        let (rest, _) = peer.rest().await;
        assert_eq!(rest, PONG.repeat(100));
        assert_eq!(world.gateway.reached(Limit::AjpPings), 1);
    });
}

#[test]
fn a_time_limit_ends_the_connection() {
    let server = "[server.timeouts]\nhead = \"7s\"\nkeep_alive = \"20s\"\nbody_idle = \"9s\"\n";
    in_memory(&format!("{server}{}", site("", PROXIED)), async |world| {
        let _backend = world.backend("10.0.0.1:3000");
        let took = |since: Instant, limit: u64| {
            let took = since.elapsed();
            let limit = Duration::from_secs(limit);
            assert!(took >= limit && took < limit + Duration::from_secs(1), "{took:?} {limit:?}");
        };
        let (mut silent, since) = (world.client(), Instant::now());
        assert!(silent.is_closed().await);
        took(since, 7);
        let mut slow = world.client();
        slow.send(b"\x12\x34\0").await;
        let since = Instant::now();
        assert!(slow.is_closed().await);
        took(since, 7);
        assert_eq!(world.gateway.reached(Limit::Head), 2);
        // Pings do not extend the age limit of a connection.
        let mut idle = world.client();
        idle.send(PING).await;
        assert_eq!(next(&mut idle).await, Some(Sent::Pong));
        let since = Instant::now();
        assert!(idle.is_closed().await);
        took(since, 20);
        let mut body = world.client();
        let fields = [("Host", "h"), ("Content-Length", "100")];
        body.send(Ask::new(POST, "/").fields(&fields).packet()).await;
        let since = Instant::now();
        let answer = reply(&mut body, b"").await;
        took(since, 9);
        assert_eq!((answer.status, answer.reuse), (408, false));
    });
}
