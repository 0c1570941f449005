//! One request and its reply as a stream.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_net::deadline::NEVER;
use forebay_net::fault::{Fault, Retry};
use forebay_net::limit::Limit;
use forebay_server::tunnel::Duplex;
use forebay_wire::fields::{self, FieldRef};
use forebay_wire::http2::{Cause, ErrorCode, Head, RequestPseudo, SendError};

use super::connection::{Http2Connection, StreamEnd, StreamState};
use crate::upstream::Backend;

/// A request's stream, reserved or open. Dropping it early resets the stream.
pub struct Stream {
    connection: Rc<Http2Connection>,
    state: Rc<StreamState>,
}

/// A received part of a reply.
pub enum StreamEvent {
    /// An interim reply.
    Interim(Box<Head>),
    /// The head of the reply, and true if nothing follows.
    Head(Box<Head>, bool),
    /// Data, now in the buffer.
    Data,
    /// The end of the reply, with its trailers as lines.
    End(Vec<u8>),
}

impl Stream {
    pub(super) fn new(connection: Rc<Http2Connection>) -> Self {
        let state = Rc::<StreamState>::default();
        Self { connection, state }
    }

    pub(super) fn connection(&self) -> &Rc<Http2Connection> {
        &self.connection
    }

    pub(super) fn state(&self) -> &StreamState {
        &self.state
    }

    /// Returns true if the connection has carried a reply.
    pub fn is_proven(&self) -> bool {
        self.connection.has_answered()
    }

