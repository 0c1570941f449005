//! Tests of attacks that consist of valid frames. Each attack ends the connection with
//! ENHANCE_YOUR_CALM and with an error that names it, and uses limited memory. Honest peers stay
//! far from the limits.

use std::time::{Duration, Instant};

use forebay_wire::fields::Fields;
use forebay_wire::http2::{Abuse, Config, Connection, Event, RequestPseudo, Rule};

use super::drive::*;

const CALM: u32 = 11;

/// Sends the frames of `attack` for 0, 1, 2 and so on, without pauses, until the connection ends.
/// Returns the number of calls.
fn attack(abuse: Abuse, attack: impl Fn(u32) -> Raw) -> u32 {
    let mut server = Connection::server(Config::default());
    let now = Instant::now();
    let mut take = |raw: &Raw| -> Option<Rule> {
        let mut rest = &raw.0[..];
        loop {
            match server.receive(rest, now) {
                Err(error) => {
                    assert_eq!(sent(&mut server).last(), Some(&format!("goaway {CALM}")));
                    return Some(error.rule);
                }
                Ok(step) => {
                    rest = &rest[step.consumed..];
                    match step.event {
                        Some(Event::Head { head, .. }) => server.recycle(head),
                        Some(_) => {}
                        None => break,
                    }
                }
            }
        }
        assert!(server.allocated() < 300_000, "{}", server.allocated());
        let output = server.output().len();
        server.wrote(output);
        None
    };
    assert_eq!(take(&Raw::client()), None);
    for number in 0..20_000 {
        if let Some(rule) = take(&attack(number)) {
            assert_eq!(rule, Rule::Abuse(abuse));
            return number;
        }
    }
    panic!("{abuse:?} goes on for ever");
}

fn id(number: u32) -> u32 {
    1 + 2 * number
}

#[test]
fn floods_end_by_enhance_your_calm() {
    let empty = Raw::default;
    let rapid_reset = |n| empty().head(id(n), GET, true).u32(RESET, id(n), 8);
    assert!((100..=500).contains(&attack(Abuse::Resets, rapid_reset)));
    // Received DATA prepays PINGs, but nothing else.
    let with_data = |n| {
        let raw = empty().head(id(n), POST, false).data(id(n), b"a", false);
        raw.data(id(n), b"a", false).u32(RESET, id(n), 8)
    };
    assert!((100..=500).contains(&attack(Abuse::Resets, with_data)));
    let provoked = |n| empty().head(id(n), GET, true).u32(WINDOW_UPDATE, id(n), 0);
    assert!((100..=500).contains(&attack(Abuse::ProvokedResets, provoked)));
    let malformed = |n| empty().head(id(n), &[(":method", "GET")], true);
    assert!((100..=500).contains(&attack(Abuse::ProvokedResets, malformed)));
    let refused = |n| empty().head(id(n), GET, true);
    assert!((228..=628).contains(&attack(Abuse::RefusedStreams, refused)));
    assert!(attack(Abuse::Settings, |_| empty().frame(SETTINGS, 0, 0, b"")) <= 250);
    assert!(attack(Abuse::Settings, |n| empty().setting(4, n)) <= 250);
    assert!(attack(Abuse::Settings, |_| empty().frame(SETTINGS, ACK, 0, b"")) <= 1_001);
    assert!(attack(Abuse::Pings, |_| empty().frame(PING, 0, 0, &[0; 8])) <= 1_000);
    assert!(attack(Abuse::Pings, |_| empty().frame(PING, ACK, 0, &[0; 8])) <= 1_000);
    assert!(attack(Abuse::UselessFrames, |_| empty().frame(0xee, 0, 0, b"")) <= 1_000);
    let priority = |_| empty().frame(PRIORITY, 0, 3, &[0, 0, 0, 5, 1]);
    assert!(attack(Abuse::Priorities, priority) <= 2_000);
    let update = |n: u32| {
        let payload = [&(1_001 + 2 * (n % 400)).to_be_bytes()[..], b"u=1"].concat();
        empty().frame(PRIORITY_UPDATE, 0, 0, &payload)
    };
    assert!(attack(Abuse::Priorities, update) <= 2_000);
    assert!(attack(Abuse::WindowUpdates, |_| empty().u32(WINDOW_UPDATE, 0, 1)) <= 10_000);
}

#[test]
fn floods_within_a_stream_end_by_enhance_your_calm() {
    let open = |n, raw: Raw| if n == 0 { raw.head(1, POST, false) } else { raw };
    let empty = |n| open(n, Raw::default()).data(1, b"", false);
    assert!(attack(Abuse::EmptyData, empty) <= 1_001);
    let padding = |n| open(n, Raw::default()).frame(DATA, PADDED, 1, &[200; 201]);
    assert!(attack(Abuse::EmptyData, padding) <= 1_001);
    let block = |n| {
        let raw = Raw::default();
        if n == 0 {
            raw.frame(HEADERS, 0, 1, &block(GET))
        } else {
            raw.frame(CONTINUATION, 0, 1, b"")
        }
    };
    assert!(attack(Abuse::Continuation, block) <= 17);
    let large = |n| {
        let raw = Raw::default();
        let kind = if n == 0 { HEADERS } else { CONTINUATION };
        raw.frame(kind, 0, 1, &[0; 16_384])
    };
    assert!(attack(Abuse::Continuation, large) <= 5);
    // A field of 4,000 bytes enters the table. Each request then refers to it 8,000 times.
    let bomb = |n| {
        let mut bytes = Vec::new();
        if n == 0 {
            bytes.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
            bytes.extend([b'v'; 4_000]);
        }
        bytes.extend([0xbe; 8_000]);
        Raw::default().frame(HEADERS, END_HEADERS | END_STREAM, id(n), &bytes)
    };
    assert!(attack(Abuse::HeaderLists, bomb) <= 50);
}

