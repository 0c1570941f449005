//! Failed streams, failed connections, and servers that send GOAWAY.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_load::{Outcome, Spec};

use crate::frames::{FrameServer, Says, frame, goaway, head, reply, reset, says};
use crate::server::{Act, Http2Server, Options};
use crate::support::{Server, load, spec};

const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Returns the settings for `n` requests over one connection with `streams` streams.
fn over(server: &FrameServer, streams: usize, n: u64) -> Spec {
    Spec { connections: 1, streams, ..spec(server.url(), n) }
}

/// Returns the text of the first failure. Asserts that all requests completed or failed.
fn first_failure(outcome: &Outcome, n: u64) -> &str {
    assert_eq!(outcome.requests.completed + outcome.requests.failed, n);
    outcome.first_failure.as_deref().unwrap_or_default()
}

#[test]
fn a_refused_stream_fails_alone() {
    let server = FrameServer::start(b"", |place| {
        let refuses = place.request % 10 == 3;
        says(if refuses { reset(place.stream, REFUSED_STREAM) } else { reply(place.stream) })
    });
    let outcome = load(&over(&server, 8, 200)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.read), (180, 20));
    assert!(first_failure(&outcome, 200).contains("refused the stream (REFUSED_STREAM)"));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_stream_that_is_reset_in_the_middle_of_its_reply_fails_alone() {
    let server = FrameServer::start(b"", |place| {
        let resets = place.request % 10 == 3;
        let half = [head(place.stream), frame(0, 0, place.stream, b"half")].concat();
        let reset = [half, reset(place.stream, INTERNAL_ERROR)].concat();
        says(if resets { reset } else { reply(place.stream) })
    });
    let outcome = load(&over(&server, 8, 200)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.read), (180, 20));
    assert!(first_failure(&outcome, 200).contains("reset the stream (INTERNAL_ERROR)"));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_malformed_reply_fails_its_stream_alone() {
    let server = FrameServer::start(b"", |place| {
        // Bytes 0x00 0x01 'X' 0x00 are a field with an upper-case name.
        let wrong = frame(1, 5, place.stream, &[0x88, 0, 1, b'X', 0]);
        says(if place.request == 3 { wrong } else { reply(place.stream) })
    });
    let outcome = load(&over(&server, 4, 100)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.protocol), (99, 1));
    assert!(first_failure(&outcome, 100).contains("malformed HTTP/2"));
    assert_eq!(server.connections(), 1);
}

#[test]
fn requests_that_a_goaway_leaves_unprocessed_are_sent_again() {
    let answered = Arc::new(AtomicU64::new(0));
    let counted = answered.clone();
    let server = FrameServer::start(b"", move |place| match place.request {
        ..35 => {
            counted.fetch_add(1, Ordering::SeqCst);
            says(reply(place.stream))
        }
        // The server accepts 35 requests. The last of them has the stream ID 69.
        39 => says(goaway(69, 0)),
        _ => says(Vec::new()),
    });
    let outcome = load(&over(&server, 8, 400)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failed), (400, 0));
    assert_eq!((outcome.requests.sent, answered.load(Ordering::SeqCst)), (400, 400));
    assert!(outcome.requests.resent >= 5, "{:?}", outcome.requests);
    assert_eq!(server.connections(), 12, "35 requests on each");
}

#[test]
fn servers_that_go_away_in_good_order_lose_nothing_under_load() {
    let options = Options { goes_away_after: Some(50), ..Options::default() };
    let server = Http2Server::start(options, |_, _| Act::Body(b"hello"));
    let spec = Spec { connections: 4, streams: 16, ..spec(server.url(), 4_000) };
    let outcome = load(&spec).unwrap();
    assert_eq!(outcome.requests.completed, 4_000, "{:?}", outcome.first_failure);
    assert_eq!((outcome.requests.failed, server.requests()), (0, 4_000));
    assert!(server.connections() > 8);
}

