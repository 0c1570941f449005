//! Tests of stream windows above the limit of one stream. All streams share this additional space.

use std::time::{Duration, Instant};

use forebay_wire::http2::{Config, Connection, ErrorCode};

use super::drive::*;
use super::flow::{give, server, written};

const LIMIT: usize = 1 << 16;
const SHARED: usize = 1 << 20;

/// Returns a server with `count` streams and a measured round trip of 50 ms.
fn with_streams(count: u32) -> (Connection, Instant) {
    let config = Config {
        stream_window_limit: LIMIT as u32,
        shared_window_limit: SHARED as u32,
        connection_window: 1 << 24,
        ..Config::default()
    };
    let heads = |raw: Raw, at: u32| raw.head(1 + 2 * at, POST, false);
    let mut server = server(config, (0..count).fold(Raw::client(), heads));
    let now = Instant::now();
    // The first stream consumes half of its window. The server therefore measures the round trip.
    give(&mut server, &data(1, 32_768));
    server.consume(1, 32_768, now);
    let pong = Raw::default().frame(PING, ACK, 0, b"measure\0");
    let later = now + Duration::from_millis(50);
    assert!(server.receive(&pong.0, later).unwrap().event.is_none());
    written(&mut server);
    (server, later)
}

fn data(stream: u32, len: usize) -> Raw {
    let frames = [16_384].repeat(len / 16_384).into_iter().chain([len % 16_384]);
    frames.fold(Raw::default(), |raw, len| raw.data(stream, &vec![0; len], false))
}

/// Lets the peer use up the window of a stream repeatedly, faster than the round trip. Returns the
/// final size of the window.
fn grow(server: &mut Connection, stream: u32, mut window: usize, now: Instant) -> usize {
    for round in 0..12 {
        give(server, &data(stream, window));
        server.consume(stream, window, now + Duration::from_millis(round));
        let updates = written(server);
        let opened = updates.iter().filter(|update| update.0 == stream);
        window = opened.map(|update| -update.1 as usize).sum();
    }
    window
}

#[test]
fn a_window_grows_beyond_its_limit_where_few_streams_share_what_there_is() {
    for (streams, share) in [(1, SHARED), (4, SHARED / 4), (64, SHARED / 64)] {
        let (mut server, now) = with_streams(streams);
        assert_eq!(grow(&mut server, 1, 65_535, now), LIMIT + share, "{streams}");
    }
}

#[test]
fn all_windows_together_have_no_more_than_what_they_share() {
    let (mut server, now) = with_streams(1);
    assert_eq!(grow(&mut server, 1, 65_535, now), LIMIT + SHARED);
    // A stream that has ended still occupies shared space while its data is not consumed.
    give(&mut server, &data(1, SHARED));
    give(&mut server, &Raw::default().data(1, b"", true));
    server.send_reply(1, 200, &forebay_wire::fields::Fields::new(), true).unwrap();
    written(&mut server);
    give(&mut server, &Raw::default().head(3, POST, false));
    assert_eq!(grow(&mut server, 3, 65_535, now), LIMIT);
    server.consume(1, SHARED, now);
    written(&mut server);
    assert_eq!(grow(&mut server, 3, LIMIT, now), LIMIT + SHARED, "it has given it back");
}

#[test]
fn windows_that_begin_above_the_limit_lend_nothing() {
    for (stream_window, shared_window_limit) in
        [(1 << 21, 0), (1 << 21, 1 << 20), (u32::MAX, u32::MAX)]
    {
        let config = Config { stream_window, shared_window_limit, ..Config::default() };
        let mut server = server(config, Raw::client().head(1, POST, false));
        give(&mut server, &data(1, 40_000));
        server.consume(1, 40_000, Instant::now());
        server.reset(1, ErrorCode::CANCEL, Instant::now());
        give(&mut server, &Raw::default().head(3, POST, false).data(3, b"more", true));
        server.consume(3, 4, Instant::now());
    }
}
