//! HTTP/3 client (RFC 9114) that sends requests on many streams of one QUIC connection at once.
//!
//! Input and output of the session are UDP datagrams.

mod quic;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_wire::http1::HeadError;
use forebay_wire::http2::Head;
use forebay_wire::http2::hpack::ListLimits;
use forebay_wire::http3::{
    self, ErrorCode, Http3Error, ReplyDecoder, ReplyEvent, UniDecoder, UniKind,
};
use quinn_proto::{Dir, ReadError, StreamEvent, StreamId};

use crate::http2::INTERIM_LIMIT;
use crate::{
    Answer, Ended, Http2Request, Malformed, MuxReceipt, MuxSession, SessionEnd, Sink, StreamError,
};

pub use quic::Http3Config;
use quic::{Quic, error_code};

/// Request, encoded for its stream. The head uses only QPACK's static table, so the bytes are the
/// same on all connections.
#[derive(Clone, Debug)]
pub struct Http3Request {
    bytes: Bytes,
    to_head: bool,
}

/// HTTP/3 connection.
#[derive(Debug)]
pub struct Http3<S> {
    config: Http3Config,
    /// The QUIC connection; `None` before the first one, or if it could not begin.
    quic: Option<Quic>,
    end: Option<SessionEnd>,
    exchanges: Vec<StreamExchange<S>>,
    /// Stream of each exchange; `None` if the exchange is not active.
    streams: Vec<Option<StreamId>>,
    /// Unidirectional streams of the server.
    unis: Vec<(StreamId, UniDecoder)>,
    under_way: usize,
    keepalive: bool,
    is_settled: bool,
    /// True if the connection has carried a request.
    has_carried: bool,
    /// True if the server allows no further stream now.
    is_full: bool,
    /// Identifier in the server's GOAWAY: the first stream that the server does not process.
    goaway: Option<u64>,
    /// Exchanges that have ended, but that have not been reported to the caller yet.
    ended: VecDeque<Ended>,
    datagram_size: usize,
}

#[derive(Debug)]
struct StreamExchange<S> {
    request: Arc<Http3Request>,
    sink: S,
    status: u16,
    decoder: ReplyDecoder,
    /// Number of bytes of the request that were passed to the connection.
    sent: usize,
    interim: u32,
}

/// Limits of a reply's head, as with HTTP/2.
const LIMITS: ListLimits = ListLimits { size: 32 * 1024, fields: 100 };

impl Http3Request {
    /// Converts a complete HTTP/1.1 request. Fails if the request is malformed.
    pub fn of(http: &[u8]) -> Result<Self, HeadError> {
        let request = Http2Request::of(http, true)?;
        let mut bytes = Vec::new();
        http3::request(&mut bytes, &request.pseudo(), &request.fields);
        if !request.body.is_empty() {
            http3::data_header(&mut bytes, request.body.len() as u64);
            bytes.extend_from_slice(&request.body);
        }
        Ok(Self { bytes: bytes.into(), to_head: request.method == b"HEAD" })
    }
}

impl<S: Sink> Http3<S> {
    /// Creates a session for as many concurrent exchanges as `sinks` has items. Each exchange sends
    /// `request`. If `keepalive` is false, each exchange needs a new connection.
    pub fn new(
        request: Arc<Http3Request>,
        keepalive: bool,
        sinks: impl Iterator<Item = S>,
        config: Http3Config,
    ) -> Self {
        let exchange = |sink| StreamExchange {
            request: request.clone(),
            sink,
            status: 0,
            decoder: ReplyDecoder::new(LIMITS, request.to_head),
            sent: 0,
            interim: 0,
        };
        let exchanges: Vec<_> = sinks.map(exchange).collect();
        Self {
            config,
            quic: None,
            end: None,
            streams: vec![None; exchanges.len()],
            exchanges,
            unis: Vec::new(),
            under_way: 0,
            keepalive,
            is_settled: false,
            has_carried: false,
            is_full: false,
            goaway: None,
            ended: VecDeque::new(),
            datagram_size: usize::MAX,
        }
    }

    /// Returns true if the connection may carry no further request.
    fn is_spent(&self) -> bool {
        self.has_carried && !self.keepalive || self.goaway.is_some()
    }

