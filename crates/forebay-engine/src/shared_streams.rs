//! The streams of one connection of HTTP/2, on either side of it: whose turn it is to send, what is
//! overdue, and who is woken.
//!
//! One stream at a time has the turn to send, in the codec's order; it loses a turn of which it makes no
//! use until the next tick.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_wire::http2::{self, ErrorCode};

use crate::deadline::{NEVER, Ticks};

/// What a stream waits for, and until when.
pub struct Waits {
    /// Its turn to send has come; taken by the task that sends.
    pub has_room: Cell<bool>,
    /// When the read under way is overdue.
    pub read_due: Cell<Ticks>,
    /// `read_due` has passed, or the stream was reset as stalled.
    pub is_expired: Cell<bool>,
    /// Where it carries a tunnel: how long that may carry nothing.
    pub tunnel_idle: Cell<Option<Duration>>,
    /// Who reads from it.
    pub reader: Cell<Option<Waker>>,
    /// Who writes to it.
    pub writer: Cell<Option<Waker>>,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            has_room: Cell::new(false),
            read_due: Cell::new(NEVER),
            is_expired: Cell::new(false),
            tunnel_idle: Cell::new(None),
            reader: Cell::new(None),
            writer: Cell::new(None),
        }
    }
}

/// Wakes who waits, if anybody does.
pub fn wake_waiting(waiting: &Cell<Option<Waker>>) {
    if let Some(waiting) = waiting.take() {
        waiting.wake();
    }
}

/// A stream that shares a connection.
pub trait SharedStream {
    /// Its number.
    fn id(&self) -> u32;

    /// What it waits for.
    fn waits(&self) -> &Waits;

    /// The peer has opened no window for too long: it was reset.
    fn fail_stalled(&self);
}

/// The streams of one connection, and its task.
pub struct SharedStreams<S> {
    /// In the order of their numbers.
    list: RefCell<Vec<Rc<S>>>,
    /// The stream whose turn it is to send, until it has; 0 where it is nobody's.
    turn: Cell<u32>,
    task: Cell<Option<Waker>>,
    is_woken: Cell<bool>,
}

impl<S> Default for SharedStreams<S> {
    fn default() -> Self {
        Self {
            list: RefCell::default(),
            turn: Cell::new(0),
            task: Cell::new(None),
            is_woken: Cell::new(false),
        }
    }
}

