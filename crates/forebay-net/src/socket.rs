//! A connection of one thread over TCP, a Unix socket or memory, with deadlines and optional TLS.
//!
//! A request on a kept-alive connection costs one `recv` and one `send` on each side. A read that
//! does not fill the buffer has emptied the socket, so no second read is needed. A write is tried
//! without waiting for readiness.
//!
//! Reading has priority over writing. Small output is queued and sent after all ready tasks have
//! run (`write_soon`). Before a task writes more, it lets all ready tasks run (`yield_to_readers`).
//! The event loop reports at most 64 sockets at a time, so that their data stays in the CPU cache.
//! The head of a proxied reply waits for the first bytes of its body, so that one write sends both.
//!
//! The disconnect of a client is detected after the next tick (100 ms). Most requests end before
//! this tick, and need no check.

mod write;

pub use write::yield_to_readers;

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{SendFlags, Shutdown};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::byte_stream::Io;
use crate::deadline::{Activity, Deadlines, NEVER, TICK, Ticks, Watched};
use crate::memory::Link;
use crate::tls::{Alpn, ClientTls, TlsSession, no_http2};

/// Size of a receive buffer in bytes: enough for most heads and small bodies.
pub const BUFFER: usize = 16 * 1024;

/// Maximum time that [`Socket::linger_for`] waits for further bytes. A client that sends its request
/// without a pause is never silent for so long.
pub const SILENCE: Duration = Duration::from_secs(2);

/// A connected socket. Reads and writes take `&self`, so that both directions work at the same
/// time. Only one task at a time may use each direction.
pub struct Socket {
    shared: Rc<Watched>,
    deadlines: Rc<Deadlines>,
    key: usize,
    /// True if the readiness was cleared without a read. The next read must then call `recv`
    /// without waiting for readiness.
    is_unread: Cell<bool>,
    /// True if bytes were read since the last call of [`Socket::acknowledge`].
    is_unacknowledged: Cell<bool>,
    /// See [`Socket::set_farewell`].
    farewell: Cell<&'static [u8]>,
}

/// A connection that is detached from its thread, to be passed to another thread. If it is dropped
/// instead, it sends its farewell ([`Socket::set_farewell`]).
pub struct Detached {
    /// `None` only after [`Socket::attach`].
    stream: Option<DetachedStream>,
    farewell: &'static [u8],
}

enum DetachedStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Socket {
    /// Wraps an accepted or connected TCP stream.
    pub fn tcp(stream: TcpStream, deadlines: &Rc<Deadlines>) -> Self {
        // Nagle's algorithm is not needed: each write contains all bytes that are available.
        let _ = stream.set_nodelay(true);
        Self::new(Io::Tcp(stream), deadlines)
    }

    /// Wraps a Unix stream.
    pub fn unix(stream: UnixStream, deadlines: &Rc<Deadlines>) -> Self {
        Self::new(Io::Unix(stream), deadlines)
    }

    /// Wraps one end of a connection in memory.
    pub fn memory(link: Link, deadlines: &Rc<Deadlines>) -> Self {
        Self::new(Io::Memory(link), deadlines)
    }

    /// Connects to a TCP address.
    pub async fn connect_tcp(address: SocketAddr, deadlines: &Rc<Deadlines>) -> io::Result<Self> {
        Ok(Self::tcp(TcpStream::connect(address).await?, deadlines))
    }

    /// Connects to a Unix socket.
    pub async fn connect_unix(path: &Path, deadlines: &Rc<Deadlines>) -> io::Result<Self> {
        Ok(Self::unix(UnixStream::connect(path).await?, deadlines))
    }

    fn new(io: Io, deadlines: &Rc<Deadlines>) -> Self {
        let shared = Rc::new(Watched::new(io));
        let key = deadlines.watch(shared.clone());
        Self {
            shared,
            deadlines: deadlines.clone(),
            key,
            is_unread: Cell::new(false),
            is_unacknowledged: Cell::new(false),
            farewell: Cell::default(),
        }
    }

