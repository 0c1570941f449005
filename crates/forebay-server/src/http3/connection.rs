//! State that the streams of one connection share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use forebay_conf::Level;
use forebay_net::deadline::{Activity, Guest};
use forebay_net::limit::Limit;
use forebay_wire::http2::budget::{self, Budget};
use forebay_wire::http2::hpack::ListLimits;
use forebay_wire::http2::{Head, HeldHeads};
use forebay_wire::http3::{ErrorCode, Http3Error, Rule};
use tokio::sync::Notify;

use super::send_fairness::FairSendQueue;
use crate::part::Accepted;

/// Maximum number of concurrent requests on a connection, as with HTTP/2.
pub(super) const STREAMS: u32 = 100;

/// Maximum total size of incomplete field sections on a connection, in sections of the largest
/// allowed size.
// Usually, only one section of a connection is incomplete. After packet loss on one stream, the
// sections of other streams continue to arrive, so allow several incomplete sections.
const PARTIAL_SECTIONS: usize = 8;

/// The state of one HTTP/3 connection. All streams of the connection share this state.
pub struct Connection {
    /// The QUIC connection.
    pub quic: quinn::Connection,
    /// Addresses, listener and TLS of the connection.
    pub accepted: Accepted,
    /// Reused buffer for decoded heads.
    pub head: RefCell<Head>,
    /// Notified when no stream is open any more.
    pub ended: Notify,
    budget: RefCell<Budget>,
    open: Cell<usize>,
    /// Number of open streams whose head has not arrived.
    reading: Cell<usize>,
    /// The connection's entry among the candidates to close at the limit on connections.
    pub guest: Rc<Guest>,
    /// Total bytes of incomplete field sections (heads and trailers).
    partial: Cell<usize>,
    /// Heads and trailers of the active requests.
    pub(super) held: RefCell<HeldHeads>,
    /// The streams that wait until they can send.
    pub(crate) waiting: FairSendQueue,
}

/// Counts an open stream until this value is dropped, even by a panic.
pub struct Open {
    connection: Rc<Connection>,
    is_reading: Cell<bool>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end_head();
        let connection = &self.connection;
        connection.open.set(connection.open.get() - 1);
        connection.set_activity();
        if connection.is_idle() {
            connection.ended.notify_one();
        }
    }
}

impl Open {
    /// Records that the stream no longer waits for a request head: the head has arrived, or will
    /// never arrive.
    pub fn end_head(&self) {
        if self.is_reading.take() {
            let connection = &self.connection;
            connection.reading.set(connection.reading.get() - 1);
            connection.set_activity();
        }
    }
}

/// Counts the bytes of a stream's incomplete field section.
pub(crate) struct Partial {
    connection: Rc<Connection>,
    bytes: Cell<usize>,
}

impl Partial {
    pub fn new(connection: Rc<Connection>) -> Self {
        Self { connection, bytes: Cell::new(0) }
    }

    /// Sets the current length of the section. Fails if all incomplete sections of the connection
    /// together exceed `PARTIAL_SECTIONS` times the maximum size of a section.
    pub fn set(&self, bytes: usize) -> Result<(), Http3Error> {
        let all = &self.connection.partial;
        all.set(all.get() - self.bytes.replace(bytes) + bytes);
        let most = PARTIAL_SECTIONS.saturating_mul(self.connection.list_limits().size);
        if all.get() > most { Err(Http3Error::abuse()) } else { Ok(()) }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let all = &self.connection.partial;
        all.set(all.get() - self.bytes.get());
    }
}

impl Connection {
    /// Creates the state of a connection without streams.
    pub fn new(quic: quinn::Connection, accepted: Accepted, guest: Rc<Guest>) -> Rc<Self> {
        guest.occupancy.set(Activity::Idle, &accepted.thread.deadlines);
        let largest = accepted.thread.settings().head_limits().head;
        Rc::new(Self {
            quic,
            accepted,
            head: RefCell::default(),
            ended: Notify::new(),
            budget: RefCell::default(),
            open: Cell::new(0),
            reading: Cell::new(0),
            guest,
            partial: Cell::new(0),
            held: RefCell::new(HeldHeads::new(largest, STREAMS)),
            waiting: FairSendQueue::default(),
        })
    }

    /// Counts a new stream until the returned value is dropped.
    pub fn open(self: &Rc<Self>) -> Open {
        self.open.set(self.open.get() + 1);
        self.reading.set(self.reading.get() + 1);
        self.set_activity();
        Open { connection: self.clone(), is_reading: Cell::new(true) }
    }

    fn set_activity(&self) {
        let activity = match (self.open.get(), self.reading.get()) {
            (0, _) => Activity::Idle,
            (open, reading) if open == reading => Activity::PartialHead,
            _ => Activity::Busy,
        };
        self.guest.occupancy.set(activity, &self.accepted.thread.deadlines);
    }

    /// Returns true if no stream is open.
    pub fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// Returns the limits for heads and trailers.
    pub fn list_limits(&self) -> ListLimits {
        let limits = self.accepted.thread.settings().head_limits();
        ListLimits { size: limits.head, fields: limits.fields }
    }

    /// Closes the connection.
    pub fn close(&self, code: ErrorCode) {
        self.quic.close(code.0.into(), b"");
    }

    /// Closes the connection after a protocol error of the client.
    pub fn fail(&self, error: &Http3Error) {
        if error.rule == Rule::Abuse && self.quic.close_reason().is_none() {
            let thread = &self.accepted.thread;
            thread.counters.count_limit(Limit::Http3Frames);
            let peer = self.accepted.peer;
            thread.log_limited(Level::Info, &format!("{error}, from {peer}: connection closed"));
        }
        self.close(error.code);
    }

    /// Releases memory that an idle connection does not need.
    pub fn shrink(&self) {
        self.head.take();
    }

    /// Subtracts the cost of a reset stream from the client's budget, unless the connection has
    /// ended.
    pub(crate) fn charge_reset(&self) {
        // If the connection has ended, this end has reset the stream. So do not charge the client.
        if self.quic.close_reason().is_none() {
            self.charge(budget::RESET);
        }
    }

    /// Reduces the client's budget by `price`, because input of the client has caused useless work
    /// (`http2::budget`). Closes the connection if the budget is exhausted.
    pub fn charge(&self, price: u32) {
        if price > 0 && !self.budget.borrow_mut().spend(price, Instant::now()) {
            self.fail(&Http3Error::abuse());
        }
    }

    /// Increases the client's budget by `amount`, because this connection has done useful work
    /// (`http2::budget`).
    pub(crate) fn earn(&self, amount: u32) {
        self.budget.borrow_mut().earn(amount);
    }

    /// Returns the current progress of sending.
    pub(crate) fn progress(&self) -> Progress {
        let stats = self.quic.stats();
        Progress { sent: stats.frame_tx.stream, acknowledged: stats.frame_rx.acks }
    }
}

/// Numbers of data frames sent and of acknowledgements received.
///
/// The client makes progress only if both numbers grow. Probes to a disconnected client increase
/// only the number of frames. A client that accepts no data may still acknowledge other packets.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    sent: u64,
    acknowledged: u64,
}

impl Progress {
    /// Returns true if the client has accepted data since `before`.
    pub(crate) fn is_beyond(self, before: Self) -> bool {
        self.sent != before.sent && self.acknowledged != before.acknowledged
    }
}
