//! What the streams of one connection share.
//!
//! What a stream sends goes into the output of the codec, where that of all gathers until the
//! connection's task writes it; what comes for it waits in its state until it is taken, which opens
//! its window. The window of the connection is as large as can be, so that streams that nobody reads
//! hold up none but themselves.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_engine::{SharedStream, SharedStreams, Thread, Ticks, Waits, wake_waiting};
use forebay_wire::http2::{self, Cause, ErrorCode, Event, Head, Rule};
use forebay_workers::Life;
use tokio::sync::Notify;

use super::config::config;
use super::stream::Stream;
use crate::upstream::{self, Backend, Readiness, SharedConnection};

/// Interim replies in front of one reply, and their bytes.
const MOST_INTERIM: usize = 256;
const INTERIM_BYTES: usize = 64 * 1024;

/// A connection that requests share.
pub struct Connection {
    pub(super) thread: Rc<Thread>,
    pub(super) link: upstream::Connection,
    pub(super) life: Option<Arc<Life>>,
    pub(super) codec: RefCell<http2::Connection>,
    name: String,
    is_https: bool,
    /// Those whose head was sent.
    streams: SharedStreams<StreamState>,
    /// Places that were given, and of which no head was sent yet.
    reserved: Cell<usize>,
    /// The backend's settings have come, which are told to those who wait for them.
    is_settled: Cell<bool>,
    settled: Notify,
    /// The backend's settings have allowed a stream at some time.
    has_allowed_streams: Cell<bool>,
    /// A request has been answered by it.
    has_answered: Cell<bool>,
    /// Something has been written to it.
    pub(super) has_written: Cell<bool>,
    is_broken: Cell<bool>,
    /// Why it broke.
    failure: RefCell<String>,
    /// Nobody will ask for further places.
    is_retired: Cell<bool>,
    /// When something was read last.
    heard: Cell<Ticks>,
    /// Since when it is asked whether it lives: it gets no requests meanwhile.
    pub(super) doubted: Cell<Option<Ticks>>,
    pub(super) idle_time: Duration,
    /// Whoever waits for room on one of the thread's connections.
    room: Rc<Notify>,
}

/// What came for one stream.
#[derive(Default)]
pub(super) struct StreamState {
    pub id: Cell<u32>,
    pub interim: RefCell<VecDeque<Box<Head>>>,
    interim_seen: Cell<(usize, usize)>,
    /// The head, and whether nothing follows.
    pub head: RefCell<Option<(Box<Head>, bool)>>,
    pub data: RefCell<Vec<u8>>,
    /// As lines.
    pub trailers: RefCell<Vec<u8>>,
    pub end: Cell<Option<End>>,
    /// The head of the reply has come.
    has_begun: Cell<bool>,
    /// Our side has ended.
    pub has_sent: Cell<bool>,
    pub waits: Waits,
    /// How long whoever waits for the reply does so.
    pub patience: Cell<Option<Duration>>,
}

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The reply is whole.
    Whole,
    /// It was reset.
    Reset(Cause),
    /// The backend opened no window for too long.
    Stalled,
    /// Interim replies without end.
    Interim,
    /// The connection has ended.
    ConnectionLost,
    /// The connection has ended before anything was written to it.
    Unsent,
}

impl SharedStream for StreamState {
    fn id(&self) -> u32 {
        self.id.get()
    }

    fn waits(&self) -> &Waits {
        &self.waits
    }

    fn fail_stalled(&self) {
        self.finish(End::Stalled);
    }
}

impl StreamState {
    /// The first end counts.
    fn finish(&self, end: End) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        wake_waiting(&self.waits.reader);
        wake_waiting(&self.waits.writer);
    }

    /// Takes an interim reply up; false where there are too many.
    fn inform(&self, head: Box<Head>) -> bool {
        let (count, bytes) = self.interim_seen.get();
        let seen = (count + 1, bytes + head.fields.bytes().len());
        self.interim_seen.set(seen);
        self.interim.borrow_mut().push_back(head);
        wake_waiting(&self.waits.reader);
        seen.0 <= MOST_INTERIM && seen.1 <= INTERIM_BYTES
    }
}

impl Connection {
    /// A connection over `link`, which is closed when it was idle for `idle_time`. It is used once
    /// [`Connection::run`] runs. `room` is told when it may have room again.
    pub fn new(
        thread: Rc<Thread>,
        backend: &Backend,
        link: upstream::Connection,
        idle_time: Duration,
        room: Rc<Notify>,
    ) -> Rc<Self> {
        let heard = Cell::new(thread.deadlines.now());
        Rc::new(Self {
            thread,
            link,
            life: backend.life().cloned(),
            codec: RefCell::new(http2::Connection::client(config())),
            name: backend.name().to_owned(),
            is_https: backend.is_https(),
            streams: SharedStreams::default(),
            reserved: Cell::new(0),
            is_settled: Cell::new(false),
            settled: Notify::new(),
            has_allowed_streams: Cell::new(false),
            has_answered: Cell::new(false),
            has_written: Cell::new(false),
            is_broken: Cell::new(false),
            failure: RefCell::default(),
            is_retired: Cell::new(false),
            heard,
            doubted: Cell::new(None),
            idle_time,
            room,
        })
    }

