//! The access logs of one thread.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_conf::{Level, LogValue};
use forebay_wire::ClientAddress;
use forebay_wire::http1::encode;

use super::message::FIELD;
use super::pattern::{LogEntry, Pattern, append_escaped, append_json_text, append_value};
use super::{LogQueue, LostAt, Message};
use crate::trace::Tracer;

/// Maximum bytes of lines that a thread keeps for each log while the writer's queue is full.
const HELD_BACK: usize = 4 << 20;

/// Size of the collected lines at which a thread passes them to the writer without waiting for the
/// next tick.
const HAND_OVER: usize = 64 << 10;

/// The access logs of one thread. The logs collect lines, and pass the lines to the writer at each
/// tick (100 ms).
pub struct AccessLog {
    /// The logs by number: first the log of `[log]`, then the logs of sites and routes.
    logs: Vec<Collected>,
    /// Records traces, if they are enabled.
    tracer: Option<Tracer>,
    lost: Cell<u64>,
    queue: LogQueue,
}

/// The format and the collected lines of one log.
struct Collected {
    to: Arc<conf::AccessLog>,
    pattern: Option<Pattern>,
    /// True if the log goes to the journal, whose messages have fields.
    has_fields: bool,
    lines: RefCell<Vec<u8>>,
    /// Time of the last line in seconds since 1970, and the formatted text of this time.
    time: RefCell<(u64, String)>,
}

impl AccessLog {
    pub(super) fn new(log: &conf::Log, queue: LogQueue, tracer: Option<Tracer>) -> Self {
        let collected = |file: conf::LogFile| {
            let pattern = match (&file.access, &file.format) {
                (conf::AccessLog::Off, _) => None,
                (_, conf::Format::Json) => Some(Pattern::Json),
                (_, conf::Format::Common) => Some(Pattern::common()),
                (_, conf::Format::Combined) => Some(Pattern::combined()),
                (_, conf::Format::Pattern(pattern)) => Some(Pattern::parse(pattern)),
            };
            let has_fields =
                matches!(file.access, conf::AccessLog::Service(conf::LogService::Journal(_)));
            let (lines, time) = Default::default();
            let to = Arc::new(file.access);
            Collected { to, pattern, has_fields, lines, time }
        };
        let logs = log.files().map(collected).collect();
        Self { logs, tracer, lost: Cell::new(0), queue }
    }

    /// Passes the collected lines to the writer, and uses the logs of `other` from now on.
    pub fn replace(&mut self, other: Self) {
        self.hand_over();
        (self.logs, self.tracer) = (other.logs, other.tracer);
    }

    /// Returns true if at least one log or the tracer is enabled.
    pub(crate) fn is_on(&self) -> bool {
        self.tracer.is_some() || self.logs.iter().any(|log| log.pattern.is_some())
    }

    /// Returns the tracer, if traces are enabled.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// Returns true if a log or a trace contains times of the steps of requests.
    pub(crate) fn needs_steps(&self) -> bool {
        self.tracer.is_some()
            || self.logs.iter().any(|log| log.pattern.as_ref().is_some_and(Pattern::needs_steps))
    }

    /// Returns true if no line is waiting to be passed to the writer.
    pub fn is_empty(&self) -> bool {
        self.logs.iter().all(|log| log.lines.borrow().is_empty())
    }

    /// Appends the line of a finished request to the log with this number.
    pub fn record(&self, number: usize, entry: &LogEntry<'_>) {
        self.append(number, |log, pattern, time, lines| {
            pattern.append(entry, time, lines);
            if log.has_fields {
                append_fields(entry, lines);
            }
        });
    }

    /// Appends the line of a finished connection of a `[[stream]]` to the log with this number.
    pub fn record_connection(&self, number: usize, entry: &ConnectionEntry<'_>) {
        self.append(number, |_, pattern, time, lines| match pattern {
            Pattern::Json => entry.append_json(time, lines),
            Pattern::Parts(_) => entry.append_text(time, lines),
        });
    }

