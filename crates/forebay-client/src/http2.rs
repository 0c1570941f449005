//! HTTP/2 client (RFC 9113) that sends requests on many streams of one connection at once.

use std::sync::Arc;
use std::time::Instant;

use forebay_wire::fields::Fields;
use forebay_wire::http1::HeadError;
use forebay_wire::http2::{Cause, Config, Connection, ErrorCode, Event, RequestPseudo};

use crate::request::parse;
use crate::{Answer, Ended, Malformed, MuxReceipt, MuxSession, Sink, StreamError};

/// Request, split into the parts that HTTP/2 sends separately.
#[derive(Clone, Debug)]
pub struct Http2Request {
    pub(crate) method: Vec<u8>,
    scheme: &'static [u8],
    authority: Vec<u8>,
    path: Vec<u8>,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
}

/// HTTP/2 connection, with prior knowledge or after ALPN.
#[derive(Debug)]
pub struct Http2<S> {
    connection: Connection,
    exchanges: Vec<Exchange<S>>,
    /// Stream identifier of each exchange; 0 if the exchange is not active. `find` searches this
    /// list for each event. The list is separate from `exchanges`, so that a search reads little
    /// memory.
    streams: Vec<u32>,
    under_way: usize,
    keepalive: bool,
    /// True if at least one request has a body.
    has_bodies: bool,
    /// True after the server's SETTINGS frame has arrived.
    is_settled: bool,
    /// Number of requests that this connection has carried.
    carried: u32,
    goaway: Option<ErrorCode>,
}

#[derive(Debug)]
struct Exchange<S> {
    request: Arc<Http2Request>,
    sink: S,
    status: u16,
    /// Number of bytes of the request's body that were passed to the connection.
    sent: usize,
    interim: u32,
}

/// Maximum number of 1xx replies per request. A server may report progress with 1xx replies. If it
/// sends more, the request fails.
pub(crate) const INTERIM_LIMIT: u32 = 16;

/// No request starts while at least this many bytes wait to be written.
const OUTPUT_LIMIT: usize = 128 * 1024;

/// Maximum number of requests on a connection. A client's stream identifiers are odd and 31 bits
/// long, so only 2^30 of them exist.
const STREAMS_LIMIT: u32 = (1 << 30) - 1;

impl Http2Request {
    /// Converts a complete HTTP/1.1 request.
    ///
    /// Field names become lower case, `Host` becomes `:authority`, and fields about the HTTP/1.1
    /// connection are dropped. `is_tls` is true if the connection uses TLS. Fails if the request is
    /// malformed.
    pub fn of(http: &[u8], is_tls: bool) -> Result<Self, HeadError> {
        Self::convert(http, is_tls, |_| true)
    }

    /// Converts a complete HTTP/1.1 request, and leaves out `Content-Length`, as clients of gRPC do.
    pub fn without_length(http: &[u8], is_tls: bool) -> Result<Self, HeadError> {
        Self::convert(http, is_tls, |name| name != b"content-length")
    }

    fn convert(
        http: &[u8],
        is_tls: bool,
        keeps: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, HeadError> {
        let (head, body) = parse(http)?;
        let mut fields = Fields::new();
        for field in &head.fields {
            let name = field.name.of(http).to_ascii_lowercase();
            if keeps(&name) {
                fields.push(&name, field.value.of(http));
            }
        }
        Ok(Self {
            method: head.method.of(http).to_vec(),
            scheme: if is_tls { b"https" } else { b"http" },
            authority: head.authority.map(|span| span.of(http).to_vec()).unwrap_or_default(),
            path: head.path_and_query.of(http).to_vec(),
            fields,
            body: body.to_vec(),
        })
    }

    pub(crate) fn pseudo(&self) -> RequestPseudo<'_> {
        RequestPseudo {
            method: &self.method,
            scheme: self.scheme,
            authority: &self.authority,
            path: &self.path,
            protocol: b"",
        }
    }
}

