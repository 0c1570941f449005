//! Peers that send and read slowly, and servers that end their connections.

mod support;

use std::time::Duration;

use forebay_load::{Outcome, SlowPeers, Spec, Url};

use support::{Server, load, spec};

const READING: SlowPeers = SlowPeers { read: Some(50_000), send: None };
const SENDING: SlowPeers = SlowPeers { read: None, send: Some(1_000) };

fn slow(server: &Server, slow: SlowPeers) -> Spec {
    Spec { slow, connections: 8, ..spec(server.url(), 8) }
}

fn closed(outcome: &Outcome) -> u64 {
    outcome.slow.as_ref().unwrap().closed.count()
}

#[test]
fn a_slow_sender_and_a_slow_reader_complete_their_requests() {
    let body = vec![b'x'; 20_000];
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let server = Server::answering([head.as_bytes(), &body].concat());
    let sending = Spec { body: vec![b'y'; 300], ..slow(&server, SENDING) };
    for (load_spec, least) in [(sending, 300), (slow(&server, READING), 350)] {
        let outcome = load(&load_spec).unwrap();
        assert_eq!(outcome.requests.completed, 8, "{:?}", outcome.first_failure);
        assert_eq!((outcome.bytes.body, closed(&outcome)), (160_000, 0));
        // The pace is a maximum, so the time has a minimum on any machine.
        assert!(outcome.latency.min_us() >= least * 1000, "{} us", outcome.latency.min_us());
        let json = outcome.to_json();
        assert_eq!(Outcome::from_json(&json).unwrap().to_json(), json);
    }
    assert_eq!(server.requests(), 16);
}

#[test]
fn ends_that_the_server_causes_are_counted() {
    // Each server ends the connection before the request is complete.
    let silent = Server::start(|peer| drop(peer.some(10)));
    let polite = Server::start(|peer| {
        peer.some(10);
        peer.send(
            b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        peer.wait_for_close();
    });
    let outcome = load(&slow(&silent, SENDING)).unwrap();
    let failures = &outcome.requests.failures;
    assert_eq!((closed(&outcome), failures.read + failures.write), (8, 8));
    let outcome = load(&slow(&polite, SENDING)).unwrap();
    assert_eq!((closed(&outcome), outcome.requests.status.get(&408)), (8, Some(&8)));
    // The server sends half of the reply.
    let half = Server::start(|peer| {
        peer.request();
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    });
    let outcome = load(&slow(&half, READING)).unwrap();
    assert_eq!((closed(&outcome), outcome.requests.failures.read), (8, 8));
}

#[test]
fn connections_are_held_open_until_the_timeout() {
    let server = Server::start(|peer| peer.wait_for_close());
    let sending = SlowPeers { send: Some(1), ..SlowPeers::default() };
    let held = Spec { timeout: Duration::from_millis(300), ..slow(&server, sending) };
    let outcome = load(&held).unwrap();
    assert_eq!((closed(&outcome), outcome.requests.failures.timeout), (0, 8));
    assert_eq!(server.connections(), 8);
}

#[test]
fn settings_that_cannot_be_kept_are_refused() {
    let server = Server::answering(*b"x");
    let zero = SlowPeers { read: Some(0), send: None };
    let http2 = Url::parse(&format!("h2c://{}/", server.address)).unwrap();
    for wrong in [slow(&server, zero), Spec { url: http2, ..slow(&server, READING) }] {
        assert!(load(&wrong).unwrap_err().to_string().contains("--slow"));
    }
}
