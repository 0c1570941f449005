//! What the streams of one connection share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use forebay_wire::http2::Head;
use forebay_wire::http2::budget::{self, Budget};
use forebay_wire::http2::hpack::ListLimits;
use forebay_wire::http3::{ErrorCode, Http3Error, Rule};
use tokio::sync::Notify;

use super::room_queue::RoomQueue;
use crate::deadline::{Activity, Guest};
use crate::limit::Limit;
use crate::stream::Accepted;

/// How many field sections of the largest size may be there in part on a connection: clients send one after
/// the other as a rule, and streams do not hold each other up where packets are lost.
const PARTIAL_SECTIONS: usize = 8;

/// What the streams of one connection share.
pub struct Connection {
    /// The connection of QUIC.
    pub quic: quinn::Connection,
    /// Where it comes from.
    pub accepted: Accepted,
    /// Where heads are decoded.
    pub head: RefCell<Head>,
    /// Told whenever a stream has ended.
    pub ended: Notify,
    budget: RefCell<Budget>,
    open: Cell<usize>,
    /// Of those that are open, the ones whose head has not come.
    reading: Cell<usize>,
    /// What the limit on connections knows of it.
    pub guest: Rc<Guest>,
    /// Bytes of field sections that have come in part.
    partial: Cell<usize>,
    /// The streams that wait for room.
    pub(super) waiting: RoomQueue,
}

/// A stream that is counted until it is dropped, even by a panic.
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
        connection.ended.notify_one();
    }
}

impl Open {
    /// Its head has come, or will not.
    pub fn end_head(&self) {
        if self.is_reading.take() {
            let connection = &self.connection;
            connection.reading.set(connection.reading.get() - 1);
            connection.set_activity();
        }
    }
}

/// What has come of a stream's field section that is not whole.
pub(super) struct Partial {
    connection: Rc<Connection>,
    bytes: Cell<usize>,
}

impl Partial {
    pub fn new(connection: Rc<Connection>) -> Self {
        Self { connection, bytes: Cell::new(0) }
    }

    /// It is so long now; an error where all of the connection take more than `PARTIAL_SECTIONS` of the
    /// largest allowed.
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
    /// A connection without streams.
    pub fn new(quic: quinn::Connection, accepted: Accepted, guest: Rc<Guest>) -> Rc<Self> {
        guest.occupancy.set(Activity::Idle, &accepted.thread.deadlines);
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
            waiting: RoomQueue::default(),
        })
    }

    /// Takes a stream up.
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

    /// Whether no stream is open.
    pub fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// Limits on heads and trailers.
    pub fn list_limits(&self) -> ListLimits {
        let limits = self.accepted.thread.settings().head_limits();
        ListLimits { size: limits.head, fields: limits.fields }
    }

    /// Ends the connection.
    pub fn close(&self, code: ErrorCode) {
        self.quic.close(code.0.into(), b"");
    }

    /// The client has broken a rule of the connection, which ends.
    pub fn fail(&self, error: &Http3Error) {
        if error.rule == Rule::Abuse && self.quic.close_reason().is_none() {
            let thread = &self.accepted.thread;
            thread.counters.count_limit(Limit::Http3Frames);
            let peer = self.accepted.peer;
            thread.warn_limited(&format!("{error}, from {peer}: connection closed"));
        }
        self.close(error.code);
    }

    /// Gives memory back that an idle connection does not need.
    pub fn shrink(&self) {
        self.head.take();
    }

    /// The client has given a stream up, or makes us do so.
    pub(super) fn charge_reset(&self) {
        // What ends with its connection is no reset.
        if self.quic.close_reason().is_none() {
            self.charge(budget::RESET);
        }
    }

    /// The client has sent what costs more than it brings (`http2::budget`).
    pub fn charge(&self, price: u32) {
        if !self.budget.borrow_mut().spend(price, Instant::now()) {
            self.fail(&Http3Error::abuse());
        }
    }

    /// The client let us do some work (`http2::budget`).
    pub(super) fn earn(&self, amount: u32) {
        self.budget.borrow_mut().earn(amount);
    }

    /// How far sending has come.
    pub(super) fn progress(&self) -> Progress {
        let stats = self.quic.stats();
        Progress { sent: stats.frame_tx.stream, acknowledged: stats.frame_rx.acks }
    }
}

/// Frames of data that were sent, and acknowledgements that came. The first grow by probes of a client
/// that has gone, the second by whatever else is sent to one that takes no data.
#[derive(Clone, Copy)]
pub(super) struct Progress {
    sent: u64,
    acknowledged: u64,
}

impl Progress {
    /// Whether the client has taken some since `before`.
    pub(super) fn is_beyond(self, before: Self) -> bool {
        self.sent != before.sent && self.acknowledged != before.acknowledged
    }
}
