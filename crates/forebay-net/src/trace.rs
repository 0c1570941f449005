//! Traces of requests (OpenTelemetry).
//!
//! A request that is recorded gets one span of the server, and a child span for each step that is
//! timed (`timing`). Its backend gets the span in `traceparent`. A separate thread exports the
//! spans (`export`). If the queue of this thread is full, spans are dropped and counted.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_conf::{Level, TraceClients, Traces};
use forebay_wire::Span;
use forebay_wire::http1::{Field, KnownField, host_of};
use forebay_wire::trace_context::{TraceParent, append_hex, trace_state};

use crate::collector::{Collector, LAST_EXPORT, Report, append_number, append_text};
use crate::head::{Request, RequestTrace};
use crate::log::{LogEntry, append_json_text};
use crate::timing::{Step, Steps};

/// Maximum number of requests whose spans wait for the export.
const QUEUED: usize = 2048;
/// Maximum length of an attribute in bytes. Longer ones are cut.
// Limit the memory of the waiting spans, because clients choose the lengths of most attributes.
const LONGEST_TEXT: usize = 2048;

/// The result of a span's export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportResult {
    /// The collector has received the spans of the request.
    Exported,
    /// The queue was full.
    Dropped,
    /// The collector was unreachable, too slow, or refused the spans.
    Failed,
}

static REQUESTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

impl ExportResult {
    /// All results.
    pub const ALL: [Self; 3] = [Self::Exported, Self::Dropped, Self::Failed];

    /// Returns the name of the result in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }

    /// Returns the number of recorded requests with this result since the start of the process.
    pub fn requests(self) -> u64 {
        REQUESTS[self as usize].load(Ordering::Relaxed)
    }

    fn count(self, requests: usize) {
        REQUESTS[self as usize].fetch_add(requests as u64, Ordering::Relaxed);
    }
}

/// Records traces. All threads share a tracer. The export ends after the last clone is dropped.
#[derive(Clone)]
pub struct Tracer(Arc<TracerState>);

struct TracerState {
    traces: Traces,
    sender: SyncSender<ExportMessage>,
    /// Disconnects when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

/// A message to the thread that exports spans.
enum ExportMessage {
    Spans(Box<RequestSpans>),
    /// Exports all queued spans, and ends the thread.
    End,
}

/// The spans of one request.
struct RequestSpans {
    trace: RequestTrace,
    name: String,
    start: u64,
    end: u64,
    status: u16,
    texts: Vec<(&'static str, String)>,
    numbers: Vec<(&'static str, u64)>,
    /// The steps with their start and end, in nanoseconds since 1970.
    steps: Vec<(Step, u64, u64)>,
    upstream: Option<String>,
}

impl Tracer {
    /// Starts the thread that exports spans. The thread calls `report` when exports begin to fail,
    /// and when exports succeed again.
    pub fn start(
        traces: &Traces,
        report: impl Fn(Level, &str) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, received) = sync_channel(QUEUED);
        let exporter = Exporter::new(traces, Box::new(report))?;
        let thread = std::thread::Builder::new().name("traces".into());
        let (ending, ended) = channel();
        thread.spawn(move || {
            exporter.run(&received);
            drop::<Sender<()>>(ending);
        })?;
        let ended = Mutex::new(ended);
        Ok(Self(Arc::new(TracerState { traces: traces.clone(), sender, ended })))
    }

    /// Exports all queued spans, and waits for the end of the thread for a limited time.
    pub fn finish(self) {
        // If the queue is full, the collector is too slow to receive the queued spans in time, so
        // do not wait.
        if self.0.sender.try_send(ExportMessage::End).is_ok()
            && let Ok(ended) = self.0.ended.lock()
        {
            let _ = ended.recv_timeout(LAST_EXPORT);
        }
    }

    /// Returns the settings of the export.
    pub fn settings(&self) -> &Traces {
        &self.0.traces
    }

    /// Begins the trace of a request. If Forebay accepts the client's trace, but the client does
    /// not sample it, returns this trace. The backend then gets the client's trace fields
    /// unchanged. In all other cases, removes the client's trace fields. If the request is
    /// recorded, adds new trace fields for the backend, and returns the trace. Otherwise returns
    /// `None`.
    pub fn begin(&self, request: &mut Request) -> Option<Box<RequestTrace>> {
        let is_accepted = match self.0.traces.accept {
            TraceClients::All => true,
            TraceClients::Trusted => request.is_peer_trusted,
            TraceClients::None => false,
        };
        let bytes = &request.bytes;
        let named = |name: &'static [u8]| {
            let fields = request.head.fields.iter();
            fields
                .filter(move |field| field.name.of(bytes).eq_ignore_ascii_case(name))
                .map(|field| field.value.of(bytes))
        };
        let (mut parents, has_state) =
            (named(b"traceparent"), named(b"tracestate").next().is_some());
        let first = parents.next();
        let is_single = parents.next().is_none();
        let parent = first.filter(|_| is_accepted && is_single).and_then(TraceParent::parse);
        if let Some(own) = parent.filter(|parent| !parent.is_sampled) {
            // The client's trace is not sampled, so record nothing, and leave the fields for the
            // backend unchanged.
            return Some(Box::new(RequestTrace { own, parent: None }));
        }
        let trace_id = parent.map_or_else(new_trace_id, |parent| parent.trace_id);
        let is_sampled = parent.is_some() || self.samples(&trace_id);
        let state = parent.and_then(|_| trace_state(named(b"tracestate")));
        if first.is_some() || has_state {
            remove_fields(request);
        }
        if !is_sampled {
            return None;
        }
        let span_id = random().to_be_bytes();
        let own = TraceParent { trace_id, span_id, is_sampled };
        let mut value = Vec::with_capacity(55);
        own.append(&mut value);
        add_field(request, b"traceparent", &value);
        if let Some(state) = state {
            add_field(request, b"tracestate", &state);
        }
        Some(Box::new(RequestTrace { own, parent: parent.map(|parent| parent.span_id) }))
    }

