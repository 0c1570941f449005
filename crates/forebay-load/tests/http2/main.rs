//! Load over HTTP/2 on a server of the `h2` crate, and on servers that violate the protocol.

mod failures;
mod frames;
mod grpc;
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use forebay_load::{Arrivals, Check, Control, Error, Protocol, Rate, Spec, Stop, Turns, fetch};

use server::{Act, Http2Server, Options};
use support::{load, spec};

/// Returns the settings for `n` requests over `connections`, with `streams` on each.
fn multiplexed(server: &Http2Server, connections: usize, streams: usize, n: u64) -> Spec {
    Spec { connections, streams, ..spec(server.url(), n) }
}

#[test]
fn every_request_of_many_streams_is_counted_once_on_either_side() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let outcome = load(&multiplexed(&server, 8, 32, 10_000)).unwrap();
    assert_eq!(outcome.requests.completed, 10_000, "{:?}", outcome.first_failure);
    assert_eq!((outcome.requests.failed, outcome.requests.sent), (0, 10_000));
    assert_eq!((server.requests(), server.connections()), (10_000, 8));
    assert_eq!(outcome.bytes.body, 50_000);
    assert_eq!(outcome.requests.status.get(&200), Some(&10_000));
    assert_eq!(outcome.latency.count(), 10_000);
    assert_eq!(outcome.to_json()["protocol"], "h2c");
    assert_eq!(outcome.protocol, Protocol::H2c);
}

#[test]
fn without_the_flag_there_is_one_stream_at_a_time() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let outcome = load(&multiplexed(&server, 2, 1, 200)).unwrap();
    assert_eq!((outcome.requests.completed, server.requests()), (200, 200));
    assert!(server.most_streams() <= 2, "one on each of two connections");
}

#[test]
fn as_many_requests_are_in_flight_as_there_are_streams() {
    let options = Options { together: 4, ..Options::default() };
    let server = Http2Server::start(options, |_, _| Act::Body(b"x"));
    let outcome = load(&multiplexed(&server, 1, 4, 400)).unwrap();
    assert_eq!(outcome.requests.completed, 400, "{:?}", outcome.first_failure);
}

#[test]
fn no_more_streams_are_opened_than_the_server_allows() {
    let options = Options { streams: Some(3), ..Options::default() };
    let server = Http2Server::start(options, |_, _| Act::Body(b"hello"));
    let outcome = load(&multiplexed(&server, 1, 32, 500)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failed), (500, 0));
    assert_eq!((server.requests(), server.connections()), (500, 1));
    assert!(server.most_streams() <= 3, "{}", server.most_streams());
}

#[test]
fn bodies_larger_than_the_windows_go_up_and_come_down() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Echo);
    let body: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let check = Check { status: 200, body_contains: Some(body[200_000..].to_vec()) };
    let load_spec = Spec {
        method: "POST".to_owned(),
        body: body.clone(),
        check: Some(check),
        ..multiplexed(&server, 2, 4, 40)
    };
    let outcome = load(&load_spec).unwrap();
    assert_eq!(outcome.requests.completed, 40, "{:?}", outcome.first_failure);
    assert_eq!((server.requests(), server.body_bytes()), (40, 40 * 300_000));
    assert_eq!(outcome.bytes.body, 40 * 300_000);
}

#[test]
fn a_reply_before_the_end_of_the_body_is_a_reply() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"too much"));
    let load_spec = Spec {
        method: "POST".to_owned(),
        body: vec![b'x'; 500_000],
        ..multiplexed(&server, 1, 4, 40)
    };
    let outcome = load(&load_spec).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failed), (40, 0));
    assert_eq!((server.requests(), server.connections()), (40, 1));
}

#[test]
fn each_stream_is_checked_by_itself() {
    let server = Http2Server::start(Options::default(), |_, request| {
        if request % 2 == 0 { Act::Body(b"all is well") } else { Act::Body(b"all is lost") }
    });
    let check = Check { status: 200, body_contains: Some(b"well".to_vec()) };
    let outcome = load(&Spec { check: Some(check), ..multiplexed(&server, 2, 8, 400) }).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.check), (200, 200));
}

