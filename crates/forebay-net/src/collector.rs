//! Sends documents to an OpenTelemetry collector, with OTLP over HTTP in JSON.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>: identifiers are hexadecimal,
//! and 64-bit numbers are strings.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use forebay_conf::{self as conf, Level};

use crate::log::append_json_text;
use crate::timed_stream::{Conversation, TimedStream};
use crate::tls::ClientTls;

/// Time limit of one export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Before Forebay ends, it waits this long at most for the last export.
///
/// A collector beside Forebay answers in milliseconds, and one on another continent, with a handshake
/// of TLS, in three or four round trips. A collector that is silent must not delay a stop: a service
/// manager, and the next version of Forebay, wait for it.
pub const LAST_EXPORT: Duration = Duration::from_millis(500);
/// Maximum length of a collector's reply.
const LONGEST_REPLY: usize = 64 << 10;

/// Logs a message about exports.
pub type Report = Box<dyn Fn(Level, &str) + Send>;

/// A collector, for the thread that sends to it.
pub struct Collector {
    settings: conf::Collector,
    tls: Option<ClientTls>,
    /// `traces` or `metrics`, for messages.
    what: &'static str,
    report: Report,
    has_failed: bool,
}

impl Collector {
    /// Fails if a file of the collector's TLS settings cannot be used. `report` is called when the
    /// collector begins to fail, and when it works again.
    pub fn new(settings: &conf::Collector, what: &'static str, report: Report) -> io::Result<Self> {
        let tls = settings.tls.as_ref().map(ClientTls::load).transpose();
        let tls = tls.map_err(|error| io::Error::other(error.message))?;
        Ok(Self { settings: settings.clone(), tls, what, report, has_failed: false })
    }

    /// Sends a document. Returns false if it is lost.
    pub fn post(&mut self, body: &[u8]) -> bool {
        let (host, what) = (&self.settings.host, self.what);
        match self.try_post(body) {
            Ok(()) => {
                if std::mem::take(&mut self.has_failed) {
                    let line = format!("the collector of {what} at {host} works again");
                    (self.report)(Level::Info, &line);
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    let line = format!("{what} are lost: the collector at {host} fails: {error}");
                    (self.report)(Level::Warn, &line);
                }
                false
            }
        }
    }

    /// Fails unless the reply has a status of 2xx.
    fn try_post(&self, body: &[u8]) -> io::Result<()> {
        let conf::Collector { host, path, headers, .. } = &self.settings;
        let mut stream =
            TimedStream::connect(host, self.tls.as_ref(), Instant::now() + EXPORT_TIMEOUT)?;
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n",
            body.len(),
        );
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("user-agent")) {
            head += concat!("User-Agent: forebay/", env!("CARGO_PKG_VERSION"), "\r\n");
        }
        stream.write_all((head + "\r\n").as_bytes())?;
        stream.write_all(body)?;
        stream.flush()?;
        let status = read_status(&mut *stream)?;
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(io::Error::other(format!("it answers with status {status}")))
    }

    /// Appends the attributes of this process, without the braces around them.
    pub fn append_resource(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"resource\":{\"attributes\":[");
        append_text("service.name", &self.settings.service, true, out);
        append_text("service.version", env!("CARGO_PKG_VERSION"), false, out);
        let host = rustix::system::uname();
        append_text("host.name", &host.nodename().to_string_lossy(), false, out);
        append_number("process.pid", u64::from(std::process::id()), out);
        out.extend_from_slice(b"]}");
    }
}

/// Appends an attribute with a text.
pub fn append_text(key: &str, value: &str, is_first: bool, out: &mut Vec<u8>) {
    if !is_first {
        out.push(b',');
    }
    let _ = write!(out, "{{\"key\":\"{key}\",\"value\":{{\"stringValue\":\"");
    append_json_text(value.as_bytes(), out);
    out.extend_from_slice(b"\"}}");
}

/// Appends an attribute with a number. Another attribute must precede it, because the appended text
/// begins with a comma.
pub(crate) fn append_number(key: &str, value: u64, out: &mut Vec<u8>) {
    let _ = write!(out, ",{{\"key\":\"{key}\",\"value\":{{\"intValue\":\"{value}\"}}}}");
}

/// Reads the status of a reply.
fn read_status(stream: &mut dyn Conversation) -> io::Result<u16> {
    let (mut reply, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut piece)?;
        reply.extend_from_slice(&piece[..length]);
        let has_line = memchr::memchr(b'\n', &reply).is_some();
        if has_line || length == 0 || reply.len() > LONGEST_REPLY {
            break;
        }
    }
    let digits = reply.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    let status = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    status.ok_or_else(|| io::Error::other("its reply is not HTTP"))
}
