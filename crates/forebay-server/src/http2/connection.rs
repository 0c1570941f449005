//! State that the streams of one connection share, and the work of the connection's task for them.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_net::shared_streams::SharedStreams;
use forebay_net::socket::Socket;
use forebay_wire::http2;

use crate::http2::stream::Http2;
use crate::part::Accepted;

/// The state of one HTTP/2 connection. All streams of the connection share this state.
pub struct Connection {
    /// The connection itself.
    pub socket: Socket,
    /// Addresses, listener and TLS of the connection.
    pub accepted: Accepted,
    /// I/O-free state of the protocol.
    pub codec: RefCell<http2::Connection>,
    /// Streams whose request is being answered.
    pub(crate) streams: SharedStreams<Http2>,
}

impl Connection {
    /// Creates the state of a connection without streams.
    pub fn new(socket: Socket, accepted: Accepted, codec: http2::Connection) -> Rc<Self> {
        let (codec, streams) = (RefCell::new(codec), SharedStreams::default());
        Rc::new(Self { socket, accepted, codec, streams })
    }

    /// Returns the current time for the codec.
    pub fn now() -> Instant {
        // Use tokio's clock, because tests can pause it.
        tokio::time::Instant::now().into_std()
    }

    /// Wakes the connection's task, because there are bytes to write or a stream has ended.
    pub fn wake(&self) {
        self.streams.wake_task();
    }

    /// Completes if the connection's task was woken. Otherwise registers `context` for a wake-up.
    pub fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        self.streams.poll_woken(context)
    }

    /// Returns the stream with this number, or `None` if no such stream is being answered.
    pub fn stream(&self, id: u32) -> Option<Rc<Http2>> {
        self.streams.find(id)
    }

    /// Adds a stream. Its number must be higher than the numbers of all earlier streams.
    pub fn open(self: &Rc<Self>, id: u32, is_tunnel: bool, has_ended: bool) -> Rc<Http2> {
        let stream = Rc::new(Http2::new(id, self.clone(), is_tunnel, has_ended));
        self.streams.push(stream.clone());
        stream
    }

    /// Lets the next waiting stream send, unless another stream is sending. `SharedStreams`
    /// explains these turns.
    pub fn give_turn(&self) {
        self.streams.give_turn(&self.codec);
    }

    /// Ends the turn of stream `id` to send, and lets the next waiting stream send.
    pub(crate) fn end_turn(&self, id: u32) {
        self.streams.end_turn(id, &self.codec);
    }

    /// Returns true if no request is being answered.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the time that the client may take to accept bytes; see
    /// [`SharedStreams::write_limit`].
    pub fn write_limit(&self, limit: Duration) -> Duration {
        self.streams.write_limit(limit)
    }

    /// Shortens the deadline before which the client must accept the pending output. Does nothing
    /// if the deadline is already earlier.
    pub fn shorten_write_limit(&self, limit: Duration) {
        self.socket.shorten_write_limit(self.write_limit(limit));
    }

    /// Releases memory that an idle connection does not need.
    pub fn shrink(&self) {
        self.codec.borrow_mut().shrink();
        self.streams.shrink();
    }

    /// Cancels all streams after the connection has ended.
    pub fn cancel_all(&self) {
        self.streams.all().iter().for_each(|stream| stream.cancel());
    }

    /// Ends overdue streams. While the server stops, also ends tunnels that carry no bytes. The
    /// connection's task calls this function at every tick of 100 ms.
    pub fn check_deadlines(&self, write_limit: Duration) {
        let now = Self::now();
        self.streams.end_stalled(&self.codec, write_limit, now);
        let deadlines = &self.accepted.thread.deadlines;
        let quiet = self.accepted.thread.is_stopping().then(|| deadlines.tunnel_quiet());
        self.streams.expire_reads(deadlines.now(), quiet);
    }
}
