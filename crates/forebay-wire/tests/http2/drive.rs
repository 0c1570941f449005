//! Drives a connection with raw frames that are not written by our codec, and describes its
//! reaction.

use std::fmt::Write;
use std::time::{Duration, Instant};

use forebay_wire::http2::frame::{DEFAULT_FRAME, Frame, PREFACE, decode};
use forebay_wire::http2::{Config, Connection, Event, Head};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const PRIORITY_UPDATE: u8 = 16;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

pub const GET: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")];
pub const POST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "h")];

/// Bytes that a peer sends.
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// Returns the first bytes of a client.
    pub fn client() -> Self {
        Self(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()).frame(SETTINGS, 0, 0, b"")
    }

    /// Returns the first bytes of a server.
    pub fn server() -> Self {
        Self::default().frame(SETTINGS, 0, 0, b"")
    }

    pub fn frame(mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        self.0.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        self.0.extend([kind, flags]);
        self.0.extend(stream.to_be_bytes());
        self.0.extend_from_slice(payload);
        self
    }

    /// Appends a HEADERS frame that ends the block. `end` decides if it also ends the stream.
    pub fn head(self, stream: u32, fields: &[(&str, &str)], end: bool) -> Self {
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.frame(HEADERS, flags, stream, &block(fields))
    }

    pub fn data(self, stream: u32, data: &[u8], end: bool) -> Self {
        self.frame(DATA, if end { END_STREAM } else { 0 }, stream, data)
    }

    pub fn setting(self, id: u16, value: u32) -> Self {
        let mut payload = id.to_be_bytes().to_vec();
        payload.extend(value.to_be_bytes());
        self.frame(SETTINGS, 0, 0, &payload)
    }

    pub fn u32(self, kind: u8, stream: u32, value: u32) -> Self {
        self.frame(kind, 0, stream, &value.to_be_bytes())
    }
}

/// Returns a header block of literals that are not indexed.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            let len = text.len();
            if len < 127 {
                out.push(len as u8);
            } else {
                out.extend([127, ((len - 127) & 127) as u8 | 128, ((len - 127) >> 7) as u8]);
            }
            out.extend(text.as_bytes());
        }
    }
    out
}

/// Reaction of a connection to its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Events in order, with one line for each.
    pub events: Vec<String>,
    /// Error that ended the connection.
    pub error: Option<String>,
    /// RST_STREAM and GOAWAY frames that the connection sent, with their codes.
    pub sent: Vec<String>,
}

impl Seen {
    /// Returns the code of the last GOAWAY.
    pub fn goaway(&self) -> Option<&str> {
        self.sent.iter().rev().find_map(|line| line.strip_prefix("goaway "))
    }
}

fn head_line(head: &Head) -> String {
    let text = |span| head.bytes(span).escape_ascii().to_string();
    let mut line = if head.status > 0 {
        head.status.to_string()
    } else {
        let (method, scheme) = (text(head.method), text(head.scheme));
        format!("{method} {scheme} {} {}", text(head.authority), text(head.path))
    };
    if !head.protocol.is_empty() {
        write!(line, " {}", text(head.protocol)).unwrap();
    }
    for field in &head.fields {
        write!(line, "; {}={}", field.name.escape_ascii(), field.value.escape_ascii()).unwrap();
    }
    line
}

/// Returns the line for an event. `input` contains its data.
pub fn event_line(event: &Event, input: &[u8]) -> String {
    let end = |end: &bool| if *end { " end" } else { "" };
    match event {
        Event::Head { stream, head, end: e } => {
            format!("{stream} head {}{}", head_line(head), end(e))
        }
        Event::Interim { stream, head } => format!("{stream} interim {}", head_line(head)),
        Event::Unacceptable { stream, rule, end: e, .. } => {
            format!("{stream} unacceptable {rule:?}{}", end(e))
        }
        Event::Data { stream, data, end: e } => {
            format!("{stream} data {}{}", input[data.clone()].escape_ascii(), end(e))
        }
        Event::Trailers { stream, head } => {
            let fields = head.fields.iter();
            let line = |name: &[u8], value: &[u8]| {
                format!("{}={}", name.escape_ascii(), value.escape_ascii())
            };
            let fields: Vec<_> = fields.map(|field| line(field.name, field.value)).collect();
            format!("{stream} trailers {}", fields.join("; "))
        }
        Event::Reset { stream, cause } => format!("{stream} reset {cause:?}"),
        Event::Refused { stream, rule } => format!("{stream} refused {rule:?}"),
        Event::Goaway { code } => format!("goaway {}", code.0),
        Event::Settings => "settings".into(),
    }
}

/// Passes `bytes` to `connection` in pieces. `size` returns the size of each piece.
pub fn feed(connection: &mut Connection, bytes: &[u8], mut size: impl FnMut() -> usize) -> Seen {
    let mut seen = Seen::default();
    let mut now = Instant::now();
    let (mut start, mut end) = (0, 0);
    loop {
        let input = &bytes[start..end];
        match connection.receive(input, now) {
            Ok(step) => {
                start += step.consumed;
                if let Some(event) = &step.event {
                    push(&mut seen.events, event_line(event, input));
                } else if end == bytes.len() {
                    break;
                } else {
                    end = (end + size().max(1)).min(bytes.len());
                    now += Duration::from_millis(1);
                }
            }
            Err(error) => {
                seen.error = Some(format!("{:?}", error.rule));
                break;
            }
        }
    }
    seen.sent = sent(connection);
    seen
}

/// Adds a line. Pieces of the same body are joined in one line.
fn push(events: &mut Vec<String>, line: String) {
    if let Some((stream, data)) = line.split_once(" data ")
        && let Some(last) = events.last_mut()
        && last.starts_with(&format!("{stream} data "))
        && !last.ends_with(" end")
    {
        last.push_str(data);
        return;
    }
    events.push(line);
}

/// Returns the RST_STREAM and GOAWAY frames in the output, and marks the output as written.
pub fn sent(connection: &mut Connection) -> Vec<String> {
    let mut lines = Vec::new();
    let output = connection.output();
    let mut rest = output.strip_prefix(PREFACE).unwrap_or(output);
    while let Some((frame, len)) = decode(rest, 1 << 24).expect("our own frames") {
        match frame {
            Frame::Reset { stream, code } => lines.push(format!("reset {stream} {}", code.0)),
            Frame::Goaway { code, .. } => lines.push(format!("goaway {}", code.0)),
            _ => {}
        }
        rest = &rest[len..];
    }
    assert!(rest.len() < DEFAULT_FRAME);
    let written = connection.output().len() - rest.len();
    connection.wrote(written);
    lines
}

/// Returns the reaction of a new server to these bytes. The reaction must be equal for the whole
/// input, single bytes and random pieces.
pub fn serve(raw: &Raw) -> Seen {
    drive(raw, || Connection::server(Config::default()))
}

pub fn drive(raw: &Raw, connection: impl Fn() -> Connection) -> Seen {
    let whole = feed(&mut connection(), &raw.0, || raw.0.len());
    let mut random = fastrand::Rng::with_seed(raw.0.len() as u64);
    assert_eq!(whole, feed(&mut connection(), &raw.0, || 1), "byte by byte");
    for _ in 0..10 {
        let pieces = feed(&mut connection(), &raw.0, || random.usize(1..=40));
        assert_eq!(whole, pieces, "random pieces");
    }
    whole
}
