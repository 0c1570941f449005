//! The streams of one HTTP/2 connection, as server or client. Decides which stream may send, and
//! keeps deadlines and wakers.
//!
//! Only one stream may send at a time: it has the *turn*. The codec decides which stream gets the
//! next turn. A turn ends after at most one tick (100 ms), so that a stream that does not send
//! cannot block the others.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_wire::http2::{self, ErrorCode};

use crate::deadline::{NEVER, Ticks};

/// Wakers of the tasks that wait for a stream, and deadlines.
pub struct StreamWakers {
    /// True if the stream got the turn to send. The sending task resets the flag.
    pub has_room: Cell<bool>,
    /// Deadline of the current read.
    pub read_due: Cell<Ticks>,
    /// True if `read_due` has passed or the stream was reset because it stalled.
    pub is_expired: Cell<bool>,
    /// Maximum idle time of the tunnel, if the stream carries one.
    pub tunnel_idle: Cell<Option<Duration>>,
    /// Maximum time that the peer may accept nothing, if the stream has a limit of its own.
    pub write_limit: Cell<Option<Duration>>,
    /// Waker of the task that reads.
    pub reader: Cell<Option<Waker>>,
    /// Waker of the task that writes.
    pub writer: Cell<Option<Waker>>,
}

impl Default for StreamWakers {
    fn default() -> Self {
        Self {
            has_room: Cell::new(false),
            read_due: Cell::new(NEVER),
            is_expired: Cell::new(false),
            tunnel_idle: Cell::new(None),
            write_limit: Cell::new(None),
            reader: Cell::new(None),
            writer: Cell::new(None),
        }
    }
}

/// Wakes the waiting task, if any.
pub fn wake_waiting(waiting: &Cell<Option<Waker>>) {
    if let Some(waiting) = waiting.take() {
        waiting.wake();
    }
}

/// A stream that shares a connection.
pub trait SharedStream {
    /// Returns the number of the stream.
    fn id(&self) -> u32;

    /// Returns the wakers and deadlines.
    fn waits(&self) -> &StreamWakers;

    /// Handles the end of a stream that this side has reset, because the peer has accepted no bytes
    /// for too long.
    fn fail_stalled(&self);
}

/// The streams of one connection, and the waker of its task.
pub struct SharedStreams<S> {
    /// The streams, sorted by number.
    list: RefCell<Vec<Rc<S>>>,
    /// Number of the stream that has the turn to send. 0 if no stream has the turn.
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
    /// Wakes the connection's task, because there are bytes to write or a stream has ended.
    pub fn wake_task(&self) {
        if !self.is_woken.replace(true) {
            wake_waiting(&self.task);
        }
    }

    /// Completes if the connection's task was woken. Otherwise registers `context` for the next
    /// wake-up.
    pub fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_woken.take() {
            return Poll::Ready(());
        }
        self.task.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Adds a stream. Its number must be higher than the numbers of all earlier streams.
    pub fn push(&self, stream: Rc<S>) {
        self.list.borrow_mut().push(stream);
    }

    /// Removes a stream.
    pub fn remove(&self, id: u32) {
        let mut list = self.list.borrow_mut();
        if let Ok(at) = list.binary_search_by_key(&id, |stream| stream.id()) {
            list.remove(at);
        }
    }

    /// Returns the stream with this number, or `None`.
    pub fn find(&self, id: u32) -> Option<Rc<S>> {
        let list = self.list.borrow();
        let at = list.binary_search_by_key(&id, |stream| stream.id()).ok()?;
        Some(list[at].clone())
    }

    /// Returns all streams.
    pub fn all(&self) -> Vec<Rc<S>> {
        self.list.borrow().clone()
    }

    /// Returns true if `is_wanted` is true for a stream.
    pub fn any(&self, is_wanted: impl Fn(&S) -> bool) -> bool {
        self.list.borrow().iter().any(|stream| is_wanted(stream))
    }

    /// Returns true if there are no streams.
    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Releases unused memory.
    pub fn shrink(&self) {
        self.list.borrow_mut().shrink_to_fit();
    }

    /// If no stream has the turn to send, gives the turn to the next stream that waits to send, and
    /// wakes its task.
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

    /// Ends the turn of stream `id`, if it has the turn, and gives the turn to the next stream.
    pub fn end_turn(&self, id: u32, codec: &RefCell<http2::Connection>) {
        if self.turn.get() == id {
            self.turn.set(0);
            self.give_turn(codec);
        }
    }

    /// Returns the time that the peer may take to accept bytes of the connection. This is `limit`,
    /// but at least the shortest and at most the longest limit of all streams. The limit of a
    /// tunnel is its idle limit, but at least `limit`. The limit of a stream without its own limit
    /// is `limit`.
    pub fn write_limit(&self, limit: Duration) -> Duration {
        let list = self.list.borrow();
        let of_stream = |waits: &StreamWakers| match waits.tunnel_idle.get() {
            Some(idle) => idle.max(limit),
            None => waits.write_limit.get().unwrap_or(limit),
        };
        let limits = || list.iter().map(|stream| of_stream(stream.waits()));
        match (limits().min(), limits().max()) {
            (Some(shortest), Some(longest)) => limit.clamp(shortest, longest),
            _ => limit,
        }
    }

    /// Resets the streams whose window the peer has kept closed for too long. The limit is the idle
    /// limit of a tunnel, else the stream's own limit, else `write_limit`. Call this at each tick.
    pub fn end_stalled(
        &self,
        codec: &RefCell<http2::Connection>,
        write_limit: Duration,
        now: Instant,
    ) {
        // End the turn, because a stream that does not use its turn must not block other streams.
        self.turn.set(0);
        let own = |id| {
            let stream = self.find(id)?;
            stream.waits().tunnel_idle.get().or(stream.waits().write_limit.get())
        };
        loop {
            let mut locked = codec.borrow_mut();
            let limit = |id| own(id).unwrap_or(write_limit);
            let Some(id) = locked.stalled(now, limit) else { return };
            locked.reset(id, ErrorCode::CANCEL, now);
            drop(locked);
            self.wake_task();
            if let Some(stream) = self.find(id) {
                stream.fail_stalled();
            }
        }
    }

    /// Wakes the readers of overdue streams. If `quiet` is given, first sets the read deadline of
    /// each tunnel to `quiet`, unless its deadline is earlier.
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
        waits: StreamWakers,
        has_stalled: Cell<bool>,
    }

    impl SharedStream for One {
        fn id(&self) -> u32 {
            self.id
        }

        fn waits(&self) -> &StreamWakers {
            &self.waits
        }

        fn fail_stalled(&self) {
            self.has_stalled.set(true);
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    /// Returns a connection with `count` streams. Each stream has more bytes to send than the
    /// output buffer accepts.
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
        // The second stream makes no use of its turn until the next tick.
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
        // Use up the window.
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
        for limit in [LIMIT * 3, LIMIT / 2] {
            stream.waits.write_limit.set(Some(limit));
            assert_eq!(streams.write_limit(LIMIT), limit);
        }
        stream.waits.write_limit.set(Some(LIMIT * 3));
        streams.end_stalled(&codec, LIMIT, now + LIMIT * 2);
        assert!(!stream.has_stalled.get());
        stream.waits.write_limit.set(None);
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
