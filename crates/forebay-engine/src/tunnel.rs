//! Tunnels: what an upgraded connection (RFC 9110 section 7.8) carries, relayed unread.
//!
//! The 101 has to name a protocol that the client requested; what the client sent before waits. Any
//! other reply is ordinary, and those bytes are the next request. An upgrade with a body is refused
//! (400): backends do not agree on where the tunnel would begin. One to HTTP/2 or TLS is ignored:
//! inside it requests would go past the routes. The tunnel runs when the origin has returned,
//! without the watch for clients that leave, because a half-closed side is part of it; idle, it
//! holds no buffer. When the server stops it ends after a second of silence, or with the grace
//! time.

use std::any::Any;
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::limit::Limit;
use crate::socket::{BUFFER, Socket, yield_to_readers};
use crate::stream::{Abort, Stream};

/// What follows a 101.
pub struct Tunnel {
    /// What the backend has made of the request's connection, or of its stream.
    pub backend: Box<dyn Duplex>,
    /// What came behind its 101.
    pub backend_prefix: Vec<u8>,
    /// How long the tunnel may carry nothing.
    pub idle: Duration,
    /// Kept until the tunnel ends.
    pub held: Box<dyn Any>,
}

/// The backend's end of a tunnel: bytes both ways.
pub trait Duplex {
    /// From now on it is one; the backend may take this long to make room.
    fn begin_tunnel(&self, pause: Duration);

    /// A read may take this long.
    fn limit_read(&self, after: Duration);

    /// Whether a time limit has passed.
    fn is_expired(&self) -> bool;

    /// Whether there is something to read, or the end.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Appends what has come to `buffer`: 0 at the end, `WouldBlock` where nothing has.
    fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize>;

    /// Writes some of what is not empty, once there is room.
    fn poll_write(&self, data: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>>;

    /// The backend is sent no more.
    fn finish_writing(&self);

    /// Ends it so that the backend does not take what it got for the whole.
    fn reset(&self);
}

impl Duplex for Socket {
    fn begin_tunnel(&self, pause: Duration) {
        self.begin_tunnel(pause);
    }

    fn limit_read(&self, after: Duration) {
        self.limit_read(after);
    }

    fn is_expired(&self) -> bool {
        self.is_expired()
    }

    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_readable(context)
    }

    fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.read_now(buffer)
    }

    fn poll_write(&self, data: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let written = self.try_write(&[IoSlice::new(data)])?;
            if written > 0 {
                return Poll::Ready(Ok(written as usize));
            }
            self.expect_room();
            std::task::ready!(self.poll_room(context))?;
        }
    }

    fn finish_writing(&self) {
        self.finish_writing();
    }

    fn reset(&self) {
        self.reset();
    }
}

impl Tunnel {
    /// Relays bytes both ways until both sides have finished, either has failed, or nothing has
    /// come for too long; how many the client was sent. `prefix` is what came of the client behind
    /// the request's head: it goes first, as does what came behind the 101.
    ///
    /// When one side finishes sending, the other is told its end and may send on. A side that takes
    /// nothing any more is still read to its end, for what it sent before. A connection that fails
    /// resets the other one, so that no end is taken for a proper one.
    pub(crate) async fn carry(self, client: &Stream, prefix: Vec<u8>) -> u64 {
        let Self { backend, backend_prefix, idle, held } = self;
        client.begin_tunnel(idle);
        backend.begin_tunnel(idle);
        let ends = (End::Client(client), End::Backend(&*backend));
        let upwards = Direction::new(ends.0, ends.1, idle);
        let downwards = Direction::new(ends.1, ends.0, idle);
        let ended = tokio::try_join!(upwards.carry(prefix), downwards.carry(backend_prefix));
        let is_lost = upwards.is_lost.get() || downwards.is_lost.get();
        match ended {
            // A side that takes nothing loses data, which is more than an idle end.
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !is_lost => {
                client.thread().counters.count_limit(Limit::TunnelIdle);
            }
            Err(_) => {
                client.abort(Abort::ReplyLost);
                backend.reset();
            }
            Ok(_) if upwards.is_lost.get() => client.linger().await,
            Ok(_) => {}
        }
        drop(held);
        downwards.carried.get()
    }
}

/// One end of a tunnel.
#[derive(Clone, Copy)]
enum End<'a> {
    Client(&'a Stream),
    Backend(&'a dyn Duplex),
}

impl End<'_> {
    async fn readable(self) -> io::Result<()> {
        match self {
            Self::Client(stream) => stream.readable().await,
            Self::Backend(duplex) => poll_fn(|context| duplex.poll_readable(context)).await,
        }
    }

    fn read_now(self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Client(stream) => stream.read_now(buffer),
            Self::Backend(duplex) => duplex.read_now(buffer),
        }
    }

    async fn write_all(self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Client(stream) => stream.write_all(data).await,
            Self::Backend(duplex) => write_all(duplex, data).await,
        }
    }

    fn finish_writing(self) {
        match self {
            Self::Client(stream) => stream.finish_writing(),
            Self::Backend(duplex) => duplex.finish_writing(),
        }
    }

    fn limit_read(self, after: Duration) {
        match self {
            Self::Client(stream) => stream.limit_read(after),
            Self::Backend(duplex) => duplex.limit_read(after),
        }
    }

    fn is_expired(self) -> bool {
        match self {
            Self::Client(stream) => stream.is_expired(),
            Self::Backend(duplex) => duplex.is_expired(),
        }
    }
}

async fn write_all(duplex: &dyn Duplex, mut data: &[u8]) -> io::Result<()> {
    yield_to_readers().await;
    while !data.is_empty() {
        let written = poll_fn(|context| duplex.poll_write(data, context)).await?;
        data = data.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// One direction of a tunnel.
struct Direction<'a> {
    from: End<'a>,
    to: End<'a>,
    idle: Duration,
    carried: Cell<u64>,
    /// `to` takes nothing any more.
    is_lost: Cell<bool>,
}

impl<'a> Direction<'a> {
    fn new(from: End<'a>, to: End<'a>, idle: Duration) -> Self {
        Self { from, to, idle, carried: Cell::new(0), is_lost: Cell::new(false) }
    }

    /// Relays bytes until `from` finishes or `to` takes nothing any more. That is no error here:
    /// the other direction relays what `to` has sent before, and finds its end.
    ///
    /// # Errors
    /// Those of reading from `from`.
    async fn carry(&self, first: Vec<u8>) -> io::Result<()> {
        if self.pass(&first).await.is_err() {
            self.is_lost.set(true);
            return Ok(());
        }
        drop(first);
        loop {
            self.from.readable().await?;
            // An idle tunnel holds no buffer.
            let mut buffer = Vec::with_capacity(BUFFER);
            loop {
                buffer.clear();
                match self.from.read_now(&mut buffer) {
                    Ok(0) if self.from.is_expired() => return Err(io::ErrorKind::TimedOut.into()),
                    Ok(0) => {
                        self.to.finish_writing();
                        return Ok(());
                    }
                    Ok(_) if self.pass(&buffer).await.is_err() => {
                        self.is_lost.set(true);
                        return Ok(());
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }

    async fn pass(&self, data: &[u8]) -> io::Result<()> {
        // Whichever direction moves, the tunnel as a whole is not idle.
        self.from.limit_read(self.idle);
        self.to.limit_read(self.idle);
        if data.is_empty() {
            return Ok(());
        }
        self.to.write_all(data).await?;
        self.carried.set(self.carried.get() + data.len() as u64);
        Ok(())
    }
}
