//! Relays the bytes of an upgraded connection (RFC 9110 section 7.8) or of a stream's connection
//! without interpreting them.
//!
//! The 101 must name a protocol that the client requested. Bytes that the client sends before the
//! 101 are forwarded after it. If the reply is not a 101, these bytes are the client's next
//! request. An upgrade with a body is refused (400), because backends disagree on the start of the
//! tunnel. An upgrade to HTTP/2 or TLS is ignored: requests inside it would bypass the routes.
//! Forebay parses the frames that the backend of a WebSocket sends, to add a close frame between
//! messages.
//!
//! The tunnel runs after the origin returns, and does not end when the client closes its sending
//! side. An idle tunnel holds no buffer. When the server stops, a tunnel ends after three seconds
//! of silence or at the end of the grace period. The client of a WebSocket gets a close frame with
//! the code 1001 (`farewell`). In the first 2 s, the tunnel waits until no messages flow. After 2 s,
//! the close frame follows the next message.

use std::any::Any;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_net::limit::Limit;
use forebay_net::socket::{BUFFER, Socket, yield_to_readers};
use forebay_net::thread::Thread;
use tokio::sync::Notify;
use tokio::time::Instant;

use farewell::Farewell;

use crate::part::Abort;
use crate::stream::Stream;

mod farewell;

/// A tunnel that follows a 101.
pub struct Tunnel {
    /// The backend's end: the connection or stream of the request.
    pub backend: Box<dyn Duplex>,
    /// Bytes received after the backend's 101.
    pub backend_prefix: Vec<u8>,
    /// Maximum idle time of the tunnel.
    pub idle: Duration,
    /// Values that are dropped when the tunnel ends, such as permits.
    pub held: Box<dyn Any>,
}

/// The backend's end of a tunnel, a bidirectional byte stream.
pub trait Duplex {
    /// Marks the connection or stream as a tunnel. From now on, a write fails if the backend
    /// accepts no bytes for `pause`.
    fn begin_tunnel(&self, pause: Duration);

    /// Limits the duration of the next read.
    fn limit_read(&self, after: Duration);

    /// Returns true if a time limit of a read or write has passed.
    fn is_expired(&self) -> bool;

    /// Completes when bytes or the end can be read.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Appends the received bytes to `buffer`. Returns 0 at the end. Fails with `WouldBlock` if no
    /// bytes have arrived.
    fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize>;

    /// Writes some bytes of the non-empty `data`, when the backend accepts bytes.
    fn poll_write(&self, data: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>>;

    /// Ends the sending direction.
    fn finish_writing(&self);

    /// Ends the connection so that the backend recognizes the data as incomplete.
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

/// If a client accepts no more bytes, the backend must read the client's next bytes within this
/// time.
const LAST_BYTES: Duration = Duration::from_secs(10);

impl Tunnel {
    /// Relays bytes in both directions until both sides have finished, one side has failed, or the
    /// tunnel was idle for too long. Returns the number of bytes sent to the client.
    ///
    /// `prefix` contains the bytes that the client sent after the request's head. The backend gets
    /// these bytes first. The client first gets the bytes that the backend sent after its 101.
    ///
    /// After one side has finished sending, the other side may continue to send. If the client
    /// accepts no more bytes, the tunnel still relays to the backend what the client has sent, and
    /// the same in the other direction. If one connection fails, Forebay resets the other
    /// connection, because a regular end would look like the end of complete data.
    ///
    /// When the server stops, the client of a WebSocket gets a close frame.
    pub async fn carry(self, client: &Stream, prefix: Vec<u8>, is_websocket: bool) -> u64 {
        let Self { backend, backend_prefix, idle, held } = self;
        client.begin_tunnel(idle);
        backend.begin_tunnel(idle);
        let mut bridge = Bridge::new(End::Client(client), End::Duplex(&*backend), idle);
        if is_websocket {
            let farewell = Farewell::default();
            bridge.upwards.is_asked = Some(farewell.is_asked.clone());
            bridge.downwards.farewell = Some(farewell);
        }
        let end = tokio::select! {
            end = bridge.carry(prefix, backend_prefix) => end,
            never = bridge.say_farewell(client.thread()), if is_websocket => match never {},
        };
        match end {
            BridgeEnd::Idle => {
                // The client has received a close frame, and perhaps not answered it. This is no
                // failure, so end the client's stream without a reset.
                let farewell = bridge.downwards.farewell.as_ref();
                if farewell.is_some_and(|farewell| farewell.is_closed.get()) {
                    client.finish_writing();
                }
                client.thread().counters.count_limit(Limit::TunnelIdle);
            }
            BridgeEnd::Lost => {
                client.abort(Abort::ReplyLost);
                backend.reset();
            }
            BridgeEnd::Closed { is_client_unread: true } => client.linger().await,
            BridgeEnd::Closed { is_client_unread: false } => {}
        }
        drop(held);
        bridge.carried().1
    }
}

/// Both directions between a client and a backend.
pub(crate) struct Bridge<'a> {
    upwards: Direction<'a>,
    downwards: Direction<'a>,
}

/// Reason for the end of a [`Bridge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BridgeEnd {
    /// Both sides have finished. If `is_client_unread` is true, the backend accepted no more bytes,
    /// and the client may still send bytes.
    Closed { is_client_unread: bool },
    /// Neither side sent bytes for too long.
    Idle,
    /// A side failed, and its peer has not received everything.
    Lost,
}

