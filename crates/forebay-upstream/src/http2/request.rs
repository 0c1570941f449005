//! One request to one backend as an HTTP/2 stream, and its reply (RFC 9113 section 8).

use std::cell::Cell;
use std::pin::pin;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use forebay_net::fault::{Fault, Side};
use forebay_net::head::Request;
use forebay_server::body::Body;
use forebay_server::exchange::Exchange;
use forebay_server::reply::Reply;
use forebay_server::tunnel::Tunnel;
use forebay_wire::http1::{KnownField, RequestFraming, ResponseFraming, ResponseHead, encode};
use forebay_wire::http2::RequestPseudo;
use sha1::{Digest, Sha1};

use crate::fields::{Changes, append_request_fields, inform, request_trailers};
use crate::http::prefix::{self, BackendView};
use crate::http::request_head::append_target;
use crate::http::{Buffers, ProxyAttempt, ReplyHead};
use crate::http2::{Stream, StreamEvent, StreamTunnel};
use crate::upgrade;
use crate::upstream::{BodyEncoder, Outlet, Source, upload};

/// Suffix of the WebSocket key before hashing (RFC 6455 section 1.3).
const WEBSOCKET: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Request head for a backend.
#[derive(Default)]
pub struct RequestHead<'a> {
    method: &'a [u8],
    authority: &'a [u8],
    protocol: &'a [u8],
    path: Vec<u8>,
    lines: Vec<u8>,
}

impl<'a> RequestHead<'a> {
    /// Creates the head for `request`. `host` replaces the client's host if present.
    pub fn new(request: &'a Request, host: Option<&'a str>) -> Self {
        let authority = request.head.authority.map(|span| span.of(&request.bytes));
        let authority = host.map(str::as_bytes).or(authority).unwrap_or_default();
        Self { method: request.method(), authority, ..Self::default() }
    }

    /// Writes the path and the fields for a backend that sees the resource as `view` says. An upgrade becomes an
    /// extended CONNECT (RFC 8441 section 4).
    pub fn write(&mut self, request: &'a Request, view: BackendView<'_>, is_upgrade: bool) {
        append_target(&mut self.path, request, view);
        // Omit the value of `Host`, because `:authority` replaces it. `append_request_fields` drops
        // connection-specific fields.
        let changes = Changes { host: Some(""), skips_prefix: view.strip_prefix.is_some() };
        append_request_fields(&mut self.lines, request, changes);
        prefix::append_fields(&mut self.lines, request, view);
        if is_upgrade {
            self.method = b"CONNECT";
            let (fields, bytes) = (&request.head.fields, &request.bytes);
            self.protocol = upgrade::protocols(fields, bytes).next().unwrap_or_default();
            let key = b"sec-websocket-key:";
            let is_key = |line: &&[u8]| {
                line.get(..key.len()).is_some_and(|name| name.eq_ignore_ascii_case(key))
            };
            let lines = self.lines.split_inclusive(|&b| b == b'\n');
            self.lines = lines.filter(|line| !is_key(line)).flatten().copied().collect();
        } else if request.takes_trailers() {
            self.lines.extend_from_slice(b"te: trailers\r\n");
        }
        for announced in announced_trailers(request).filter(|_| !is_upgrade) {
            encode::field(&mut self.lines, "trailer", announced);
        }
        let has_length = || request.head.value(KnownField::ContentLength, &request.bytes).is_some();
        match request.head.framing {
            RequestFraming::None if has_length() => {
                encode::field_number(&mut self.lines, "content-length", 0);
            }
            RequestFraming::Length(length) => {
                encode::field_number(&mut self.lines, "content-length", length);
            }
            RequestFraming::None | RequestFraming::Chunked => {}
        }
    }

    fn pseudo(&'a self, scheme: &'a [u8]) -> RequestPseudo<'a> {
        let Self { method, authority, protocol, path, .. } = self;
        RequestPseudo { method, scheme, authority, path, protocol }
    }

    /// Appends the head as text, one line for each field.
    pub fn append(&self, out: &mut Vec<u8>, scheme: &[u8]) {
        let pseudo = self.pseudo(scheme);
        for (name, value) in [
            (":method", pseudo.method),
            (":scheme", pseudo.scheme),
            (":authority", pseudo.authority),
            (":path", pseudo.path),
            (":protocol", pseudo.protocol),
        ] {
            if !value.is_empty() {
                encode::field(out, name, value);
            }
        }
        for field in forebay_wire::fields::of_lines(&self.lines) {
            if field.known != KnownField::Host {
                out.extend_from_slice(&field.name.to_ascii_lowercase());
                encode::field(out, "", field.value);
            }
        }
    }
}

/// State of a stream that has failed.
pub struct Failed {
    /// True if the backend requires HTTP/1.1.
    pub needs_http1: bool,
    /// True if the stream's connection has carried replies.
    pub is_proven: bool,
}