    /// Attaches a connection of another thread to this thread.
    pub fn attach(mut detached: Detached, deadlines: &Rc<Deadlines>) -> io::Result<Self> {
        let stream = detached.stream.take().expect("only this function takes the stream");
        let io = match stream {
            DetachedStream::Tcp(stream) => Io::Tcp(TcpStream::from_std(stream)?),
            DetachedStream::Unix(stream) => Io::Unix(UnixStream::from_std(stream)?),
        };
        let socket = Self::new(io, deadlines);
        socket.set_farewell(detached.farewell);
        Ok(socket)
    }

    /// Detaches the connection from this thread. Fails if the connection uses TLS, because a TLS
    /// session cannot move to another thread.
    pub fn detach(self) -> io::Result<Detached> {
        if self.is_tls() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.deadlines.send_outgoing();
        let (shared, farewell) = (self.shared.clone(), self.farewell.take());
        // This drop removes the socket from the deadlines, which hold the only other reference.
        drop(self);
        let watched = Rc::into_inner(shared).ok_or(io::ErrorKind::ResourceBusy)?;
        let stream = match watched.io {
            Io::Tcp(stream) => DetachedStream::Tcp(stream.into_std()?),
            Io::Unix(stream) => DetachedStream::Unix(stream.into_std()?),
            Io::Memory(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Detached { stream: Some(stream), farewell })
    }

    /// Sets a deadline for all reads: `after` from now. Later reads fail with `TimedOut`.
    pub fn limit_read(&self, after: Duration) {
        self.shared.read_due.set(self.deadlines.due(after));
    }

    /// Moves the deadline for reads to `after` from now. Does nothing if there is no deadline.
    pub fn renew_read_limit(&self, after: Duration) {
        if self.shared.read_due.get() != NEVER {
            self.limit_read(after);
        }
    }

    /// Removes the deadline for reads.
    pub fn unlimit_read(&self) {
        self.shared.read_due.set(NEVER);
    }

    /// Limits the time that a write waits for the peer to accept data. A longer wait fails with
    /// `TimedOut`.
    pub fn limit_writes(&self, pause: Duration) {
        self.shared.write_limit.set(pause);
    }

    /// Marks the connection as idle or busy. While the connection is idle, Forebay may close it
    /// when the server stops, or to admit another connection.
    pub fn set_idle(&self, idle: bool) {
        self.set_activity(if idle { Activity::Idle } else { Activity::Busy });
    }

    /// Sets the activity of the connection. If the activity is not `Busy`, Forebay may close the
    /// connection to admit another one. If it is `Idle`, Forebay also closes the connection when
    /// the server stops.
    pub fn set_activity(&self, activity: Activity) {
        self.shared.occupancy.set(activity, &self.deadlines);
    }

    /// Records that the connection has carried a request. While the server stops, a connection that
    /// has not carried a request stays open for 1 s.
    pub fn set_used(&self) {
        self.shared.occupancy.set_used();
    }

    /// Counts the connection against the limit on client connections. Forebay may then close the
    /// connection to admit another one, but not while a request is in progress.
    pub fn set_counted(&self) {
        self.shared.occupancy.set_counted();
    }

    /// Returns true if the connection was closed to admit another connection.
    pub fn is_evicted(&self) -> bool {
        self.shared.occupancy.is_evicted()
    }

    /// Marks the connection as a tunnel. A quiet tunnel ends soon after the server begins to stop.
    /// `pause` limits the time that a write waits for the peer to accept data.
    pub fn begin_tunnel(&self, pause: Duration) {
        self.limit_writes(pause);
        self.shared.tunnel.set(true);
    }

    /// Returns true if a deadline has passed, or if the connection was closed to admit another
    /// connection.
    pub fn is_expired(&self) -> bool {
        self.shared.expired.get()
    }

    /// Returns true if a deadline has passed, but not if the connection was closed to admit another
    /// connection.
    pub fn is_overdue(&self) -> bool {
        self.is_expired() && !self.is_evicted()
    }

    /// Waits until bytes can be read or the peer has closed.
    pub async fn readable(&self) -> io::Result<()> {
        // `poll_fn` is cheaper than tokio's `readable()`, which supports several waiting tasks.
        poll_fn(|context| self.poll_readable(context)).await
    }

    /// Appends received bytes to `buffer`, up to its spare capacity, which must not be 0. Returns 0
    /// if the peer has closed. Fails with `TimedOut` after a deadline.
    pub async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            self.readable().await?;
            match self.read_now(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }

    /// Reads as [`Socket::read`] does, but the rest of a message that has begun
    /// ([`Socket::poll_rest`]).
    pub async fn read_rest(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            poll_fn(|context| self.poll_rest(context)).await?;
            match self.read_now(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }

    /// Reads as [`Socket::read`] does, but without waiting. Fails with `WouldBlock` if nothing has
    /// arrived.
    pub fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self.read_ready(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // The deadline has shut down the input. TLS reports this as an error, because
            // `close_notify` is missing.
            Ok(0) | Err(_) if self.is_expired() => Err(io::ErrorKind::TimedOut.into()),
            outcome => outcome,
        }
    }

    fn read_ready(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        self.is_unacknowledged.set(true);
        debug_assert!(room > 0, "a read into a full buffer looks like the end of the stream");
        if let Some(tls) = self.tls() {
            return self.read_decrypted(tls, buffer);
        }
        if self.is_unread.get() {
            return self.read_forgotten(buffer);
        }
        let mut read = None;
        let outcome = self.shared.io.try_io(Interest::READABLE, || {
            let n = self.shared.io.read(buffer)?;
            read = Some(n);
            // A short read has emptied the socket: clear the readiness instead of reading again.
            if n > 0 && n < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match read {
            Some(n) => Ok(n),
            None => outcome.map(|()| 0),
        }
    }

    /// Reads as [`Socket::read_ready`] does, but ignores the readiness recorded by the event loop.
    fn read_forgotten(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        let outcome = self.shared.io.read(buffer);
        self.is_unread.set(matches!(outcome, Ok(n) if n == room));
        outcome
    }

    /// Waits until the peer has closed its sending side. Bytes that arrived before the close can be
    /// read afterwards. Begins to watch the socket only at the next tick. Most requests are
    /// answered before that tick, so their sockets need no further registration with the event
    /// loop.
    pub async fn wait_for_close(&self) {
        self.next_tick().await;
        loop {
            let ready = match &self.shared.io {
                Io::Tcp(stream) => stream.ready(Interest::READABLE).await,
                Io::Unix(stream) => stream.ready(Interest::READABLE).await,
                Io::Memory(link) => return link.closed().await,
            };
            if ready.map_or(true, tokio::io::Ready::is_read_closed) {
                return;
            }
            self.is_unread.set(true);
            let _ = self.shared.io.try_io(Interest::READABLE, || {
                Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock))
            });
        }
    }

    async fn next_tick(&self) {
        let begun = self.deadlines.now();
        let _no_more = NoMoreTicks(&self.shared);
        poll_fn(|context| self.poll_tick(begun, context)).await;
    }

    /// Checks with a system call for bytes (`Some(true)`), the end of the stream or an error
    /// (`Some(false)`). Returns `None` if nothing has arrived.
    pub fn peek(&self) -> Option<bool> {
        self.shared.peek()
    }

    /// Returns true if the peer has reset the connection. The end of the peer's sending direction is
    /// no reset. Costs a system call.
    pub fn is_reset(&self) -> bool {
        self.shared.is_reset()
    }

    /// Returns true if an idle connection is useless: closed, or with unsolicited bytes. Costs no
    /// system call. Does not detect a close that the event loop has not reported yet.
    pub fn is_stale(&self) -> bool {
        let looked = self.shared.io.try_io(Interest::READABLE, || match self.tls() {
            // The received bytes may be only a TLS ticket, so the connection stays usable.
            Some(tls) if tls.peek(&self.shared.io).is_none() => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            _ => Ok(()),
        });
        looked.is_ok() || self.is_expired()
    }

    /// Lets the connection close with a reset, so that the peer recognizes the data as incomplete.
    pub fn reset(&self) {
        self.send_now();
        if let Some(tls) = self.tls() {
            tls.cut();
        }
        match self.shared.io.fd() {
            Ok(fd) => drop(rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO))),
            Err(link) => link.reset_when_closed(),
        }
    }

    /// Ends the sending direction, with `close_notify` if the connection uses TLS.
    pub fn finish_writing(&self) {
        self.send_now();
        if let Some(tls) = self.tls() {
            tls.close(&self.shared.io);
        }
        self.shared.shut_down(Shutdown::Write);
    }

    /// Sets bytes that are sent, if the kernel has room for them, when this value is dropped. For
    /// peers that release a connection only if its protocol says so, whatever the reason of the
    /// close.
    pub fn set_farewell(&self, farewell: &'static [u8]) {
        self.farewell.set(farewell);
    }

    /// Completes when bytes can be read or the peer has closed.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_unread.get() || self.tls().is_some_and(TlsSession::has_answer) {
            return Poll::Ready(Ok(()));
        }
        self.shared.io.poll_readable(context)
    }

    /// Completes when bytes of a message that has begun can be read, or the peer has closed. If there
    /// are none, acknowledges what was read before: over TCP, this takes a system call.
    pub fn poll_rest(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ready = self.poll_readable(context);
        if ready.is_pending() && self.is_unacknowledged.replace(false) {
            self.acknowledge();
        }
        ready
    }

    /// Sends the acknowledgement of received bytes immediately. The kernel would delay it until the
    /// next write, or by up to 40 ms. A peer with Nagle's algorithm that writes a message in small
    /// pieces sends each only after the acknowledgement of the one before.
    fn acknowledge(&self) {
        if let Io::Tcp(stream) = &self.shared.io {
            // The kernel ends the quick acknowledgement mode by itself. Ignore an error: the
            // acknowledgement then only comes later.
            let _ = rustix::net::sockopt::set_tcp_quickack(stream, true);
        }
    }

    /// Completes if a tick has passed since `begun`. Otherwise wakes `context` at the next tick.
    pub fn poll_tick(&self, begun: Ticks, context: &Context<'_>) -> Poll<()> {
        if self.deadlines.now() != begun {
            return Poll::Ready(());
        }
        // Cloning a waker takes two atomic operations, and each poll of a request comes here.
        // Therefore keep the stored waker if it wakes the same task.
        let waiting = self.shared.at_tick.take();
        let waiting = waiting.filter(|waker| waker.will_wake(context.waker()));
        self.shared.at_tick.set(waiting.or_else(|| Some(context.waker().clone())));
        Poll::Pending
    }

    /// Lingers as [`Self::linger_for`] does, for a peer that is not expected to send much.
    pub async fn linger(&self) {
        self.linger_for(Lingering { time: SILENCE, bytes: 64 * BUFFER as u64 }).await;
    }

    /// Ends the sending direction after the last reply, then reads and discards what the peer still
    /// sends, until it stops or `limit` is reached. Returns false at the limit. Closing with unread
    /// bytes would reset the connection, and the peer could lose the reply (RFC 9112 section 9.6).
    pub async fn linger_for(&self, limit: Lingering) -> bool {
        self.sent().await;
        self.finish_writing();
        // At the limit on connections, this one may go first: its request has been answered.
        self.set_activity(Activity::PartialHead);
        let mut left = limit.bytes;
        let end = self.deadlines.due(limit.time);
        loop {
            let rest = TICK.saturating_mul(end.saturating_sub(self.deadlines.now()));
            self.limit_read(rest.min(SILENCE));
            // Hold no buffer while the peer sends nothing.
            if self.readable().await.is_err() {
                return true;
            }
            let mut buffer = Vec::with_capacity(BUFFER);
            match self.read_now(&mut buffer) {
                Ok(0) => return true,
                Ok(n) => match left.checked_sub(n as u64) {
                    Some(rest) => left = rest,
                    None => return false,
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return self.deadlines.now() < end,
            }
        }
    }
}

