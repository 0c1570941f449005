//! HTTP/1.1 to backends (RFC 9112): one request to one backend, and its reply.

use std::cell::Cell;
use std::pin::pin;

use forebay_net::fault::{Fault, Retry, Side};
use forebay_net::head::Request;
use forebay_net::socket::Socket;
use forebay_server::exchange::Exchange;
use forebay_server::reply::Reply;
use forebay_wire::http1::{
    BodyDecoder, HeadError, RequestFraming, ResponseFraming, ResponseHead, ResponseParser,
};
use forebay_wire::reply::{ReplyError, ReplyReader, ReplyStep};

use super::upstream;
use crate::fields::inform;
use crate::http::request_head::append_head;
use crate::http::{Buffers, INBOX, ProxyAttempt, ReplyHead};
use crate::reply_pump::FramedPump;
use crate::script_reply::head_fault;
use crate::upgrade;
use crate::upstream::{BackendConnection, BodyEncoder, Source, ToBackend, upload};

/// The use of a connection after the reply.
pub enum Disposition {
    Keep,
    Close,
    /// The connection has switched protocols. Contains the first bytes of the tunnel.
    Tunnel(Vec<u8>),
}

impl ProxyAttempt<'_> {
    fn write_head(&self, out: &mut Vec<u8>, request: &Request) {
        let proxy = self.proxy;
        out.clear();
        if let Some(variables) = &proxy.variables {
            return variables.append_head(out, request);
        }
        if let Some(line) = &proxy.scope_line {
            return line.append_head(out, request, self.is_upgrade);
        }
        if let Some(version) = proxy.send_proxy {
            upstream::append_proxy_header(out, version, request.client, request.server);
        }
        append_head(out, request, self.view(), self.is_upgrade);
    }

    /// Sends one request over `connection`, and sends its reply to the client.
    pub async fn run(
        &self,
        connection: &BackendConnection,
        exchange: &mut Exchange,
    ) -> Result<Disposition, Fault> {
        let (backend, socket) = (self.backend(), &connection.socket);
        self.send_request(socket, exchange).await?;
        if exchange.body.framing() != RequestFraming::None && !self.is_upgrade {
            let keeps = self.reply_during_upload(connection, exchange).await?;
            return Ok(if keeps { Disposition::Keep } else { Disposition::Close });
        }
        backend.readable(socket).await?;
        // Take the buffers only now, because hundreds of requests may wait for replies at once. If
        // waiting requests hold no buffers, the buffers of active requests stay in the CPU cache.
        let mut buffers = self.proxy.take_buffers();
        let outcome = self.pass_reply(connection, exchange, &mut buffers).await;
        self.proxy.keep_buffers(buffers);
        outcome
    }

    /// Sends the head of the request.
    async fn send_request(&self, socket: &Socket, exchange: &Exchange) -> Result<(), Fault> {
        let mut buffers = self.proxy.take_buffers();
        let out = &mut buffers.out;
        self.write_head(out, &exchange.request);
        // Without a body, write after all ready tasks have run (`write_soon`). If that later write
        // fails, the read of the reply detects this. A body is written at once, so do not delay its
        // head.
        let sent = match exchange.body.framing() {
            RequestFraming::None => socket.write_soon(out).await,
            _ => socket.write_all(out).await,
        };
        self.proxy.keep_buffers(buffers);
        sent.map_err(|error| self.backend().lost(&error))
    }

    /// Sends the body to the backend, and the reply to the client, at the same time. Returns true
    /// if the connection can be kept: the whole body was sent, and the reply allows reuse.
    async fn reply_during_upload(
        &self,
        connection: &BackendConnection,
        exchange: &mut Exchange,
    ) -> Result<bool, Fault> {
        let (backend, socket) = (self.backend(), &connection.socket);
        let Exchange { request, body, reply, .. } = exchange;
        let encoder = match body.framing() {
            RequestFraming::Chunked => BodyEncoder::Chunked,
            RequestFraming::None | RequestFraming::Length(_) => BodyEncoder::Plain,
        };
        let outlet = ToBackend { backend, socket };
        let can_resend = Cell::new(body.is_buffered());
        let mut upload = pin!(async {
            upload(&outlet, encoder, Source::Client(&mut *body)).await?;
            can_resend.set(body.is_in_hand());
            Ok::<_, Fault>(())
        });
        let mut download = pin!(async {
            backend.readable(socket).await?;
            let mut buffers = self.proxy.take_buffers();
            let Buffers { inbox, head, .. } = &mut *buffers;
            inbox.clear();
            let mut reading = ReplyReading { attempt: self, request, connection, inbox, head };
            let to_head = request.method() == b"HEAD";
            let keeps = reading.reply(reply, to_head, &can_resend).await;
            self.proxy.keep_buffers(buffers);
            keeps
        });
        let mut is_sent = false;
        loop {
            tokio::select! {
                biased;
                outcome = &mut download => return outcome.map(|keeps| keeps && is_sent),
                outcome = &mut upload, if !is_sent => match outcome {
                    Ok(()) => is_sent = true,
                    Err(fault) if fault.side != Side::Backend => return Err(fault),
                    // The upload has failed, but the backend may have sent a reply before it
                    // stopped reading. Read this reply.
                    Err(_) => return download.await.map(|_| false),
                },
            }
        }
    }

    /// Sends the reply to a request without a body to the client.
    async fn pass_reply(
        &self,
        connection: &BackendConnection,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
    ) -> Result<Disposition, Fault> {
        let Buffers { inbox, head, .. } = buffers;
        let Exchange { request, reply, .. } = exchange;
        inbox.clear();
        let to_head = request.method() == b"HEAD";
        let mut reading = ReplyReading { attempt: self, request, connection, inbox, head };
        if self.is_upgrade {
            reading.read_head(reply, to_head).await?;
            if reading.head.status == 101 {
                reading.switch(request, reply).await?;
                let len = reading.head.len;
                return Ok(Disposition::Tunnel(reading.inbox.split_off(len)));
            }
            // After a refused upgrade, a backend may no longer expect HTTP on the connection. So
            // close the connection after the reply.
            reading.head().make_way(reply, true)?;
            return reading.relay_body(reply).await.map(|_| Disposition::Close);
        }
        let keeps = reading.reply(reply, to_head, &Cell::new(true)).await?;
        Ok(if keeps { Disposition::Keep } else { Disposition::Close })
    }
}

