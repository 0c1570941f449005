//! FastCGI client whose connections carry several requests at once, for applications that multiplex.
//!
//! The first connection only asks the application for its capabilities (FCGI_GET_VALUES). Requests
//! start on the next connection, if the application has confirmed FCGI_MPXS_CONNS.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_wire::fastcgi::{
    Decoder, FastcgiError, ProtocolStatus, RecordEvent, abort, get_values, pairs, set_request_id,
};

use crate::script::ScriptReader;
use crate::{Answer, Ended, Malformed, MuxReceipt, MuxSession, Sink, StreamError};

/// Connection on which a FastCGI application processes several requests at once.
#[derive(Debug)]
pub struct FastcgiMux<S> {
    decoder: Decoder,
    exchanges: Vec<FastcgiExchange<S>>,
    /// Request ID of each exchange; 0 if the exchange is not active. `find` searches this list for
    /// each record.
    ids: Vec<u16>,
    /// IDs of aborted requests. Records for them may still arrive.
    aborted: HashSet<u16>,
    last_id: u16,
    under_way: usize,
    /// Number of requests that the application takes at once; `None` before it has answered the
    /// question about its capabilities.
    allowed: Option<usize>,
    /// Time of the question about capabilities on this connection; `None` on a connection for
    /// requests.
    asked: Option<Instant>,
    /// Time that the application took to answer; `None` after the caller has taken the value.
    handshake: Option<Duration>,
    output: Vec<u8>,
    /// Number of bytes at the start of `output` that were written.
    written: usize,
}

#[derive(Debug)]
struct FastcgiExchange<S> {
    request: Arc<[u8]>,
    script: ScriptReader,
    sink: S,
}

/// Number of aborted requests after which a connection starts no further request.
const ABORTED_LIMIT: usize = 1024;

/// Maximum number of active requests, so that there are always unused IDs.
const ACTIVE_LIMIT: usize = u16::MAX as usize - ABORTED_LIMIT;

/// No request starts while at least this many bytes wait to be written.
const OUTPUT_LIMIT: usize = 128 * 1024;

impl<S: Sink> FastcgiMux<S> {
    /// Creates a session for as many concurrent exchanges as `sinks` has items. Each exchange sends
    /// `request`, which [`crate::fastcgi_request`] returns, with its own request ID. The request
    /// must ask the application to keep the connection open.
    pub fn new(request: Arc<[u8]>, sinks: impl Iterator<Item = S>) -> Self {
        let exchange = |sink| FastcgiExchange {
            request: request.clone(),
            script: ScriptReader::default(),
            sink,
        };
        let exchanges: Vec<_> = sinks.map(exchange).collect();
        Self {
            decoder: Decoder::multiplexed(),
            ids: vec![0; exchanges.len()],
            exchanges,
            aborted: HashSet::new(),
            last_id: 0,
            under_way: 0,
            allowed: None,
            asked: None,
            handshake: None,
            output: Vec::new(),
            written: 0,
        }
    }

    /// Returns the index of a request's exchange; `None` if that exchange has ended.
    fn find(&self, id: u16) -> Option<usize> {
        self.ids.iter().position(|&other| other == id)
    }

    /// Returns an ID for a new request. IDs ascend, so that a late record of an ended request does
    /// not reach a new request. Returns `None` if no ID is unused.
    fn unused_id(&self) -> Option<u16> {
        let is_unused =
            |id: &u16| *id != 0 && !self.aborted.contains(id) && self.find(*id).is_none();
        (1..=u16::MAX).map(|n| self.last_id.wrapping_add(n)).find(is_unused)
    }

    /// Returns true if the connection starts no further request.
    fn is_used_up(&self) -> bool {
        // Start no request on the connection that carried `FCGI_GET_VALUES`. Many applications,
        // such as php-fpm, close this connection after the answer.
        self.asked.is_some() || self.aborted.len() >= ABORTED_LIMIT
    }

    fn forget(&mut self, exchange: usize) {
        self.ids[exchange] = 0;
        self.under_way -= 1;
    }

    fn abort(&mut self, exchange: usize) {
        let id = self.ids[exchange];
        abort(&mut self.output, id);
        self.aborted.insert(id);
        self.forget(exchange);
    }

    /// Processes a record. If the record ends an exchange, returns the result of that exchange,
    /// otherwise `None`. Ignores late records of an aborted exchange. Fails if the record's request
    /// ID is unknown.
    fn handle(
        &mut self,
        id: u16,
        event: RecordEvent,
        input: &[u8],
    ) -> Result<Option<Ended>, Malformed> {
        let Some(exchange) = self.find(id) else {
            let is_late = self.aborted.contains(&id);
            let error = Malformed::Record(FastcgiError::RequestId(id));
            return if is_late { Ok(None) } else { Err(error) };
        };
        let result = match event {
            RecordEvent::Stdout(range) => {
                let FastcgiExchange { script, sink, .. } = &mut self.exchanges[exchange];
                let Err(malformed) = script.read(&input[range], sink) else { return Ok(None) };
                self.abort(exchange);
                Err(StreamError::Malformed(malformed))
            }
            RecordEvent::End { status, .. } => {
                self.forget(exchange);
                self.answer(exchange, status).map_err(StreamError::Malformed)
            }
            RecordEvent::Stderr(_) | RecordEvent::Values(_) => return Ok(None),
        };
        Ok(Some(Ended { exchange, result }))
    }

