//! Closes client connections in favour of new ones when the limit on connections is reached.
//! Selects only connections without a request in progress. Such a connection is idle, or has
//! received only a part of a request head, handshake or PROXY header.
//!
//! Like nginx (`ngx_drain_connections`), Forebay closes the connection that has been idle longest.
//! Each connection stores the start time of its current activity. Threads compare these times only
//! when the limit is near. One scan of a thread's connections finds up to [`AT_ONCE`] candidates.

use std::cell::{Cell, RefCell};
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Instant;

use rustix::net::Shutdown;
use slab::Slab;
use tokio::sync::Notify;

use super::{Deadlines, Ticks, Watched};

/// Maximum number of candidates found by one scan.
const AT_ONCE: usize = 64;

/// A QUIC connection. QUIC connections share a UDP socket, so the list of sockets does not contain
/// them.
pub struct Guest {
    pub occupancy: Occupancy,
    /// Notified when the connection must close to make room.
    pub evicted: Notify,
}

/// Key of a connection in the list of sockets or guests of its thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CandidateKey {
    Socket(usize),
    Guest(usize),
}

/// The connections of a thread that may be closed to make room.
#[derive(Default)]
pub struct Candidates {
    guests: RefCell<Slab<Rc<Guest>>>,
    /// Candidates of the last scan. The last element is closed first.
    found: RefCell<Vec<(Rank, CandidateKey)>>,
}

/// Removes a guest from the candidates when dropped.
pub struct Admitted {
    deadlines: Rc<Deadlines>,
    key: usize,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let guest = self.deadlines.candidates.guests.borrow_mut().try_remove(self.key);
        drop(guest);
    }
}

impl Deadlines {
    /// Registers a QUIC connection, so that Forebay may close it to make room. The registration
    /// ends when the returned `Admitted` is dropped.
    pub fn admit(self: &Rc<Self>) -> (Rc<Guest>, Admitted) {
        let guest = Rc::new(Guest { occupancy: Occupancy::default(), evicted: Notify::new() });
        guest.occupancy.set_counted();
        let key = self.candidates.guests.borrow_mut().insert(guest.clone());
        (guest, Admitted { deadlines: self.clone(), key })
    }

    /// Closes the connection of this thread that has the smallest rank. Returns false if this
    /// thread has no connection to close.
    pub(crate) fn evict(&self) -> bool {
        // Candidates may have become busy since the scan. If so, a second scan finds others.
        for _ in 0..2 {
            loop {
                let candidate = self.candidates.found.borrow_mut().pop();
                let Some((rank, key)) = candidate else { break };
                if self.rank(key).is_some_and(|now| now.since == rank.since) && self.end(key) {
                    return true;
                }
            }
            self.find_candidates();
        }
        false
    }

    /// Returns the rank of the connection that this thread would close first, as a number that
    /// threads can compare. Connections with a smaller rank close earlier. Returns `None` if this
    /// thread has no connection to close.
    pub(crate) fn oldest(&self) -> Option<u64> {
        for _ in 0..2 {
            loop {
                let candidate = self.candidates.found.borrow().last().copied();
                let Some((rank, key)) = candidate else { break };
                if let Some(now) = self.rank(key).filter(|now| now.since == rank.since) {
                    // The low 60 bits hold the nanoseconds of 36 years.
                    return Some(u64::from(now.class) << 60 | now.since.nanoseconds());
                }
                self.candidates.found.borrow_mut().pop();
            }
            self.find_candidates();
        }
        None
    }

    /// Scans the connections of this thread. Stores up to [`AT_ONCE`] connections with the smallest
    /// ranks as candidates.
    fn find_candidates(&self) {
        let mut first = BinaryHeap::with_capacity(AT_ONCE + 1);
        let mut consider = |rank: Option<Rank>, key| {
            let Some(rank) = rank else { return };
            if first.len() < AT_ONCE || first.peek().is_some_and(|(last, _)| rank < *last) {
                first.push((rank, key));
                if first.len() > AT_ONCE {
                    first.pop();
                }
            }
        };
        let now = self.now();
        for (key, socket) in self.sockets.borrow().iter() {
            consider(socket.occupancy.rank(now), CandidateKey::Socket(key));
        }
        for (key, guest) in self.candidates.guests.borrow().iter() {
            consider(guest.occupancy.rank(now), CandidateKey::Guest(key));
        }
        let mut found = first.into_sorted_vec();
        found.reverse();
        self.candidates.found.replace(found);
    }

