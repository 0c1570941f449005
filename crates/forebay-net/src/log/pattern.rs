//! Formats of access log lines.

use std::io::Write;
use std::time::Duration;

use forebay_conf::{LogValue, Placeholder, Template, TemplatePart};
use forebay_wire::http1::{Version, encode};

use crate::head::Request;
use crate::template::Escape;

const COMMON: &str = "%h %l %u %t \"%r\" %>s %b";
const COMBINED: &str = "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"";

/// The values of a finished request that a log line may contain.
pub struct LogEntry<'a> {
    /// The request.
    pub request: &'a Request,
    /// Status of the reply. 0 if no reply was sent.
    pub status: u16,
    /// Body bytes sent in the reply.
    pub body_bytes: u64,
    /// Time since the end of the request head.
    pub took: Duration,
    /// Time from the start of the wait for a backend connection to the head of the backend's reply,
    /// if measured.
    pub upstream_time: Option<Duration>,
    /// Bytes of the request's head and body.
    pub bytes_in: u64,
    /// Bytes of the reply's head and body.
    pub bytes_out: u64,
    /// Name of the site.
    pub site: Option<&'a str>,
    /// Name of the route.
    pub route: Option<&'a str>,
}

impl LogEntry<'_> {
    fn micros(&self) -> u64 {
        self.took.as_micros() as u64
    }
}

/// A parsed line format.
pub(super) enum Pattern {
    Json,
    Parts(Vec<PatternPiece>),
}

pub(super) enum PatternPiece {
    Text(String),
    Header(String),
    Value(LogValue),
    Directive(u8),
}

/// Appends text with the escapes of a log format.
type AppendText = fn(&[u8], &mut Vec<u8>);

/// Appends a value that has no directive in Apache. Returns false if the request has no such
/// value.
pub(super) fn append_value(
    value: &LogValue,
    entry: &LogEntry<'_>,
    append: AppendText,
    out: &mut Vec<u8>,
) -> bool {
    let request = entry.request;
    let variable = |name: &str| {
        let mut variables = request.connection_variables().iter();
        variables.find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
    };
    let text = match value {
        LogValue::Upstream => request.upstream.as_deref().map(str::as_bytes),
        LogValue::Cache => request.cache.map(str::as_bytes),
        LogValue::RequestId => request.known_id(),
        LogValue::Site => entry.site.map(str::as_bytes),
        LogValue::Route => entry.route.map(str::as_bytes),
        LogValue::TlsVersion => variable("SSL_PROTOCOL"),
        LogValue::TlsCipher => variable("SSL_CIPHER"),
        LogValue::UpstreamTime => {
            let Some(time) = entry.upstream_time else { return false };
            encode::decimal(out, time.as_micros() as u64);
            return true;
        }
        LogValue::BytesIn | LogValue::BytesOut => {
            let is_in = *value == LogValue::BytesIn;
            encode::decimal(out, if is_in { entry.bytes_in } else { entry.bytes_out });
            return true;
        }
        LogValue::Time => {
            let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::system());
            let _ = write!(out, "{}", now.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z"));
            return true;
        }
        LogValue::TraceId | LogValue::SpanId => {
            let Some(trace) = &request.trace else { return false };
            match value {
                LogValue::TraceId => trace.append_trace_id(out),
                _ => trace.append_span_id(out),
            }
            return true;
        }
        LogValue::Placeholder(placeholder) => {
            return append_placeholder(placeholder, entry, append, out);
        }
    };
    text.map(|text| append(text, out)).is_some()
}

fn append_placeholder(
    value: &Placeholder,
    entry: &LogEntry<'_>,
    append: AppendText,
    out: &mut Vec<u8>,
) -> bool {
    let template = Template::of(vec![TemplatePart::Value(value.clone())]);
    let mut text = Vec::new();
    entry.request.fill(&template, Escape::Field, &mut text);
    append(&text, out);
    !text.is_empty()
}

impl Pattern {
    pub(super) fn common() -> Self {
        Self::parse(COMMON)
    }

    pub(super) fn combined() -> Self {
        Self::parse(COMBINED)
    }

    /// Returns true if lines contain the time that a backend took.
    pub(super) fn needs_steps(&self) -> bool {
        match self {
            Self::Json => true,
            Self::Parts(parts) => {
                parts.iter().any(|part| matches!(part, PatternPiece::Value(LogValue::UpstreamTime)))
            }
        }
    }