    /// Calls `write` to append a line to the log with this number. Does nothing if this log is off.
    /// If too many lines wait, drops and counts the line.
    #[inline]
    fn append(&self, number: usize, write: impl FnOnce(&Collected, &Pattern, &str, &mut Vec<u8>)) {
        let Some(log) = self.logs.get(number) else { return };
        let Some(pattern) = &log.pattern else { return };
        let mut lines = log.lines.borrow_mut();
        if lines.len() > HELD_BACK {
            self.lost.set(self.lost.get() + 1);
            LostAt::Queue.count(1);
            return;
        }
        log.refresh_time(pattern);
        write(log, pattern, &log.time.borrow().1, &mut lines);
        lines.push(b'\n');
        if lines.len() >= HAND_OVER {
            drop(lines);
            self.hand_over_one(number, log);
        }
    }

    /// Passes the lines to the writer, or keeps them if the writer's queue is full.
    pub fn hand_over(&self) {
        for (number, log) in self.logs.iter().enumerate() {
            self.hand_over_one(number, log);
        }
    }

    fn hand_over_one(&self, number: usize, log: &Collected) {
        let lines = std::mem::take(&mut *log.lines.borrow_mut());
        if lines.is_empty() {
            return;
        }
        match self.queue.send(Message::Lines(number, log.to.clone(), lines)) {
            Err(Message::Lines(_, _, lines)) => *log.lines.borrow_mut() = lines,
            _ if self.lost.get() > 0 => {
                let lost = self.lost.take();
                let text = format!("the access log is too slow: {lost} lines were lost");
                let _ = self.queue.send(Message::Error(Level::Warn, text));
            }
            _ => {}
        }
    }
}

impl Collected {
    fn refresh_time(&self, pattern: &Pattern) {
        let now = jiff::Timestamp::now();
        let mut time = self.time.borrow_mut();
        if time.0 != now.as_second() as u64 {
            let zoned = now.to_zoned(jiff::tz::TimeZone::system());
            *time = (now.as_second() as u64, zoned.strftime(pattern.time_format()).to_string());
        }
    }
}

// Access log lines of a stream's connections.

/// The values in the log line of a finished connection of a `[[stream]]`.
pub struct ConnectionEntry<'a> {
    /// TCP or UDP.
    pub protocol: &'static str,
    /// Address of the client.
    pub client: ClientAddress,
    /// Server name that the client sent (SNI).
    pub server_name: Option<&'a str>,
    /// Backend that the connection was passed to.
    pub backend: Option<&'a str>,
    /// Reason for the end of the connection.
    pub end: ConnectionEnd,
    /// Bytes sent to the client.
    pub sent: u64,
    /// Bytes received from the client.
    pub received: u64,
    /// Duration of the connection.
    pub took: Duration,
}

/// Reason for the end of a connection of a `[[stream]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Client and backend have finished sending.
    Closed,
    /// No bytes flowed for too long.
    Idle,
    /// A side failed or was reset.
    Lost,
    /// `allow` or `deny` refuses the client.
    Denied,
    /// The handshake with the client failed.
    NoTls,
    /// No backend could be reached.
    NoBackend,
    /// The server stopped.
    Stopped,
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::Idle => "idle",
            Self::Lost => "lost",
            Self::Denied => "denied",
            Self::NoTls => "no-tls",
            Self::NoBackend => "no-backend",
            Self::Stopped => "stopped",
        })
    }
}