    /// Returns true if a new trace is recorded.
    fn samples(&self, trace_id: &[u8; 16]) -> bool {
        // The decision follows from the identifier, so that servers with the same rate decide
        // alike.
        let [.., a, b, c, d, e, f, g] = *trace_id;
        let number = u64::from_be_bytes([0, a, b, c, d, e, f, g]);
        let limit = u128::from(self.0.traces.per_million) * (1 << 56) / 1_000_000;
        u128::from(number) < limit
    }

    /// Queues the spans of a finished request. Never blocks.
    pub fn end(&self, trace: &RequestTrace, entry: &LogEntry<'_>, steps: &Steps) {
        if !trace.own.is_sampled {
            return;
        }
        let spans = Box::new(RequestSpans::new(*trace, (entry, steps), self.0.traces.query));
        if self.0.sender.try_send(ExportMessage::Spans(spans)).is_err() {
            ExportResult::Dropped.count(1);
        }
    }
}

impl RequestSpans {
    fn new(trace: RequestTrace, (entry, steps): (&LogEntry<'_>, &Steps), has_query: bool) -> Self {
        let request = entry.request;
        let text = |bytes: &[u8]| {
            String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_TEXT)]).into_owned()
        };
        let now = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = |instant: Instant| {
            let ago = now.saturating_duration_since(instant);
            wall.saturating_sub(ago).as_nanos().min(u128::from(u64::MAX)) as u64
        };
        let method = text(request.method());
        let target = request.original_target();
        let path_end = memchr::memchr(b'?', target).unwrap_or(target.len());
        let query = target.get(path_end + 1..).filter(|_| has_query);
        let (path, query) = (&target[..path_end], query.unwrap_or_default());
        let authority = request.head.authority.map(|span| span.of(&request.bytes));
        let mut texts = vec![
            ("http.request.method", method.clone()),
            ("url.scheme", if request.https { "https" } else { "http" }.to_owned()),
            ("url.path", text(path)),
            ("client.address", request.client.to_string()),
            ("network.peer.address", request.peer.to_string()),
            ("network.protocol.name", "http".to_owned()),
            ("network.protocol.version", version(request).to_owned()),
        ];
        let user_agent = text(&request.joined_field("User-Agent"));
        let optional = [
            ("url.query", text(query)),
            ("server.address", text(host_of(authority.unwrap_or_default()))),
            ("user_agent.original", user_agent),
            ("http.route", entry.route.unwrap_or_default().to_owned()),
            ("forebay.site", entry.site.unwrap_or_default().to_owned()),
            ("forebay.cache", request.cache.unwrap_or_default().to_owned()),
        ];
        texts.extend(optional.into_iter().filter(|(_, value)| !value.is_empty()));
        if entry.status >= 500 {
            texts.push(("error.type", entry.status.to_string()));
        }
        let mut numbers = vec![
            ("http.response.body.size", entry.body_bytes),
            ("server.port", u64::from(request.server.port())),
        ];
        if entry.status > 0 {
            numbers.push(("http.response.status_code", u64::from(entry.status)));
        }
        let marks = steps.marks();
        let ends = marks.iter().skip(1).map(|(_, start)| *start).chain([now]);
        let steps = marks.iter().zip(ends).map(|((step, start), end)| (*step, at(*start), at(end)));
        Self {
            trace,
            name: entry.route.map_or_else(|| method.clone(), |route| format!("{method} {route}")),
            start: marks.first().map_or_else(|| at(now), |(_, start)| at(*start)),
            end: at(now),
            status: entry.status,
            texts,
            numbers,
            steps: steps.collect(),
            upstream: request.upstream.as_deref().map(str::to_owned),
        }
    }
}