impl<'a> Bridge<'a> {
    /// Creates the bridge between two sockets.
    pub(crate) fn of_sockets(client: &'a Socket, backend: &'a Socket, idle: Duration) -> Self {
        Self::new(End::Duplex(client), End::Duplex(backend), idle)
    }

    fn new(client: End<'a>, backend: End<'a>, idle: Duration) -> Self {
        Self {
            upwards: Direction::new(client, backend, idle),
            downwards: Direction::new(backend, client, idle),
        }
    }

    /// Relays bytes until both sides have finished, one side has failed, or both sides were idle
    /// for too long. Sends the bytes of `to_backend` and `to_client` first.
    pub(crate) async fn carry(&self, to_backend: Vec<u8>, to_client: Vec<u8>) -> BridgeEnd {
        let Self { upwards, downwards } = self;
        let is_over = Notify::new();
        let up = async {
            let ended = upwards.carry(to_backend).await;
            is_over.notify_one();
            ended
        };
        let down = async {
            downwards.carry(to_client).await?;
            if downwards.is_lost.get() {
                // The client accepts no more bytes, but its own last bytes may still be on their
                // way to the backend. Some backends read the client's bytes only after their own
                // bytes were accepted. So read and drop the backend's bytes.
                tokio::select! {
                    ended = downwards.discard() => ended?,
                    () = is_over.notified() => {}
                    () = upwards.stuck() => return Err(io::ErrorKind::TimedOut.into()),
                }
            }
            Ok(())
        };
        let ended = tokio::try_join!(up, down);
        let is_lost = upwards.is_lost.get() || downwards.is_lost.get();
        match ended {
            Ok(_) => BridgeEnd::Closed { is_client_unread: upwards.is_lost.get() },
            // If `is_lost` is true, a side has lost data, so do not report an idle timeout.
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !is_lost => BridgeEnd::Idle,
            Err(_) => BridgeEnd::Lost,
        }
    }

    /// Waits until the server stops. Then sends a close frame when no bytes have flowed for
    /// [`farewell::QUIET`]. If the client may await an answer, this time is five times as long.
    ///
    /// If bytes still flow [`farewell::PATIENCE`] after the stop, this function sends no close
    /// frame. [`Farewell::pass`] then sends it after the backend's next message.
    async fn say_farewell(&self, thread: &Thread) -> Infallible {
        while !thread.is_stopping() {
            thread.changed.notified().await;
        }
        let Some(farewell) = &self.downwards.farewell else { return pending().await };
        let urgent = Instant::now() + farewell::PATIENCE;
        let mut silent = 0;
        loop {
            let before = self.carried();
            tokio::time::sleep(farewell::QUIET).await;
            silent = if self.carried() == before { silent + 1 } else { 0 };
            if silent >= farewell.looks() && farewell.may_follow() {
                // Ignore an error: the next read reports it.
                let _ = farewell.close(self.downwards.to).await;
            }
            farewell.is_urgent.set(Instant::now() >= urgent);
        }
    }

    /// Returns the numbers of bytes sent to the backend and to the client.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.upwards.carried.get(), self.downwards.carried.get())
    }
}