impl ProxyAttempt<'_> {
    /// Sends one request and passes on its reply. Returns the tunnel after a successful upgrade,
    /// and otherwise `None`. If the request fails, also returns facts about the stream that
    /// determine the next attempt.
    pub async fn run_as_stream(
        &self,
        stream: Stream,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
    ) -> Result<Option<Box<Tunnel>>, (Fault, Failed)> {
        if self.is_upgrade {
            let is_proven = stream.is_proven();
            let failed = Failed { needs_http1: false, is_proven };
            return self.upgrade(stream, exchange, buffers).await.map_err(|fault| (fault, failed));
        }
        let outcome = self.answer(&stream, exchange, buffers).await;
        outcome.map(|()| None).map_err(|fault| {
            let (needs_http1, is_proven) = (stream.is_for_http1(), stream.is_proven());
            (fault, Failed { needs_http1, is_proven })
        })
    }

    async fn answer(
        &self,
        stream: &Stream,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let Exchange { request, body, reply, .. } = exchange;
        let has_body = body.framing() != RequestFraming::None;
        self.send_head(stream, request, !has_body)?;
        let mut reading = ReplyReading { attempt: self, request, stream, buffers };
        if !has_body {
            return reading.reply(reply, &Cell::new(true)).await;
        }
        let can_resend = Cell::new(body.is_buffered());
        let mut sending = pin!(async {
            send_body(stream, request, &mut *body).await?;
            can_resend.set(body.is_in_hand());
            Ok::<_, Fault>(())
        });
        let mut reading = pin!(reading.reply(reply, &can_resend));
        let mut is_sent = false;
        loop {
            tokio::select! {
                biased;
                outcome = &mut reading => return outcome,
                outcome = &mut sending, if !is_sent => match outcome {
                    Ok(()) => is_sent = true,
                    Err(fault) if fault.side != Side::Backend => return Err(fault),
                    // The upload has failed, but the backend may have sent a reply before it
                    // stopped reading. Read this reply.
                    Err(_) => return reading.await,
                },
            }
        }
    }

    fn send_head(&self, stream: &Stream, request: &Request, ends: bool) -> Result<(), Fault> {
        let mut head = RequestHead::new(request, self.host());
        head.write(request, self.view(), self.is_upgrade);
        stream.send_head(&head.pseudo(stream.scheme()), &head.lines, ends)
    }

    /// Sends an upgrade as an extended CONNECT. Fails with 501 if the backend does not support
    /// this. Returns the tunnel, or `None` if the backend has refused the upgrade with a reply.
    async fn upgrade(
        &self,
        stream: Stream,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
    ) -> Result<Option<Box<Tunnel>>, Fault> {
        let Exchange { request, reply, .. } = exchange;
        if !stream.takes_extended_connect(self.backend().connect_timeout()).await? {
            let name = self.backend().name();
            return Err(Fault::us(
                501,
                format!(
                    "{name} takes no WebSocket over HTTP/2 (its SETTINGS lack ENABLE_CONNECT_PROTOCOL): \
                     give such paths a route to it with http://"
                ),
            ));
        }
        self.send_head(&stream, request, false)?;
        let mut reading = ReplyReading { attempt: self, request, stream: &stream, buffers };
        reading.read_head(reply).await?;
        if !matches!(reading.buffers.head.status, 200..=299) {
            reading.head().make_way(reply, true)?;
            return reading.relay_body(reply).await.map(|()| None);
        }
        reading.buffers.head.status = 101;
        let head = reading.head();
        head.begin_fields(reply);
        append_switch(reply.field_lines(), request);
        reply.switch().await?;
        let idle = self.proxy.tunnel_idle();
        let backend = Box::new(StreamTunnel(stream));
        let tunnel = Tunnel { backend, backend_prefix: Vec::new(), idle, held: Box::new(()) };
        Ok(Some(Box::new(tunnel)))
    }
}

/// Appends fields of the reply with status 101: `Connection`, `Upgrade` and, for a WebSocket,
/// `Sec-WebSocket-Accept`.
fn append_switch(out: &mut Vec<u8>, request: &Request) {
    let (fields, bytes) = (&request.head.fields, &request.bytes);
    let protocol = upgrade::protocols(fields, bytes).next().unwrap_or_default();
    out.extend_from_slice(b"Connection: upgrade\r\n");
    encode::field(out, "Upgrade", protocol);
    let is_key = |name: &[u8]| name.eq_ignore_ascii_case(b"sec-websocket-key");
    if let Some(key) = fields.iter().find(|field| is_key(field.name.of(bytes))) {
        let hash = Sha1::new_with_prefix(key.value.of(bytes)).chain_update(WEBSOCKET).finalize();
        encode::field(out, "Sec-WebSocket-Accept", BASE64_STANDARD.encode(hash).as_bytes());
    }
}

/// Returns the values of the client's `Trailer` fields. Returns no values if the request has no
/// body, or if its `Connection` names fields, because [`request_trailers`] then passes no trailers.
fn announced_trailers(request: &Request) -> impl Iterator<Item = &[u8]> {
    let head = &request.head;
    let passes = head.framing != RequestFraming::None && !head.connection_names_fields;
    let fields = head.fields.iter().filter(move |_| passes);
    let announcing = fields.filter(|field| field.known == KnownField::Trailer);
    announcing.map(|field| field.value.of(&request.bytes))
}