/// Reader of one reply.
struct ReplyReading<'a> {
    attempt: &'a ProxyAttempt<'a>,
    request: &'a Request,
    connection: &'a BackendConnection,
    inbox: &'a mut Vec<u8>,
    head: &'a mut ResponseHead,
}

impl<'a> ReplyReading<'a> {
    fn socket(&self) -> &'a Socket {
        &self.connection.socket
    }

    /// Reads the reply and sends it to the client. Returns true if the connection can be kept. If
    /// `can_resend` is true, and another backend should get the request, fails before the reply to
    /// the client begins.
    async fn reply(
        &mut self,
        reply: &mut Reply,
        to_head: bool,
        can_resend: &Cell<bool>,
    ) -> Result<bool, Fault> {
        self.read_head(reply, to_head).await?;
        self.head().make_way(reply, can_resend.get())?;
        self.relay_body(reply).await
    }

    fn head(&self) -> ReplyHead<'_> {
        let Self { attempt, request, ref head, ref inbox, .. } = *self;
        ReplyHead { attempt, request, head, bytes: inbox }
    }

    /// Sends the client the reply whose head was read. Returns true if the connection can be kept.
    async fn relay_body(&mut self, reply: &mut Reply) -> Result<bool, Fault> {
        let backend = self.attempt.backend();
        self.head().begin(reply);
        let decoder = BodyDecoder::response(self.head.framing);
        let mut decoder = decoder.lenient_unless(backend.is_strict());
        if self.head().passes_trailers() {
            decoder = decoder.keeping_trailers();
        }
        let holds_head = matches!(self.head.framing, ResponseFraming::Length(1..));
        let mut pump = FramedPump { backend, socket: self.socket(), any: true, holds_head };
        let mut start = self.head.len;
        loop {
            let step = decoder
                .decode(&self.inbox[start..])
                .map_err(|error| Fault::backend(502, format!("{}: {error}", backend.name())))?;
            let data = &self.inbox[start + step.data.start..start + step.data.end];
            let emptied = start + step.consumed == self.inbox.len();
            pump.holds_head &= data.is_empty();
            if step.done {
                reply.push(data).await?;
                reply.finish_with(decoder.trailers()).await?;
                let is_clear = emptied && !decoder.has_forbidden_trailer();
                return Ok(is_clear && self.head.keep_alive);
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
            if pump.next(self.inbox, start, reply).await? == 0 {
                if decoder.ends_at_close() {
                    reply.finish().await?;
                    return Ok(false);
                }
                return Err(pump.cut_off());
            }
            start = 0;
        }
    }

    /// Reads the head of the final reply, and sends interim replies to the client. A reply with
    /// status 101 is final if the request is an upgrade, and an error if not.
    async fn read_head(&mut self, reply: &mut Reply, to_head: bool) -> Result<(), Fault> {
        let backend = self.attempt.backend();
        let heads = ReplyReader::new(ResponseParser::new(backend.reply_limits(), to_head));
        let mut heads = heads.strict(backend.is_strict());
        let mut any = false;
        loop {
            if self.inbox.len() == self.inbox.capacity() {
                self.inbox.reserve(INBOX);
            }
            let read = backend.read(self.socket(), self.inbox).await;
            match read {
                Ok(0) => return Err(backend.cut_off(any)),
                Ok(_) => {
                    any = true;
                    self.connection.answered();
                }
                Err(fault) if any => return Err(fault.retry(Retry::No)),
                Err(fault) => return Err(fault),
            }
            while !self.inbox.is_empty() {
                let step = heads.read_mending(self.inbox, self.head);
                let step = step.map_err(|error| {
                    let is_too_large = error == ReplyError::Head(HeadError::TooLarge);
                    head_fault(Fault::backend, format!("{}: {error}", backend.name()), is_too_large)
                })?;
                match step {
                    ReplyStep::Partial => break,
                    ReplyStep::Interim(len) => {
                        inform(reply, self.head, self.inbox).await?;
                        self.inbox.drain(..len);
                    }
                    ReplyStep::Final(_) if self.head.status == 101 && !self.attempt.is_upgrade => {
                        let message = format!(
                            "{} switched protocols without a request for it",
                            backend.name()
                        );
                        return Err(Fault::backend(502, message));
                    }
                    ReplyStep::Final(_) => {
                        self.attempt.to.answered();
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Sends the backend's reply 101 to the client. Fails with 502 if the client did not request
    /// the protocol.
    async fn switch(&self, request: &Request, reply: &mut Reply) -> Result<(), Fault> {
        let (backend, head) = (self.attempt.backend(), &*self.head);
        if !upgrade::is_answered(&request.head.fields, &request.bytes, &head.fields, self.inbox) {
            let message = format!(
                "{} switched to a protocol that the client did not request",
                backend.name()
            );
            return Err(Fault::backend(502, message));
        }
        self.head().begin_fields(reply);
        upgrade::append_fields(reply.field_lines(), &head.fields, self.inbox);
        reply.switch().await
    }
}
