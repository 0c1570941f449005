//! HTTP/2 connections, server and client: no panic, bounded memory, the same events for any split
//! of the bytes, and output of complete frames.
#![no_main]

use std::fmt::Write;
use std::time::Instant;

use forebay_wire::fields::Fields;
use forebay_wire::http2::frame::{PREFACE, decode};
use forebay_wire::http2::{Config, Connection, Event, RequestPseudo};
use libfuzzer_sys::fuzz_target;

fn start(is_server: bool) -> Connection {
    let config = Config {
        streams: 4,
        stream_window: 65_535,
        connection_window: 65_535,
        ..Config::default()
    };
    if is_server {
        return Connection::server(config);
    }
    let mut connection = Connection::client(config);
    for (at, method) in [&b"GET"[..], b"HEAD", b"CONNECT", b"POST"].into_iter().enumerate() {
        let request =
            RequestPseudo { method, scheme: b"http", authority: b"h:1", path: b"/", protocol: b"" };
        connection.send_request(&request, &Fields::new(), at % 2 == 0).expect("four streams fit");
    }
    connection
}

/// Returns the events as text. Joins pieces of a body, and sends replies as a server does.
fn read(is_server: bool, acts: bool, data: &[u8], step: usize) -> String {
    let mut connection = start(is_server);
    let now = Instant::now();
    let (mut start, mut end) = (0, 0);
    let mut seen = String::new();
    let mut in_body = 0;
    loop {
        let input = &data[start..end];
        let found = match connection.receive(input, now) {
            Ok(found) => found,
            Err(error) => {
                write!(seen, "{error}").unwrap();
                break;
            }
        };
        start += found.consumed;
        match found.event {
            Some(Event::Data { stream, data, end }) => {
                if in_body != stream {
                    write!(seen, "\n{stream}: ").unwrap();
                }
                in_body = stream;
                write!(seen, "{:?}{}", &input[data.clone()], if end { " end" } else { "" })
                    .unwrap();
                if acts {
                    connection.consume(stream, data.len(), now);
                }
            }
            Some(event) => {
                in_body = 0;
                write!(seen, "\n{event:?}").unwrap();
                if let (Event::Head { stream, head, .. }, true) = (event, acts) {
                    let fields = head.fields.clone();
                    connection.recycle(head);
                    if is_server {
                        connection.send_reply(stream, 200, &fields, false).expect("open");
                        let body = [b'x'; 3_000];
                        connection.send_data(stream, &body, true, now).expect("open");
                    }
                }
            }
            None if end == data.len() => break,
            None => end = (end + step).min(data.len()),
        }
        assert!(connection.allocated() < 1_000_000);
    }
    let output = connection.output();
    let mut rest = output.strip_prefix(PREFACE).unwrap_or(output);
    while let Some((_, len)) = decode(rest, 1 << 24).expect("our own frames") {
        rest = &rest[len..];
    }
    assert!(rest.is_empty());
    seen.replace("][", ", ").replace("[]", "")
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    let (is_server, acts) = (mode & 1 == 0, mode & 2 == 0);
    // The preface and SETTINGS come first, so that the connection processes the rest.
    let mut input = Vec::new();
    if is_server {
        input.extend_from_slice(PREFACE);
    }
    if mode & 4 == 0 {
        input.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    }
    input.extend_from_slice(data);
    let whole = read(is_server, acts, &input, input.len().max(1));
    for step in [1, 3, 10] {
        assert_eq!(whole, read(is_server, acts, &input, step));
    }
});
