//! The thread that sends spans to the collector, with OTLP over HTTP.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use forebay_conf::{Level, Traces};

use super::encode::encode;
use super::{BATCH_DELAY, EXPORT_TIMEOUT, ExportMessage, ExportResult, RequestSpans};
use crate::timed_stream::{Conversation, TimedStream};
use crate::tls::ClientTls;

/// Maximum number of requests in one export.
const BATCH: usize = 512;
/// Maximum length of a collector's reply.
const LONGEST_REPLY: usize = 64 << 10;

/// Logs a message about exports.
type Report = Box<dyn Fn(Level, &str) + Send>;

/// Exports spans.
pub(super) struct Exporter {
    traces: Traces,
    tls: Option<ClientTls>,
    report: Report,
    has_failed: bool,
}

impl Exporter {
    /// Creates an exporter. Fails if a file of the collector's TLS settings cannot be used.
    pub(super) fn new(traces: Traces, report: Report) -> io::Result<Self> {
        let tls = traces.tls.as_ref().map(ClientTls::load).transpose();
        let tls = tls.map_err(|error| io::Error::other(error.message))?;
        Ok(Self { traces, tls, report, has_failed: false })
    }

    /// Exports spans until all tracers have been dropped.
    pub(super) fn run(mut self, received: &Receiver<ExportMessage>) {
        let mut batch = Vec::new();
        while let Ok(ExportMessage::Spans(first)) = received.recv() {
            batch.push(first);
            let deadline = Instant::now() + BATCH_DELAY;
            let has_ended = loop {
                if batch.len() >= BATCH {
                    break false;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                match received.recv_timeout(left) {
                    Ok(ExportMessage::Spans(next)) => batch.push(next),
                    Err(RecvTimeoutError::Timeout) => break false,
                    Ok(ExportMessage::End) | Err(RecvTimeoutError::Disconnected) => break true,
                }
            };
            self.export(&batch);
            batch.clear();
            if has_ended {
                return;
            }
        }
    }

    fn export(&mut self, batch: &[Box<RequestSpans>]) {
        let body = encode(&self.traces.service, batch);
        let host = &self.traces.host;
        match post(&self.traces, self.tls.as_ref(), &body) {
            Ok(()) => {
                ExportResult::Exported.count(batch.len());
                if std::mem::take(&mut self.has_failed) {
                    let line = format!("the collector of traces at {host} works again");
                    (self.report)(Level::Info, &line);
                }
            }
            Err(error) => {
                ExportResult::Failed.count(batch.len());
                if !std::mem::replace(&mut self.has_failed, true) {
                    let line = format!("traces are lost: the collector at {host} fails: {error}");
                    (self.report)(Level::Warn, &line);
                }
            }
        }
    }
}

/// Sends a request to the collector. Returns an error unless the reply has a status of 2xx.
fn post(traces: &Traces, tls: Option<&ClientTls>, body: &[u8]) -> io::Result<()> {
    let Traces { host, path, .. } = traces;
    let mut stream = TimedStream::connect(host, tls, Instant::now() + EXPORT_TIMEOUT)?;
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n",
        body.len(),
    );
    for (name, value) in &traces.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !traces.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("user-agent")) {
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