    fn rank(&self, key: CandidateKey) -> Option<Rank> {
        let now = self.now();
        match key {
            CandidateKey::Socket(key) => self.sockets.borrow().get(key)?.occupancy.rank(now),
            CandidateKey::Guest(key) => {
                self.candidates.guests.borrow().get(key)?.occupancy.rank(now)
            }
        }
    }

    /// Closes a connection. Returns false if the connection no longer exists, or if bytes on its
    /// socket have arrived or are being sent.
    fn end(&self, key: CandidateKey) -> bool {
        match key {
            CandidateKey::Socket(key) => {
                let socket = self.sockets.borrow().get(key).cloned();
                socket.is_some_and(|socket| socket.evict())
            }
            CandidateKey::Guest(key) => {
                let guest = self.candidates.guests.borrow().get(key).cloned();
                let Some(guest) = guest else { return false };
                guest.occupancy.is_evicted.set(true);
                guest.evicted.notify_one();
                true
            }
        }
    }
}

impl Watched {
    /// Ends the input, which wakes the connection's task. Returns false if bytes have arrived or
    /// are being sent.
    fn evict(&self) -> bool {
        if self.expired.get() || self.is_sending.get() || self.peek().is_some() {
            return false;
        }
        self.occupancy.is_evicted.set(true);
        self.expire(Shutdown::Read);
        true
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the state of a thread with one guest per activity and start tick.
    fn guests(of: &[(Activity, Ticks)]) -> (Rc<Deadlines>, Vec<(Rc<Guest>, Admitted)>) {
        let deadlines = Rc::<Deadlines>::default();
        let mut guests = Vec::new();
        for &(activity, since) in of {
            while deadlines.now() < since {
                deadlines.tick();
            }
            let (guest, admitted) = deadlines.admit();
            guest.occupancy.set(activity, &deadlines);
            guests.push((guest, admitted));
        }
        (deadlines, guests)
    }

    /// Returns the order in which the guests are closed.
    fn order(deadlines: &Deadlines, guests: &[(Rc<Guest>, Admitted)]) -> Vec<usize> {
        let mut order = Vec::new();
        while deadlines.evict() {
            let is_new = |at: &usize| !order.contains(at) && guests[*at].0.occupancy.is_evicted();
            order.push((0..guests.len()).find(is_new).expect("one more"));
        }
        order
    }

    #[test]
    fn the_oldest_idle_goes_first_then_half_heads_then_the_young_and_never_the_busy() {
        use Activity::{Busy, Idle, PartialHead};
        let of = [(PartialHead, 1), (Busy, 1), (Idle, 2), (Idle, 2), (Idle, 48), (PartialHead, 50)];
        let (deadlines, guests) = guests(&of);
        assert!(deadlines.oldest().is_some_and(|oldest| oldest >> 60 == 0));
        assert_eq!(order(&deadlines, &guests), [2, 3, 0, 4, 5]);
        assert_eq!(deadlines.oldest(), None);
    }

    #[test]
    fn a_connection_that_has_become_busy_is_not_closed() {
        let (deadlines, mut guests) = guests(&[(Activity::Idle, 1); 3]);
        assert!(deadlines.evict());
        assert!(guests[0].0.occupancy.is_evicted());
        guests[1].0.occupancy.set(Activity::Busy, &deadlines);
        guests.remove(2);
        assert!(!deadlines.evict());
        guests[1].0.occupancy.set(Activity::Idle, &deadlines);
        assert!(deadlines.evict() && guests[1].0.occupancy.is_evicted());
    }

    #[test]
    fn more_than_one_look_finds_are_closed_in_order() {
        let of: Vec<_> = (1..=3 * AT_ONCE as Ticks).map(|tick| (Activity::Idle, tick)).collect();
        let (deadlines, guests) = guests(&of);
        assert_eq!(order(&deadlines, &guests), (0..3 * AT_ONCE).collect::<Vec<_>>());
    }
}