#[test]
fn a_server_that_takes_nothing_before_it_goes_away_is_a_failure() {
    let server = FrameServer::start(b"", |_| Says { bytes: goaway(0, 0), closes: true });
    let outcome = load(&over(&server, 4, 10)).unwrap();
    assert_eq!(outcome.requests.failures.read, 10);
    assert!(first_failure(&outcome, 10).contains("GOAWAY"));
}

#[test]
fn the_end_of_the_connection_fails_what_is_under_way_and_says_why() {
    let server = FrameServer::start(b"", |place| match (place.connection, place.request) {
        (0, 20) => {
            let last = goaway(place.stream, ENHANCE_YOUR_CALM);
            Says { bytes: [head(place.stream), last].concat(), closes: true }
        }
        _ => says(reply(place.stream)),
    });
    let outcome = load(&over(&server, 4, 100)).unwrap();
    assert!((1..=4).contains(&outcome.requests.failed), "{:?}", outcome.requests);
    assert!(first_failure(&outcome, 100).contains("GOAWAY, ENHANCE_YOUR_CALM"), "{outcome:?}");
    assert_eq!(server.connections(), 2);
}

#[test]
fn a_connection_that_closes_in_the_middle_of_a_reply_is_replaced() {
    let server = FrameServer::start(b"", |place| match (place.connection, place.request) {
        (0, 20) => Says { bytes: head(place.stream), closes: true },
        _ => says(reply(place.stream)),
    });
    let outcome = load(&over(&server, 4, 100)).unwrap();
    assert!((1..=4).contains(&outcome.requests.failed), "{:?}", outcome.requests);
    assert_eq!(
        outcome.requests.failures.read + outcome.requests.failures.write,
        outcome.requests.failed
    );
    first_failure(&outcome, 100);
    assert_eq!(server.connections(), 2);
}

#[test]
fn a_stream_without_a_reply_times_out_alone() {
    let server = FrameServer::start(b"", |place| {
        says(if place.request == 5 { Vec::new() } else { reply(place.stream) })
    });
    // The timeout is long enough for a busy machine. The pauses keep other requests active until
    // this one times out.
    let think = Some(Duration::from_millis(20));
    let timeout = Duration::from_secs(1);
    let outcome = load(&Spec { timeout, think, ..over(&server, 4, 400) }).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.timeout), (399, 1));
    assert!(first_failure(&outcome, 400).contains("no complete reply within 1s"));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_server_that_falls_silent_is_left_for_another_connection() {
    let server = FrameServer::start(b"", |place| match (place.connection, place.request) {
        (0, 20..) => says(Vec::new()),
        _ => says(reply(place.stream)),
    });
    let timeout = Duration::from_millis(300);
    let outcome = load(&Spec { timeout, ..over(&server, 4, 200) }).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.timeout), (196, 4));
    assert_eq!(server.connections(), 2);
}

#[test]
fn a_server_that_allows_no_stream_is_a_timeout_and_no_hang() {
    // The setting SETTINGS_MAX_CONCURRENT_STREAMS is 0.
    let server = FrameServer::start(&[0, 3, 0, 0, 0, 0], |_| says(Vec::new()));
    let timeout = Duration::from_millis(100);
    let outcome = load(&Spec { timeout, ..over(&server, 4, 3) }).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.timeout), (0, 3));
}

#[test]
fn a_server_of_http1_is_named_as_such() {
    let server = Server::answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let url = server.url().over_http2().unwrap();
    let outcome = load(&Spec { streams: 8, ..spec(url, 20) }).unwrap();
    assert_eq!(outcome.requests.failures.protocol, 20);
    let why = first_failure(&outcome, 20);
    assert!(why.contains("speaks HTTP/1.1, not HTTP/2"), "{why}");
}

#[test]
fn a_server_that_closes_before_its_settings_is_asked_about_http2() {
    let server = Server::start(|peer| {
        peer.request();
    });
    let url = server.url().over_http2().unwrap();
    let outcome = load(&Spec { streams: 8, ..spec(url, 20) }).unwrap();
    assert_eq!(outcome.requests.failures.read, 20, "{:?}", outcome.first_failure);
    assert!(first_failure(&outcome, 20).contains("before its SETTINGS"));
}
