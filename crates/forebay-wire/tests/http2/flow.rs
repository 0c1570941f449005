//! Tests of windows, the order of sending, stalls, GOAWAY, and the memory of a connection.

use std::time::{Duration, Instant};

use forebay_wire::fields::Fields;
use forebay_wire::http2::frame::{Frame, PREFACE, decode};
use forebay_wire::http2::{Config, Connection, ErrorCode, Priority, RequestPseudo, SendError};

use super::drive::*;

const REQUEST: RequestPseudo =
    RequestPseudo { method: b"POST", scheme: b"http", authority: b"h", path: b"/", protocol: b"" };

/// Returns a server that has received `raw`.
pub fn server(config: Config, raw: Raw) -> Connection {
    let mut connection = Connection::server(config);
    let seen = feed(&mut connection, &raw.0, || raw.0.len());
    assert_eq!(seen.error, None);
    written(&mut connection);
    connection
}

/// Passes bytes to a connection. The output stays unwritten.
pub fn give(connection: &mut Connection, raw: &Raw) {
    let mut rest = &raw.0[..];
    while !rest.is_empty() {
        let end = rest.len().min(999);
        let step = connection.receive(&rest[..end], Instant::now()).unwrap();
        let step = if step.consumed > 0 || step.event.is_some() {
            step
        } else {
            connection.receive(rest, Instant::now()).unwrap()
        };
        rest = &rest[step.consumed..];
    }
}

/// Returns the streams and lengths of the DATA frames in the output. Window updates are negative
/// numbers.
pub fn written(connection: &mut Connection) -> Vec<(u32, i64)> {
    let mut found = Vec::new();
    let output = connection.output();
    let mut rest = output.strip_prefix(PREFACE).unwrap_or(output);
    while let Some((frame, len)) = decode(rest, 1 << 24).unwrap() {
        match frame {
            Frame::Data { stream, data, .. } => found.push((stream, data.len() as i64)),
            Frame::WindowUpdate { stream, increment } => {
                found.push((stream, -i64::from(increment)));
            }
            _ => {}
        }
        rest = &rest[len..];
    }
    connection.wrote(output.len());
    found
}

fn requests(priorities: &[&str]) -> Raw {
    let mut raw = Raw::client();
    for (at, priority) in priorities.iter().enumerate() {
        let fields = [GET, &[("priority", priority)]].concat();
        raw = raw.head(1 + 2 * at as u32, &fields, true);
    }
    raw
}

#[test]
fn data_goes_as_far_as_the_windows_allow_and_on_when_they_open() {
    let now = Instant::now();
    let mut server = server(Config::default(), Raw::client().setting(4, 10).head(1, GET, true));
    let body = [7; 100];
    server.send_reply(1, 200, &Fields::new(), false).unwrap();
    assert_eq!(server.send_data(1, &body, true, now), Ok(10));
    assert_eq!(server.poll_writable(), None);
    assert_eq!(written(&mut server), [(1, 10)]);
    // The setting makes the window negative (-10). The first update restores 0, and the second one
    // opens the window by 5.
    let raw = Raw::default().setting(4, 0).u32(WINDOW_UPDATE, 1, 10);
    give(&mut server, &raw);
    assert_eq!(server.poll_writable(), None);
    give(&mut server, &Raw::default().u32(WINDOW_UPDATE, 1, 5));
    assert_eq!(server.poll_writable(), Some(1));
    assert_eq!(server.send_data(1, &body[10..], true, now), Ok(5));
    give(&mut server, &Raw::default().setting(4, 1_000));
    assert_eq!(server.poll_writable(), Some(1));
    assert_eq!(server.send_data(1, &body[15..], true, now), Ok(85));
    assert_eq!(written(&mut server), [(1, 5), (1, 85)]);
    assert_eq!(server.send_data(1, b"x", true, now), Err(SendError::Closed));
    assert_eq!(server.streams(), 0);
}