    fn find(&self, stream: StreamId) -> Option<usize> {
        self.streams.iter().position(|&other| other == Some(stream))
    }

    /// Processes the events of the connection until there are none. Fails if the server violates a
    /// rule of HTTP/3.
    fn process_events(&mut self, now: Instant) -> Result<(), Http3Error> {
        while let Some(quic) = &mut self.quic {
            let was_established = quic.is_established;
            let event = match quic.poll(now) {
                Ok(event) => event,
                Err(end) => {
                    self.end = Some(end);
                    return Ok(());
                }
            };
            if quic.is_established && !was_established {
                self.open_control();
            }
            let Some(event) = event else { break };
            match event {
                StreamEvent::Opened { dir: Dir::Uni } => self.accept_unis()?,
                StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_uni(id)?,
                StreamEvent::Readable { id } => self.read_reply(id)?,
                StreamEvent::Writable { id } => {
                    if let Some(exchange) = self.find(id) {
                        self.send(exchange);
                    }
                }
                StreamEvent::Available { dir: Dir::Bi } => self.is_full = false,
                // Ignore that the server has stopped a stream: the reply alone decides if the
                // exchange has succeeded.
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens our control stream, which stays open until the connection ends.
    fn open_control(&mut self) {
        let Some(quic) = &mut self.quic else { return };
        // A server that allows no unidirectional stream violates RFC 9114 section 6.2. This server
        // does not receive our settings, so it uses the default settings. They suffice for our
        // requests.
        if let Some(stream) = quic.connection.streams().open(Dir::Uni) {
            let mut opening = Vec::new();
            http3::client_opening(&mut opening, LIMITS.size);
            let _ = quic.connection.send_stream(stream).write(&opening);
        }
    }

    fn accept_unis(&mut self) -> Result<(), Http3Error> {
        let Some(quic) = &mut self.quic else { return Ok(()) };
        let accepted: Vec<_> =
            std::iter::from_fn(|| quic.connection.streams().accept(Dir::Uni)).collect();
        for stream in accepted {
            self.unis.push((stream, UniDecoder::of_server()));
            // Read at once, because `quinn_proto` reports no `Readable` event for data in the
            // packet that opens the stream.
            self.read_uni(stream)?;
        }
        Ok(())
    }

    /// Reads settings and GOAWAY from a unidirectional stream of the server. Stops the stream if
    /// its kind is unknown.
    fn read_uni(&mut self, stream: StreamId) -> Result<(), Http3Error> {
        let Some(at) = self.unis.iter().position(|(other, _)| *other == stream) else {
            return Ok(());
        };
        let Some(quic) = &mut self.quic else { return Ok(()) };
        let decoder = &mut self.unis[at].1;
        let mut has_ended = false;
        if let Ok(mut chunks) = quic.connection.recv_stream(stream).read(true) {
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        decoder.receive(&chunk.bytes)?;
                    }
                    Ok(None) | Err(ReadError::Reset(_)) => {
                        decoder.end()?;
                        has_ended = true;
                        break;
                    }
                    Err(ReadError::Blocked) => break,
                }
            }
        }
        let (kind, goaway) = (decoder.kind(), decoder.goaway());
        self.is_settled |= decoder.has_settings();
        if kind == Some(UniKind::Unknown) && !has_ended {
            let code = ErrorCode::STREAM_CREATION_ERROR.0.into();
            let _ = quic.connection.recv_stream(stream).stop(code);
            has_ended = true;
        }
        if has_ended {
            self.unis.swap_remove(at);
        } else if kind.is_some() && self.unis.iter().filter(|uni| uni.1.kind() == kind).count() > 1
        {
            return Err(Http3Error::repeated_stream());
        }
        if let Some(goaway) = goaway {
            self.goaway = Some(goaway);
            self.drop_unprocessed(goaway);
        }
        Ok(())
    }

    /// Ends the exchanges whose stream IDs are not below `goaway`, the ID in the server's GOAWAY.
    /// The server does not process these requests.
    fn drop_unprocessed(&mut self, goaway: u64) {
        for exchange in 0..self.streams.len() {
            // The identifier of a request's stream is four times the index of the stream.
            if self.streams[exchange].is_some_and(|stream| stream.index() * 4 >= goaway) {
                self.abort(exchange);
                self.finish(exchange, Err(StreamError::Unprocessed));
            }
        }
    }

