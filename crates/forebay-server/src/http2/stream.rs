//! Streams of HTTP/2 (RFC 9113): one request and its reply.
//!
//! The connection's task reads and writes the socket (`serve.rs`). Streams write into the codec's
//! shared output. A stream stores received data until the origin reads it, and the read opens the
//! stream's window. A blocked stream waits until the connection's task wakes it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use forebay_net::deadline::NEVER;
use forebay_net::shared_streams::{SharedStream, StreamWakers, wake_waiting};
use forebay_wire::fields;
use forebay_wire::http2::{self, ErrorCode, SendError};

use crate::part::{Abort, Head, SharedState};

pub use crate::http2::connection::Connection;

/// A stream of an HTTP/2 connection: one request and its reply.
pub struct Http2 {
    id: u32,
    /// The stream's connection.
    pub connection: Rc<Connection>,
    pub(crate) shared: SharedState,
    /// True if the client requests a tunnel (RFC 8441).
    is_tunnel: bool,
    /// Body bytes that were received but not read yet.
    incoming: RefCell<Vec<u8>>,
    /// True if the request has ended.
    has_ended: Cell<bool>,
    /// Trailers of the request that may be forwarded, as lines.
    request_trailers: RefCell<Vec<u8>>,
    /// Number of bytes that the head and the trailers of the request count in the codec, until
    /// [`Self::close`].
    held: Cell<usize>,
    /// True if the reply has ended.
    has_finished: Cell<bool>,
    /// True if the stream was reset or its connection has ended.
    is_closed: Cell<bool>,
    waits: StreamWakers,
    watcher: Cell<Option<Waker>>,
}

impl SharedStream for Http2 {
    fn id(&self) -> u32 {
        self.id
    }

    fn waits(&self) -> &StreamWakers {
        &self.waits
    }

    fn fail_stalled(&self) {
        self.waits.is_expired.set(true);
        self.cancel();
    }
}

impl Http2 {
    pub(super) fn new(
        id: u32,
        connection: Rc<Connection>,
        is_tunnel: bool,
        has_ended: bool,
    ) -> Self {
        Self {
            id,
            connection,
            shared: SharedState::default(),
            is_tunnel,
            incoming: RefCell::default(),
            has_ended: Cell::new(has_ended),
            request_trailers: RefCell::default(),
            held: Cell::new(0),
            has_finished: Cell::new(false),
            is_closed: Cell::new(false),
            waits: StreamWakers::default(),
            watcher: Cell::new(None),
        }
    }

    pub(crate) fn is_tunnel(&self) -> bool {
        self.is_tunnel
    }

    /// Counts the memory of `head`, which is the request's head or its trailers. [`Self::close`]
    /// releases this memory in the codec. Until then, the request uses the memory, even if the
    /// client resets the stream.
    pub(super) fn hold(&self, head: &http2::Head) {
        self.held.set(self.held.get() + head.counted);
    }

    /// Adds received body bytes, and wakes the reader. `end` is true for the last bytes of the
    /// request.
    pub fn receive(&self, data: &[u8], end: bool) {
        self.incoming.borrow_mut().extend_from_slice(data);
        if end {
            self.has_ended.set(true);
        }
        wake_waiting(&self.waits.reader);
    }

    /// Ends the request with these trailers.
    pub fn receive_trailers(&self, trailers: &http2::Head) {
        self.hold(trailers);
        trailers.write_trailers(&mut self.request_trailers.borrow_mut());
        self.receive(b"", true);
    }

    /// Closes the stream after a reset by the client or the end of its connection.
    pub fn cancel(&self) {
        self.is_closed.set(true);
        wake_waiting(&self.waits.reader);
        wake_waiting(&self.waits.writer);
        wake_waiting(&self.watcher);
        self.connection.end_turn(self.id);
    }

    /// Ends the stream after its reply. Resets the stream if the reply is incomplete, or if the
    /// client has not sent the whole request.
    pub(crate) fn close(&self) {
        self.connection.streams.remove(self.id);
        self.connection.codec.borrow_mut().release_heads(self.held.take());
        if !self.has_finished.get() {
            self.reset(self.lost_code());
        } else if !self.has_ended.get() {
            // The rest of the request is not needed (RFC 9113 section 8.1).
            self.reset(ErrorCode::NO_ERROR);
        } else {
            self.connection.codec.borrow_mut().discard(self.id, Connection::now());
        }
        self.connection.end_turn(self.id);
        self.connection.wake();
    }

    pub(crate) fn abort(&self, why: Abort) {
        match why {
            Abort::ReplyLost => self.reset(self.lost_code()),
            Abort::Cancelled => self.reset(ErrorCode::CANCEL),
        }
        self.is_closed.set(true);
    }

