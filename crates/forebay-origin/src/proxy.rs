//! HTTP/1.1 backends: requests passed on, replies streamed back.

use std::cell::{Cell, RefCell};
use std::pin::pin;

use forebay_engine::{
    Body, Exchange, Fault, Length, Origin, Reply, Request, Retry, Serving, Socket,
};
use forebay_wire::http1::{
    BodyDecoder, Known, Limits, Progress, RequestFraming, ResponseFraming, ResponseHead,
    ResponseParser, encode,
};

use crate::connect::{Backend, Connection};
use crate::fields::append_request_fields;

/// Size of a receive buffer, in bytes; a long body gets the larger one.
const INBOX: usize = 16 * 1024;
const LARGE_INBOX: usize = 128 * 1024;
/// Buffers kept for reuse.
const SPARE: usize = 64;

/// The route's backends, as one thread knows them.
pub struct Proxy {
    backends: Vec<Backend>,
    next: Cell<usize>,
    strip_prefix: Option<String>,
    #[expect(clippy::vec_box, reason = "buffers move between here and requests by pointer")]
    spare: RefCell<Vec<Box<Buffers>>>,
}

/// What one exchange with a backend needs.
struct Buffers {
    out: Vec<u8>,
    inbox: Vec<u8>,
    head: ResponseHead,
}

impl Proxy {
    /// Passes requests to `backends` in turn, without `strip_prefix` in front of their path.
    pub fn new(backends: Vec<Backend>, strip_prefix: Option<String>) -> Self {
        let (next, spare) = (Cell::new(0), RefCell::default());
        Self { backends, next, strip_prefix, spare }
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let mut buffers = self.spare.borrow_mut().pop().unwrap_or_else(|| {
            let (out, inbox) = (Vec::with_capacity(INBOX), Vec::with_capacity(INBOX));
            Box::new(Buffers { out, inbox, head: ResponseHead::default() })
        });
        buffers.out.clear();
        append_request(&mut buffers.out, &exchange.request, self.strip_prefix.as_deref());
        let outcome = self.try_backends(exchange, &mut buffers).await;
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE && buffers.inbox.capacity() <= INBOX {
            spare.push(buffers);
        }
        outcome
    }

    /// One backend after the other while the request cannot have been acted on.
    async fn try_backends(
        &self,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let mut fault = None;
        for _ in 0..self.backends.len() {
            let at = self.next.get();
            self.next.set((at + 1) % self.backends.len());
            match self.try_backend(&self.backends[at], exchange, buffers).await {
                Err(error) if error.retry == Retry::Yes => fault = Some(error),
                outcome => return outcome,
            }
        }
        Err(fault.unwrap_or_else(|| Fault::us(500, "a proxy without backends")))
    }

    /// A connection that had been idle may have died unnoticed: then once more, over a new one.
    async fn try_backend(
        &self,
        backend: &Backend,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let is_repeatable =
            exchange.request.is_idempotent() && exchange.body.framing() == RequestFraming::None;
        let connection = match is_repeatable {
            true => backend.connect(false).await?,
            false => backend.connect_for_once().await?,
        };
        let is_reused = connection.is_reused;
        match converse(backend, connection, exchange, buffers).await {
            Err(fault)
                if fault.retry == Retry::IfReused
                    && is_reused
                    && is_repeatable
                    && !exchange.reply.has_begun() =>
            {
                let connection = backend.connect(true).await?;
                converse(backend, connection, exchange, buffers).await
            }
            outcome => outcome,
        }
    }
}

impl Origin for Proxy {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.forward(exchange))
    }
}

