//! Raw bytes over TCP: ends of replies, and connections that close early.

mod support;

use forebay_load::{ReplyEnd, Spec, Url};

use support::{Server, load, spec};

fn raw(server: &Server, reply_end: ReplyEnd, keepalive: bool, n: u64) -> Spec {
    let url = Url::parse(&format!("tcp://{}", server.address)).unwrap();
    let body = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    Spec { body, reply_end, keepalive, connections: 4, ..spec(url, n) }
}

fn pattern(text: &[u8]) -> ReplyEnd {
    ReplyEnd::Pattern(text.to_vec())
}

#[test]
fn a_reply_ends_with_bytes_a_pattern_or_the_connection() {
    // The pattern begins twice, and arrives byte by byte.
    let server = Server::start(|peer| {
        while peer.request().is_some() {
            peer.trickle(b"one aab aaab");
        }
    });
    for (end, bytes) in [(ReplyEnd::Length(12), 12), (pattern(b"aaab"), 12)] {
        let outcome = load(&raw(&server, end, true, 40)).unwrap();
        assert_eq!(outcome.requests.completed, 40, "{:?}", outcome.first_failure);
        assert_eq!(outcome.bytes.body, 40 * bytes);
        assert!(outcome.requests.status.is_empty());
    }
    assert_eq!((server.requests(), server.connections()), (80, 8));
    let closing = Server::start(|peer| {
        peer.request();
        peer.send(b"bye");
    });
    let outcome = load(&raw(&closing, ReplyEnd::Close, true, 40)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.bytes.body), (40, 120));
    let outcome = load(&raw(&closing, ReplyEnd::Length(4), true, 40)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.read), (0, 40));
}

#[test]
fn a_connection_closes_after_a_part_of_the_reply() {
    let server = Server::start(|peer| {
        while peer.request().is_some() {
            peer.send(&[b'x'; 100_000]);
        }
    });
    let outcome = load(&raw(&server, ReplyEnd::Length(16), false, 100)).unwrap();
    assert_eq!(outcome.requests.completed, 100, "{:?}", outcome.first_failure);
    assert_eq!((outcome.bytes.body, server.connections()), (1_600, 100));
    // On a kept connection, bytes after the end of a reply are an error.
    let outcome = load(&raw(&server, ReplyEnd::Length(16), true, 20)).unwrap();
    assert_eq!(outcome.requests.failures.protocol, 20);
}

#[test]
fn settings_of_other_protocols_are_refused() {
    let server = Server::answering(*b"x");
    let good = raw(&server, ReplyEnd::Length(1), true, 1);
    let http = Spec { url: server.url(), ..good.clone() };
    let post = Spec { method: "POST".to_owned(), ..good.clone() };
    let empty = Spec { reply_end: ReplyEnd::Length(0), ..good.clone() };
    let streams = Spec { streams: 2, ..good.clone() };
    for wrong in [http, post, empty, streams] {
        assert!(load(&wrong).is_err());
    }
    assert_eq!(load(&good).unwrap().requests.completed, 1);
}
