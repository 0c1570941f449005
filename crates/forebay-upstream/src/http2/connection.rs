//! State that the streams of one connection share.
//!
//! Streams write frames into the codec's output buffer, and the connection's task sends them.
//! Received data waits in the `StreamState` of its stream. When the request takes the data, the
//! stream's window opens again. The window of the connection has the largest possible size, so that
//! a stream with unread data does not delay other streams.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_conf::Level;
use forebay_net::deadline::Ticks;
use forebay_net::shared_streams::{SharedStream, SharedStreams, StreamWakers, wake_waiting};
use forebay_net::thread::Thread;
use forebay_wire::http1::Http1Limits;
use forebay_wire::http2::hpack::ListLimits;
use forebay_wire::http2::{self, Cause, Config, ErrorCode, Event, Head, Rule};
use forebay_workers::Life;
use tokio::sync::Notify;

use super::stream::Stream;
use crate::upstream::{self, Backend, Readiness, SharedConnection};

/// Maximum number and maximum total bytes of the interim replies (1xx) to one request.
const MOST_INTERIM: usize = 256;
const INTERIM_BYTES: usize = 64 * 1024;

/// An HTTP/2 connection to a backend, which carries several requests at once.
pub struct Http2Connection {
    pub(super) thread: Rc<Thread>,
    pub(super) link: upstream::BackendConnection,
    pub(super) life: Option<Arc<Life>>,
    pub(super) codec: RefCell<http2::Connection>,
    name: String,
    is_https: bool,
    /// Streams whose head was sent.
    streams: SharedStreams<StreamState>,
    /// Number of reserved streams whose head was not sent yet.
    reserved: Cell<usize>,
    /// True after the backend's settings have arrived; `settled` wakes the requests that wait for
    /// them.
    is_settled: Cell<bool>,
    settled: Notify,
    /// True if the backend's settings have ever allowed a stream.
    has_allowed_streams: Cell<bool>,
    /// True after the first reply on this connection.
    has_answered: Cell<bool>,
    /// True after the first write.
    pub(super) has_written: Cell<bool>,
    is_broken: Cell<bool>,
    /// Reason why the connection failed.
    failure: RefCell<String>,
    /// True if the connection takes no further requests.
    is_retired: Cell<bool>,
    /// Time of the last read.
    heard: Cell<Ticks>,
    /// Time of the PING that tests the connection. Until its answer, the connection gets no
    /// requests.
    pub(super) doubted: Cell<Option<Ticks>>,
    pub(super) idle_time: Duration,
    /// Wakes requests that wait for a stream on one of the thread's connections.
    capacity_changed: Rc<Notify>,
}

/// Received parts of one reply.
#[derive(Default)]
pub(super) struct StreamState {
    pub id: Cell<u32>,
    pub interim: RefCell<VecDeque<Box<Head>>>,
    interim_seen: Cell<(usize, usize)>,
    /// The head, and true if nothing follows.
    pub head: RefCell<Option<(Box<Head>, bool)>>,
    pub data: RefCell<Vec<u8>>,
    /// Trailers as lines.
    pub trailers: RefCell<Vec<u8>>,
    pub end: Cell<Option<StreamEnd>>,
    /// True after the head of the reply has arrived.
    has_begun: Cell<bool>,
    /// True after the whole request was sent.
    pub has_sent: Cell<bool>,
    pub waits: StreamWakers,
    /// Time limit of the current wait for the reply.
    pub patience: Cell<Option<Duration>>,
}

/// Outcome of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The reply is complete.
    Whole,
    /// The backend or the codec reset the stream.
    Reset(Cause),
    /// The backend kept the stream's window closed for too long, or the socket accepted no bytes
    /// within the time limit.
    Stalled,
    /// The backend sent too many interim replies.
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

    fn waits(&self) -> &StreamWakers {
        &self.waits
    }

    fn fail_stalled(&self) {
        self.finish(StreamEnd::Stalled);
    }
}

impl StreamState {
    /// Ends the stream. A second call does not change the recorded end.
    fn finish(&self, end: StreamEnd) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        wake_waiting(&self.waits.reader);
        wake_waiting(&self.waits.writer);
    }

    /// Stores an interim reply. Returns false if the stream has received too many interim replies,
    /// or too many bytes of them.
    fn inform(&self, head: Box<Head>) -> bool {
        let (count, bytes) = self.interim_seen.get();
        let seen = (count + 1, bytes + head.counted);
        self.interim_seen.set(seen);
        self.interim.borrow_mut().push_back(head);
        wake_waiting(&self.waits.reader);
        seen.0 <= MOST_INTERIM && seen.1 <= INTERIM_BYTES
    }
}