#[test]
fn the_window_of_the_connection_is_shared_in_the_order_of_priorities() {
    let now = Instant::now();
    let config = Config { output: 200_000, ..Config::default() };
    let mut server = server(config, requests(&["u=5", "u=1, i", "u=3", "u=1, i", "u=0"]));
    let body = vec![7; 100_000];
    for stream in [1, 3, 5, 7, 9] {
        server.send_reply(stream, 200, &Fields::new(), false).unwrap();
    }
    // The first stream uses the whole window of the connection, so the other streams must wait.
    assert_eq!(server.send_data(1, &body, true, now), Ok(65_535));
    for stream in [3, 5, 7, 9] {
        assert_eq!(server.send_data(stream, &body[..30_000], true, now), Ok(0));
    }
    written(&mut server);
    let mut left = [(1, 34_465), (3, 30_000), (5, 30_000), (7, 30_000), (9, 30_000)];
    let mut order = Vec::new();
    give(&mut server, &Raw::default().u32(WINDOW_UPDATE, 0, 1_000_000));
    give(&mut server, &Raw::default().u32(WINDOW_UPDATE, 1, 1_000_000));
    loop {
        while let Some(stream) = server.poll_writable() {
            let (_, rest) = left.iter_mut().find(|entry| entry.0 == stream).unwrap();
            *rest -= server.send_data(stream, &body[..*rest], true, now).unwrap();
            order.push(stream);
        }
        if written(&mut server).is_empty() {
            break;
        }
    }
    // Stream 9 is the first, streams 3 and 7 alternate, and stream 1 is the last.
    assert_eq!(order[..5], [9, 3, 7, 3, 7]);
    assert_eq!(order[order.len() - 1], 1);
    assert!(left.iter().all(|entry| entry.1 == 0), "{left:?} {order:?}");
}

#[test]
fn a_less_urgent_stream_does_not_overtake_those_that_wait() {
    let now = Instant::now();
    let config = Config { output: 1_000, ..Config::default() };
    let mut server = server(config, requests(&["u=3", "u=3", "u=7"]));
    for stream in [1, 3, 5] {
        server.send_reply(stream, 200, &Fields::new(), false).unwrap();
    }
    written(&mut server);
    assert_eq!(server.send_data(1, &[0; 3_000], true, now), Ok(1_000));
    assert_eq!(server.send_data(3, &[0; 100], true, now), Ok(0));
    written(&mut server);
    assert_eq!(server.send_data(5, &[0; 100], true, now), Ok(0));
    // PRIORITY_UPDATE moves stream 5 before the others.
    let update = [&5u32.to_be_bytes()[..], b"u=0"].concat();
    give(&mut server, &Raw::default().frame(PRIORITY_UPDATE, 0, 0, &update));
    assert_eq!(server.poll_writable(), Some(5));
    assert_eq!(server.send_data(5, &[0; 100], true, now), Ok(100));
    assert_eq!(server.poll_writable(), Some(1));
}

#[test]
fn a_priority_that_comes_before_its_request_is_kept() {
    let update = [&3u32.to_be_bytes()[..], b"u=6, i"].concat();
    let mut raw = Raw::client().frame(PRIORITY_UPDATE, 0, 0, &update);
    // The client sends updates for streams that never open, to fill the list of stored updates.
    for stream in 0..10u32 {
        let other = [&(1_001 + 2 * stream).to_be_bytes()[..], b"u=1"].concat();
        raw = raw.frame(PRIORITY_UPDATE, 0, 0, &other);
    }
    let raw = raw.head(3, GET, true);
    let mut connection = Connection::server(Config::default());
    let step = loop {
        let step = connection.receive(&raw.0, Instant::now()).unwrap();
        if let Some(forebay_wire::http2::Event::Settings) = step.event {
            break step;
        }
    };
    let step = connection.receive(&raw.0[step.consumed..], Instant::now()).unwrap();
    let Some(forebay_wire::http2::Event::Head { head, .. }) = step.event else { panic!() };
    assert_eq!(head.priority, Priority { urgency: 6, incremental: true });
}

#[test]
fn windows_open_as_data_is_consumed_padding_and_discarded_data_included() {
    let now = Instant::now();
    let config = Config { connection_window: 65_535, ..Config::default() };
    let mut server = server(config, Raw::client().head(1, POST, false).head(3, POST, false));
    let piece = vec![0; 16_000];
    give(&mut server, &Raw::default().data(1, &piece, false).data(1, &piece, false));
    assert_eq!(written(&mut server), []);
    server.consume(1, 32_000, now);
    assert_eq!(written(&mut server), []);
    let padded = [&[255][..], &[0; 16_000]].concat();
    give(&mut server, &Raw::default().frame(DATA, PADDED, 1, &padded));
    // Half of the window is 32,767 bytes. 32,000 bytes are consumed, and 256 bytes are padding. So
    // 600 more bytes exceed the half.
    server.consume(1, 600, now);
    assert_eq!(written(&mut server), [(1, -32_856), (0, -32_856)]);
    server.discard(3, now);
    for _ in 0..3 {
        give(&mut server, &Raw::default().data(3, &piece, false));
    }
    let credit: i64 = written(&mut server).iter().map(|update| update.1).sum();
    assert!(credit <= -65_000, "{credit}");
    // A reset of the stream returns its unconsumed bytes to the connection's window.
    server.reset(1, ErrorCode::CANCEL, now);
    give(&mut server, &Raw::default().data(1, &piece, false).data(1, &piece, false));
    let credit: i64 = written(&mut server).iter().map(|update| update.1).sum();
    assert!(credit <= -32_000, "{credit}");
}

