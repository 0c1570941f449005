//! Tests of the limit on the request heads of one connection. Its heads repeat large fields with
//! few bytes.

use std::time::Instant;

use forebay_wire::fields::Fields;
use forebay_wire::http2::{Abuse, Config, Connection, ErrorCode, Event, Rule};

use super::drive::*;

/// A request whose head has a field of 4,000 bytes several times. Literal fields precede it.
fn request(literal: &[u8], times: usize) -> Vec<u8> {
    let mut bytes = block(POST);
    bytes.extend_from_slice(literal);
    // This is the newest entry of the dynamic table.
    bytes.extend(vec![0xbe; times]);
    bytes
}

/// A literal of 4,000 bytes that enters the dynamic table.
fn large_field() -> Vec<u8> {
    [&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e][..], &[b'v'; 4_000]].concat()
}

fn id(number: u32) -> u32 {
    1 + 2 * number
}

/// A server that limits the heads, and the heads that it holds.
struct Server {
    connection: Connection,
    held: Vec<(u32, usize)>,
}

impl Server {
    fn new() -> Self {
        let config = Config { limits_heads: true, streams: 100, ..Config::default() };
        let mut server = Self { connection: Connection::server(config), held: Vec::new() };
        server.take(&Raw::client()).unwrap();
        server
    }

    /// Passes the input to the connection. Returns the RST_STREAM and GOAWAY frames that follow.
    fn take(&mut self, raw: &Raw) -> Result<Vec<String>, Rule> {
        let mut rest = &raw.0[..];
        loop {
            let step = self.connection.receive(rest, Instant::now()).map_err(|e| e.rule)?;
            rest = &rest[step.consumed..];
            match step.event {
                Some(Event::Head { stream, head, .. } | Event::Trailers { stream, head }) => {
                    self.held.push((stream, head.counted));
                    self.connection.recycle(head);
                }
                Some(_) => {}
                None => return Ok(sent(&mut self.connection)),
            }
        }
    }

    fn head(&mut self, stream: u32, block: &[u8]) -> Vec<String> {
        self.take(&Raw::default().frame(HEADERS, END_HEADERS, stream, block)).unwrap()
    }

    /// Ends the work for a stream.
    fn release(&mut self, stream: u32) {
        let of_stream = self.held.extract_if(.., |(held, _)| *held == stream);
        let counted: usize = of_stream.map(|(_, counted)| counted).sum();
        assert!(counted > 0);
        self.connection.release_heads(counted);
    }
}

/// Opens streams with heads of 28 kB until one is refused. Returns its number.
fn fill(server: &mut Server) -> u32 {
    assert!(server.head(1, &request(&large_field(), 6)).is_empty());
    let refused = (1..100).find(|&number| {
        let sent = server.head(id(number), &request(b"", 7));
        if !sent.is_empty() {
            assert_eq!(sent, [format!("reset {} {}", id(number), ErrorCode::REFUSED_STREAM.0)]);
        }
        !sent.is_empty()
    });
    refused.expect("a limit below 100 heads")
}

#[test]
fn heads_above_the_limit_are_refused_until_others_are_released() {
    let mut server = Server::new();
    let refused = fill(&mut server);
    assert_eq!(refused, 36, "1 MiB of 28.4 kB each");
    // The refused block changes the dynamic table, and the next one refers to its entry.
    let insert = [&[0x40, 1, b'b', 1, b'c'][..], &[0xbf; 7]].concat();
    assert_eq!(server.head(id(refused + 1), &request(&insert, 0)).len(), 1);
    server.release(1);
    assert!(server.head(id(refused + 2), &request(&[0xbf; 7], 0)).is_empty());
    assert_eq!(server.held.last().unwrap().0, id(refused + 2));
}

#[test]
fn a_reset_releases_nothing_before_the_work_for_the_stream_ends() {
    let mut server = Server::new();
    let refused = fill(&mut server);
    for number in 0..refused {
        server.take(&Raw::default().u32(RESET, id(number), 8)).unwrap();
    }
    let mut number = refused + 1;
    assert_eq!(server.head(id(number), &request(b"", 7)).len(), 1);
    for stream in 0..refused {
        server.release(id(stream));
    }
    assert!(server.held.is_empty());
    for _ in 0..refused {
        number += 1;
        assert!(server.head(id(number), &request(b"", 7)).is_empty());
    }
}