/// Sends the body to its end, then trailers. Without trailers, the last DATA frame of a body of
/// known length ends the stream.
async fn send_body(stream: &Stream, request: &Request, body: &mut Body) -> Result<(), Fault> {
    let has_trailers =
        || announced_trailers(request).next().is_some() || !body.trailers_so_far().is_empty();
    let left = match body.framing() {
        // End the stream with the last data. Tomcat closes connections with many small DATA frames,
        // but does not count frames that end a stream. An empty body has no such frame.
        RequestFraming::Length(length @ 1..) if !has_trailers() => Some(length),
        _ => None,
    };
    let outlet = BodyOutlet { stream, left: Cell::new(left) };
    upload(&outlet, BodyEncoder::Plain, Source::Client(body)).await?;
    if outlet.left.get() == Some(0) {
        return Ok(());
    }
    outlet.suspend_reply_limit();
    let trailers = body.trailers().await?;
    outlet.start_reply_limit();
    let mut kept = request_trailers(request, &trailers).peekable();
    if kept.peek().is_none() {
        return stream.send_data(b"", true).await;
    }
    stream.send_trailers(kept)
}

struct BodyOutlet<'a> {
    stream: &'a Stream,
    /// Remaining bytes of the body, if the length is known.
    left: Cell<Option<u64>>,
}

impl Outlet for BodyOutlet<'_> {
    async fn send(&self, pieces: [&[u8]; 3]) -> Result<(), Fault> {
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            let left = self.left.get().map(|left| left.saturating_sub(piece.len() as u64));
            self.stream.send_data(piece, left == Some(0)).await?;
            self.left.set(left);
        }
        Ok(())
    }

    fn suspend_reply_limit(&self) {
        self.stream.suspend_reply_limit();
    }

    fn start_reply_limit(&self) {
        self.stream.start_reply_limit();
    }
}

/// Reader of one reply.
struct ReplyReading<'a> {
    attempt: &'a ProxyAttempt<'a>,
    request: &'a Request,
    stream: &'a Stream,
    /// `inbox` holds the head, `out` data for the client.
    buffers: &'a mut Buffers,
}

impl ReplyReading<'_> {
    fn head(&self) -> ReplyHead<'_> {
        let Self { attempt, request, ref buffers, .. } = *self;
        ReplyHead { attempt, request, head: &buffers.head, bytes: &buffers.inbox }
    }

    /// Reads the reply and passes it on. If `can_resend` is true, and another backend should get
    /// the request, fails before the reply to the client begins.
    async fn reply(&mut self, reply: &mut Reply, can_resend: &Cell<bool>) -> Result<(), Fault> {
        self.read_head(reply).await?;
        self.head().make_way(reply, can_resend.get())?;
        self.relay_body(reply).await
    }

    /// Reads the head of the final reply. Sends interim replies to the client.
    async fn read_head(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        let backend = self.attempt.backend();
        let to_head = self.request.method() == b"HEAD";
        let Buffers { out, inbox, head } = &mut *self.buffers;
        loop {
            let (received, ends, is_final) = match self.stream.try_next(out)? {
                None => {
                    self.stream.wait(backend, backend.silence_of(reply)).await?;
                    continue;
                }
                Some(StreamEvent::Interim(received)) => (received, false, false),
                Some(StreamEvent::Head(received, ends)) => (received, ends, true),
                // This cannot occur, because the codec reports the head first.
                Some(StreamEvent::Data | StreamEvent::End(_)) => {
                    return Err(Fault::backend(502, format!("{}: no head", backend.name())));
                }
            };
            inbox.clear();
            received.write_http1_reply(ends, to_head, inbox, head);
            self.stream.recycle(received);
            if is_final {
                self.attempt.to.answered();
                return Ok(());
            }
            inform(reply, head, inbox).await?;
        }
    }

    /// Sends the client the reply whose head was read.
    async fn relay_body(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        let passes_trailers = self.head().passes_trailers();
        self.head().begin(reply);
        // Hold the head until body bytes arrive, so that one write sends both. If the backend fails
        // before the body, the client then gets an error page instead of an incomplete reply.
        let ResponseHead { framing, .. } = self.buffers.head;
        let mut holds_head = matches!(framing, ResponseFraming::Length(1..));
        let data = &mut self.buffers.out;
        loop {
            match self.stream.try_next(data)? {
                Some(StreamEvent::Data) => {
                    holds_head = false;
                    reply.push(data).await?;
                }
                Some(StreamEvent::End(trailers)) => {
                    let trailers = if passes_trailers { &trailers[..] } else { b"" };
                    return reply.finish_with(trailers).await;
                }
                // This cannot occur, because `read_head` has read the only final head.
                Some(StreamEvent::Interim(_) | StreamEvent::Head(..)) => {}
                None => {
                    if !holds_head {
                        reply.flush().await?;
                    }
                    let backend = self.attempt.backend();
                    self.stream.wait(backend, backend.silence_of(reply)).await?;
                }
            }
        }
    }
}