#[test]
fn a_window_grows_where_it_holds_the_peer_up() {
    let mut now = Instant::now();
    let mut server = server(Config::default(), Raw::client().head(1, POST, false));
    let mut opened = Vec::new();
    for round in 0..8 {
        // The peer sends half of the window at once. The round trip takes 50 ms.
        give(
            &mut server,
            &Raw::default().data(1, &[0; 16_384], false).data(1, &[0; 16_384], false),
        );
        server.consume(1, 32_768, now);
        now += Duration::from_millis(50);
        if round == 0 {
            let pong = Raw::default().frame(PING, ACK, 0, b"measure\0");
            assert!(server.receive(&pong.0, now).unwrap().event.is_none());
            assert_eq!(server.round_trip(), Some(Duration::from_millis(50)));
        }
        let updates = written(&mut server);
        opened.extend(updates.iter().filter(|update| update.0 == 1).map(|update| -update.1));
    }
    assert!(opened.iter().any(|&increment| increment > 65_000), "{opened:?}");
    let total: i64 = opened.iter().sum();
    assert!(total <= 1024 * 1024 + 8 * 32_768, "{opened:?}");
}

#[test]
fn a_stream_that_waits_for_a_window_stalls_and_tiny_updates_do_not_help() {
    let start = Instant::now();
    let limit = Duration::from_secs(20);
    let raw = Raw::client().setting(4, 0).head(1, GET, true).head(3, GET, true);
    let mut server = server(Config::default(), raw);
    server.send_reply(1, 200, &Fields::new(), false).unwrap();
    let body = vec![0; 100_000];
    let mut sent = server.send_data(1, &body, true, start).unwrap();
    assert_eq!(server.stalled(start + Duration::from_secs(19), |_| limit), None);
    for second in 1..=30 {
        let now = start + Duration::from_secs(second);
        give(&mut server, &Raw::default().u32(WINDOW_UPDATE, 1, 1));
        assert_eq!(server.poll_writable(), Some(1));
        sent += server.send_data(1, &body[sent..], true, now).unwrap();
        written(&mut server);
        assert_eq!(server.stalled(now, |_| limit), (second >= 20).then_some(1));
    }
    // A window update of useful size ends the stall. Then a new stall begins.
    let now = start + Duration::from_secs(31);
    give(&mut server, &Raw::default().u32(WINDOW_UPDATE, 1, 5_000));
    sent += server.send_data(1, &body[sent..], true, now).unwrap();
    assert_eq!((sent, server.stalled(now, |_| limit)), (5_030, None));
    assert_eq!(server.stalled(now + limit, |_| limit), Some(1));
    server.reset(1, ErrorCode::CANCEL, now);
    assert_eq!(server.stalled(now + limit, |_| limit), None);
}

#[test]
fn a_server_that_goes_away_finishes_what_it_has_and_takes_nothing_more() {
    let now = Instant::now();
    let mut server = server(Config::default(), Raw::client().head(1, GET, true));
    server.announce_goaway();
    let seen = feed(&mut server, &Raw::default().head(3, GET, true).0, || 5);
    assert_eq!(seen.events, ["3 head GET http h /; host=h end"]);
    server.goaway(ErrorCode::NO_ERROR);
    let late = Raw::default().head(5, POST, false).data(5, b"late", true);
    let seen = feed(&mut server, &late.0, || 5);
    assert_eq!((seen.events.len(), seen.error), (0, None));
    for stream in [1, 3] {
        assert!(!server.is_finished());
        server.send_reply(stream, 200, &Fields::new(), false).unwrap();
        assert_eq!(server.send_data(stream, b"whole", true, now), Ok(5));
    }
    assert!(server.is_finished());
    assert_eq!(written(&mut server), [(1, 5), (3, 5)]);
}

fn client(raw: Raw) -> Connection {
    let mut client = Connection::client(Config::default());
    feed(&mut client, &raw.0, || raw.0.len());
    client
}