impl<S: Sink> Http2<S> {
    /// Creates a session for as many concurrent exchanges as `sinks` has items. Each exchange sends
    /// `request`. If `keepalive` is false, each exchange needs a new connection.
    pub fn new(
        request: Arc<Http2Request>,
        keepalive: bool,
        sinks: impl Iterator<Item = S>,
    ) -> Self {
        let exchange =
            |sink| Exchange { request: request.clone(), sink, status: 0, sent: 0, interim: 0 };
        let exchanges: Vec<_> = sinks.map(exchange).collect();
        Self {
            connection: Connection::client(Config::default()),
            streams: vec![0; exchanges.len()],
            exchanges,
            under_way: 0,
            keepalive,
            has_bodies: !request.body.is_empty(),
            is_settled: false,
            carried: 0,
            goaway: None,
        }
    }

    /// Returns the index of a stream's exchange; `None` if that exchange has ended.
    fn find(&self, stream: u32) -> Option<usize> {
        self.streams.iter().position(|&other| other == stream)
    }

    /// Returns true if the connection may carry no further request.
    fn is_spent(&self) -> bool {
        self.carried >= if self.keepalive { STREAMS_LIMIT } else { 1 }
    }

    fn forget(&mut self, exchange: usize) {
        self.streams[exchange] = 0;
        self.under_way -= 1;
    }

    /// Ends an exchange whose reply is complete.
    fn answer(&mut self, exchange: usize, now: Instant) -> Ended {
        // A server that has already replied does not need the rest of the body, so the stream is
        // reset.
        let Exchange { request, sent, .. } = &self.exchanges[exchange];
        if *sent < request.body.len() {
            self.connection.reset(self.streams[exchange], ErrorCode::CANCEL, now);
        }
        self.forget(exchange);
        let reusable = self.keepalive && self.goaway.is_none();
        Ended { exchange, result: Ok(Answer { status: self.exchanges[exchange].status, reusable }) }
    }

    fn failed(&mut self, exchange: usize, error: StreamError) -> Ended {
        self.forget(exchange);
        Ended { exchange, result: Err(error) }
    }

    /// Processes an event. If the event ends an exchange, returns the result of that exchange,
    /// otherwise `None`.
    fn handle(&mut self, event: Event, input: &[u8], now: Instant) -> Option<Ended> {
        match event {
            Event::Head { stream, head, end } => {
                let found = self.find(stream);
                if let Some(exchange) = found {
                    let exchange = &mut self.exchanges[exchange];
                    exchange.status = head.status;
                    if exchange.sink.wants_fields() {
                        head.fields.iter().for_each(|f| exchange.sink.field(f.name, f.value));
                    }
                }
                self.connection.recycle(head);
                found.filter(|_| end).map(|exchange| self.answer(exchange, now))
            }
            Event::Interim { stream, head } => {
                self.connection.recycle(head);
                let exchange = self.find(stream)?;
                self.exchanges[exchange].interim += 1;
                if self.exchanges[exchange].interim <= INTERIM_LIMIT {
                    return None;
                }
                self.connection.reset(stream, ErrorCode::ENHANCE_YOUR_CALM, now);
                Some(self.failed(exchange, StreamError::Malformed(Malformed::Interim)))
            }
            Event::Data { stream, data, end } => {
                let found = self.find(stream);
                if let Some(exchange) = found {
                    self.exchanges[exchange].sink.body(&input[data.clone()]);
                }
                self.connection.consume(stream, data.len(), now);
                found.filter(|_| end).map(|exchange| self.answer(exchange, now))
            }
            Event::Trailers { stream, head } => {
                let found = self.find(stream);
                if let Some(exchange) = found {
                    let sink = &mut self.exchanges[exchange].sink;
                    if sink.wants_fields() {
                        head.fields.iter().for_each(|f| sink.trailer(f.name, f.value));
                    }
                }
                self.connection.recycle(head);
                found.map(|exchange| self.answer(exchange, now))
            }
            Event::Reset { stream, cause } => {
                let exchange = self.find(stream)?;
                let error = match cause {
                    Cause::Peer(ErrorCode::REFUSED_STREAM) => StreamError::Refused,
                    Cause::Peer(code) => StreamError::Reset(code),
                    Cause::Rule(rule) => StreamError::Malformed(Malformed::Http2(rule)),
                    Cause::Unprocessed => StreamError::Unprocessed,
                };
                Some(self.failed(exchange, error))
            }
            Event::Goaway { code } => {
                self.goaway = Some(code);
                None
            }
            Event::Settings => {
                self.is_settled = true;
                None
            }
            // `connection` reports these events only if it has the role of a server.
            Event::Unacceptable { .. } | Event::Refused { .. } => None,
        }
    }