    fn answer(&self, exchange: usize, status: ProtocolStatus) -> Result<Answer, Malformed> {
        let why = match status {
            ProtocolStatus::Complete => {
                let status = self.exchanges[exchange].script.end().map_err(Malformed::Script)?;
                return Ok(Answer { status, reusable: true });
            }
            ProtocolStatus::Overloaded => "is overloaded",
            ProtocolStatus::CantMultiplex => {
                "refused a second request on the connection, although it has confirmed \
                 FCGI_MPXS_CONNS (leave out --streams)"
            }
            ProtocolStatus::Refused => "does not support the responder role",
        };
        Err(Malformed::Refused(why))
    }

    /// Processes the answer to `FCGI_GET_VALUES`, which has the application's capabilities. Ignores
    /// further answers. Fails if the answer is malformed, or if the application does not multiplex.
    fn learn(&mut self, values: &[u8], now: Instant) -> Result<(), Malformed> {
        if self.allowed.is_some() {
            return Ok(());
        }
        let pairs = pairs(values).ok_or(Malformed::Values)?;
        let value = |wanted: &[u8]| {
            let found = pairs.iter().find(|(name, _)| &values[name.clone()] == wanted);
            found.map(|(_, value)| &values[value.clone()])
        };
        if value(b"FCGI_MPXS_CONNS") != Some(b"1") {
            return Err(Malformed::NotMultiplexed);
        }
        let most = value(b"FCGI_MAX_REQS").and_then(|most| std::str::from_utf8(most).ok());
        let most = most.and_then(|most| most.parse().ok()).unwrap_or(ACTIVE_LIMIT);
        self.allowed = Some(most.clamp(1, ACTIVE_LIMIT));
        self.handshake = self.asked.map(|asked| now.saturating_duration_since(asked));
        Ok(())
    }
}

impl<S: Sink> MuxSession for FastcgiMux<S> {
    type Sink = S;
    type Request = Arc<[u8]>;

    fn set_request(&mut self, exchange: usize, request: &Arc<[u8]>) {
        self.exchanges[exchange].request = request.clone();
    }

    fn connect(&mut self, now: Instant) {
        self.decoder = Decoder::multiplexed();
        self.ids.fill(0);
        self.aborted.clear();
        (self.last_id, self.under_way, self.written) = (0, 0, 0);
        self.output.clear();
        (self.asked, self.handshake) = (None, None);
        if self.allowed.is_none() {
            self.asked = Some(now);
            get_values(&mut self.output, &["FCGI_MPXS_CONNS", "FCGI_MAX_REQS"]);
        }
    }

    fn is_connecting(&self) -> bool {
        self.asked.is_some() && self.allowed.is_none()
    }

    fn close(&mut self, _: Instant) {
        self.asked = None;
    }

    fn take_handshake(&mut self) -> Option<Duration> {
        self.handshake.take()
    }

    fn capacity(&self) -> usize {
        if self.is_used_up() || self.output().len() >= OUTPUT_LIMIT {
            return 0;
        }
        let allowed = self.allowed.unwrap_or(0).min(self.exchanges.len());
        allowed.saturating_sub(self.under_way)
    }

    fn start(&mut self, exchange: usize, _: Instant) -> bool {
        let Some(id) = self.unused_id() else { return false };
        let FastcgiExchange { request, script, sink } = &mut self.exchanges[exchange];
        // Remove the bytes that were written, so that the buffer does not grow with each request
        // while the application reads slowly.
        self.output.drain(..self.written);
        self.written = 0;
        let begin = self.output.len();
        self.output.extend_from_slice(request);
        set_request_id(&mut self.output[begin..], id);
        script.begin();
        sink.begin();
        self.ids[exchange] = id;
        self.last_id = id;
        self.under_way += 1;
        true
    }

    fn cancel(&mut self, exchange: usize, _: Instant) {
        self.abort(exchange);
    }

    fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    fn wrote(&mut self, n: usize, _: Instant) {
        self.written += n;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
    }

    fn takes_input(&self) -> bool {
        true
    }

    fn input(&mut self, bytes: &[u8], now: Instant) -> Result<MuxReceipt, Malformed> {
        let mut consumed = 0;
        loop {
            let rest = &bytes[consumed..];
            let step = self.decoder.decode(rest).map_err(Malformed::Record)?;
            consumed += step.consumed;
            let Some(event) = step.event else {
                return Ok(MuxReceipt { consumed, ended: None });
            };
            if let RecordEvent::Values(range) = event {
                self.learn(&rest[range], now)?;
                continue;
            }
            if let Some(ended) = self.handle(step.id, event, rest)? {
                return Ok(MuxReceipt { consumed, ended: Some(ended) });
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.under_way == 0 && self.is_used_up()
    }

    fn farewell(&self) -> Option<String> {
        None
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn status(&self, exchange: usize) -> u16 {
        self.exchanges[exchange].script.status()
    }

    fn sink(&mut self, exchange: usize) -> &mut S {
        &mut self.exchanges[exchange].sink
    }
}