    /// Returns the value of `:scheme`.
    pub fn scheme(&self) -> &'static [u8] {
        self.connection.scheme()
    }

    /// Returns true if the backend supports extended CONNECT (RFC 8441). Waits for the backend's
    /// settings first. If they do not arrive within `limit`, returns an error, and the connection
    /// takes no further streams.
    pub async fn takes_extended_connect(&self, limit: Duration) -> Result<bool, Fault> {
        let connection = &self.connection;
        if tokio::time::timeout(limit, connection.settle()).await.is_err() {
            connection.retire();
            let message = format!("{}: no SETTINGS within {limit:?}", connection.name());
            return Err(Fault::backend(504, message));
        }
        if !connection.has_settings() {
            return Err(self.fault(StreamEnd::ConnectionLost));
        }
        Ok(connection.codec.borrow().peer_takes_extended_connect())
    }

    /// Sends the head of the request. `lines` are the fields of the request, as HTTP/1.1 lines. If
    /// `ends` is true, no body and no trailers follow.
    pub fn send_head(&self, pseudo: &RequestPseudo, lines: &[u8], ends: bool) -> Result<(), Fault> {
        let fields = fields::of_lines(lines);
        let sent = self.connection.codec.borrow_mut().send_request(pseudo, fields, ends);
        match sent {
            Ok(id) => {
                self.state.id.set(id);
                self.state.has_sent.set(ends);
                self.connection.release(Some(self.state.clone()));
                Ok(())
            }
            Err(error) => {
                let message = format!("{}: {error}", self.connection.name());
                Err(Fault::backend(503, message).retry(Retry::Unprocessed))
            }
        }
    }

    /// Sends data as fast as the backend takes it. If `ends` is true, also ends the request.
    pub async fn send_data(&self, mut data: &[u8], ends: bool) -> Result<(), Fault> {
        loop {
            let taken = self.try_send(data, ends).map_err(|_| self.unsendable())?;
            data = &data[taken..];
            if data.is_empty() {
                return Ok(());
            }
            poll_fn(|context| {
                if self.state.waits.has_room.take() || self.state.end.get().is_some() {
                    return Poll::Ready(());
                }
                self.state.waits.writer.set(Some(context.waker().clone()));
                Poll::Pending
            })
            .await;
        }
    }

    /// Ends the request with trailers, after all data.
    pub fn send_trailers<'a>(
        &self,
        fields: impl IntoIterator<Item = FieldRef<'a>>,
    ) -> Result<(), Fault> {
        let id = self.state.id.get();
        let sent = self.connection.codec.borrow_mut().send_trailers(id, fields);
        self.connection.wake();
        sent.map_err(|_| self.unsendable())?;
        self.state.has_sent.set(true);
        Ok(())
    }

    /// Sends as much data as the windows and the output buffer allow now. Returns the number of
    /// bytes sent.
    fn try_send(&self, data: &[u8], ends: bool) -> Result<usize, SendError> {
        let id = self.state.id.get();
        let sent =
            self.connection.codec.borrow_mut().send_data(id, data, ends, Http2Connection::now());
        self.connection.end_turn(id);
        self.connection.wake();
        if let Ok(taken) = sent {
            self.state.has_sent.set(ends && taken == data.len());
        }
        sent
    }

    /// Returns the fault for a send that has failed.
    fn unsendable(&self) -> Fault {
        match self.state.end.get() {
            Some(end) if end != StreamEnd::Whole => self.fault(end),
            // The backend has sent its whole reply, but does not read the rest of the request.
            _ => {
                let name = self.connection.name();
                Fault::backend(502, format!("{name} reads no more of the request"))
            }
        }
    }

    /// Returns the next part of the reply, or `None` if no part has arrived. If this part is data,
    /// the data replaces the contents of `buffer`.
    pub fn try_next(&self, buffer: &mut Vec<u8>) -> Result<Option<StreamEvent>, Fault> {
        let state = &self.state;
        if let Some(head) = state.interim.borrow_mut().pop_front() {
            return Ok(Some(StreamEvent::Interim(head)));
        }
        if let Some((head, ends)) = state.head.borrow_mut().take() {
            return Ok(Some(StreamEvent::Head(head, ends)));
        }
        if self.take_data(buffer) {
            return Ok(Some(StreamEvent::Data));
        }
        match state.end.get() {
            None => Ok(None),
            Some(StreamEnd::Whole) => Ok(Some(StreamEvent::End(state.trailers.take()))),
            Some(end) => Err(self.fault(end)),
        }
    }

    /// Replaces the contents of `buffer` with the received data, and lets the backend send as many
    /// further bytes. Returns false, and does nothing, if there is no data.
    fn take_data(&self, buffer: &mut Vec<u8>) -> bool {
        let mut data = self.state.data.borrow_mut();
        if data.is_empty() {
            return false;
        }
        buffer.clear();
        std::mem::swap(buffer, &mut data);
        let mut codec = self.connection.codec.borrow_mut();
        codec.consume(self.state.id.get(), buffer.len(), Http2Connection::now());
        let has_output = !codec.output().is_empty();
        drop(codec);
        if has_output {
            self.connection.wake();
        }
        true
    }

    /// Takes back a head, to reuse its memory.
    pub fn recycle(&self, head: Box<Head>) {
        self.connection.codec.borrow_mut().recycle(head);
    }

    /// Waits until a part of the reply has arrived, for at most `limit`. The limit is suspended while
    /// Forebay waits for the client's body.
    pub async fn wait(&self, backend: &Backend, limit: Duration) -> Result<(), Fault> {
        let deadlines = &self.connection.thread.deadlines;
        let since = deadlines.now();
        self.state.waits.read_due.set(deadlines.due(limit));
        self.state.patience.set(Some(limit));
        let is_in_time = poll_fn(|context| self.poll_ready(context)).await;
        self.state.patience.set(None);
        self.state.waits.read_due.set(NEVER);
        if is_in_time {
            return Ok(());
        }
        self.connection.doubt(since);
        let message = format!("{} sent nothing for {limit:?}", backend.name());
        Err(Fault::backend(504, message).limited_by(Limit::ReplyIdle))
    }

    /// Completes with true when a part of the reply has arrived. Completes with false when the time
    /// limit has passed.
    fn poll_ready(&self, context: &std::task::Context<'_>) -> Poll<bool> {
        let state = &self.state;
        let has_come = !state.interim.borrow().is_empty()
            || state.head.borrow().is_some()
            || !state.data.borrow().is_empty()
            || state.end.get().is_some();
        if has_come || state.waits.is_expired.get() {
            return Poll::Ready(has_come);
        }
        state.waits.reader.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Returns true if the backend requires HTTP/1.1 for the request (HTTP_1_1_REQUIRED).
    pub fn is_for_http1(&self) -> bool {
        self.state.end.get() == Some(StreamEnd::Reset(Cause::Peer(ErrorCode::HTTP_1_1_REQUIRED)))
    }

    /// Returns the fault for a stream that has ended without a complete reply.
    fn fault(&self, end: StreamEnd) -> Fault {
        let name = self.connection.name();
        let fault = |message: String| Fault::backend(502, message);
        match end {
            StreamEnd::Reset(Cause::Peer(ErrorCode::REFUSED_STREAM)) => {
                let message = format!("{name} refuses the request (REFUSED_STREAM)");
                Fault::backend(503, message).retry(Retry::Unprocessed)
            }
            StreamEnd::Reset(Cause::Unprocessed) => {
                fault(format!("{name} closed the connection (GOAWAY) before it took the request"))
                    .retry(Retry::Unprocessed)
            }
            StreamEnd::Reset(Cause::Peer(ErrorCode::CANCEL)) => {
                fault(format!("{name} cancelled the stream (CANCEL)")).cancelled()
            }
            StreamEnd::Reset(Cause::Peer(code)) => {
                fault(format!("{name} reset the stream ({code})"))
            }
            StreamEnd::Reset(Cause::Rule(rule)) => fault(format!("{name}: {rule}")),
            StreamEnd::Interim => fault(format!("{name}: too many interim replies (1xx)")),
            StreamEnd::Stalled => {
                Fault::backend(504, format!("{name} takes no more data")).limited_by(Limit::Write)
            }
            StreamEnd::Unsent => {
                let why = self.connection.failure();
                fault(format!("connection to {name}: {why}")).retry(Retry::Yes)
            }
            StreamEnd::ConnectionLost | StreamEnd::Whole => {
                let why = self.connection.failure();
                fault(format!("connection to {name}: {why}")).retry(Retry::IfReused)
            }
        }
    }
}