#[test]
fn a_client_learns_which_requests_a_server_that_goes_away_has_not_taken() {
    let mut client = client(Raw::server());
    for _ in 0..4 {
        client.send_request(&REQUEST, &Fields::new(), true).unwrap();
    }
    let mut goaway = 3u32.to_be_bytes().to_vec();
    goaway.extend(0u32.to_be_bytes());
    let raw = Raw::default().frame(GOAWAY, 0, 0, &goaway).head(3, &[(":status", "200")], true);
    let seen = feed(&mut client, &raw.0, || 3);
    assert_eq!(
        seen.events,
        ["5 reset Unprocessed", "7 reset Unprocessed", "goaway 0", "3 head 200 end"]
    );
    assert_eq!(client.send_request(&REQUEST, &Fields::new(), true), Err(SendError::Exhausted));
    assert!(!client.is_finished());
    feed(&mut client, &Raw::default().head(1, &[(":status", "200")], true).0, || 3);
    assert!(client.is_finished());
}

#[test]
fn a_client_opens_as_many_streams_as_the_server_allows() {
    let mut client = client(Raw::server().setting(3, 2).setting(8, 1));
    assert!(client.peer_takes_extended_connect());
    assert_eq!(client.available(), 2);
    assert_eq!(client.send_request(&REQUEST, &Fields::new(), true), Ok(1));
    assert_eq!(client.send_request(&REQUEST, &Fields::new(), true), Ok(3));
    assert_eq!(client.send_request(&REQUEST, &Fields::new(), true), Err(SendError::Busy));
    feed(&mut client, &Raw::default().head(1, &[(":status", "204")], true).0, || 3);
    assert_eq!(client.send_request(&REQUEST, &Fields::new(), true), Ok(5));
}

