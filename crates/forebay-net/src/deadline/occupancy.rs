//! Activity of a client connection, which decides if the connection may be closed for another.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Instant;

use super::{Deadlines, Ticks};

/// Age in ticks at which an activity is no longer young (1 s). Connections whose activity is young
/// are closed only after all others.
// A new client needs several round trips before its first request. During this time, connections
// with partial heads must not displace the new client.
const YOUNG: Ticks = 10;

/// Activity of a client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// No request is in progress and none has begun to arrive.
    Idle,
    /// A part of a request head, a handshake or a PROXY header has arrived, and no request is in
    /// progress.
    PartialHead,
    /// A request is in progress.
    Busy,
}

/// State of a connection for eviction: its activity, the start time of this activity, and a flag
/// for a connection that must close.
pub struct Occupancy {
    activity: Cell<Activity>,
    since: Cell<Since>,
    /// True if the connection counts against the limit on client connections.
    is_counted: Cell<bool>,
    /// True if the connection has carried a request.
    is_used: Cell<bool>,
    pub is_evicted: Cell<bool>,
}

/// Start time of an activity, as a time and as a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Since {
    time: Option<Instant>,
    tick: Ticks,
}

/// Time zero of [`Since::nanoseconds`], the same for all threads. The first connection of a process
/// sets it.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Since {
    fn now(deadlines: &Deadlines) -> Self {
        // `Instant::now` costs no system call. Ticks differ between threads and are too coarse to
        // order connections.
        Self { time: Some(Instant::now()), tick: deadlines.now() }
    }

    /// Returns the nanoseconds since [`START`], which threads can compare.
    pub fn nanoseconds(self) -> u64 {
        let since = self.time.map(|time| time.saturating_duration_since(*START));
        u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Position in the order of closing. The connection with the smallest rank is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub class: u8,
    pub since: Since,
}

impl Default for Occupancy {
    fn default() -> Self {
        LazyLock::force(&START);
        Self {
            activity: Cell::new(Activity::Busy),
            since: Cell::default(),
            is_counted: Cell::new(false),
            is_used: Cell::new(false),
            is_evicted: Cell::new(false),
        }
    }
}

impl Occupancy {
    pub fn set(&self, activity: Activity, deadlines: &Deadlines) {
        if self.activity.replace(activity) != activity && activity != Activity::Busy {
            self.since.set(Since::now(deadlines));
        }
    }

    pub fn is_idle(&self) -> bool {
        self.activity.get() == Activity::Idle
    }

    /// Records that the connection has carried a request.
    pub fn set_used(&self) {
        self.is_used.set(true);
    }

    /// Returns true if the connection is idle and may close. It must have carried a request or have
    /// been idle for 1 s. With `is_patient`, it must have been idle for 2 s.
    // A client that has just connected will soon send a request. If the connection closes then,
    // some clients do not resend the request.
    pub fn may_close(&self, now: Ticks, is_patient: bool) -> bool {
        let age = now.saturating_sub(self.since.get().tick);
        let expects_close =
            if is_patient { age >= 2 * YOUNG } else { self.is_used.get() || age >= YOUNG };
        self.is_idle() && expects_close
    }

    /// Counts the connection against the limit on client connections.
    pub fn set_counted(&self) {
        self.is_counted.set(true);
    }

    /// Returns true if the connection must close to make room.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted.get()
    }

    /// Returns the rank in the order of closing. Returns `None` for a connection that is busy, is
    /// not counted against the limit, or is closing already.
    pub fn rank(&self, now: Ticks) -> Option<Rank> {
        if !self.is_counted.get() || self.is_evicted.get() {
            return None;
        }
        let since = self.since.get();
        let is_young = now.saturating_sub(since.tick) < YOUNG;
        let class = match self.activity.get() {
            Activity::Busy => return None,
            Activity::Idle => 0,
            Activity::PartialHead => 1,
        };
        Some(Rank { class: class + if is_young { 2 } else { 0 }, since })
    }
}
