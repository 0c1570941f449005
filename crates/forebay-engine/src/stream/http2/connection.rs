//! What the streams of one connection share, and what its task does for them.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_wire::http2::{self, ErrorCode};

use super::Http2;
use crate::deadline::Ticks;
use crate::shared_streams::SharedStreams;
use crate::socket::Socket;
use crate::stream::Accepted;

/// What the streams of one connection share.
pub struct Connection {
    /// The connection itself.
    pub socket: Socket,
    /// Where it comes from.
    pub accepted: Accepted,
    /// The protocol's state.
    pub codec: RefCell<http2::Connection>,
    /// Those whose request is being answered.
    pub(super) streams: SharedStreams<Http2>,
    /// Those that were answered before their request had come to its end, and since when.
    pub(super) ending: RefCell<Vec<(u32, Ticks)>>,
}

impl Connection {
    /// A connection without streams.
    pub fn new(socket: Socket, accepted: Accepted, codec: http2::Connection) -> Rc<Self> {
        let (codec, streams, ending) =
            (RefCell::new(codec), SharedStreams::default(), RefCell::default());
        Rc::new(Self { socket, accepted, codec, streams, ending })
    }

    /// The time as the codec takes it.
    pub fn now() -> Instant {
        // Of tokio, so that it stands still where that does.
        tokio::time::Instant::now().into_std()
    }

    /// Has the task of the connection run: there is something to write, or a stream has ended.
    pub fn wake(&self) {
        self.streams.wake_task();
    }

    /// Whether the task of the connection was woken; if not, it is from now on by `context`.
    pub fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        self.streams.poll_woken(context)
    }

    /// The stream of this number, if it is being answered.
    pub fn stream(&self, id: u32) -> Option<Rc<Http2>> {
        self.streams.find(id)
    }

    /// Takes a stream up, whose number is higher than those before.
    pub fn open(self: &Rc<Self>, id: u32, is_tunnel: bool, has_ended: bool) -> Rc<Http2> {
        let stream = Rc::new(Http2::new(id, self.clone(), is_tunnel, has_ended));
        self.streams.push(stream.clone());
        stream
    }

    /// Has the next stream send that waits for its turn, unless one has its turn already.
    pub fn give_turn(&self) {
        self.streams.give_turn(&self.codec);
    }

    /// The turn of a stream is over.
    pub(super) fn end_turn(&self, id: u32) {
        self.streams.end_turn(id, &self.codec);
    }

    /// Whether nothing is being answered.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether a tick has something to end.
    pub fn needs_ticks(&self) -> bool {
        !self.is_idle() || !self.ending.borrow().is_empty()
    }

    /// How long the client may take nothing off the connection: `limit`, unless there is nothing
    /// but tunnels, which may be idle for longer.
    pub fn write_limit(&self, limit: Duration) -> Duration {
        self.streams.write_limit(limit)
    }

    /// Has what is waiting to be written wait no longer than those may that are open now.
    pub fn shorten_write_limit(&self, limit: Duration) {
        self.socket.shorten_write_limit(self.write_limit(limit));
    }

    /// Gives memory back that an idle connection does not need.
    pub fn shrink(&self) {
        self.codec.borrow_mut().shrink();
        self.streams.shrink();
    }

    /// The connection has ended, and with it all streams.
    pub fn cancel_all(&self) {
        self.streams.all().iter().for_each(|stream| stream.cancel());
    }

    /// A tick has come: streams that are overdue end, and tunnels that fall quiet while the server
    /// stops.
    pub fn check_deadlines(&self, write_limit: Duration) {
        let now = Self::now();
        self.streams.end_stalled(&self.codec, write_limit, now);
        let deadlines = &self.accepted.thread.deadlines;
        self.ending.borrow_mut().retain(|&(id, since)| {
            let is_young = since + 1 >= deadlines.now();
            if !is_young {
                self.codec.borrow_mut().reset(id, ErrorCode::NO_ERROR, now);
            }
            is_young
        });
        let quiet = self.accepted.thread.is_stopping().then(|| deadlines.tunnel_quiet());
        self.streams.expire_reads(deadlines.now(), quiet);
    }
}