/// The time limit for the reply.
impl Stream {
    /// Suspends the time limit while Forebay waits for the client's data, because the backend then
    /// has nothing to answer.
    pub fn suspend_reply_limit(&self) {
        self.state.waits.read_due.set(NEVER);
    }

    /// Starts the time limit, because Forebay has sent all data that it has received from the
    /// client.
    pub fn start_reply_limit(&self) {
        if let Some(limit) = self.state.patience.get() {
            self.state.waits.read_due.set(self.connection.thread.deadlines.due(limit));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.state.id.get() == 0 {
            self.connection.release(None);
        } else {
            self.connection.forget(&self.state);
        }
    }
}

// An extended CONNECT stream (RFC 8441) as the backend's end of a tunnel.

/// A stream that carries bytes in both directions.
pub struct StreamTunnel(pub Stream);

impl StreamTunnel {
    fn lost(&self) -> io::Error {
        io::Error::new(ErrorKind::ConnectionReset, "the backend reset the tunnel")
    }
}

impl Duplex for StreamTunnel {
    /// Sets the maximum time for which the backend may keep the stream's window closed. The
    /// connection's task checks this limit at each tick (100 ms).
    fn begin_tunnel(&self, pause: Duration) {
        self.0.state().waits.tunnel_idle.set(Some(pause));
    }

    fn limit_read(&self, after: Duration) {
        let deadlines = &self.0.connection().thread.deadlines;
        self.0.state().waits.read_due.set(deadlines.due(after));
    }

    fn is_expired(&self) -> bool {
        self.0.state().waits.is_expired.get()
    }

    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_ready(context).map(|_| Ok(()))
    }

    fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let mut data = Vec::new();
        if self.0.take_data(&mut data) {
            buffer.extend_from_slice(&data);
            return Ok(data.len());
        }
        match self.0.state().end.get() {
            _ if self.is_expired() => Ok(0),
            None => Err(ErrorKind::WouldBlock.into()),
            Some(StreamEnd::Whole) => Ok(0),
            Some(_) => Err(self.lost()),
        }
    }

    fn poll_write(&self, data: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let state = self.0.state();
        loop {
            match self.0.try_send(data, false) {
                Ok(0) => {}
                Ok(taken) => return Poll::Ready(Ok(taken)),
                Err(_) => return Poll::Ready(Err(self.lost())),
            }
            if !state.waits.has_room.take() {
                state.waits.writer.set(Some(context.waker().clone()));
                return Poll::Pending;
            }
        }
    }

    fn finish_writing(&self) {
        // Ignore an error, which means that the stream has ended. The next read from the stream
        // reports this end.
        let _ = self.0.try_send(b"", true);
    }

    fn reset(&self) {
        let (connection, id) = (self.0.connection(), self.0.state().id.get());
        connection.codec.borrow_mut().reset(id, ErrorCode::CANCEL, Http2Connection::now());
        connection.wake();
    }
}
