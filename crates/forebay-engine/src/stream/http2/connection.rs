//! What the streams of one connection share, and what its task does for them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_wire::http2::{self, ErrorCode};

use super::{Http2, wake};
use crate::deadline::{NEVER, Ticks};
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
    /// Those whose request is being answered, by their numbers, in order.
    pub(super) streams: RefCell<Vec<Rc<Http2>>>,
    /// Those that were answered before their request had come to its end, and since when.
    pub(super) ending: RefCell<Vec<(u32, Ticks)>>,
    /// The stream whose turn it is to send, until it has; 0 where it is nobody's.
    turn: Cell<u32>,
    task: Cell<Option<Waker>>,
    is_woken: Cell<bool>,
}

impl Connection {
    /// A connection without streams.
    pub fn new(socket: Socket, accepted: Accepted, codec: http2::Connection) -> Rc<Self> {
        let (task, is_woken) = (Cell::new(None), Cell::new(false));
        let (codec, streams, ending) =
            (RefCell::new(codec), RefCell::default(), RefCell::default());
        Rc::new(Self {
            socket,
            accepted,
            codec,
            streams,
            ending,
            turn: Cell::new(0),
            task,
            is_woken,
        })
    }

    /// The time as the codec takes it.
    pub fn now() -> Instant {
        // Of tokio, so that it stands still where that does.
        tokio::time::Instant::now().into_std()
    }

    /// Has the task of the connection run: there is something to write, or a stream has ended.
    pub fn wake(&self) {
        if !self.is_woken.replace(true)
            && let Some(task) = self.task.take()
        {
            task.wake();
        }
    }

    /// Whether the task of the connection was woken; if not, it is from now on by `context`.
    pub fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_woken.take() {
            return Poll::Ready(());
        }
        self.task.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// The stream of this number, if it is being answered.
    pub fn stream(&self, id: u32) -> Option<Rc<Http2>> {
        let streams = self.streams.borrow();
        let at = streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        Some(streams[at].clone())
    }

    /// Takes a stream up, whose number is higher than those before.
    pub fn open(self: &Rc<Self>, id: u32, is_tunnel: bool, has_ended: bool) -> Rc<Http2> {
        let stream = Rc::new(Http2::new(id, self.clone(), is_tunnel, has_ended));
        self.streams.borrow_mut().push(stream.clone());
        stream
    }

    /// Has the next stream send that waits for its turn, unless one has its turn already.
    pub fn give_turn(&self) {
        while self.turn.get() == 0 {
            let Some(id) = self.codec.borrow_mut().poll_writable() else { return };
            if let Some(stream) = self.stream(id) {
                self.turn.set(id);
                stream.has_room.set(true);
                wake(&stream.writer);
            }
        }
    }

    /// The turn of a stream is over.
    pub(super) fn end_turn(&self, id: u32) {
        if self.turn.get() == id {
            self.turn.set(0);
            self.give_turn();
        }
    }

    /// Whether nothing is being answered.
    pub fn is_idle(&self) -> bool {
        self.streams.borrow().is_empty()
    }

    /// Whether a tick has something to end.
    pub fn needs_ticks(&self) -> bool {
        !self.is_idle() || !self.ending.borrow().is_empty()
    }

    /// How long a stream's window may stay closed, where it carries a tunnel.
    fn window_limit(&self, id: u32) -> Option<Duration> {
        self.stream(id)?.tunnel_idle.get()
    }

    /// How long the client may take nothing off the connection: `limit`, unless there is nothing
    /// but tunnels, which may be idle for longer.
    pub fn write_limit(&self, limit: Duration) -> Duration {
        let streams = self.streams.borrow();
        let idle = streams.iter().map(|stream| stream.tunnel_idle.get()).min().flatten();
        idle.map_or(limit, |idle| idle.max(limit))
    }

    /// Has what is waiting to be written wait no longer than those may that are open now.
    pub fn shorten_write_limit(&self, limit: Duration) {
        self.socket.shorten_write_limit(self.write_limit(limit));
    }

    /// Gives memory back that an idle connection does not need.
    pub fn shrink(&self) {
        self.codec.borrow_mut().shrink();
        self.streams.borrow_mut().shrink_to_fit();
    }

    /// The connection has ended, and with it all streams.
    pub fn cancel_all(&self) {
        let streams = self.streams.borrow().clone();
        streams.iter().for_each(|stream| stream.cancel());
    }

    /// A tick has come: streams that are overdue end, and tunnels that fall quiet while the server
    /// stops.
    pub fn check_deadlines(&self, write_limit: Duration) {
        let now = Self::now();
        // A stream that makes no use of its turn holds nobody up for longer.
        self.turn.set(0);
        loop {
            let mut codec = self.codec.borrow_mut();
            let limit = |id| self.window_limit(id).unwrap_or(write_limit);
            let Some(id) = codec.stalled(now, limit) else { break };
            codec.reset(id, ErrorCode::CANCEL, now);
            drop(codec);
            self.wake();
            if let Some(stream) = self.stream(id) {
                stream.is_expired.set(true);
                stream.cancel();
            }
        }
        let deadlines = &self.accepted.thread.deadlines;
        self.ending.borrow_mut().retain(|&(id, since)| {
            let is_young = since + 1 >= deadlines.now();
            if !is_young {
                self.codec.borrow_mut().reset(id, ErrorCode::NO_ERROR, now);
            }
            is_young
        });
        let quiet = self.accepted.thread.is_stopping().then(|| deadlines.tunnel_quiet());
        for stream in &*self.streams.borrow() {
            if let Some(quiet) = quiet.filter(|_| stream.tunnel_idle.get().is_some()) {
                stream.read_due.set(stream.read_due.get().min(quiet));
            }
            if stream.read_due.get() <= deadlines.now() {
                stream.read_due.set(NEVER);
                stream.is_expired.set(true);
                wake(&stream.reader);
            }
        }
    }
}