    /// The time as the codec takes it.
    pub fn now() -> Instant {
        // Of tokio, so that it stands still where that does.
        tokio::time::Instant::now().into_std()
    }

    /// What messages call the backend.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What `:scheme` says: the transport's, which Tomcat compares.
    pub fn scheme(&self) -> &'static [u8] {
        if self.is_https { b"https" } else { b"http" }
    }

    /// Why it broke.
    pub fn failure(&self) -> String {
        self.failure.borrow().clone()
    }

    /// Has the task of the connection run: there is something to write, or a stream has ended.
    pub fn wake(&self) {
        self.streams.wake_task();
    }

    /// Whether the task of the connection was woken; if not, it is from now on by `context`.
    pub fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        self.streams.poll_woken(context)
    }

    /// Takes no further requests, and is closed when those under way have ended.
    pub fn retire(&self) {
        self.is_retired.set(true);
        self.wake();
    }

    /// Notices a close that came unseen, where nothing is under way. A system call.
    pub async fn look(&self) {
        if !self.is_idle() || self.is_broken.get() {
            return;
        }
        match self.link.socket.peek() {
            None => {}
            Some(false) => self.is_broken.set(true),
            // Its task reads what has come: a GOAWAY perhaps.
            Some(true) => tokio::task::yield_now().await,
        }
    }

    /// Waits for the backend's settings.
    pub async fn settle(&self) {
        while !self.is_settled.get() && !self.is_broken.get() {
            self.settled.notified().await;
        }
    }

    /// Whether a request has been answered by it: that it ends then says little about the backend.
    pub fn has_answered(&self) -> bool {
        self.has_answered.get()
    }

    /// Whether the backend has sent its settings.
    pub fn has_settings(&self) -> bool {
        self.is_settled.get()
    }

    /// Whether no request is under way or about to be.
    pub fn is_idle(&self) -> bool {
        self.reserved.get() == 0 && self.streams.is_empty()
    }

    /// Whether a stream waits for something that takes time.
    pub fn needs_ticks(&self) -> bool {
        self.doubted.get().is_some() || !self.streams.is_empty()
    }

    /// Gives a place, for which there is room.
    pub fn reserve(self: &Rc<Self>) -> Stream {
        self.reserved.set(self.reserved.get() + 1);
        Stream::new(self.clone())
    }

    /// A place that was given is used, or given back.
    pub fn release(&self, used: Option<Rc<StreamState>>) {
        self.reserved.set(self.reserved.get() - 1);
        match used {
            Some(state) => self.streams.push(state),
            None => self.room.notify_one(),
        }
        self.wake();
    }

    /// Nobody waits for what comes for this stream any more.
    pub fn forget(&self, state: &StreamState) {
        let id = state.id.get();
        self.streams.remove(id);
        let mut codec = self.codec.borrow_mut();
        if state.end.get() == Some(End::Whole) && state.has_sent.get() {
            codec.discard(id, Self::now());
        } else {
            codec.reset(id, ErrorCode::CANCEL, Self::now());
        }
        drop(codec);
        self.end_turn(id);
        self.wake();
        self.room.notify_one();
    }

    /// Has the next stream send that waits for its turn, unless one has its turn already.
    pub fn give_turn(&self) {
        self.streams.give_turn(&self.codec);
    }

    /// The turn of a stream is over.
    pub fn end_turn(&self, id: u32) {
        self.streams.end_turn(id, &self.codec);
    }

    /// Something was read.
    pub fn heard(&self) {
        self.heard.set(self.thread.deadlines.now());
        if let Some(life) = &self.life {
            life.record();
        }
    }

    /// A reply did not come in time, for which was waited since `since`. If nothing else came
    /// either, the backend is asked whether it lives.
    pub fn doubt(&self, since: Ticks) {
        if self.heard.get() > since || self.doubted.get().is_some() {
            return;
        }
        self.doubted.set(Some(self.thread.deadlines.now()));
        self.codec.borrow_mut().ping(Self::now());
        self.wake();
    }

    /// Gives an event to the stream that it is for; `input` is what its data is a range of.
    pub fn handle(&self, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, head, end } => match self.streams.find(stream) {
                Some(state) => {
                    self.has_answered.set(true);
                    state.has_begun.set(true);
                    *state.head.borrow_mut() = Some((head, end));
                    wake_waiting(&state.waits.reader);
                    if end {
                        state.finish(End::Whole);
                    }
                }
                None => self.codec.borrow_mut().recycle(head),
            },
            Event::Interim { stream, head } => {
                let Some(state) = self.streams.find(stream) else { return };
                if !state.inform(head) {
                    let now = Self::now();
                    self.codec.borrow_mut().reset(stream, ErrorCode::ENHANCE_YOUR_CALM, now);
                    state.finish(End::Interim);
                }
            }
            Event::Data { stream, data, end } => match self.streams.find(stream) {
                Some(state) => {
                    state.data.borrow_mut().extend_from_slice(&input[data]);
                    wake_waiting(&state.waits.reader);
                    if end {
                        state.finish(End::Whole);
                    }
                }
                None => self.codec.borrow_mut().discard(stream, Self::now()),
            },
            Event::Trailers { stream, head } => {
                if let Some(state) = self.streams.find(stream) {
                    head.write_trailers(&mut state.trailers.borrow_mut());
                    state.finish(End::Whole);
                }
                self.codec.borrow_mut().recycle(head);
            }
            Event::Reset { stream, cause } => {
                if let Some(state) = self.streams.find(stream) {
                    state.finish(End::Reset(cause));
                    self.end_turn(stream);
                }
                if let Cause::Rule(Rule::Abuse(_)) = cause {
                    self.thread.warn_limited(&format!("{}: {cause:?}", self.name));
                }
            }
            Event::Goaway { code } if code != ErrorCode::NO_ERROR => {
                let line = format!("{} ends a connection of HTTP/2: {code}", self.name);
                self.thread.warn_limited(&line);
                self.fail_unanswered(format!("it was ended by GOAWAY ({code})"));
            }
            Event::Settings => {
                let allows_streams = !self.codec.borrow().allows_no_streams();
                self.has_allowed_streams.set(self.has_allowed_streams.get() || allows_streams);
                self.is_settled.set(true);
                self.settled.notify_waiters();
            }
            // A server's alone, but for GOAWAY, of which the codec knows.
            Event::Goaway { .. } | Event::Unacceptable { .. } | Event::Refused { .. } => {}
        }
    }

    /// Fails the streams whose reply has not begun. A GOAWAY with an error code ends the connection
    /// (RFC 9113 section 5.4.1), but a backend that is at fault may leave it open without a word.
    fn fail_unanswered(&self, why: String) {
        *self.failure.borrow_mut() = why;
        let unanswered = |stream: &&Rc<StreamState>| !stream.has_begun.get();
        self.streams.all().iter().filter(unanswered).for_each(|s| s.finish(End::ConnectionLost));
    }

    /// Returns true if the backend allows no streams, and never has on this connection.
    pub fn is_refusing(&self) -> bool {
        let allows_none = self.is_settled.get() && !self.has_allowed_streams.get();
        allows_none && !self.is_broken()
    }

    /// Returns true if the backend has taken back its permission to open streams, and none is left:
    /// another connection may be opened in its place.
    fn is_spent(&self) -> bool {
        self.has_allowed_streams.get() && self.codec.borrow().allows_no_streams() && self.is_idle()
    }

    /// Those who wait for room look again.
    pub fn announce_room(&self) {
        self.room.notify_one();
    }

    /// It has ended, and with it all streams.
    pub fn fail(&self, why: String) {
        self.is_broken.set(true);
        *self.failure.borrow_mut() = why;
        let end = match self.has_written.get() {
            // Only writing has a limit while there are streams, so it is that which expired.
            _ if self.link.socket.is_expired() => End::Stalled,
            true => End::ConnectionLost,
            false => End::Unsent,
        };
        self.streams.all().iter().for_each(|stream| stream.finish(end));
        self.settled.notify_waiters();
        self.announce_room();
    }

    /// How long the backend may take nothing off the connection: `limit`, unless there is nothing
    /// but tunnels, which may be idle for longer.
    pub fn write_limit(&self, limit: Duration) -> Duration {
        self.streams.write_limit(limit)
    }

    /// A tick has come: streams that are overdue end.
    pub fn check_deadlines(&self, write_limit: Duration) {
        self.streams.end_stalled(&self.codec, write_limit, Self::now());
        self.streams.expire_reads(self.thread.deadlines.now(), None);
    }

    /// Whether it can be closed.
    pub fn is_finished(&self) -> bool {
        self.is_idle() && self.is_broken()
    }
}

impl SharedConnection for Connection {
    type Stream = Stream;

    fn begin(self: &Rc<Self>) -> Option<Stream> {
        let reserved = self.reserved.get();
        // The settings say how many streams there may be: until they come there is one.
        let may_begin = self.is_settled.get() || self.is_idle();
        let has_room = self.codec.borrow().available() > reserved;
        let is_shunned = self.doubted.get().is_some() || self.link.socket.is_expired();
        if !may_begin || !has_room || is_shunned || self.is_broken() {
            return None;
        }
        // At once, as the time for which it may be idle may be over before its task runs.
        self.link.socket.unlimit_read();
        Some(self.reserve())
    }

    fn is_broken(&self) -> bool {
        let is_closing = self.is_broken.get() || self.is_retired.get();
        is_closing || self.codec.borrow().is_exhausted() || self.is_spent()
    }

    fn readiness(&self) -> Readiness {
        match self.is_settled.get() {
            false => Readiness::Unknown,
            true if self.is_refusing() => Readiness::Refusing,
            true => Readiness::Known,
        }
    }
}