    /// Returns the `strftime` format of the time that [`Self::append`] expects.
    pub(super) fn time_format(&self) -> &'static str {
        match self {
            Self::Json => "%Y-%m-%dT%H:%M:%S%:z",
            Self::Parts(_) => "%d/%b/%Y:%H:%M:%S %z",
        }
    }

    /// Parses a line format with Apache's `%` directives. All other text appears in each line
    /// unchanged.
    pub(super) fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            parts.push(PatternPiece::Text(rest[..at].to_owned()));
            let tail = rest[at + 1..].trim_start_matches(['>', '<']);
            // The name ends at the first `}`, because further directives may follow on the line.
            let named = tail.strip_prefix('{').and_then(|tail| tail.split_once('}'));
            if let Some((name, after)) = named
                && let Some(after) = after.strip_prefix('i')
            {
                parts.push(PatternPiece::Header(name.to_owned()));
                rest = after;
                continue;
            }
            if let Some((name, after)) = named
                && let Some(after) = after.strip_prefix('x')
                && let Some(value) = LogValue::parse(name)
            {
                parts.push(PatternPiece::Value(value));
                rest = after;
                continue;
            }
            let mut letters = tail.chars();
            match letters.next() {
                Some('%') => parts.push(PatternPiece::Text("%".into())),
                Some(letter) if letter.is_ascii_alphabetic() => {
                    parts.push(PatternPiece::Directive(letter as u8));
                }
                other => parts.push(PatternPiece::Text(format!(
                    "%{}",
                    other.map_or(String::new(), String::from)
                ))),
            }
            rest = letters.as_str();
        }
        parts.push(PatternPiece::Text(rest.to_owned()));
        Self::Parts(parts)
    }

    /// Appends the line of `entry` in this format. `time` is the formatted time of the reply.
    pub(super) fn append(&self, entry: &LogEntry<'_>, time: &str, out: &mut Vec<u8>) {
        match self {
            Self::Json => append_json(entry, time, out),
            Self::Parts(parts) => {
                for part in parts {
                    match part {
                        PatternPiece::Text(text) => out.extend_from_slice(text.as_bytes()),
                        PatternPiece::Header(name) => append_header(entry, name, out),
                        PatternPiece::Value(value) => {
                            if !append_value(value, entry, append_escaped, out) {
                                out.push(b'-');
                            }
                        }
                        PatternPiece::Directive(letter) => {
                            append_directive(*letter, entry, time, out);
                        }
                    }
                }
            }
        }
    }
}

/// Appends the value of one of Apache's `%` directives. Appends `-` if there is no value.
fn append_directive(letter: u8, entry: &LogEntry<'_>, time: &str, out: &mut Vec<u8>) {
    let request = entry.request;
    match letter {
        b'h' | b'a' => {
            let _ = write!(out, "{}", request.client);
        }
        b'u' if !request.user.is_empty() => append_escaped(&request.user, out),
        b'A' => {
            let _ = write!(out, "{}", request.server.ip().to_canonical());
        }
        b't' => {
            let _ = write!(out, "[{time}]");
        }
        b'r' => append_request_line(request, out),
        b's' => encode::decimal(out, u64::from(entry.status)),
        b'b' if entry.body_bytes == 0 => out.push(b'-'),
        b'b' | b'B' => encode::decimal(out, entry.body_bytes),
        b'D' => encode::decimal(out, entry.micros()),
        b'T' => encode::decimal(out, entry.micros() / 1_000_000),
        b'm' => append_escaped(request.method(), out),
        b'U' => append_escaped(&request.path, out),
        b'q' => {
            if let Some(query) = request.query() {
                out.push(b'?');
                append_escaped(query, out);
            }
        }
        b'H' => out.extend_from_slice(protocol(request)),
        b'v' | b'V' => {
            let authority = request.head.authority.map(|span| span.of(&request.bytes));
            append_escaped(authority.filter(|a| !a.is_empty()).unwrap_or(b"-"), out);
        }
        b'p' => encode::decimal(out, u64::from(request.server.port())),
        b'P' => encode::decimal(out, u64::from(std::process::id())),
        _ => out.push(b'-'),
    }
}