#[test]
fn an_open_loop_spreads_over_streams() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let rate = Some(Rate { per_second: 2_000.0, arrivals: Arrivals::Poisson });
    let outcome = load(&Spec { rate, ..multiplexed(&server, 2, 8, 300) }).unwrap();
    assert_eq!((outcome.requests.completed, server.requests()), (300, 300));
    let think = Some(Duration::from_millis(1));
    let outcome = load(&Spec { think, ..multiplexed(&server, 2, 8, 300) }).unwrap();
    assert_eq!((outcome.requests.completed, server.requests()), (300, 600));
}

#[test]
fn without_keepalive_each_request_has_a_connection_of_its_own() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let outcome = load(&Spec { keepalive: false, ..multiplexed(&server, 2, 1, 30) }).unwrap();
    assert_eq!((outcome.requests.completed, server.connections()), (30, 30));
}

#[test]
fn fields_are_sent_in_the_form_of_http2() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let headers = vec![
        ("Host".to_owned(), "shop.example".to_owned()),
        ("X-Upper-Case".to_owned(), "Value".to_owned()),
    ];
    load(&Spec { headers, ..multiplexed(&server, 1, 2, 4) }).unwrap();
    let head = server.last_head();
    assert_eq!(head.uri.to_string(), "http://shop.example/");
    assert_eq!(head.headers["x-upper-case"], "Value");
    assert!(head.headers.get("host").is_none() && head.headers.get("connection").is_none());
    for (name, value) in
        [("Connection", "close"), ("keep-alive", "1"), ("Upgrade", "x"), ("TE", "gzip")]
    {
        let headers = vec![(name.to_owned(), value.to_owned())];
        let error = load(&Spec { headers, ..multiplexed(&server, 1, 1, 1) }).unwrap_err();
        assert!(matches!(&error, Error::Invalid(why) if why.contains(name)), "{error}");
    }
}

#[test]
fn a_probe_fetches_over_http2() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let reply = fetch(&server.url(), Duration::from_secs(15), &[]).unwrap();
    assert_eq!((reply.status, &reply.body[..]), (200, &b"hello"[..]));
    assert!(reply.headers.contains(&("x-from".to_owned(), "h2".to_owned())));
}

#[test]
fn streams_need_http2_and_keepalive() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let h2c = multiplexed(&server, 1, 2, 1);
    let http = forebay_load::Url::parse("http://127.0.0.1:1/").unwrap();
    for (wrong, hint) in [
        (Spec { streams: 0, ..h2c.clone() }, "from 1"),
        (Spec { streams: 65_537, ..h2c.clone() }, "from 1"),
        (Spec { url: http, ..h2c.clone() }, "--http2"),
        (Spec { keepalive: false, ..h2c }, "keep-alive"),
    ] {
        let error = load(&wrong).unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
}

#[test]
fn connections_stay_open_between_turns() {
    let server = Http2Server::start(Options::default(), |_, _| Act::Body(b"hello"));
    let one_thread = Spec { threads: 1, ..multiplexed(&server, 2, 4, 1) };
    let mut turns = Turns::new(&one_thread).unwrap();
    for turn in 1..=3 {
        let outcome = turns.run(Stop::Requests(80), None, &Control::default()).unwrap();
        assert_eq!((outcome.requests.completed, outcome.requests.failed), (80, 0));
        assert_eq!((server.requests(), server.connections()), (80 * turn, 2));
    }
}

#[test]
fn a_connection_that_went_away_between_turns_is_replaced() {
    let options = Options { goes_away_after: Some(10), ..Options::default() };
    let server = Http2Server::start(options, |_, _| Act::Body(b"hello"));
    let mut turns = Turns::new(&multiplexed(&server, 1, 1, 1)).unwrap();
    for _ in 0..3 {
        let outcome = turns.run(Stop::Requests(10), None, &Control::default()).unwrap();
        assert_eq!(outcome.requests.completed, 10, "{:?}", outcome.first_failure);
    }
    assert!(server.connections() >= 3);
}
