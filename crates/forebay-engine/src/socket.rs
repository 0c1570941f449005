//! A connection of this thread: TCP, Unix or in memory, with deadlines, and perhaps with TLS on it.
//!
//! One read per request: a read that does not fill the buffer has emptied the socket, so readiness
//! is cleared at once; a write is tried before waiting for room. A kept-alive request costs one
//! `recv`, one `send` and its share of `epoll_wait` on each side.
//!
//! Reading comes before writing: what is small is sent at the end of the thread's turn
//! (`write_soon`), and a task that is about to write more lets every other ready task run first
//! (`yield_to_readers`). The event loop reports 64 sockets at a time, so that what was read for
//! them stays in the cache. A proxied head whose `Content-Length` announces a body waits for the
//! first of that body, too: one write in place of two, and a backend that dies in between costs a
//! clean 502.
//!
//! A client that leaves is looked for after the first tick (100 ms): most requests are answered
//! before.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::byte_stream::Io;
use crate::deadline::{Activity, Deadlines, NEVER, Ticks, Watched};
use crate::memory::Link;
use crate::tls::Session;

mod tls;
mod write;

pub use write::yield_to_readers;

/// Size of a receive buffer, in bytes: most heads and small bodies fit.
pub const BUFFER: usize = 16 * 1024;

/// How long a closing connection is read on.
const LINGER: Duration = Duration::from_secs(2);

/// A connected socket. Reading and writing take `&self`, so that both directions may be under way
/// at once; each direction has one user at a time.
pub struct Socket {
    shared: Rc<Watched>,
    deadlines: Rc<Deadlines>,
    key: usize,
    /// Readiness was cleared without reading: the next read must try recv.
    is_unread: Cell<bool>,
}

/// A connection of no thread, on its way to another one.
pub enum Detached {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// Unix.
    Unix(std::os::unix::net::UnixStream),
}

impl Socket {
    /// Wraps an accepted or connected TCP stream.
    pub fn tcp(stream: TcpStream, deadlines: &Rc<Deadlines>) -> Self {
        // A reply is written whole, or in pieces that are each wanted at once.
        let _ = stream.set_nodelay(true);
        Self::new(Io::Tcp(stream), deadlines)
    }

    /// Wraps a Unix stream.
    pub fn unix(stream: UnixStream, deadlines: &Rc<Deadlines>) -> Self {
        Self::new(Io::Unix(stream), deadlines)
    }

    /// One end of a connection in memory.
    pub fn memory(link: Link, deadlines: &Rc<Deadlines>) -> Self {
        Self::new(Io::Memory(link), deadlines)
    }

    /// Connects to a TCP address.
    pub(crate) async fn connect_tcp(
        address: SocketAddr,
        deadlines: &Rc<Deadlines>,
    ) -> io::Result<Self> {
        Ok(Self::tcp(TcpStream::connect(address).await?, deadlines))
    }

    /// Connects to a Unix socket.
    pub(crate) async fn connect_unix(path: &Path, deadlines: &Rc<Deadlines>) -> io::Result<Self> {
        Ok(Self::unix(UnixStream::connect(path).await?, deadlines))
    }

    fn new(io: Io, deadlines: &Rc<Deadlines>) -> Self {
        let shared = Rc::new(Watched::new(io));
        let key = deadlines.watch(shared.clone());
        Self { shared, deadlines: deadlines.clone(), key, is_unread: Cell::new(false) }
    }

    /// Takes a connection over from another thread.
    pub fn attach(detached: Detached, deadlines: &Rc<Deadlines>) -> io::Result<Self> {
        Ok(Self::new(
            match detached {
                Detached::Tcp(stream) => Io::Tcp(TcpStream::from_std(stream)?),
                Detached::Unix(stream) => Io::Unix(UnixStream::from_std(stream)?),
            },
            deadlines,
        ))
    }