    /// Sends as much of the bodies as flow control allows, in the order of the connection's
    /// scheduler.
    fn send_bodies(&mut self, now: Instant) {
        if !self.has_bodies {
            return;
        }
        while let Some(stream) = self.connection.poll_writable() {
            if let Some(exchange) = self.find(stream) {
                self.send_body(exchange, now);
            }
        }
    }

    fn send_body(&mut self, exchange: usize, now: Instant) {
        let state = &mut self.exchanges[exchange];
        let rest = &state.request.body[state.sent..];
        // Ignore the error of a stream that was reset: its `Event::Reset` ends the exchange.
        let taken = self.connection.send_data(self.streams[exchange], rest, true, now);
        state.sent += taken.unwrap_or_default();
    }
}

impl<S: Sink> MuxSession for Http2<S> {
    type Sink = S;
    type Request = Arc<Http2Request>;

    fn set_request(&mut self, exchange: usize, request: &Arc<Http2Request>) {
        self.has_bodies |= !request.body.is_empty();
        self.exchanges[exchange].request = request.clone();
    }

    fn connect(&mut self, _: Instant) {
        self.connection = Connection::client(Config::default());
        self.streams.fill(0);
        self.under_way = 0;
        self.is_settled = false;
        self.carried = 0;
        self.goaway = None;
    }

    fn capacity(&self) -> usize {
        if self.is_spent() || self.connection.output().len() >= OUTPUT_LIMIT {
            return 0;
        }
        // The server's limit of streams is unknown before its SETTINGS frame, so only one request
        // is sent until then.
        let allowed = if self.is_settled { self.exchanges.len() } else { 1 };
        allowed.saturating_sub(self.under_way).min(self.connection.available())
    }

    /// Sends the request of an exchange on a new stream. Returns false if the connection accepts no
    /// further stream.
    fn start(&mut self, exchange: usize, now: Instant) -> bool {
        let request = self.exchanges[exchange].request.clone();
        let end = request.body.is_empty();
        let Ok(stream) = self.connection.send_request(&request.pseudo(), &request.fields, end)
        else {
            return false;
        };
        self.streams[exchange] = stream;
        self.under_way += 1;
        self.carried += 1;
        let state = &mut self.exchanges[exchange];
        (state.status, state.sent, state.interim) = (0, 0, 0);
        state.sink.begin();
        if !end {
            self.send_body(exchange, now);
        }
        true
    }

    fn cancel(&mut self, exchange: usize, now: Instant) {
        self.connection.reset(self.streams[exchange], ErrorCode::CANCEL, now);
        self.forget(exchange);
    }

    fn output(&self) -> &[u8] {
        self.connection.output()
    }

    fn wrote(&mut self, n: usize, now: Instant) {
        self.connection.wrote(n);
        self.send_bodies(now);
    }

    fn takes_input(&self) -> bool {
        self.connection.can_receive()
    }

    fn input(&mut self, bytes: &[u8], now: Instant) -> Result<MuxReceipt, Malformed> {
        // A server without HTTP/2 answers the preface with an HTTP/1.1 error. Decoding this error
        // as HTTP/2 frames would hide the cause.
        if !self.is_settled && bytes.starts_with(b"HTTP/") {
            return Err(Malformed::NotHttp2);
        }
        let mut consumed = 0;
        loop {
            let rest = &bytes[consumed..];
            let step = self.connection.receive(rest, now);
            let step = step.map_err(|error| Malformed::Http2(error.rule))?;
            consumed += step.consumed;
            let Some(event) = step.event else {
                self.send_bodies(now);
                return Ok(MuxReceipt { consumed, ended: None });
            };
            if let Some(ended) = self.handle(event, rest, now) {
                return Ok(MuxReceipt { consumed, ended: Some(ended) });
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.under_way == 0 && (self.is_spent() || self.goaway.is_some())
    }

    fn farewell(&self) -> Option<String> {
        self.goaway.map(|code| format!("GOAWAY, {code}"))
    }

    fn is_settled(&self) -> bool {
        self.is_settled
    }

    fn status(&self, exchange: usize) -> u16 {
        self.exchanges[exchange].status
    }

    fn sink(&mut self, exchange: usize) -> &mut S {
        &mut self.exchanges[exchange].sink
    }
}
