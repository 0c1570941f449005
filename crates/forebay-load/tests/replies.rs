//! Replies with all kinds of framing, over real sockets.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_load::{Check, Part, Spec, Url};
use support::{Peer, Server, load, load_without_failure, spec};

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn keep_alive_sends_exactly_n_on_few_connections() {
    for (connections, threads, n) in [(1, 1, 1), (3, 2, 1000), (5, 3, 1001), (7, 2, 3)] {
        let server = Server::answering(HELLO);
        let spec = Spec { connections, threads, ..spec(server.url(), n) };
        let outcome = load_without_failure(&spec, n);
        assert_eq!(server.requests(), n);
        assert!(server.connections() <= connections as u64);
        assert_eq!(outcome.requests.status, BTreeMap::from([(200, n)]));
        assert_eq!(outcome.bytes.body, 5 * n);
        assert_eq!(outcome.bytes.read, HELLO.len() as u64 * n);
    }
}

#[test]
fn more_threads_than_connections_is_fewer_threads() {
    let server = Server::answering(HELLO);
    let outcome = load_without_failure(&Spec { threads: 64, ..spec(server.url(), 10) }, 10);
    assert_eq!(outcome.threads, 2);
}

#[test]
fn chunked_replies() {
    let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                 5;x=y\r\nhello\r\n7\r\n, world\r\n0\r\nX: y\r\n\r\n";
    let server = Server::answering(reply);
    let outcome = load_without_failure(&spec(server.url(), 100), 100);
    assert_eq!(outcome.bytes.body, 12 * 100);
    assert_eq!(server.connections(), 2);
}

#[test]
fn replies_that_come_byte_by_byte() {
    let replies: [&[u8]; 3] = [
        HELLO,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
          3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello",
    ];
    for reply in replies {
        let server = Server::start(|peer| {
            while peer.request().is_some() {
                peer.trickle(reply);
            }
        });
        let outcome = load_without_failure(&spec(server.url(), 6), 6);
        assert_eq!(outcome.bytes.body, 5 * 6);
        assert!(server.connections() <= 2);
    }
}

#[test]
fn close_delimited_replies_reconnect() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(b"HTTP/1.0 200 OK\r\n\r\nuntil the end");
    });
    let outcome = load_without_failure(&spec(server.url(), 50), 50);
    assert_eq!(outcome.bytes.body, 13 * 50);
    assert_eq!(server.connections(), 50);
}

#[test]
fn announced_closes_reconnect_without_a_failure() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    });
    let outcome = load_without_failure(&spec(server.url(), 50), 50);
    assert_eq!((server.connections(), outcome.requests.resent), (50, 0));
}

#[test]
fn silent_closes_after_each_reply_are_no_failures() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(HELLO);
    });
    // A request may reach a connection that the server is about to close. The server leaves it
    // unread, so it is sent again.
    load_without_failure(&spec(server.url(), 50), 50);
    assert_eq!((server.requests(), server.connections()), (50, 50));
}

#[test]
fn a_connection_closed_while_thinking_reconnects_without_a_failure() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(HELLO);
    });
    let think = Some(Duration::from_millis(20));
    let outcome = load_without_failure(&Spec { think, ..spec(server.url(), 8) }, 8);
    assert_eq!(server.connections(), 8);
    assert_eq!(outcome.requests.resent, 0, "the close is seen before the next request");
}

#[test]
fn without_keep_alive_each_request_has_its_connection() {
    let server = Server::start(|peer| {
        let request = String::from_utf8(peer.request().unwrap()).unwrap();
        assert!(request.contains("\r\nConnection: close\r\n"), "{request}");
        // The client must close the connection even if the server does not announce that it closes.
        peer.send(HELLO);
        peer.wait_for_close();
    });
    let spec = Spec { keepalive: false, ..spec(server.url(), 30) };
    load_without_failure(&spec, 30);
    assert_eq!(server.connections(), 30);
}

/// Returns the URL of `server` with another scheme.
fn url_of(server: &Server, scheme: &str) -> Url {
    Url::parse(&format!("{scheme}://{}/", server.address)).unwrap()
}

#[test]
fn a_request_with_connection_close_is_the_last_on_its_connection() {
    const FASTCGI: &[u8] = b"\x01\x06\0\x01\0\x0d\0\0Status: 200\n\n\
        \x01\x03\0\x01\0\x08\0\0\0\0\0\0\0\0\0\0";
    const AJP: &[u8] = b"AB\0\x0a\x04\0\xc8\0\x02OK\0\0\0AB\0\x02\x05\x01";
    let fields = [("Connection", "close"), ("connection", "TE, CLOSE"), ("CONNECTION", "Close ,x")];
    let replies = [("http", HELLO), ("fcgi", FASTCGI), ("ajp", AJP)];
    for ((scheme, reply), (name, value)) in
        replies.into_iter().flat_map(|reply| fields.map(|field| (reply, field)))
    {
        // The server does not announce that it closes, and waits until the client closes.
        let server = Server::start(move |peer| {
            peer.some(16);
            peer.send(reply);
            peer.wait_for_close();
        });
        let headers = vec![(name.to_owned(), value.to_owned())];
        let url = url_of(&server, scheme);
        let plain = Spec { headers: headers.clone(), ..spec(url.clone(), 20) };
        let filled = Spec { url: url.with_target("/{n}").unwrap(), ..plain.clone() };
        let (method, body, weight) = ("GET".to_owned(), Vec::new(), 1);
        let part = Part { url: url.clone(), method, headers, body, weight };
        let mixed = Spec { parts: vec![part.clone(), part], ..spec(url, 20) };
        for (index, load) in [plain, filled, mixed].into_iter().enumerate() {
            load_without_failure(&load, 20);
            assert_eq!(server.connections(), 20 * (index as u64 + 1), "{scheme} {value}");
        }
    }
}