/// Returns true if the server tolerates a peer that sends `raw` at this interval permanently.
fn is_tolerated(every: Duration, raw: impl Fn(u32) -> Raw) -> bool {
    let mut server = Connection::server(Config::default());
    let mut now = Instant::now();
    let mut bytes = Raw::client();
    for number in 0..5_000 {
        bytes.0.extend(raw(number).0);
        let mut rest = &bytes.0[..];
        loop {
            let Ok(step) = server.receive(rest, now) else { return false };
            rest = &rest[step.consumed..];
            let Some(event) = step.event else { break };
            if let Event::Head { stream, head, .. } = event {
                server.recycle(head);
                // Half of the requests are answered before the client cancels them.
                if number % 2 == 0 {
                    server.send_reply(stream, 200, &Fields::new(), true).unwrap();
                }
            }
        }
        bytes.0.clear();
        let output = server.output().len();
        server.wrote(output);
        now += every;
    }
    true
}

#[test]
fn honest_peers_do_not_come_near_the_limits() {
    // The client cancels every second request, with 100 requests per second.
    let cancel = |n: u32| {
        let raw = Raw::default().head(id(n), GET, true);
        if n % 2 == 1 { raw.u32(RESET, id(n), 8) } else { raw }
    };
    assert!(is_tolerated(Duration::from_millis(10), cancel));
    // A gRPC client sends a PING for each frame that it reads, 50 per second.
    assert!(is_tolerated(Duration::from_millis(20), |_| Raw::default().frame(PING, 0, 0, &[1; 8])));
    // The client sends 500 small window updates per second.
    let update = |_| Raw::default().u32(WINDOW_UPDATE, 0, 100);
    assert!(is_tolerated(Duration::from_millis(2), update));
    // Once per minute, the client requests a page with 120 images and cancels all of them before a
    // reply arrives.
    let page = |n: u32| {
        let mut raw = Raw::default();
        for at in 0..120 {
            raw = raw.head(id(n * 120 + at), GET, true);
        }
        for at in 0..120 {
            raw = raw.u32(RESET, id(n * 120 + at), 8);
        }
        raw
    };
    assert!(is_tolerated(Duration::from_secs(60), page));
}

/// Passes received bytes to a connection. Returns the streams that they opened. The bytes must obey
/// all rules.
fn take(connection: &mut Connection, raw: &Raw, now: Instant) -> Vec<u32> {
    let (mut rest, mut opened) = (&raw.0[..], Vec::new());
    loop {
        let step = connection.receive(rest, now).expect("an honest peer");
        match step.event {
            Some(Event::Head { stream, .. }) => opened.push(stream),
            Some(Event::Data { stream, ref data, .. }) => {
                connection.consume(stream, data.len(), now);
            }
            Some(_) => {}
            None => break,
        }
        rest = &rest[step.consumed..];
    }
    let output = connection.output().len();
    connection.wrote(output);
    opened
}

/// grpc-go measures its bandwidth with a PING for each frame that it reads. A window update
/// precedes each PING.
#[test]
fn a_grpc_stream_of_20_000_messages_each_way_pays_for_its_pings() {
    let (now, message) = (Instant::now(), [7; 20]);
    let measures =
        |raw: Raw| raw.u32(WINDOW_UPDATE, 0, 20).frame(PING, 0, 0, &[2, 4, 16, 16, 9, 14, 7, 7]);
    let mut server = Connection::server(Config::default());
    let mut client = Connection::client(Config::default());
    assert_eq!(take(&mut server, &Raw::client().head(1, POST, false), now), [1]);
    server.send_reply(1, 200, &Fields::new(), false).unwrap();
    let request = RequestPseudo { method: b"POST", path: b"/", ..RequestPseudo::default() };
    let id = client.send_request(&request, [], false).unwrap();
    take(&mut client, &Raw::server().head(id, &[(":status", "200")], false), now);
    for _ in 0..20_000 {
        for connection in [&mut server, &mut client] {
            assert_eq!(connection.send_data(id, &message, false, now), Ok(20));
            take(connection, &measures(Raw::default().u32(WINDOW_UPDATE, id, 20)), now);
        }
    }
    // The peer sends a message and then a PING, before our side answers the message.
    for _ in 0..20_000 {
        for connection in [&mut server, &mut client] {
            take(
                connection,
                &Raw::default().data(id, &message, false).frame(PING, 0, 0, &[1; 8]),
                now,
            );
        }
    }
}

#[test]
fn a_peer_that_does_not_read_is_not_read_either() {
    let mut server = Connection::server(Config { output_limit: 1_000, ..Config::default() });
    let mut raw = Raw::client();
    for _ in 0..200 {
        raw = raw.frame(PING, 0, 0, &[0; 8]);
    }
    let mut start = 0;
    let mut taken = |server: &mut Connection| {
        loop {
            let step = server.receive(&raw.0[start..], Instant::now()).unwrap();
            start += step.consumed;
            if step.event.is_none() {
                return start == raw.0.len();
            }
        }
    };
    assert!(!taken(&mut server) && !server.can_receive());
    assert!(server.output().len() < 1_100);
    for _ in 0..5 {
        let output = server.output().len();
        server.wrote(output);
        taken(&mut server);
    }
    assert!(taken(&mut server));
}
