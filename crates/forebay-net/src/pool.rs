//! Idle connections to one backend, for reuse.
//!
//! The pool is a stack, so its depth follows the load: the connection at depth n is taken only when
//! n connections are in use at once. A connection that was not taken for `idle_time` was not needed
//! even at the peak, and is closed. Requests need neither counters nor a clock for this.
//!
//! The key `keepalive`, if set, and the thread's limit on idle connections bound the size of a
//! pool. If the process still runs out of descriptors, it closes some idle connections.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

use crate::deadline::{Deadlines, TICK, Ticks};
use crate::socket::Socket;

/// The idle connections of one thread to one backend. The last stored connection is taken first, so
/// that the other connections stay idle and reach their time limit. Each connection is stored with
/// an `H`, for example its permit.
pub struct Pool<H> {
    idle: Rc<RefCell<Vec<Idle<H>>>>,
    room: Rc<IdleRoom>,
    keep: usize,
    idle_time: Duration,
    keep_alive: Cell<KeepAlive>,
}

/// Limit on the idle backend connections in all pools of one thread.
pub struct IdleRoom {
    kept: Cell<usize>,
    most: Cell<usize>,
    pools: RefCell<Vec<Weak<dyn CloseOldest>>>,
}

/// A set of idle connections that can close some of them.
trait CloseOldest {
    /// Closes up to `most` connections. The connections that have been idle longest close first.
    /// Returns the number of closed connections.
    fn close_oldest(&self, most: usize) -> usize;
}

/// Permit for one idle connection. Dropping the permit returns it.
struct IdlePermit(Rc<IdleRoom>);

/// Observed behaviour of the backend, which shows if it leaves connections open after a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeepAlive {
    /// No connection has been used twice yet.
    Unknown,
    /// The backend leaves connections open after a reply.
    Observed,
    /// The backend closes connections without `Connection: close`. Contains the time of the
    /// observation, or `None` if [`Pool::assume_violation`] was called.
    Violated(Option<Instant>),
}

/// Time until an unannounced close is forgotten. The time is limited, because the close may have
/// been due to a restart of the backend.
const MEMORY: Duration = Duration::from_secs(600);

/// If a connection closes within this time after a reply, Forebay assumes that the backend closed
/// it because of the reply.
const GRACE: Duration = Duration::from_secs(1);

/// [`Pool::prune`] may always close this many surplus connections per call.
const CLOSE_AT_LEAST: usize = 16;
/// With many idle connections, [`Pool::prune`] may close more per call: their number divided by
/// `CLOSE_SHARE`. Closing 1,000 connections takes 38 calls, or 19 s.
const CLOSE_SHARE: usize = 16;

/// The limit on idle connections is the descriptor limit, divided by this number. Half of the
/// descriptors are for clients, and a quarter for busy connections to backends.
const DESCRIPTOR_SHARE: u64 = 4;

struct Idle<H> {
    socket: Socket,
    held: H,
    _permit: IdlePermit,
    since: Ticks,
    due: Ticks,
}

impl<H: 'static> Pool<H> {
    /// Creates a pool of up to `keep` connections within the limit of `room`. Each connection is
    /// closed after `idle_time` without use. If `keep` is `None`, only `room` limits the number.
    pub fn new(keep: Option<usize>, idle_time: Duration, room: Rc<IdleRoom>) -> Self {
        let keep_alive = Cell::new(KeepAlive::Unknown);
        let keep = keep.unwrap_or(usize::MAX);
        let idle: Rc<RefCell<Vec<Idle<H>>>> = Rc::default();
        room.enter(Rc::downgrade(&idle) as Weak<dyn CloseOldest>);
        Self { idle, room, keep, idle_time, keep_alive }
    }

    /// Takes an idle connection that seems to be alive, or `None` without one. The boolean is true
    /// if the connection has been idle for at least 100 ms. A backend that closes connections after
    /// each reply would have closed this one by then. Drops connections that the backend has
    /// closed.
    pub fn take(&self, deadlines: &Deadlines) -> Option<(Socket, H, bool)> {
        loop {
            let Idle { socket, held, since, due, .. } = self.idle.borrow_mut().pop()?;
            if socket.is_stale() {
                self.record_close(since, deadlines);
            } else if due > deadlines.now() {
                return Some((socket, held, is_settled(since, deadlines)));
            }
        }
    }

    /// Takes an idle connection as [`Pool::take`] does, but only one that has been idle for at
    /// least 100 ms. Returns `None` if there is no such connection.
    pub fn take_settled(&self, deadlines: &Deadlines) -> Option<(Socket, H)> {
        loop {
            let entry = {
                let mut idle = self.idle.borrow_mut();
                // The connections are sorted by `since`, because `put` appends.
                let settled = idle.partition_point(|entry| is_settled(entry.since, deadlines));
                idle.remove(settled.checked_sub(1)?)
            };
            if entry.socket.is_stale() {
                self.record_close(entry.since, deadlines);
            } else if entry.due > deadlines.now() {
                return Some((entry.socket, entry.held));
            }
        }
    }

    /// Stores a connection without a request in progress, or closes it if a limit is reached.
    pub fn put(&self, socket: Socket, held: H, deadlines: &Deadlines) {
        socket.unlimit_read();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.keep
            && let Some(permit) = self.room.permit()
        {
            let (since, due) = (deadlines.now(), deadlines.due(self.idle_time));
            idle.push(Idle { socket, held, _permit: permit, since, due });
        }
    }

    /// Closes connections that the backend has closed. Also closes a limited number of connections
    /// that have been idle for more than `idle_time`.
    pub fn prune(&self, deadlines: &Deadlines) {
        // After a burst, a thousand connections may be too old. These are too many to close in one
        // call.
        let mut surplus = CLOSE_AT_LEAST.max(self.idle.borrow().len() / CLOSE_SHARE);
        let is_old = |entry: &mut Idle<H>| {
            let is_stale = entry.socket.is_stale();
            if is_stale {
                self.record_close(entry.since, deadlines);
            } else if is_past_grace(entry.since, deadlines) {
                self.record_keeping();
            }
            if is_stale || entry.due > deadlines.now() || surplus == 0 {
                return is_stale;
            }
            surplus -= 1;
            true
        };
        let old: Vec<_> = self.idle.borrow_mut().extract_if(.., is_old).collect();
        // Drop after the borrow has ended, because the drop of `H` may call the pool.
        drop(old);
    }

    /// Returns true if the backend leaves connections open after a reply, and has not recently
    /// closed a connection without announcement.
    pub fn keeps_alive(&self) -> bool {
        self.keep_alive.get() == KeepAlive::Observed
    }

    /// Marks the backend as one that closes connections without announcement.
    pub fn assume_violation(&self) {
        self.keep_alive.set(KeepAlive::Violated(None));
    }

    /// Records that the backend has closed a connection without announcement.
    pub fn record_violation(&self) {
        if self.keep_alive.get() != KeepAlive::Violated(None) {
            self.keep_alive.set(KeepAlive::Violated(Some(Instant::now())));
        }
    }

    /// Records that the backend left a connection open. Call this when a kept connection is reused,
    /// or is still open a second after a reply.
    pub fn record_keeping(&self) {
        match self.keep_alive.get() {
            KeepAlive::Unknown => self.keep_alive.set(KeepAlive::Observed),
            // Ticks stop while the thread is idle, so use the clock.
            KeepAlive::Violated(Some(at)) if at.elapsed() > MEMORY => {
                self.keep_alive.set(KeepAlive::Observed);
            }
            KeepAlive::Observed | KeepAlive::Violated(_) => {}
        }
    }

    fn record_close(&self, since: Ticks, deadlines: &Deadlines) {
        if !is_past_grace(since, deadlines) {
            self.record_violation();
        }
    }
}