#[test]
fn a_websocket_that_the_server_closes_after_a_reply_is_no_failure() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        );
        // Each connection carries a message. The close frame answers the next message.
        let frame = 6 + b"forebay".len();
        peer.some(frame);
        peer.send(b"\x81\x02hi");
        peer.some(frame);
        peer.send(b"\x88\x02\x03\xe8");
        peer.wait_for_close();
    });
    let outcome = load_without_failure(&spec(url_of(&server, "ws"), 20), 20);
    assert!(outcome.requests.resent >= 17, "{outcome:?}");
}

#[test]
fn head_and_bodiless_statuses_have_no_body() {
    let cases = [
        ("HEAD", "200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("HEAD", "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", "204 No Content\r\n\r\n"),
        ("GET", "304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", "200 OK\r\nContent-Length: 0\r\n\r\n"),
    ];
    for (method, reply) in cases {
        let server = Server::answering(format!("HTTP/1.1 {reply}"));
        let spec = Spec { method: method.into(), ..spec(server.url(), 20) };
        let outcome = load_without_failure(&spec, 20);
        assert_eq!(outcome.bytes.body, 0);
        assert!(server.connections() <= 2, "{method} {reply}");
    }
}

#[test]
fn large_replies_come_whole() {
    for size in [65_535, 65_536 - 43, 1_000_000] {
        let mut reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
        reply.resize(reply.len() + size, b'x');
        let server = Server::answering(reply);
        let outcome = load_without_failure(&spec(server.url(), 20), 20);
        assert_eq!(outcome.bytes.body, 20 * size as u64);
    }
}

#[test]
fn large_requests_go_whole() {
    let server = Server::start(|peer| {
        while let Some(request) = peer.request() {
            let length = request.len() - request.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
            assert_eq!(length, 3_000_004);
            peer.send(HELLO);
        }
    });
    let body = vec![b'b'; 3_000_000];
    let spec = Spec { method: "POST".into(), body, ..spec(server.url(), 6) };
    load_without_failure(&spec, 6);
}

#[test]
fn an_early_reply_to_a_large_request_counts() {
    let server = Server::start(|peer| {
        peer.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        peer.wait_for_close();
    });
    let spec = Spec { method: "POST".into(), body: vec![0; 200_000], ..spec(server.url(), 6) };
    let outcome = load_without_failure(&spec, 6);
    assert_eq!(outcome.requests.status, BTreeMap::from([(413, 6)]));
    assert_eq!(outcome.error_replies(), 6);
}

/// Reads a request head, and returns it without case.
fn head_of(peer: &mut Peer) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(peer.some(1)?);
    }
    Some(String::from_utf8(head).unwrap().to_ascii_lowercase())
}

/// Reads the lines of a chunked body. Returns its content and the number of chunks.
fn chunks_of(peer: &mut Peer) -> (Vec<u8>, usize) {
    let (mut body, mut count) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(peer.some(1).unwrap());
        }
        let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        body.extend(peer.some(size).unwrap());
        assert_eq!(peer.some(2).unwrap(), b"\r\n");
        if size == 0 {
            return (body, count);
        }
        count += 1;
    }
}

#[test]
fn bodies_go_in_chunks_also_with_placeholders_and_in_a_mix() {
    let server = Server::start(|peer| {
        while let Some(head) = head_of(peer) {
            assert!(!head.contains("content-length"), "{head}");
            if head.starts_with("get ") {
                assert!(!head.contains("transfer-encoding"), "{head}");
            } else {
                assert!(head.contains("\r\ntransfer-encoding: chunked\r\n"), "{head}");
                let (body, count) = chunks_of(peer);
                assert!(body.ends_with(b"end") && count == body.len().div_ceil(16 << 10));
            }
            peer.send(HELLO);
        }
    });
    let headers = vec![("transfer-encoding".to_owned(), "Chunked".to_owned())];
    let long = [&[b'x'; 100_000][..], b"end"].concat();
    let (method, headers_of_part) = ("PUT".to_owned(), Vec::new());
    let post = |body: &[u8]| Spec {
        method: "POST".to_owned(),
        headers: headers.clone(),
        body: body.to_vec(),
        ..spec(server.url(), 6)
    };
    let part = Part {
        url: server.url(),
        method,
        headers: headers_of_part,
        body: b"the end".to_vec(),
        weight: 1,
    };
    let get = Part { method: "GET".to_owned(), body: Vec::new(), ..part.clone() };
    let mixed = Spec { parts: vec![part, get], ..post(b"") };
    for spec in [post(b"end"), post(&long), post(b"{n} end"), mixed] {
        load_without_failure(&spec, 6);
    }
}