impl ConnectionEntry<'_> {
    /// Appends the line in text. `time` is the formatted time of the end.
    pub(super) fn append_text(&self, time: &str, out: &mut Vec<u8>) {
        let _ = write!(out, "{} - - [{time}] \"{} ", self.client, self.protocol);
        append_escaped(self.server_name.unwrap_or("-").as_bytes(), out);
        let Self { end, sent, received, .. } = self;
        let _ = write!(out, "\" {end} {sent} {received} {:.3} \"", self.took.as_secs_f64());
        append_escaped(self.backend.unwrap_or("-").as_bytes(), out);
        out.push(b'"');
    }

    /// Appends the line as a JSON object.
    pub(super) fn append_json(&self, time: &str, out: &mut Vec<u8>) {
        let Self { client, protocol, .. } = self;
        let _ = write!(
            out,
            "{{\"time\":\"{time}\",\"client\":\"{client}\",\"protocol\":\"{protocol}\""
        );
        for (key, value) in [("server_name", self.server_name), ("upstream", self.backend)] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":\"");
                append_json_text(value.as_bytes(), out);
                out.push(b'"');
            }
        }
        let Self { end, sent, received, .. } = self;
        let _ = write!(
            out,
            ",\"end\":\"{end}\",\"bytes_sent\":{sent},\"bytes_received\":{received},\
             \"duration_us\":{}}}",
            self.took.as_micros()
        );
    }
}

// Fields of access log lines in the journal of systemd.

/// Fields that are omitted from a line if they have no value.
const OPTIONAL: [(&str, LogValue); 8] = [
    ("FOREBAY_SITE", LogValue::Site),
    ("FOREBAY_ROUTE", LogValue::Route),
    ("FOREBAY_UPSTREAM", LogValue::Upstream),
    ("FOREBAY_UPSTREAM_US", LogValue::UpstreamTime),
    ("FOREBAY_CACHE", LogValue::Cache),
    ("FOREBAY_REQUEST_ID", LogValue::RequestId),
    ("FOREBAY_TRACE_ID", LogValue::TraceId),
    ("FOREBAY_SPAN_ID", LogValue::SpanId),
];

/// Appends the fields of a request after its line.
fn append_fields(entry: &LogEntry<'_>, out: &mut Vec<u8>) {
    let request = entry.request;
    let mut client = Vec::new();
    request.client.append(&mut client);
    let host = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
    for (key, value) in [
        ("FOREBAY_CLIENT", &client[..]),
        ("FOREBAY_METHOD", request.method()),
        ("FOREBAY_HOST", host),
        ("FOREBAY_TARGET", request.original_target()),
    ] {
        begin_field(key, out);
        append_escaped(value, out);
    }
    for (key, value) in [
        ("FOREBAY_STATUS", u64::from(entry.status)),
        ("FOREBAY_BODY_BYTES", entry.body_bytes),
        ("FOREBAY_DURATION_US", entry.took.as_micros() as u64),
    ] {
        begin_field(key, out);
        encode::decimal(out, value);
    }
    for (key, value) in &OPTIONAL {
        let start = out.len();
        begin_field(key, out);
        if !append_value(value, entry, append_escaped, out) {
            out.truncate(start);
        }
    }
}

fn begin_field(key: &str, out: &mut Vec<u8>) {
    out.push(FIELD);
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_both_sides_and_the_end() {
        let entry = ConnectionEntry {
            protocol: "TCP",
            client: ClientAddress::Unix,
            server_name: Some("db.example.org"),
            backend: Some("127.0.0.1:5432"),
            end: ConnectionEnd::Closed,
            sent: 7,
            received: 5,
            took: Duration::from_micros(1_234_567),
        };
        let (mut text, mut json) = (Vec::new(), Vec::new());
        entry.append_text("now", &mut text);
        entry.append_json("now", &mut json);
        let unix = ClientAddress::Unix;
        let line = "- - [now] \"TCP db.example.org\" closed 7 5 1.235 \"127.0.0.1:5432\"";
        assert_eq!(String::from_utf8(text).unwrap(), format!("{unix} {line}"));
        let object = "\"protocol\":\"TCP\",\"server_name\":\"db.example.org\",\
                      \"upstream\":\"127.0.0.1:5432\",\"end\":\"closed\",\"bytes_sent\":7,\
                      \"bytes_received\":5,\"duration_us\":1234567}";
        let start = format!("{{\"time\":\"now\",\"client\":\"{unix}\",");
        assert_eq!(String::from_utf8(json).unwrap(), format!("{start}{object}"));
    }
}