impl IdleRoom {
    /// Returns the limit for each of `threads` threads. All threads together may use a quarter of
    /// the descriptors.
    pub(crate) fn of_descriptors(threads: usize) -> Rc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = descriptors / DESCRIPTOR_SHARE / threads.max(1) as u64;
        let most = Cell::new(usize::try_from(most).unwrap_or(usize::MAX).max(1));
        Rc::new(Self { kept: Cell::new(0), most, pools: RefCell::default() })
    }

    /// Closes up to [`CLOSE_AT_LEAST`] idle connections to free descriptors. Returns true if at
    /// least one was closed.
    pub(crate) fn close_some(&self) -> bool {
        let pools: Vec<_> = self.pools.borrow().iter().filter_map(Weak::upgrade).collect();
        let closed = pools
            .iter()
            .fold(0, |closed, pool| closed + pool.close_oldest(CLOSE_AT_LEAST - closed));
        closed > 0
    }

    /// Closes all idle connections, and keeps no more.
    pub(crate) fn close(&self) {
        self.limit(0);
        let pools: Vec<_> = self.pools.borrow().iter().filter_map(Weak::upgrade).collect();
        for pool in pools {
            pool.close_oldest(usize::MAX);
        }
    }

    fn enter(&self, pool: Weak<dyn CloseOldest>) {
        let mut pools = self.pools.borrow_mut();
        // A reload drops the pools of the previous configuration.
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    /// Sets the limit. Connections above the limit remain until they are used or have been idle for
    /// too long.
    pub fn limit(&self, most: usize) {
        self.most.set(most);
    }

    fn permit(self: &Rc<Self>) -> Option<IdlePermit> {
        if self.kept.get() >= self.most.get() {
            return None;
        }
        self.kept.set(self.kept.get() + 1);
        Some(IdlePermit(self.clone()))
    }
}

impl<H> CloseOldest for RefCell<Vec<Idle<H>>> {
    fn close_oldest(&self, most: usize) -> usize {
        let mut idle = self.borrow_mut();
        let closed = most.min(idle.len());
        let oldest: Vec<_> = idle.drain(..closed).collect();
        // Drop after the borrow has ended, because the drop of `H` may call the pool.
        drop((idle, oldest));
        closed
    }
}

impl Drop for IdlePermit {
    fn drop(&mut self) {
        self.0.kept.set(self.0.kept.get() - 1);
    }
}

/// Returns true if a connection has been idle for at least one whole tick (100 ms). A backend that
/// closes after each reply would have closed it by now.
fn is_settled(since: Ticks, deadlines: &Deadlines) -> bool {
    deadlines.now() >= since.saturating_add(2)
}

fn is_past_grace(since: Ticks, deadlines: &Deadlines) -> bool {
    let grace = (GRACE.as_millis() / TICK.as_millis()) as Ticks;
    deadlines.now() >= since.saturating_add(grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_quarter_of_the_descriptors_and_each_has_room_for_one() {
        let most = |threads| IdleRoom::of_descriptors(threads).most.get();
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(most(1) as u64 <= descriptors / 4 && most(4) <= most(1) / 4);
        assert_eq!(most(usize::MAX), 1);
    }
}