impl Http2Connection {
    /// Creates an HTTP/2 connection over `link`. The connection closes after `idle_time` without
    /// requests. [`Http2Connection::run`] drives the connection. Notifies `capacity_changed` when
    /// the connection may be able to take another request.
    pub fn new(
        thread: Rc<Thread>,
        backend: &Backend,
        link: upstream::BackendConnection,
        idle_time: Duration,
        capacity_changed: Rc<Notify>,
    ) -> Rc<Self> {
        let heard = Cell::new(thread.deadlines.now());
        Rc::new(Self {
            thread,
            link,
            life: backend.life().cloned(),
            codec: RefCell::new(http2::Connection::client(config(backend.reply_limits()))),
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
            capacity_changed,
        })
    }

    /// Returns the current time for the codec.
    pub fn now() -> Instant {
        // Use tokio's clock, because tests can pause it.
        tokio::time::Instant::now().into_std()
    }

    /// Returns the backend's name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `:scheme`: `https` if the connection uses TLS, else `http`. Tomcat refuses a scheme
    /// that does not fit the connection.
    pub fn scheme(&self) -> &'static [u8] {
        if self.is_https { b"https" } else { b"http" }
    }

    /// Returns the reason why the connection failed.
    pub fn failure(&self) -> String {
        self.failure.borrow().clone()
    }

    /// Wakes the connection's task, because there is data to write or a stream has ended.
    pub fn wake(&self) {
        self.streams.wake_task();
    }

    /// Completes if the connection's task was woken. Otherwise registers `context` for a wake-up.
    pub fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        self.streams.poll_woken(context)
    }

    /// Refuses further requests. The connection is closed when its current requests have ended.
    pub fn retire(&self) {
        self.is_retired.set(true);
        self.wake();
    }

    /// If the connection is idle, checks with a system call if the backend has closed it. Marks a
    /// closed connection as broken at once, because the connection's task may detect the close only
    /// later.
    pub async fn look(&self) {
        if !self.is_idle() || self.is_broken.get() {
            return;
        }
        match self.link.socket.peek() {
            None => {}
            Some(false) => self.is_broken.set(true),
            // The input may be a GOAWAY, so let the task read it.
            Some(true) => tokio::task::yield_now().await,
        }
    }

    /// Waits until the backend's settings have arrived or the connection is broken.
    pub async fn settle(&self) {
        while !self.is_settled.get() && !self.is_broken.get() {
            self.settled.notified().await;
        }
    }

    /// Returns true if the backend has sent a reply on the connection. The end of such a connection
    /// does not count as a failure of the backend.
    pub fn has_answered(&self) -> bool {
        self.has_answered.get()
    }

    /// Returns true if the backend has sent its settings.
    pub fn has_settings(&self) -> bool {
        self.is_settled.get()
    }

    /// Returns true if no stream is open or reserved.
    pub fn is_idle(&self) -> bool {
        self.reserved.get() == 0 && self.streams.is_empty()
    }

    /// Returns true if a time limit applies to a stream or to a PING.
    pub fn needs_ticks(&self) -> bool {
        self.doubted.get().is_some() || !self.streams.is_empty()
    }

    /// Returns true if a reply has begun and is not complete.
    pub fn has_partial_replies(&self) -> bool {
        self.streams.any(|stream| stream.has_begun.get() && stream.end.get().is_none())
    }

    /// Reserves a stream. The caller has checked that the backend allows another stream.
    pub fn reserve(self: &Rc<Self>) -> Stream {
        self.reserved.set(self.reserved.get() + 1);
        Stream::new(self.clone())
    }

    /// Ends a reservation. `used` is the opened stream, or `None` if none was opened.
    pub fn release(&self, used: Option<Rc<StreamState>>) {
        self.reserved.set(self.reserved.get() - 1);
        match used {
            Some(state) => self.streams.push(state),
            None => self.capacity_changed.notify_one(),
        }
        self.wake();
    }

    /// Drops a stream that its request no longer needs. If the request or the reply is incomplete,
    /// resets the stream.
    pub fn forget(&self, state: &StreamState) {
        let id = state.id.get();
        self.streams.remove(id);
        let mut codec = self.codec.borrow_mut();
        if state.end.get() == Some(StreamEnd::Whole) && state.has_sent.get() {
            codec.discard(id, Self::now());
        } else {
            codec.reset(id, ErrorCode::CANCEL, Self::now());
        }
        drop(codec);
        self.end_turn(id);
        self.wake();
        self.capacity_changed.notify_one();
    }

    /// Lets the next waiting stream fill the output. Does nothing while another stream fills it.
    pub fn give_turn(&self) {
        self.streams.give_turn(&self.codec);
    }

    /// Records that a stream no longer fills the output, so that another stream may send.
    pub fn end_turn(&self, id: u32) {
        self.streams.end_turn(id, &self.codec);
    }

    /// Records that bytes were read from the backend.
    pub fn heard(&self) {
        self.heard.set(self.thread.deadlines.now());
        if let Some(life) = &self.life {
            life.record();
        }
    }

    /// Sends a PING, because a request has waited too long for its reply. The wait began at
    /// `since`. Does nothing if the backend has sent any bytes after `since`, or if an earlier PING
    /// is unanswered.
    pub fn doubt(&self, since: Ticks) {
        if self.heard.get() > since || self.doubted.get().is_some() {
            return;
        }
        self.doubted.set(Some(self.thread.deadlines.now()));
        self.codec.borrow_mut().ping(Self::now());
        self.wake();
    }

    /// Passes an event to the stream that it concerns. The event's data is a range of `input`.
    pub fn handle(&self, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, head, end } => match self.streams.find(stream) {
                Some(state) => {
                    self.has_answered.set(true);
                    state.has_begun.set(true);
                    *state.head.borrow_mut() = Some((head, end));
                    wake_waiting(&state.waits.reader);
                    if end {
                        state.finish(StreamEnd::Whole);
                    }
                }
                None => self.codec.borrow_mut().recycle(head),
            },
            Event::Interim { stream, head } => {
                let Some(state) = self.streams.find(stream) else { return };
                if !state.inform(head) {
                    let now = Self::now();
                    self.codec.borrow_mut().reset(stream, ErrorCode::ENHANCE_YOUR_CALM, now);
                    state.finish(StreamEnd::Interim);
                }
            }
            Event::Data { stream, data, end } => match self.streams.find(stream) {
                Some(state) => {
                    state.data.borrow_mut().extend_from_slice(&input[data]);
                    wake_waiting(&state.waits.reader);
                    if end {
                        state.finish(StreamEnd::Whole);
                    }
                }
                None => self.codec.borrow_mut().discard(stream, Self::now()),
            },
            Event::Trailers { stream, head } => {
                if let Some(state) = self.streams.find(stream) {
                    head.write_trailers(&mut state.trailers.borrow_mut());
                    state.finish(StreamEnd::Whole);
                }
                self.codec.borrow_mut().recycle(head);
            }
            Event::Reset { stream, cause } => {
                if let Some(state) = self.streams.find(stream) {
                    state.finish(StreamEnd::Reset(cause));
                    self.end_turn(stream);
                }
                if let Cause::Rule(Rule::Abuse(_)) = cause {
                    self.thread.log_limited(Level::Warn, &format!("{}: {cause:?}", self.name));
                }
            }
            Event::Goaway { code } if code != ErrorCode::NO_ERROR => {
                let line = format!("{} ended an HTTP/2 connection: {code}", self.name);
                self.thread.log_limited(Level::Warn, &line);
                self.fail_unanswered(format!("the backend ended it with GOAWAY ({code})"));
            }
            Event::Settings => {
                let allows_streams = !self.codec.borrow().allows_no_streams();
                self.has_allowed_streams.set(self.has_allowed_streams.get() || allows_streams);
                self.is_settled.set(true);
                self.settled.notify_waiters();
            }
            // A GOAWAY without an error needs nothing here, because the codec handles it. The other
            // two events occur only at servers.
            Event::Goaway { .. } | Event::Unacceptable { .. } | Event::Refused { .. } => {}
        }
    }

    /// Fails the streams whose reply has not begun.
    fn fail_unanswered(&self, why: String) {
        // After a GOAWAY with an error code, a backend must close the connection (RFC 9113 section
        // 5.4.1). But a faulty backend may leave it open and send nothing more. So do not wait for
        // the close.
        *self.failure.borrow_mut() = why;
        let unanswered = |stream: &&Rc<StreamState>| !stream.has_begun.get();
        self.streams
            .all()
            .iter()
            .filter(unanswered)
            .for_each(|s| s.finish(StreamEnd::ConnectionLost));
    }

    /// Returns true if the backend's settings have never allowed a stream on this connection.
    /// Returns false if no settings have arrived, or if the connection takes no further requests
    /// for another reason.
    pub fn is_refusing(&self) -> bool {
        let allows_none = self.is_settled.get() && !self.has_allowed_streams.get();
        allows_none && !self.is_broken()
    }

    /// Returns true if the backend has stopped allowing streams, and the last stream has ended. The
    /// pool may then open another connection.
    fn is_spent(&self) -> bool {
        self.has_allowed_streams.get() && self.codec.borrow().allows_no_streams() && self.is_idle()
    }

    /// Wakes requests that wait for a stream.
    pub fn announce_capacity(&self) {
        self.capacity_changed.notify_one();
    }

    /// Marks the connection as broken and fails all its streams.
    pub fn fail(&self, why: String) {
        self.is_broken.set(true);
        *self.failure.borrow_mut() = why;
        let end = match self.has_written.get() {
            // While there are streams, reads from the socket have no time limit. So the limit of a
            // write has expired.
            _ if self.link.socket.is_expired() => StreamEnd::Stalled,
            true => StreamEnd::ConnectionLost,
            false => StreamEnd::Unsent,
        };
        self.streams.all().iter().for_each(|stream| stream.finish(end));
        self.settled.notify_waiters();
        self.announce_capacity();
    }

    /// Returns the time limit for a write: the idle limit of tunnels if all streams are tunnels,
    /// else `limit`.
    pub fn write_limit(&self, limit: Duration) -> Duration {
        self.streams.write_limit(limit)
    }

    /// Ends the streams whose time limit is over. The task calls this function at each tick (100
    /// ms).
    pub fn check_deadlines(&self, write_limit: Duration) {
        self.streams.end_stalled(&self.codec, write_limit, Self::now());
        self.streams.expire_reads(self.thread.deadlines.now(), None);
    }

    /// Returns true if the connection can be closed.
    pub fn is_finished(&self) -> bool {
        self.is_idle() && self.is_broken()
    }
}