    fn read_reply(&mut self, stream: StreamId) -> Result<(), Http3Error> {
        let Some(exchange) = self.find(stream) else { return Ok(()) };
        let Some(quic) = &mut self.quic else { return Ok(()) };
        let mut stream = quic.connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else { return Ok(()) };
        let state = &mut self.exchanges[exchange];
        let result = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    if let Err(error) = state.read(&chunk.bytes) {
                        break Err(error);
                    }
                }
                Ok(None) => break state.decoder.end().map_err(ReplyError::Http3),
                Err(ReadError::Blocked) => return Ok(()),
                Err(ReadError::Reset(code)) => break Err(ReplyError::Reset(error_code(code))),
            }
        };
        drop(chunks);
        let result = match result {
            Ok(()) => {
                let reusable = self.keepalive && self.goaway.is_none();
                Ok(Answer { status: state.status, reusable })
            }
            Err(ReplyError::Http3(error)) if error.ends_connection => return Err(error),
            Err(ReplyError::Http3(error)) => Err(StreamError::Malformed(Malformed::Http3(error))),
            Err(ReplyError::Interim) => Err(StreamError::Malformed(Malformed::Interim)),
            Err(ReplyError::Reset(code)) => Err(StreamError::ResetHttp3(code)),
        };
        // A server that has already replied does not need the rest of the request, so stop sending.
        if result.is_err() || state.sent < state.request.bytes.len() {
            self.abort(exchange);
        }
        self.finish(exchange, result);
        Ok(())
    }

    /// Stops both directions of an exchange's stream.
    fn abort(&mut self, exchange: usize) {
        let (Some(quic), Some(stream)) = (&mut self.quic, self.streams[exchange]) else { return };
        let code = ErrorCode::REQUEST_CANCELLED.0;
        let _ = quic.connection.send_stream(stream).reset(code.into());
        let _ = quic.connection.recv_stream(stream).stop(code.into());
    }

    fn finish(&mut self, exchange: usize, result: Result<Answer, StreamError>) {
        self.forget(exchange);
        self.ended.push_back(Ended { exchange, result });
    }

    fn forget(&mut self, exchange: usize) {
        self.under_way -= usize::from(self.streams[exchange].take().is_some());
    }

    /// Passes as much of the request to the QUIC connection as flow control allows.
    fn send(&mut self, exchange: usize) {
        let (Some(quic), Some(stream)) = (&mut self.quic, self.streams[exchange]) else { return };
        let StreamExchange { request, sent, .. } = &mut self.exchanges[exchange];
        let mut stream = quic.connection.send_stream(stream);
        while *sent < request.bytes.len() {
            match stream.write_chunks(&mut [request.bytes.slice(*sent..)]) {
                Ok(written) => *sent += written.bytes,
                // A `Writable` event follows when the stream accepts more bytes. If the server has
                // stopped the stream, send no more.
                Err(_) => return,
            }
        }
        let _ = stream.finish();
    }
}

/// Reason why an exchange has no valid reply.
enum ReplyError {
    Http3(Http3Error),
    Interim,
    Reset(ErrorCode),
}

impl<S: Sink> StreamExchange<S> {
    /// Decodes received bytes of a reply, and passes fields and body to the sink.
    fn read(&mut self, input: &[u8]) -> Result<(), ReplyError> {
        let mut rest = input;
        let mut head = Head::default();
        loop {
            let step = self.decoder.decode(rest, &mut head).map_err(ReplyError::Http3)?;
            match step.event {
                None => return Ok(()),
                Some(ReplyEvent::Interim) => {
                    self.interim += 1;
                    if self.interim > INTERIM_LIMIT {
                        return Err(ReplyError::Interim);
                    }
                }
                Some(ReplyEvent::Head) => {
                    self.status = head.status;
                    if self.sink.wants_fields() {
                        head.fields.iter().for_each(|f| self.sink.field(f.name, f.value));
                    }
                }
                Some(ReplyEvent::Data(range)) => self.sink.body(&rest[range]),
                Some(ReplyEvent::Trailers) => {}
            }
            rest = &rest[step.consumed..];
        }
    }
}