    /// Gives the connection away to another thread, which takes none with TLS.
    pub fn detach(self) -> io::Result<Detached> {
        if self.is_tls() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.deadlines.send_outgoing();
        let shared = self.shared.clone();
        // Takes it off the deadlines, which hold the only other reference.
        drop(self);
        let watched = Rc::into_inner(shared).ok_or(io::ErrorKind::ResourceBusy)?;
        match watched.io {
            Io::Tcp(stream) => stream.into_std().map(Detached::Tcp),
            Io::Unix(stream) => stream.into_std().map(Detached::Unix),
            Io::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// From now on a read may take this long, over all; it then fails with `TimedOut`.
    pub fn limit_read(&self, after: Duration) {
        self.shared.read_due.set(self.deadlines.due(after));
    }

    /// As [`Socket::limit_read`], for a read that is limited already.
    pub fn renew_read_limit(&self, after: Duration) {
        if self.shared.read_due.get() != NEVER {
            self.limit_read(after);
        }
    }

    /// Reads may take as long as they do.
    pub fn unlimit_read(&self) {
        self.shared.read_due.set(NEVER);
    }

    /// Writing may wait this long for the peer to make room; it then fails with `TimedOut`.
    pub fn limit_writes(&self, pause: Duration) {
        self.shared.write_limit.set(pause);
    }

    /// Marks the connection as one that may be closed at any time, or not.
    pub fn set_idle(&self, idle: bool) {
        self.set_activity(if idle { Activity::Idle } else { Activity::Busy });
    }

    /// Marks the connection as one that may be closed at any time, or for others, or not.
    pub(crate) fn set_activity(&self, activity: Activity) {
        self.shared.occupancy.set(activity, &self.deadlines);
    }

    /// From now on the connection counts against the limit on connections of clients, and may be closed
    /// for others unless it is busy.
    pub(crate) fn set_counted(&self) {
        self.shared.occupancy.set_counted();
    }

    /// Whether the connection was closed for others.
    pub(crate) fn is_evicted(&self) -> bool {
        self.shared.occupancy.is_evicted()
    }

    /// From now on the connection carries a tunnel, which ends soon after the server begins to
    /// stop; the peer may take this long to make room.
    pub(crate) fn begin_tunnel(&self, pause: Duration) {
        self.limit_writes(pause);
        self.shared.tunnel.set(true);
    }

    /// Whether a deadline has passed.
    pub fn is_expired(&self) -> bool {
        self.shared.expired.get()
    }

    /// Whether a deadline has passed, and the connection was not closed for others.
    pub(crate) fn is_overdue(&self) -> bool {
        self.is_expired() && !self.is_evicted()
    }

    /// Waits until there is something to read, or the peer has closed.
    pub async fn readable(&self) -> io::Result<()> {
        // Cheaper than `readable()`, which is made for any number of tasks that wait at once.
        poll_fn(|context| self.poll_readable(context)).await
    }

    /// Appends what has come to `buffer`, at most its spare capacity, which must not be nothing.
    /// 0 means that the peer has closed; after a deadline the error is `TimedOut`.
    pub async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            self.readable().await?;
            match self.read_now(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }

    /// As [`Socket::read`], without waiting: `WouldBlock` where nothing has come.
    pub fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self.read_ready(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // With TLS the end that a deadline makes is an error, as no `close_notify` has come.
            Ok(0) | Err(_) if self.is_expired() => Err(io::ErrorKind::TimedOut.into()),
            outcome => outcome,
        }
    }

    fn read_ready(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
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
            // A short read has emptied the socket: forget its readiness instead of asking again.
            if n > 0 && n < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match read {
            Some(n) => Ok(n),
            None => outcome.map(|()| 0),
        }
    }

    /// As [`Socket::read_ready`], whatever readiness the event loop holds.
    fn read_forgotten(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        let outcome = self.shared.io.read(buffer);
        self.is_unread.set(matches!(outcome, Ok(n) if n == room));
        outcome
    }

    /// Waits until the peer has closed its side, however many bytes it sends before. They can be
    /// read afterwards. A close is noticed after the next tick at the earliest: most requests are
    /// answered by then, and need not be registered with the event loop again.
    pub async fn wait_for_close(&self) {
        self.next_tick().await;
        loop {
            let ready = match &self.shared.io {
                Io::Tcp(stream) => stream.ready(Interest::READABLE).await,
                Io::Unix(stream) => stream.ready(Interest::READABLE).await,
                Io::Memory(link) => return link.closed().await,
            };
            if ready.map_or(true, |ready| ready.is_read_closed()) {
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

    /// Acknowledges now what has been read, instead of with the next thing sent or after 40 ms. A
    /// peer that writes a reply in small pieces with Nagle's algorithm on sends no second piece
    /// before that. A system call, on TCP alone.
    pub fn acknowledge(&self) {
        if let Io::Tcp(stream) = &self.shared.io {
            // The kernel leaves this mode by itself; where it refuses, it is as slow as it was.
            let _ = rustix::net::sockopt::set_tcp_quickack(stream, true);
        }
    }

    /// Looks, by a system call, at what a read would give: bytes (`Some(true)`), the end of the
    /// stream or an error (`Some(false)`), or nothing yet.
    pub fn peek(&self) -> Option<bool> {
        self.shared.peek()
    }

    /// Whether an idle connection has become useless: closed, or with unsolicited bytes.
    /// Costs no system call; a close that the event loop has not seen yet is not noticed.
    pub fn is_stale(&self) -> bool {
        let looked = self.shared.io.try_io(Interest::READABLE, || match self.tls() {
            // What has come may be a ticket.
            Some(tls) if tls.peek(&self.shared.io).is_none() => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            _ => Ok(()),
        });
        looked.is_ok() || self.is_expired()
    }

    /// Closes with a reset, so that the peer cannot take what it got for the whole.
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

    /// Tells the peer that no more will be written.
    pub fn finish_writing(&self) {
        self.send_now();
        if let Some(tls) = self.tls() {
            tls.close(&self.shared.io);
        }
        self.shared.shut_down(Shutdown::Write);
    }

    /// Whether there is something to read, or the peer has closed.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_unread.get() || self.tls().is_some_and(Session::has_answer) {
            return Poll::Ready(Ok(()));
        }
        self.shared.io.poll_readable(context)
    }

    /// Whether a tick has come since `begun`; if not, `context` is woken at the next one.
    pub fn poll_tick(&self, begun: Ticks, context: &Context<'_>) -> Poll<()> {
        if self.deadlines.now() != begun {
            return Poll::Ready(());
        }
        // Cloning a waker is two atomic operations, and this is polled with each turn of a request.
        let waiting = self.shared.at_tick.take();
        let waiting = waiting.filter(|waker| waker.will_wake(context.waker()));
        self.shared.at_tick.set(waiting.or_else(|| Some(context.waker().clone())));
        Poll::Pending
    }

    /// Reads on for a moment after the last reply: closing with unread bytes would reset the
    /// connection, and the peer could lose the reply (RFC 9112 section 9.6).
    pub(crate) async fn linger(&self) {
        self.sent().await;
        self.finish_writing();
        self.limit_read(LINGER);
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut left = 64 * BUFFER;
        while left > 0 {
            buffer.clear();
            match self.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(n) => left = left.saturating_sub(n),
            }
        }
    }
}

/// Takes back the wish to be woken at the next tick.
struct NoMoreTicks<'a>(&'a Watched);

impl Drop for NoMoreTicks<'_> {
    fn drop(&mut self) {
        self.0.at_tick.set(None);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.send_now();
        if let Some(tls) = self.tls() {
            tls.close(&self.shared.io);
        }
        if self.shared.is_sending.get() {
            // Forgotten below, so no deadline would end the wait for room.
            self.shared.shut_down(Shutdown::Both);
        }
        self.deadlines.forget(self.key);
    }
}