/// Limits of [`Socket::linger_for`].
#[derive(Clone, Copy)]
pub struct Lingering {
    /// The whole time.
    pub time: Duration,
    /// Bytes that are read and dropped.
    pub bytes: u64,
}

/// Cancels the wake-up at the next tick when dropped.
struct NoMoreTicks<'a>(&'a Watched);

impl Drop for NoMoreTicks<'_> {
    fn drop(&mut self) {
        self.0.at_tick.set(None);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.send_now();
        let farewell = self.farewell.get();
        if !farewell.is_empty() && !self.shared.is_sending.get() {
            // Ignore an error: the peer has usually closed.
            let _ = self.shared.write(&[IoSlice::new(farewell)]);
        }
        if let Some(tls) = self.tls() {
            tls.close(&self.shared.io);
        }
        if self.shared.is_sending.get() {
            // A task still sends the rest of the output. After `forget` below, no deadline ends
            // this task any more, so end the task with a shutdown of the socket.
            self.shared.shut_down(Shutdown::Both);
        }
        self.deadlines.forget(self.key);
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        let fd = match &self.stream {
            Some(DetachedStream::Tcp(stream)) => stream.as_fd(),
            Some(DetachedStream::Unix(stream)) => stream.as_fd(),
            None => return,
        };
        if !self.farewell.is_empty() {
            let _ = rustix::net::send(fd, self.farewell, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

// TLS of a socket: the handshake, and reads that decrypt.

impl Socket {
    /// Adds TLS to the socket. [`Socket::finish_handshake`] must follow.
    pub fn start_tls(&self, session: TlsSession) {
        let is_first = self.shared.tls.set(Box::new(session)).is_ok();
        debug_assert!(is_first, "a connection has one session");
    }

    /// Performs the handshake of a new connection to `host`. Returns true if the server has chosen
    /// HTTP/2. With [`Alpn::Http2`], fails if the server has not chosen HTTP/2.
    pub async fn secure(&self, tls: &ClientTls, host: &str, alpn: Alpn) -> io::Result<bool> {
        self.start_tls(tls.session(host, alpn)?);
        let is_http2 = self.finish_handshake().await?.is_http2();
        if alpn == Alpn::Http2 && !is_http2 {
            return Err(no_http2());
        }
        Ok(is_http2)
    }

    /// Finishes the handshake that [`Socket::start_tls`] has begun.
    pub async fn finish_handshake(&self) -> io::Result<&TlsSession> {
        let tls = self.tls().ok_or(io::ErrorKind::NotConnected)?;
        loop {
            match tls.flush(&self.shared.io) {
                Ok(()) if !tls.is_handshaking() => return Ok(tls),
                Ok(()) => {}
                Err(error) => {
                    self.after_write_error(error).await?;
                    continue;
                }
            }
            self.readable().await?;
            match self.receive(tls) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => outcome?,
            }
            if tls.is_handshaking() && tls.has_answer() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads as [`Socket::read_ready`] does, and decrypts the received bytes.
    fn read_decrypted(&self, tls: &TlsSession, buffer: &mut Vec<u8>) -> io::Result<usize> {
        // Maximum number of receives per call. The limit lets other tasks run while a peer sends
        // records without data.
        const LOOKS: usize = 8;
        for _ in 0..LOOKS {
            match tls.take(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            self.receive(tls)?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Reads once without waiting, and decrypts the received bytes.
    fn receive(&self, tls: &TlsSession) -> io::Result<()> {
        if self.is_unread.get() {
            // Read even if the event loop has recorded no readiness, because bytes may be waiting.
            let outcome = tls.receive(&self.shared.io);
            self.is_unread.set(outcome.is_ok());
            return outcome.map(|_| ());
        }
        let mut received = false;
        let outcome = self.shared.io.try_io(Interest::READABLE, || {
            let is_short = tls.receive(&self.shared.io)?.is_short;
            received = true;
            // A short read has emptied the socket, so let `try_io` clear the recorded readiness.
            if is_short { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        if received { Ok(()) } else { outcome }
    }

    /// Returns the TLS session, if any.
    pub fn tls(&self) -> Option<&TlsSession> {
        self.shared.tls.get().map(|session| &**session)
    }

    /// Returns true if the connection uses TLS.
    pub fn is_tls(&self) -> bool {
        self.tls().is_some()
    }
}