    /// Returns the code of the RST_STREAM that is sent if the rest of the reply is not available.
    /// RFC 8441 section 5 requires CANCEL for a tunnel.
    fn lost_code(&self) -> ErrorCode {
        if self.waits.tunnel_idle.get().is_some() {
            return ErrorCode::CANCEL;
        }
        ErrorCode::INTERNAL_ERROR
    }

    fn reset(&self, code: ErrorCode) {
        if !self.is_closed.get() {
            self.connection.codec.borrow_mut().reset(self.id, code, Connection::now());
            self.connection.wake();
        }
    }

    pub(crate) async fn cancelled(&self) {
        poll_fn(|context| {
            if self.is_closed.get() {
                return Poll::Ready(());
            }
            self.watcher.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    fn lost(&self) -> io::Error {
        let kind = if self.waits.is_expired.get() {
            ErrorKind::TimedOut
        } else {
            ErrorKind::ConnectionReset
        };
        kind.into()
    }
}

/// Reads the request.
impl Http2 {
    pub(crate) async fn read(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        self.limit_read(limit);
        let read = match self.readable().await {
            Ok(()) => self.read_now(buffer),
            Err(error) => Err(error),
        };
        self.waits.read_due.set(NEVER);
        read
    }

    pub(crate) fn has_request_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Returns true if the reply is complete and the client may still send its request. A tunnel has
    /// no such rest.
    pub(crate) fn awaits_rest(&self) -> bool {
        let is_tunnel = self.waits.tunnel_idle.get().is_some();
        self.has_finished.get() && !self.has_ended.get() && !self.is_closed.get() && !is_tunnel
    }

    pub(crate) fn request_trailers(&self) -> Vec<u8> {
        self.request_trailers.borrow().clone()
    }

    pub(crate) fn limit_read(&self, after: Duration) {
        self.waits.read_due.set(self.connection.accepted.thread.deadlines.due(after));
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.waits.is_expired.get()
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| {
            let is_ready = !self.incoming.borrow().is_empty() || self.has_ended.get();
            if is_ready || self.is_closed.get() || self.waits.is_expired.get() {
                return Poll::Ready(Ok(()));
            }
            self.waits.reader.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Moves the received bytes to `buffer`, and lets the client send as many further bytes.
    /// Returns 0 at the end of the request. Fails with `WouldBlock` if no bytes have arrived, and
    /// with another error if the stream is lost.
    pub(crate) fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let mut incoming = self.incoming.borrow_mut();
        let n = incoming.len();
        if n == 0 {
            return match self.has_ended.get() {
                _ if self.is_closed.get() || self.waits.is_expired.get() => Err(self.lost()),
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            };
        }
        buffer.extend_from_slice(&incoming);
        *incoming = Vec::new();
        let mut codec = self.connection.codec.borrow_mut();
        codec.consume(self.id, n, Connection::now());
        if !codec.output().is_empty() {
            drop(codec);
            self.connection.wake();
        }
        Ok(n)
    }
}

/// Writes the reply.
impl Http2 {
    pub(crate) fn send_continue(&self) -> io::Result<()> {
        self.send_reply(100, b"", false)
    }

    /// Sends a head. `ends` is true if no body follows. Returns an error if the stream is lost.
    pub(crate) fn send_head(&self, head: &Head<'_>, ends: bool) -> io::Result<()> {
        if !self.is_tunnel {
            return self.send_reply(head.status, head.lines, ends);
        }
        let (status, lines) = head.of_tunnel()?;
        self.send_reply(status, &lines, ends && status >= 300)
    }

    fn send_reply(&self, status: u16, lines: &[u8], ends: bool) -> io::Result<()> {
        if self.is_closed.get() {
            return Err(self.lost());
        }
        let fields = fields::of_lines(lines);
        let sent = self.connection.codec.borrow_mut().send_reply(self.id, status, fields, ends);
        self.sent(sent)?;
        self.has_finished.set(ends && status >= 200);
        Ok(())
    }

    /// Ends the stream's turn to send, and wakes the connection's task to write the output.
    /// Converts an error of the codec to an I/O error.
    fn sent<T>(&self, sent: Result<T, SendError>) -> io::Result<T> {
        self.connection.end_turn(self.id);
        self.connection.wake();
        sent.map_err(|error| {
            if self.waits.is_expired.get() {
                ErrorKind::TimedOut.into()
            } else {
                io::Error::new(ErrorKind::BrokenPipe, error)
            }
        })
    }

    /// Sends some bytes of the non-empty `pieces`. Returns 0 if the codec accepts no bytes. If
    /// `end` is true, the last byte of `pieces` ends the reply. Returns an error if the stream is
    /// lost.
    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>], end: bool) -> io::Result<u64> {
        if self.is_closed.get() {
            return Err(self.lost());
        }
        let (now, mut total) = (Connection::now(), 0);
        for (at, piece) in pieces.iter().enumerate() {
            let is_last = end && at + 1 == pieces.len();
            let sent = self.connection.codec.borrow_mut().send_data(self.id, piece, is_last, now);
            let taken = self.sent(sent)?;
            total += taken as u64;
            if taken < piece.len() {
                return Ok(total);
            }
            self.has_finished.set(is_last);
        }
        Ok(total)
    }

    pub(crate) async fn write_through(
        &self,
        mut pieces: &mut [IoSlice<'_>],
        end: bool,
    ) -> io::Result<()> {
        while !pieces.is_empty() {
            match self.try_write(pieces, end)? {
                0 => self.wait_for_room().await?,
                n => IoSlice::advance_slices(&mut pieces, n as usize),
            }
        }
        Ok(())
    }

    pub(crate) async fn wait_for_room(&self) -> io::Result<()> {
        poll_fn(|context| {
            if self.is_closed.get() {
                return Poll::Ready(Err(self.lost()));
            }
            if self.waits.has_room.take() {
                return Poll::Ready(Ok(()));
            }
            self.waits.writer.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Ends the reply with these trailers. Does nothing if the reply has ended. Returns an error if
    /// the stream is lost.
    pub(crate) fn send_end(&self, trailers: &[u8]) -> io::Result<()> {
        if self.has_finished.get() {
            return Ok(());
        }
        if self.is_closed.get() {
            return Err(self.lost());
        }
        let mut codec = self.connection.codec.borrow_mut();
        let sent = if trailers.is_empty() {
            codec.send_data(self.id, b"", true, Connection::now()).map(drop)
        } else {
            codec.send_trailers(self.id, fields::of_lines(trailers))
        };
        drop(codec);
        self.sent(sent)?;
        self.has_finished.set(true);
        Ok(())
    }

    pub(crate) async fn send_file(
        &self,
        file: BorrowedFd<'_>,
        mut offset: u64,
        mut length: u64,
        ends: bool,
    ) -> io::Result<()> {
        while length > 0 {
            if self.is_closed.get() {
                return Err(self.lost());
            }
            let most = usize::try_from(length).unwrap_or(usize::MAX);
            // The codec ends the stream after the last announced byte. If the file does not end the
            // reply, announce one byte more than the file has.
            let left = most.saturating_add(usize::from(!ends));
            let mut read = None;
            let fill = |room: &mut [u8]| {
                let len = room.len().min(most);
                let outcome = rustix::io::pread(file, &mut room[..len], offset);
                read = Some(outcome);
                outcome.unwrap_or(0)
            };
            let now = Connection::now();
            let sent = self.connection.codec.borrow_mut().fill_data(self.id, left, now, fill);
            let taken = self.sent(sent)?;
            match read {
                // The file became shorter after its length was sent to the client.
                Some(Ok(0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(outcome) => outcome.map(drop)?,
                None => self.wait_for_room().await?,
            }
            offset += taken as u64;
            length -= taken as u64;
        }
        self.has_finished.set(ends);
        Ok(())
    }

    pub(crate) fn limit_writes(&self, limit: Option<Duration>) {
        self.waits.write_limit.set(limit);
    }

    /// Marks the stream as a tunnel. The client may then keep its window closed for up to `idle`.
    pub(crate) fn begin_tunnel(&self, idle: Duration) {
        self.waits.tunnel_idle.set(Some(idle));
    }

    pub(crate) fn finish_writing(&self) {
        // Ignore an error: the client may have disconnected.
        let _ = self.send_end(b"");
    }
}

/// Returns a key as RFC 6455 section 4.1 requires: 16 random bytes in base64.
pub fn websocket_key() -> [u8; 24] {
    use std::hash::{BuildHasher, Hasher};
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let random = std::hash::RandomState::new();
    let half = |n: u8| {
        let mut hasher = random.build_hasher();
        hasher.write_u8(n);
        u128::from(hasher.finish())
    };
    let bits = half(0) << 64 | half(1);
    let mut key = [b'='; 24];
    for (at, letter) in key[..21].iter_mut().enumerate() {
        *letter = LETTERS[(bits >> (6 * at)) as usize & 63];
    }
    key[21] = LETTERS[(bits >> 126) as usize & 3 << 4];
    key
}