impl SharedConnection for Http2Connection {
    type Stream = Stream;

    fn begin(self: &Rc<Self>) -> Option<Stream> {
        let reserved = self.reserved.get();
        // Until the settings arrive, the backend's limit is unknown. So allow only one stream.
        let may_begin = self.is_settled.get() || self.is_idle();
        let has_room = self.codec.borrow().available() > reserved;
        let is_shunned = self.doubted.get().is_some() || self.link.socket.is_expired();
        if !may_begin || !has_room || is_shunned || self.is_broken() {
            return None;
        }
        // The idle limit could expire before the connection's task runs, so remove it here.
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

// Limits and windows of a connection to a backend.

/// Size of the output buffer, in bytes.
// The first window of a server is 65,535 bytes. The buffer has space for this data and its frame
// heads, so one write sends all of it. A buffer of 64 KiB would leave 35 bytes for a separate DATA
// frame. Tomcat counts such small frames against a connection, and answers them with window
// updates.
const OUTPUT: usize = 128 * 1024;

/// Bytes that the receive windows of all streams may have together, in addition to 1 MB for each
/// stream. Data in transit to a client does not count.
// With this limit, Tomcat rarely waits for window updates during a large reply, and needs 17 % less
// CPU time. The kernel's buffer of a socket may use as much memory.
const SHARED_WINDOW_LIMIT: u32 = 16 * 1024 * 1024;

/// Largest window that the protocol allows.
const LARGEST_WINDOW: u32 = 0x7fff_ffff;

/// Returns the limits for a backend's frames.
pub(super) fn config(limits: Http1Limits) -> Config {
    Config {
        list: ListLimits { size: limits.head, fields: limits.fields },
        output: OUTPUT,
        shared_window_limit: SHARED_WINDOW_LIMIT,
        connection_window: LARGEST_WINDOW,
        connection_window_limit: LARGEST_WINDOW,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::http2::{Connection, RequestPseudo};

    use super::*;

    #[test]
    fn the_window_that_servers_open_with_goes_by_one_write() {
        let mut codec = Connection::client(config(Http1Limits::default()));
        let request = RequestPseudo { method: b"POST", path: b"/", ..RequestPseudo::default() };
        let id = codec.send_request(&request, [], false).unwrap();
        let mut send = |_| codec.send_data(id, &[0; 16_257], false, Instant::now()).unwrap();
        let taken: usize = (0..5).map(&mut send).sum();
        assert_eq!(taken, 65_535);
    }
}