impl<S: Sink> MuxSession for Http3<S> {
    type Sink = S;
    type Request = Arc<Http3Request>;

    fn set_request(&mut self, exchange: usize, request: &Arc<Http3Request>) {
        self.exchanges[exchange].request = request.clone();
    }

    fn connect(&mut self, now: Instant) {
        let connected = Quic::connect(&self.config, now);
        (self.quic, self.end) = match connected {
            Ok(quic) => (Some(quic), None),
            Err(end) => (None, Some(end)),
        };
        self.streams.fill(None);
        self.unis.clear();
        self.ended.clear();
        self.under_way = 0;
        (self.is_settled, self.has_carried, self.is_full) = (false, false, false);
        self.goaway = None;
    }

    fn is_connecting(&self) -> bool {
        self.quic.as_ref().is_none_or(|quic| !quic.is_established)
    }

    fn take_handshake(&mut self) -> Option<Duration> {
        self.quic.as_mut().and_then(|quic| quic.handshake.take())
    }

    fn close(&mut self, now: Instant) {
        if let Some(quic) = &mut self.quic {
            quic.close(ErrorCode::NO_ERROR, now);
        }
    }

    fn end(&self) -> Option<&SessionEnd> {
        self.end.as_ref()
    }

    fn timeout(&mut self) -> Option<Instant> {
        self.quic.as_mut().and_then(|quic| quic.connection.poll_timeout())
    }

    fn expire(&mut self, now: Instant) {
        if let Some(quic) = &mut self.quic {
            quic.expire(now);
        }
    }

    fn capacity(&self) -> usize {
        if self.is_connecting() || self.end.is_some() || self.is_full || self.is_spent() {
            return 0;
        }
        self.exchanges.len() - self.under_way
    }

    /// Sends the request of an exchange on a new stream. Returns false if the server allows no
    /// further stream now.
    fn start(&mut self, exchange: usize, _: Instant) -> bool {
        let Some(quic) = &mut self.quic else { return false };
        let Some(stream) = quic.connection.streams().open(Dir::Bi) else {
            self.is_full = true;
            return false;
        };
        self.streams[exchange] = Some(stream);
        self.under_way += 1;
        self.has_carried = true;
        let state = &mut self.exchanges[exchange];
        (state.status, state.sent, state.interim) = (0, 0, 0);
        state.decoder = ReplyDecoder::new(LIMITS, state.request.to_head);
        state.sink.begin();
        self.send(exchange);
        true
    }

    fn cancel(&mut self, exchange: usize, _: Instant) {
        self.abort(exchange);
        self.forget(exchange);
    }

    fn prepare(&mut self, now: Instant) {
        if let Some(quic) = &mut self.quic {
            quic.prepare(now);
        }
    }

    fn output(&self) -> &[u8] {
        self.quic.as_ref().map_or(&[], |quic| &quic.output)
    }

    /// Reports that the whole datagram in the output was sent.
    fn wrote(&mut self, _: usize, now: Instant) {
        if let Some(quic) = &mut self.quic {
            quic.output.clear();
            quic.prepare(now);
        }
    }

    fn set_datagram_size(&mut self, size: usize) {
        self.datagram_size = size;
    }

    fn takes_input(&self) -> bool {
        true
    }

    fn input(&mut self, bytes: &[u8], now: Instant) -> Result<MuxReceipt, Malformed> {
        if let Some(ended) = self.ended.pop_front() {
            return Ok(MuxReceipt { consumed: 0, ended: Some(ended) });
        }
        if let Some(quic) = &mut self.quic {
            quic.receive(bytes, self.datagram_size, now);
        }
        if let Err(error) = self.process_events(now) {
            if let Some(quic) = &mut self.quic {
                quic.close(error.code, now);
            }
            return Err(Malformed::Http3(error));
        }
        Ok(MuxReceipt { consumed: bytes.len(), ended: self.ended.pop_front() })
    }

    fn is_finished(&self) -> bool {
        self.under_way == 0 && self.is_spent()
    }

    fn farewell(&self) -> Option<String> {
        self.goaway.map(|_| "GOAWAY".to_owned())
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