fn version(request: &Request) -> &'static str {
    use forebay_wire::http1::Version;
    match request.head.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
        Version::Http3 => "3",
    }
}

fn remove_fields(request: &mut Request) {
    let bytes = &request.bytes;
    request.head.fields.retain(|field| {
        let name = field.name.of(bytes);
        !name.eq_ignore_ascii_case(b"traceparent") && !name.eq_ignore_ascii_case(b"tracestate")
    });
}

/// Adds a field that a client cannot remove with `Connection`.
fn add_field(request: &mut Request, name: &[u8], value: &[u8]) {
    let at = request.head.len;
    let line = [name, b": ", value, b"\r\n"].concat();
    let value_at = at + name.len() + 2;
    request.bytes.splice(at..at, line.iter().copied());
    request.head.len += line.len();
    request.head.fields.push(Field {
        name: Span::new(at, at + name.len()),
        value: Span::new(value_at, value_at + value.len()),
        line: Span::new(at, at + line.len()),
        known: KnownField::Gateway,
    });
}

/// Returns a random number other than zero.
fn random() -> u64 {
    // Each `RandomState` of the standard library has a new random key.
    RandomState::new().hash_one(0).max(1)
}

fn new_trace_id() -> [u8; 16] {
    (u128::from(random()) << 64 | u128::from(random())).to_be_bytes()
}

/// Longest time that spans wait for others before their export.
const BATCH_DELAY: Duration = Duration::from_secs(5);

// Writes spans as a request of OTLP in JSON.

/// Kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// Status of a span whose request failed.
const ERROR: u8 = 2;

/// Returns the body of a request to the collector.
fn encode(collector: &Collector, requests: &[Box<RequestSpans>]) -> Vec<u8> {
    let mut out = b"{\"resourceSpans\":[{".to_vec();
    collector.append_resource(&mut out);
    out.extend_from_slice(b",\"scopeSpans\":[{\"scope\":{\"name\":\"forebay\"},\"spans\":[");
    for (number, request) in requests.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        append_request(request, &mut out);
    }
    out.extend_from_slice(b"]}]}]}");
    out
}

fn append_request(request: &RequestSpans, out: &mut Vec<u8>) {
    let own = request.trace.own;
    let ids = (&own.trace_id[..], &own.span_id[..], request.trace.parent);
    begin_span(ids, &request.name, SERVER, (request.start, request.end), out);
    for (number, (key, value)) in request.texts.iter().enumerate() {
        append_text(key, value, number == 0, out);
    }
    for (key, value) in &request.numbers {
        append_number(key, *value, out);
    }
    out.push(b']');
    if request.status >= 500 {
        let _ = write!(out, ",\"status\":{{\"code\":{ERROR}}}");
    }
    out.push(b'}');
    for (step, start, end) in &request.steps {
        out.push(b',');
        let span_id = random().to_be_bytes();
        let ids = (&own.trace_id[..], &span_id[..], Some(own.span_id));
        begin_span(ids, step.name(), INTERNAL, (*start, *end), out);
        let upstream = request.upstream.as_deref();
        if let Some(upstream) = upstream.filter(|_| matches!(step, Step::Connect | Step::Origin)) {
            append_text("forebay.upstream", upstream, true, out);
        }
        out.extend_from_slice(b"]}");
    }
}

/// Appends a span up to the start of its attributes.
fn begin_span(
    (trace_id, span_id, parent): (&[u8], &[u8], Option<[u8; 8]>),
    name: &str,
    kind: u8,
    (start, end): (u64, u64),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"traceId\":\"");
    append_hex(trace_id, out);
    out.extend_from_slice(b"\",\"spanId\":\"");
    append_hex(span_id, out);
    if let Some(parent) = parent {
        out.extend_from_slice(b"\",\"parentSpanId\":\"");
        append_hex(&parent, out);
    }
    out.extend_from_slice(b"\",\"name\":\"");
    append_json_text(name.as_bytes(), out);
    let _ = write!(
        out,
        "\",\"kind\":{kind},\"startTimeUnixNano\":\"{start}\",\"endTimeUnixNano\":\"{end}\",\
         \"attributes\":["
    );
}

// The thread that sends spans to the collector.

/// Maximum number of requests in one export.
const BATCH: usize = 512;

/// Exports spans.
struct Exporter {
    collector: Collector,
}

impl Exporter {
    /// Creates an exporter. Fails if a file of the collector's TLS settings cannot be used.
    fn new(traces: &Traces, report: Report) -> io::Result<Self> {
        Ok(Self { collector: Collector::new(&traces.collector, "traces", report)? })
    }

    /// Exports spans until all tracers have been dropped.
    fn run(mut self, received: &Receiver<ExportMessage>) {
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
        let body = encode(&self.collector, batch);
        let result =
            if self.collector.post(&body) { ExportResult::Exported } else { ExportResult::Failed };
        result.count(batch.len());
    }
}