fn append_request_line(request: &Request, out: &mut Vec<u8>) {
    if request.head.target.is_empty() {
        // The head was unreadable, so log its first line.
        let line = request.bytes.split(|&b| b == b'\n').next().unwrap_or_default();
        return append_escaped(&line.trim_ascii_end()[..line.trim_ascii_end().len().min(200)], out);
    }
    append_escaped(request.method(), out);
    out.push(b' ');
    append_escaped(request.head.target.of(&request.bytes), out);
    out.push(b' ');
    out.extend_from_slice(protocol(request));
}

fn protocol(request: &Request) -> &'static [u8] {
    match request.head.version {
        Version::Http10 => b"HTTP/1.0",
        Version::Http11 => b"HTTP/1.1",
        Version::Http2 => b"HTTP/2.0",
        Version::Http3 => b"HTTP/3.0",
    }
}

fn append_header(entry: &LogEntry<'_>, name: &str, out: &mut Vec<u8>) {
    match header(entry.request, name) {
        Some(value) => append_escaped(value, out),
        None => out.push(b'-'),
    }
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a [u8]> {
    let bytes = &request.bytes;
    let mut fields = request.head.fields.iter();
    let field = fields.find(|f| f.name.of(bytes).eq_ignore_ascii_case(name.as_bytes()))?;
    Some(field.value.of(bytes))
}

/// Appends `bytes` to a quoted field.
pub(super) fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    // Quotes, backslashes, control characters and all non-ASCII bytes are escaped, so that no
    // client can forge a log line.
    let mut pieces = bytes.split(|&byte| byte == b'"');
    forebay_process::append_escaped(pieces.next().unwrap_or_default(), out);
    for piece in pieces {
        out.extend_from_slice(b"\\\"");
        forebay_process::append_escaped(piece, out);
    }
}

/// The keys of JSON lines that are omitted if they have no value.
const OPTIONAL_KEYS: [(&str, LogValue); 10] = [
    ("site", LogValue::Site),
    ("route", LogValue::Route),
    ("upstream", LogValue::Upstream),
    ("upstream_us", LogValue::UpstreamTime),
    ("cache", LogValue::Cache),
    ("request_id", LogValue::RequestId),
    ("trace_id", LogValue::TraceId),
    ("span_id", LogValue::SpanId),
    ("tls_version", LogValue::TlsVersion),
    ("tls_cipher", LogValue::TlsCipher),
];

/// Appends the line of `entry` as a JSON object.
fn append_json(entry: &LogEntry<'_>, time: &str, out: &mut Vec<u8>) {
    let request = entry.request;
    let host = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
    let _ = write!(out, "{{\"time\":\"{}\",\"client\":\"{}\"", time, request.client);
    if !request.user.is_empty() {
        out.extend_from_slice(b",\"user\":\"");
        append_json_text(&request.user, out);
        out.push(b'"');
    }
    for (key, value) in [
        ("method", request.method()),
        ("host", host),
        ("target", request.original_target()),
        ("protocol", protocol(request)),
        ("referer", header(request, "referer").unwrap_or_default()),
        ("user_agent", header(request, "user-agent").unwrap_or_default()),
    ] {
        let _ = write!(out, ",\"{key}\":\"");
        append_json_text(value, out);
        out.push(b'"');
    }
    for (key, value) in OPTIONAL_KEYS {
        let start = out.len();
        let _ = write!(out, ",\"{key}\":");
        let is_number = value == LogValue::UpstreamTime;
        if !is_number {
            out.push(b'"');
        }
        if !append_value(&value, entry, append_json_text, out) {
            out.truncate(start);
        } else if !is_number {
            out.push(b'"');
        }
    }
    let LogEntry { status, body_bytes, bytes_in, bytes_out, .. } = entry;
    let _ = write!(
        out,
        ",\"status\":{status},\"body_bytes\":{body_bytes},\"bytes_in\":{bytes_in},\
         \"bytes_out\":{bytes_out},\"duration_us\":{}}}",
        entry.micros()
    );
}

/// Appends text with the escapes that it needs inside a JSON string.
pub fn append_json_text(bytes: &[u8], out: &mut Vec<u8>) {
    for letter in String::from_utf8_lossy(bytes).chars() {
        match letter {
            '"' | '\\' => out.extend_from_slice(&[b'\\', letter as u8]),
            '\t' => out.extend_from_slice(b"\\t"),
            '\u{0}'..='\u{1f}' | '\u{7f}' => {
                let _ = write!(out, "\\u{:04x}", letter as u32);
            }
            _ => {
                let _ = write!(out, "{letter}");
            }
        }
    }
}