#[test]
fn an_idle_connection_keeps_little() {
    let now = Instant::now();
    let mut server = Connection::server(Config::default());
    let mut client = Connection::client(Config::default());
    let mut fields = Fields::new();
    for (name, value) in [
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("accept-language", "de,en-US;q=0.7,en;q=0.3"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
    ] {
        fields.push(name.as_bytes(), value.as_bytes());
    }
    for _ in 0..10 {
        for _ in 0..32 {
            client.send_request(&REQUEST, &fields, true).unwrap();
        }
        exchange(&mut client, &mut server, now);
        exchange(&mut server, &mut client, now);
    }
    assert_eq!((server.streams(), client.streams()), (0, 0));
    server.shrink();
    client.shrink();
    assert!(server.allocated() <= 3_000, "{}", server.allocated());
    assert!(client.allocated() <= 3_000, "{}", client.allocated());
    // The connections then continue normally.
    client.send_request(&REQUEST, &fields, true).unwrap();
    assert!(client.output().len() < 40, "{}", client.output().len());
    exchange(&mut client, &mut server, now);
    exchange(&mut server, &mut client, now);
    assert_eq!(client.streams(), 0);
}

/// Moves the output of one side to the other side, which answers requests.
fn exchange(from: &mut Connection, to: &mut Connection, now: Instant) {
    use forebay_wire::http2::Event;
    let output = from.output().to_vec();
    from.wrote(output.len());
    let mut rest = &output[..];
    loop {
        let step = to.receive(rest, now).unwrap();
        let input = rest;
        rest = &rest[step.consumed..];
        match step.event {
            None => break,
            Some(Event::Head { stream, head, .. }) => {
                if head.status == 0 {
                    to.send_reply(stream, 200, &Fields::new(), false).unwrap();
                    assert_eq!(to.send_data(stream, b"body", true, now), Ok(4));
                }
                to.recycle(head);
            }
            Some(Event::Data { stream, data, .. }) => {
                assert_eq!(&input[data.clone()], b"body");
                to.consume(stream, data.len(), now);
            }
            Some(_) => {}
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn an_extended_connect_is_a_stream_of_bytes_both_ways() {
    use forebay_wire::http2::Event;
    let now = Instant::now();
    let mut server = server(Config::default(), Raw::client());
    let mut client = client(Raw::server().setting(8, 1));
    let pseudo = RequestPseudo { method: b"CONNECT", protocol: b"websocket", ..REQUEST };
    let id = client.send_request(&pseudo, &Fields::new(), false).unwrap();
    assert_eq!(client.send_data(id, b"to the server", false, now), Ok(13));
    let output = client.output().to_vec();
    client.wrote(usize::MAX);
    let seen = feed(&mut server, &output, || 7);
    let head = "1 head CONNECT http h / websocket; host=h";
    assert_eq!(seen.events, [head, "1 data to the server"]);
    server.send_reply(id, 200, &Fields::new(), false).unwrap();
    assert_eq!(server.send_data(id, b"to the client", true, now), Ok(13));
    let output = server.output().to_vec();
    let mut rest = &output[..];
    let mut events = Vec::new();
    while let Some(event) = {
        let step = client.receive(rest, now).unwrap();
        let line = step.event.as_ref().map(|event: &Event| event_line(event, rest));
        rest = &rest[step.consumed..];
        line
    } {
        events.push(event);
    }
    assert_eq!(events, ["1 head 200", "1 data to the client end"]);
    // The server has ended its side of the stream, but the client still sends.
    assert_eq!(client.send_data(id, b"last", true, now), Ok(4));
    client.consume(id, 13, now);
    assert_eq!(client.streams(), 0);
}

#[test]
fn a_ping_shows_that_the_peer_lives() {
    let now = Instant::now();
    let mut client = client(Raw::server());
    client.ping(now);
    client.ping(now + Duration::from_secs(1));
    assert_eq!(client.unanswered_ping(), Some(now));
    let ping = client.output().to_vec();
    assert_eq!(ping.len(), 17);
    let other = Raw::default().frame(PING, ACK, 0, b"another!");
    client.receive(&other.0, now).unwrap();
    assert_eq!(client.unanswered_ping(), Some(now));
    let answer = Raw::default().frame(PING, ACK, 0, &ping[9..]);
    client.receive(&answer.0, now + Duration::from_millis(3)).unwrap();
    assert_eq!(client.unanswered_ping(), None);
    assert_eq!(client.round_trip(), Some(Duration::from_millis(3)));
}

#[test]
fn data_is_written_in_place_a_frame_at_a_time() {
    let now = Instant::now();
    let body: Vec<u8> = (0..40_000).map(|at| (at % 251) as u8).collect();
    let mut server = server(Config::default(), Raw::client().setting(4, 30_000).head(1, GET, true));
    server.send_reply(1, 200, &Fields::new(), false).unwrap();
    written(&mut server);
    let mut sent = 0;
    let mut lengths = Vec::new();
    let mut received = Vec::new();
    for round in 0..6 {
        // The fourth round writes less than the available space, and the fifth round writes
        // nothing.
        let most = [usize::MAX, usize::MAX, usize::MAX, 100, 0, usize::MAX][round];
        if round == 3 {
            give(&mut server, &Raw::default().u32(WINDOW_UPDATE, 1, 20_000));
        }
        let fill = |space: &mut [u8]| {
            let len = space.len().min(most);
            space[..len].copy_from_slice(&body[sent..sent + len]);
            len
        };
        let taken = server.fill_data(1, body.len() - sent, now, fill).unwrap();
        sent += taken;
        lengths.push(taken);
        let output = server.output();
        if let Some((Frame::Data { data, end_stream, .. }, len)) = decode(output, 16_384).unwrap() {
            assert_eq!((len, end_stream), (output.len(), sent == body.len()));
            received.extend_from_slice(data);
        }
        server.wrote(usize::MAX);
    }
    assert_eq!(lengths, [16_384, 13_616, 0, 100, 0, 9_900]);
    assert!(received == body);
    assert_eq!(server.fill_data(1, 1, now, |_| 1), Err(SendError::Closed));
}

#[test]
fn a_stream_whose_caller_writes_nothing_is_not_named_again() {
    let now = Instant::now();
    let mut server = server(Config::default(), Raw::client().head(1, GET, true));
    server.send_reply(1, 200, &Fields::new(), false).unwrap();
    written(&mut server);
    assert_eq!(server.fill_data(1, 10, now, |_| 0), Ok(0));
    assert!(server.output().is_empty());
    assert_eq!(server.poll_writable(), None, "the window is open, but there is nothing to write");
    give(&mut server, &Raw::default().u32(WINDOW_UPDATE, 1, 1_000));
    assert_eq!(server.poll_writable(), None);
    assert_eq!(server.fill_data(1, 10, now, |space| space.len() / 2), Ok(5));
    assert_eq!(server.poll_writable(), Some(1), "a short write is gone on with");
    assert_eq!(server.fill_data(1, 5, now, |_| 0), Ok(0));
    assert_eq!(server.poll_writable(), None);
    assert_eq!(server.fill_data(1, 5, now, |space| space.len()), Ok(5));
    assert_eq!(server.poll_writable(), None);
    assert_eq!(server.fill_data(1, 1, now, |_| 1), Err(SendError::Closed));
}