/// An end of a tunnel.
#[derive(Clone, Copy)]
enum End<'a> {
    Client(&'a Stream),
    Duplex(&'a dyn Duplex),
}

impl End<'_> {
    async fn readable(self) -> io::Result<()> {
        match self {
            Self::Client(stream) => stream.readable().await,
            Self::Duplex(duplex) => poll_fn(|context| duplex.poll_readable(context)).await,
        }
    }

    fn read_now(self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Client(stream) => stream.read_now(buffer),
            Self::Duplex(duplex) => duplex.read_now(buffer),
        }
    }

    async fn write_all(self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Client(stream) => stream.write_all(data).await,
            Self::Duplex(duplex) => write_all(duplex, data).await,
        }
    }

    fn finish_writing(self) {
        match self {
            Self::Client(stream) => stream.finish_writing(),
            Self::Duplex(duplex) => duplex.finish_writing(),
        }
    }

    fn limit_read(self, after: Duration) {
        match self {
            Self::Client(stream) => stream.limit_read(after),
            Self::Duplex(duplex) => duplex.limit_read(after),
        }
    }

    fn is_expired(self) -> bool {
        match self {
            Self::Client(stream) => stream.is_expired(),
            Self::Duplex(duplex) => duplex.is_expired(),
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
    /// Time of the last bytes of `from`, while `to` has not accepted all of them.
    writes_since: Cell<Option<Instant>>,
    /// True if `to` accepts no more bytes.
    is_lost: Cell<bool>,
    /// Set when the client of a WebSocket sends something.
    is_asked: Option<Rc<Cell<bool>>>,
    /// Parses the frames that a backend sends to the client of a WebSocket.
    farewell: Option<Farewell>,
}

impl<'a> Direction<'a> {
    fn new(from: End<'a>, to: End<'a>, idle: Duration) -> Self {
        Self {
            from,
            to,
            idle,
            carried: Cell::new(0),
            writes_since: Cell::new(None),
            is_lost: Cell::new(false),
            is_asked: None,
            farewell: None,
        }
    }

    /// Relays bytes until `from` finishes or `to` accepts no more bytes. The second case is not an
    /// error: the other direction relays the bytes that `to` sent earlier, and detects the end of
    /// `to`.
    ///
    /// # Errors
    /// Fails if reading from `from` fails.
    async fn carry(&self, first: Vec<u8>) -> io::Result<()> {
        if self.pass(&first).await.is_err() {
            self.is_lost.set(true);
            return Ok(());
        }
        drop(first);
        loop {
            self.from.readable().await?;
            // Allocate the buffer only when bytes can be read, so that an idle tunnel holds no
            // buffer.
            let mut buffer = Vec::with_capacity(BUFFER);
            loop {
                buffer.clear();
                match self.from.read_now(&mut buffer) {
                    Ok(0) if self.from.is_expired() => return Err(io::ErrorKind::TimedOut.into()),
                    Ok(0) => {
                        // The backend has ended its direction, perhaps with a close frame of its
                        // own. So send no close frame of Forebay.
                        if let Some(farewell) = &self.farewell {
                            farewell.is_closed.set(true);
                        }
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

    /// Completes if `to` does not accept the next bytes for [`LAST_BYTES`].
    async fn stuck(&self) {
        loop {
            let age = self.writes_since.get().map_or(Duration::ZERO, |since| since.elapsed());
            // While `to` accepts nothing, nothing reads from `from`. So the end of `from` would
            // remain unnoticed.
            if age >= LAST_BYTES {
                return;
            }
            tokio::time::sleep(LAST_BYTES - age).await;
        }
    }

    /// Reads and drops all bytes of `from`, until `from` finishes.
    ///
    /// # Errors
    /// Fails if reading from `from` fails, or if `from` sends nothing for too long.
    async fn discard(&self) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(BUFFER);
        loop {
            buffer.clear();
            match self.from.read_now(&mut buffer) {
                Ok(0) if self.from.is_expired() => return Err(io::ErrorKind::TimedOut.into()),
                Ok(0) => return Ok(()),
                Ok(_) => yield_to_readers().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.from.readable().await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn pass(&self, data: &[u8]) -> io::Result<()> {
        // Progress in either direction counts as activity of the whole tunnel.
        self.from.limit_read(self.idle);
        self.to.limit_read(self.idle);
        if data.is_empty() {
            return Ok(());
        }
        if let Some(is_asked) = &self.is_asked {
            is_asked.set(true);
        }
        self.writes_since.set(Some(Instant::now()));
        match &self.farewell {
            None => self.to.write_all(data).await?,
            // The client must get nothing after a close frame.
            Some(farewell) if farewell.is_closed.get() => {
                self.writes_since.set(None);
                return Ok(());
            }
            Some(farewell) => farewell.pass(self.to, data).await?,
        }
        self.writes_since.set(None);
        self.carried.set(self.carried.get() + data.len() as u64);
        Ok(())
    }
}