#[test]
fn a_body_waits_for_100_continue_and_is_left_out_after_a_final_reply() {
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    const EARLY: &[u8] = b"HTTP/1.1 103 Early Hints\r\n\r\n";
    let refusal =
        |status| format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n").into_bytes();
    for (before, status, body) in [
        (CONTINUE.to_vec(), 200, true),
        ([EARLY, CONTINUE].concat(), 200, true),
        (refusal(413), 413, false),
        (refusal(417), 417, false),
        ([CONTINUE, &refusal(401)].concat(), 401, false),
        // Without an answer, the body is sent after a second.
        (EARLY.to_vec(), 200, true),
    ] {
        for is_chunked in [false, true] {
            let before = before.clone();
            let server = Server::start(move |peer| {
                while head_of(peer).is_some() {
                    peer.send(&before);
                    if !body {
                        return peer.wait_for_close();
                    }
                    let body = if is_chunked { chunks_of(peer).0 } else { peer.some(4).unwrap() };
                    assert_eq!(body, b"body");
                    peer.send(HELLO);
                }
            });
            let mut headers = vec![("expect".to_owned(), "100-Continue".to_owned())];
            if is_chunked {
                headers.push(("Transfer-Encoding".to_owned(), "chunked".to_owned()));
            }
            let (method, body_of) = ("POST".to_owned(), b"body".to_vec());
            let spec = Spec { method, headers, body: body_of, ..spec(server.url(), 4) };
            let outcome = load_without_failure(&spec, 4);
            assert_eq!(outcome.requests.status, BTreeMap::from([(status, 4)]));
            let connections = server.connections();
            assert!(if body { connections <= 2 } else { connections == 4 }, "{status}");
        }
    }
}

#[test]
fn statuses_are_counted_and_fail_nothing() {
    let server = Server::start(|peer| {
        while let Some(request) = peer.request() {
            let _ = request;
            peer.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            peer.request();
            peer.send(HELLO);
        }
    });
    let spec = Spec { connections: 1, ..spec(server.url(), 10) };
    let outcome = load_without_failure(&spec, 10);
    assert_eq!(outcome.requests.status, BTreeMap::from([(200, 5), (404, 5)]));
    assert_eq!(outcome.error_replies(), 5);
}

#[test]
fn the_check_fails_what_is_not_as_expected() {
    let check = |status, needle: Option<&str>| {
        Some(Check { status, body_contains: needle.map(|needle| needle.into()) })
    };
    for (check, failed) in [
        (check(200, None), 0),
        (check(200, Some("hello")), 0),
        (check(200, Some("Hello")), 10),
        (check(404, None), 10),
    ] {
        let server = Server::answering(HELLO);
        let outcome = load(&Spec { check, ..spec(server.url(), 10) }).unwrap();
        assert_eq!(outcome.requests.failed, failed);
        assert_eq!(outcome.requests.failures.check, failed);
        assert_eq!(outcome.requests.completed, 10 - failed);
        assert_eq!(outcome.requests.status, BTreeMap::from([(200, 10)]));
        assert!(server.connections() <= 2, "a failed check does not cost the connection");
    }
}

#[test]
fn the_request_is_as_specified() {
    let server = Server::start(|peer| {
        let request = String::from_utf8(peer.request().unwrap()).unwrap();
        let host = request.lines().find(|line| line.starts_with("Host: ")).unwrap();
        assert!(host.starts_with("Host: 127.0.0.1:"), "{request}");
        assert!(request.starts_with("PUT / HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nX-Test: a b\r\n"), "{request}");
        assert!(request.ends_with("\r\nContent-Length: 4\r\n\r\nbody"), "{request}");
        peer.send(HELLO);
    });
    let headers = vec![("X-Test".into(), "a b".into())];
    let spec =
        Spec { method: "PUT".into(), body: b"body".to_vec(), headers, ..spec(server.url(), 1) };
    load_without_failure(&spec, 1);
}

/// A head that equals the previous one is not parsed again. After a different head, it must be
/// parsed.
#[test]
fn a_repeated_head_is_known_only_as_long_as_it_is_the_last() {
    let server = Server::start(|peer| {
        while peer.request().is_some() {
            peer.send(HELLO);
            peer.request();
            peer.send(HELLO);
            peer.request();
            peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n");
            peer.send(b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
            peer.request();
            peer.send(HELLO);
            peer.request();
            peer.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n broken\r\n\r\n");
            peer.wait_for_close();
        }
    });
    let spec = Spec { connections: 1, ..spec(server.url(), 10) };
    let outcome = load(&spec).unwrap();
    assert_eq!(outcome.requests.status, BTreeMap::from([(200, 6), (201, 2)]));
    assert_eq!(outcome.requests.failures.protocol, 2);
    assert_eq!(outcome.bytes.body, 6 * 5);
}