fn append_request(out: &mut Vec<u8>, request: &Request, strip_prefix: Option<&str>) {
    let target = request.target();
    let stripped = strip_prefix
        .map(|prefix| prefix.trim_end_matches('/').as_bytes())
        .and_then(|prefix| target.strip_prefix(prefix))
        .unwrap_or(target);
    out.extend_from_slice(request.method());
    out.push(b' ');
    if !stripped.starts_with(b"/") && stripped != b"*" {
        out.push(b'/');
    }
    out.extend_from_slice(stripped);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    append_request_fields(out, request);
    match request.head.framing {
        RequestFraming::None
            if request.head.value(Known::ContentLength, &request.bytes).is_some() =>
        {
            encode::field_number(out, "Content-Length", 0);
        }
        RequestFraming::None => {}
        RequestFraming::Length(length) => encode::field_number(out, "Content-Length", length),
        RequestFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

/// One request and its reply over `connection`, which is kept where that can be.
async fn converse(
    backend: &Backend,
    connection: Connection,
    exchange: &mut Exchange,
    buffers: &mut Buffers,
) -> Result<(), Fault> {
    let Buffers { out, inbox, head } = buffers;
    let socket = &connection.socket;
    let Exchange { request, body, reply } = exchange;
    inbox.clear();
    let sent = socket.write_all(out).await;
    sent.map_err(|error| backend.lost(&error))?;
    let mut reading = Reading { backend, socket, inbox, head };
    let to_head = request.method() == b"HEAD";
    let (keep, sent_all) = if body.framing() == RequestFraming::None {
        (reading.reply(reply, to_head).await?, true)
    } else {
        reading.reply_during_upload(body, reply, to_head).await?
    };
    if keep && sent_all {
        backend.keep(connection);
    }
    Ok(())
}

/// Reading one reply.
struct Reading<'a> {
    backend: &'a Backend,
    socket: &'a Socket,
    inbox: &'a mut Vec<u8>,
    head: &'a mut ResponseHead,
}

impl Reading<'_> {
    /// Sends the body while the reply may already be coming; whether the connection can be kept,
    /// and whether the body was sent to its end.
    async fn reply_during_upload(
        &mut self,
        body: &mut Body,
        reply: &mut Reply,
        to_head: bool,
    ) -> Result<(bool, bool), Fault> {
        let (backend, socket) = (self.backend, self.socket);
        let mut upload = pin!(upload(backend, socket, body));
        let mut download = pin!(self.reply(reply, to_head));
        let mut is_sent = false;
        loop {
            tokio::select! {
                biased;
                outcome = &mut download => return outcome.map(|keep| (keep, is_sent)),
                outcome = &mut upload, if !is_sent => match outcome {
                    Ok(()) => is_sent = true,
                    Err(fault) if fault.side == forebay_engine::Side::Client => return Err(fault),
                    // A backend may answer without reading the body; its reply tells.
                    Err(_) => return download.await.map(|_| (false, false)),
                },
            }
        }
    }

    /// Reads the reply and passes it on; whether the connection can be kept.
    async fn reply(&mut self, reply: &mut Reply, to_head: bool) -> Result<bool, Fault> {
        self.read_head(to_head).await?;
        self.begin(reply);
        let mut decoder = BodyDecoder::response(self.head.framing);
        let mut start = self.head.len;
        loop {
            let step = decoder.decode(&self.inbox[start..]).map_err(|error| {
                Fault::backend(502, format!("{}: {error}", self.backend.name()))
            })?;
            let data = &self.inbox[start + step.data.start..start + step.data.end];
            let emptied = start + step.consumed == self.inbox.len();
            if step.done {
                reply.push(data).await?;
                reply.finish().await?;
                return Ok(emptied && self.head.keep_alive);
            }
            if emptied && !data.is_empty() {
                reply.send(data).await?;
            } else {
                reply.push(data).await?;
            }
            start += step.consumed;
            if step.consumed > 0 && !emptied {
                continue;
            }
            reply.flush().await?;
            self.make_room(start);
            start = 0;
            if self.backend.read(self.socket, self.inbox).await? == 0 {
                if decoder.ends_at_close() {
                    reply.finish().await?;
                    return Ok(false);
                }
                return Err(self.backend.cut_off(true));
            }
        }
    }

    /// Drops what has been passed on; a body that fills the buffer again gets a larger one.
    fn make_room(&mut self, used: usize) {
        let was_full = self.inbox.len() == self.inbox.capacity();
        self.inbox.drain(..used);
        if was_full && self.inbox.capacity() < LARGE_INBOX {
            self.inbox.reserve(LARGE_INBOX);
        } else if self.inbox.len() == self.inbox.capacity() {
            self.inbox.reserve(INBOX);
        }
    }

    /// Reads the head of the final reply; interim ones are dropped.
    async fn read_head(&mut self, to_head: bool) -> Result<(), Fault> {
        let mut parser = ResponseParser::new(Limits::default(), to_head);
        let mut any = false;
        loop {
            if self.inbox.len() == self.inbox.capacity() {
                self.inbox.reserve(INBOX);
            }
            let read = self.backend.read(self.socket, self.inbox).await;
            match read {
                Ok(0) => return Err(self.backend.cut_off(any)),
                Ok(_) => any = true,
                Err(fault) if any => return Err(fault.retry(Retry::No)),
                Err(fault) => return Err(fault),
            }
            while !self.inbox.is_empty() {
                let progress = parser.parse(self.inbox, self.head).map_err(|error| {
                    Fault::backend(502, format!("{}: {error}", self.backend.name()))
                })?;
                match progress {
                    Progress::Partial => break,
                    Progress::Complete(_) if self.head.status == 101 => {
                        let message = format!("{} switched protocols unasked", self.backend.name());
                        return Err(Fault::backend(502, message));
                    }
                    Progress::Complete(len) if self.head.status < 200 => {
                        self.inbox.drain(..len);
                        parser = ResponseParser::new(Limits::default(), to_head);
                    }
                    Progress::Complete(_) => return Ok(()),
                }
            }
        }
    }

    fn begin(&self, reply: &mut Reply) {
        let head = &*self.head;
        reply.begin(head.status, head.reason.of(self.inbox));
        let is_length = |field: &forebay_wire::http1::Field| field.known == Known::ContentLength;
        encode::forward_response_fields(reply.field_lines(), head, self.inbox, is_length);
        let length = match (head.framing, head.content_length) {
            (ResponseFraming::Length(length), _) => Length::Known(length),
            (ResponseFraming::Chunked | ResponseFraming::Close, _) => Length::Unknown,
            (ResponseFraming::None, Some(length)) if !matches!(head.status, 204 | 304) => {
                Length::Known(length)
            }
            (ResponseFraming::None, _) => Length::None,
        };
        let has_date = head.fields.iter().any(|field| field.known == Known::Date);
        reply.end_head(length, has_date);
    }
}

/// Passes the request's body on, in the framing it came in.
async fn upload(backend: &Backend, socket: &Socket, body: &mut Body) -> Result<(), Fault> {
    let chunked = body.framing() == RequestFraming::Chunked;
    let mut size = Vec::new();
    while let Some(piece) = body.next().await? {
        let sent = if chunked {
            size.clear();
            encode::chunk_size(&mut size, piece.len());
            let mut pieces = [&size[..], piece, encode::CHUNK_END].map(std::io::IoSlice::new);
            socket.write_pieces(&mut pieces).await
        } else {
            socket.write_all(piece).await
        };
        sent.map_err(|error| backend.lost(&error))?;
    }
    if chunked {
        let sent = socket.write_all(encode::LAST_CHUNK).await;
        sent.map_err(|error| backend.lost(&error))?;
    }
    Ok(())
}