#[test]
fn a_hundred_requests_of_8_kilobytes_fit() {
    let mut server = Server::new();
    for round in 0..20 {
        let first = 100 * round;
        for number in first..first + 100 {
            let literal = if number == 0 { large_field() } else { vec![0xbe] };
            assert!(server.head(id(number), &request(&literal, 1)).is_empty(), "{number}");
        }
        for number in first..first + 100 {
            server.connection.send_reply(id(number), 200, &Fields::new(), true).unwrap();
            server.take(&Raw::default().data(id(number), b"", true)).unwrap();
            server.release(id(number));
        }
    }
}

#[test]
fn small_requests_that_were_reset_but_still_run_are_limited_to_as_many_as_the_streams() {
    let mut server = Server::new();
    let mut refused = None;
    for number in 0..300 {
        let raw = Raw::default().frame(HEADERS, END_HEADERS, id(number), &request(b"", 0));
        let sent = server.take(&raw.u32(RESET, id(number), 8)).unwrap();
        if !sent.is_empty() {
            refused = Some(number);
            break;
        }
    }
    assert_eq!(refused, Some(200));
}

#[test]
fn trailers_count_as_the_head_does() {
    let mut server = Server::new();
    for number in 0..60 {
        server.head(id(number), &request(b"", 0));
    }
    let trailers = |literal: &[u8]| [literal, &[0xbe; 7][..]].concat();
    let ends = END_HEADERS | END_STREAM;
    let mut refused = None;
    for number in 0..60 {
        let literal = if number == 0 { large_field() } else { Vec::new() };
        let raw = Raw::default().frame(HEADERS, ends, id(number), &trailers(&literal));
        let sent = server.take(&raw).unwrap();
        if !sent.is_empty() {
            // The server may have acted on the request, so the client must not repeat it unasked.
            assert_eq!(sent, [format!("reset {} {}", id(number), ErrorCode::ENHANCE_YOUR_CALM.0)]);
            refused = Some(number);
            break;
        }
    }
    let refused = refused.expect("a limit below 60 trailers");
    assert!((20..30).contains(&refused), "{refused}");
    server.release(1);
    let raw = Raw::default().frame(HEADERS, ends, id(refused + 1), &trailers(b""));
    assert!(server.take(&raw).unwrap().is_empty());
}

#[test]
fn endless_heads_above_the_limit_end_the_connection() {
    let mut server = Server::new();
    let mut number = fill(&mut server);
    let rule = loop {
        number += 1;
        assert!(number < 1_000, "nothing is done against it");
        let raw = Raw::default().frame(HEADERS, END_HEADERS, id(number), &request(b"", 7));
        if let Err(rule) = server.take(&raw) {
            break rule;
        }
    };
    assert_eq!(rule, Rule::Abuse(Abuse::RefusedStreams));
}

#[test]
fn refused_requests_that_get_a_status_hold_nothing() {
    let mut server = Server::new();
    // Each list above the limit has a price, so a client cannot send many of them.
    for number in 0..40 {
        let literal = if number == 0 { large_field() } else { Vec::new() };
        let stream = id(number);
        let sent = server.head(stream, &[request(&literal, 7), vec![0xbe; 2]].concat());
        assert!(sent.is_empty(), "{number}: {sent:?}");
        server.connection.send_reply(stream, 431, &Fields::new(), true).unwrap();
        server.take(&Raw::default().data(stream, b"", true)).unwrap();
    }
    assert!(server.held.is_empty());
    for number in 40..76 {
        assert!(server.head(id(number), &request(b"", 7)).is_empty(), "{number}");
    }
}

#[test]
fn without_the_setting_nothing_is_limited() {
    let mut server = Server { connection: Connection::server(Config::default()), ..Server::new() };
    server.take(&Raw::client()).unwrap();
    assert!(server.head(1, &request(&large_field(), 6)).is_empty());
    for number in 1..100 {
        assert!(server.head(id(number), &request(b"", 7)).is_empty());
    }
}