impl<S: SharedStream> SharedStreams<S> {
    /// Has the task of the connection run: there is something to write, or a stream has ended.
    pub fn wake_task(&self) {
        if !self.is_woken.replace(true) {
            wake_waiting(&self.task);
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

    /// Takes a stream up, whose number is higher than those before.
    pub fn push(&self, stream: Rc<S>) {
        self.list.borrow_mut().push(stream);
    }

    /// Leaves a stream out from now on.
    pub fn remove(&self, id: u32) {
        let mut list = self.list.borrow_mut();
        if let Ok(at) = list.binary_search_by_key(&id, |stream| stream.id()) {
            list.remove(at);
        }
    }

    /// The stream of this number.
    pub fn find(&self, id: u32) -> Option<Rc<S>> {
        let list = self.list.borrow();
        let at = list.binary_search_by_key(&id, |stream| stream.id()).ok()?;
        Some(list[at].clone())
    }

    /// All of them.
    pub fn all(&self) -> Vec<Rc<S>> {
        self.list.borrow().clone()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Gives memory back.
    pub fn shrink(&self) {
        self.list.borrow_mut().shrink_to_fit();
    }

    /// Has the next stream send that waits for its turn, unless one has its turn already.
    pub fn give_turn(&self, codec: &RefCell<http2::Connection>) {
        while self.turn.get() == 0 {
            let Some(id) = codec.borrow_mut().poll_writable() else { return };
            if let Some(stream) = self.find(id) {
                self.turn.set(id);
                stream.waits().has_room.set(true);
                wake_waiting(&stream.waits().writer);
            }
        }
    }

    /// The turn of a stream is over.
    pub fn end_turn(&self, id: u32, codec: &RefCell<http2::Connection>) {
        if self.turn.get() == id {
            self.turn.set(0);
            self.give_turn(codec);
        }
    }

    /// How long the peer may take nothing off the connection: `limit`, unless there is nothing but
    /// tunnels, which may be idle for longer.
    pub fn write_limit(&self, limit: Duration) -> Duration {
        let list = self.list.borrow();
        let idle = list.iter().map(|stream| stream.waits().tunnel_idle.get()).min().flatten();
        idle.map_or(limit, |idle| idle.max(limit))
    }

    /// A tick has come: resets the streams whose window the peer has left closed for `write_limit`, or
    /// as long as a tunnel may be idle.
    pub fn end_stalled(
        &self,
        codec: &RefCell<http2::Connection>,
        write_limit: Duration,
        now: Instant,
    ) {
        // A stream that makes no use of its turn holds nobody up for longer.
        self.turn.set(0);
        let idle = |id| self.find(id)?.waits().tunnel_idle.get();
        loop {
            let mut locked = codec.borrow_mut();
            let limit = |id| idle(id).unwrap_or(write_limit);
            let Some(id) = locked.stalled(now, limit) else { return };
            locked.reset(id, ErrorCode::CANCEL, now);
            drop(locked);
            self.wake_task();
            if let Some(stream) = self.find(id) {
                stream.fail_stalled();
            }
        }
    }

    /// Wakes the readers of streams that are overdue; those of tunnels are at `quiet`, where that is
    /// given.
    pub fn expire_reads(&self, now: Ticks, quiet: Option<Ticks>) {
        for stream in &*self.list.borrow() {
            let waits = stream.waits();
            if let Some(quiet) = quiet.filter(|_| waits.tunnel_idle.get().is_some()) {
                waits.read_due.set(waits.read_due.get().min(quiet));
            }
            if waits.read_due.get() <= now {
                waits.read_due.set(NEVER);
                waits.is_expired.set(true);
                wake_waiting(&waits.reader);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::http2::{Config, Connection, RequestPseudo};

    use super::*;

    #[derive(Default)]
    struct One {
        id: u32,
        waits: Waits,
        has_stalled: Cell<bool>,
    }

    impl SharedStream for One {
        fn id(&self) -> u32 {
            self.id
        }

        fn waits(&self) -> &Waits {
            &self.waits
        }

        fn fail_stalled(&self) {
            self.has_stalled.set(true);
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    /// A connection with this many streams, each of which has more to send than there is room for.
    fn streams(count: usize, now: Instant) -> (RefCell<Connection>, SharedStreams<One>) {
        let mut codec = Connection::client(Config { output: 1_000, ..Config::default() });
        let streams = SharedStreams::default();
        let request = RequestPseudo { method: b"POST", path: b"/", ..RequestPseudo::default() };
        for _ in 0..count {
            let id = codec.send_request(&request, [], false).unwrap();
            streams.push(Rc::new(One { id, ..One::default() }));
        }
        codec.wrote(codec.output().len());
        streams.all().iter().for_each(|stream| {
            codec.send_data(stream.id, &[0; 100_000], true, now).unwrap();
        });
        codec.wrote(codec.output().len());
        (RefCell::new(codec), streams)
    }

    #[test]
    fn streams_take_turns_and_one_that_makes_no_use_of_its_turn_loses_it() {
        let now = Instant::now();
        let (codec, streams) = streams(2, now);
        let with_room = || {
            let all = streams.all();
            let with_room = all.iter().filter(|stream| stream.waits.has_room.take());
            with_room.map(|stream| stream.id).collect::<Vec<_>>()
        };
        streams.give_turn(&codec);
        let first = with_room();
        assert_eq!(first.len(), 1);
        streams.give_turn(&codec);
        assert!(with_room().is_empty(), "it has its turn");
        let second = 4 - first[0];
        streams.end_turn(second, &codec);
        assert!(with_room().is_empty(), "not the other's to end");
        streams.end_turn(first[0], &codec);
        assert_eq!(with_room(), [second]);
        // It sends nothing until the next tick.
        codec.borrow_mut().send_data(first[0], &[0; 100_000], true, now).unwrap();
        streams.end_stalled(&codec, LIMIT, now);
        let length = codec.borrow().output().len();
        codec.borrow_mut().wrote(length);
        streams.give_turn(&codec);
        assert_eq!(with_room(), [first[0]]);
    }

    #[test]
    fn a_stream_whose_window_stays_closed_is_reset_and_a_tunnel_may_be_idle_for_longer() {
        let now = Instant::now();
        let (codec, streams) = streams(1, now);
        let stream = streams.find(1).unwrap();
        // It uses the window up.
        for _ in 0..100 {
            codec.borrow_mut().send_data(1, &[0; 100_000], true, now).unwrap();
            let length = codec.borrow().output().len();
            codec.borrow_mut().wrote(length);
        }
        stream.waits.tunnel_idle.set(Some(LIMIT * 3));
        assert_eq!(streams.write_limit(LIMIT), LIMIT * 3);
        streams.end_stalled(&codec, LIMIT, now + LIMIT * 2);
        assert!(!stream.has_stalled.get());
        stream.waits.tunnel_idle.set(None);
        assert_eq!(streams.write_limit(LIMIT), LIMIT);
        streams.end_stalled(&codec, LIMIT, now + LIMIT * 2);
        assert!(stream.has_stalled.get() && !codec.borrow().output().is_empty());
    }

    #[test]
    fn reads_expire_once_and_those_of_tunnels_early_where_the_server_stops() {
        let (_, streams) = streams(2, Instant::now());
        let all = streams.all();
        all[1].waits.tunnel_idle.set(Some(LIMIT));
        all.iter().for_each(|stream| stream.waits.read_due.set(10));
        streams.expire_reads(9, None);
        assert!(all.iter().all(|stream| !stream.waits.is_expired.get()));
        streams.expire_reads(9, Some(9));
        assert_eq!(all[0].waits.read_due.get(), 10);
        assert!(!all[0].waits.is_expired.get() && all[1].waits.is_expired.get());
        streams.expire_reads(10, None);
        assert!(all[0].waits.is_expired.get());
        assert!(all.iter().all(|stream| stream.waits.read_due.get() == NEVER));
    }
}
