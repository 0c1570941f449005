//! Connections to one backend that wait to be used again.
//!
//! How many are kept follows from their use. The stack is LIFO: the connection at depth n is taken
//! only when n are in use at once, so one that was not taken for `idle_time` lies beyond the most
//! that were in use at once during that time, and is closed. That costs a request no count and no
//! clock. Bounds are `keepalive`, where it is set, and the room for idle connections of the thread.
//! Where descriptors run out all the same, some are closed for what needs one.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

use crate::deadline::{Deadlines, TICK, Ticks};
use crate::socket::Socket;

/// The idle connections of one thread to one backend. LIFO, so surplus connections age out. `H` is
/// what each connection holds as long as it is open.
pub struct Pool<H> {
    idle: Rc<RefCell<Vec<Idle<H>>>>,
    room: Rc<IdleRoom>,
    keep: usize,
    idle_time: Duration,
    keep_alive: Cell<KeepAlive>,
}

/// How many idle connections to backends one thread may keep, over all of its pools.
pub struct IdleRoom {
    kept: Cell<usize>,
    most: Cell<usize>,
    pools: RefCell<Vec<Weak<dyn CloseOldest>>>,
}

/// Idle connections, of which some can be closed.
trait CloseOldest {
    /// Closes up to `most`, those first that have been idle for longest; how many.
    fn close_oldest(&self, most: usize) -> usize;
}

/// The right to keep one idle connection; dropping it gives it back.
struct IdlePermit(Rc<IdleRoom>);

/// How the backend ends connections, as far as has been seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeepAlive {
    /// None was used twice yet.
    Unknown,
    /// It leaves them open after a reply.
    Observed,
    /// It closes without `Connection: close`. When that was seen; `None`: known from the start.
    Violated(Option<Instant>),
}

/// For how long an unannounced close is remembered: a backend may just have been restarted.
const MEMORY: Duration = Duration::from_secs(600);

/// A connection that closes by itself so soon after a reply was closed because of that reply.
const GRACE: Duration = Duration::from_secs(1);

/// [`Pool::prune`] closes up to so many surplus connections at a call, or one in `CLOSE_SHARE` of
/// the idle ones where that is more: 1,000 are gone after 38 calls, which is 19 s.
const CLOSE_AT_LEAST: usize = 16;
const CLOSE_SHARE: usize = 16;

/// One descriptor in so many may be an idle connection: half are for clients, a quarter for the
/// connections to backends of their requests.
const DESCRIPTOR_SHARE: u64 = 4;

struct Idle<H> {
    socket: Socket,
    held: H,
    _permit: IdlePermit,
    since: Ticks,
    due: Ticks,
}

impl<H: 'static> Pool<H> {
    /// A pool that keeps up to `keep` connections, each unused for at most `idle_time`, while there
    /// is `room`. `None`: as many as were in use at once during `idle_time`.
    pub fn new(keep: Option<usize>, idle_time: Duration, room: Rc<IdleRoom>) -> Self {
        let keep_alive = Cell::new(KeepAlive::Unknown);
        let keep = keep.unwrap_or(usize::MAX);
        let idle: Rc<RefCell<Vec<Idle<H>>>> = Rc::default();
        room.enter(Rc::downgrade(&idle) as Weak<dyn CloseOldest>);
        Self { idle, room, keep, idle_time, keep_alive }
    }

    /// An idle connection that seems to be alive, and whether it has been idle for long enough to
    /// know that the backend did not mean to close it after its last reply. What the backend has
    /// closed is dropped.
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

    /// As [`Pool::take`], of those connections alone that have been idle for long enough.
    pub fn take_settled(&self, deadlines: &Deadlines) -> Option<(Socket, H)> {
        loop {
            let entry = {
                let mut idle = self.idle.borrow_mut();
                // Sorted by `since`, as `put` appends.
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

    /// Keeps a connection on which nothing is under way.
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

    /// Closes what was closed by the backend, and some of what has been idle for too long: after a
    /// burst that may be a thousand connections, too many to close in one go.
    pub fn prune(&self, deadlines: &Deadlines) {
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
        // Outside of the borrow, as dropping what they hold may call the pool.
        drop(old);
    }

    /// Whether the backend has been seen to leave connections open after a reply, and not lately to
    /// close one unannounced.
    pub fn keeps_alive(&self) -> bool {
        self.keep_alive.get() == KeepAlive::Observed
    }

    /// The backend is known to be one that closes connections unannounced.
    pub fn assume_violation(&self) {
        self.keep_alive.set(KeepAlive::Violated(None));
    }

    /// The backend has closed a connection unannounced.
    pub fn record_violation(&self) {
        if self.keep_alive.get() != KeepAlive::Violated(None) {
            self.keep_alive.set(KeepAlive::Violated(Some(Instant::now())));
        }
    }

    /// A connection was open still when it was used again, or for a while after a reply.
    pub fn record_keeping(&self) {
        match self.keep_alive.get() {
            KeepAlive::Unknown => self.keep_alive.set(KeepAlive::Observed),
            // Ticks stand still while the thread rests.
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
    /// The share of one of `threads` threads in what the limit on descriptors leaves for idle
    /// connections.
    pub(crate) fn of_descriptors(threads: usize) -> Rc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = descriptors / DESCRIPTOR_SHARE / threads.max(1) as u64;
        let most = Cell::new(usize::try_from(most).unwrap_or(usize::MAX).max(1));
        Rc::new(Self { kept: Cell::new(0), most, pools: RefCell::default() })
    }

    /// Closes up to [`CLOSE_AT_LEAST`] idle connections, so that something else can be opened;
    /// whether there were any.
    pub(crate) fn close_some(&self) -> bool {
        let pools: Vec<_> = self.pools.borrow().iter().filter_map(Weak::upgrade).collect();
        let closed = pools
            .iter()
            .fold(0, |closed, pool| closed + pool.close_oldest(CLOSE_AT_LEAST - closed));
        closed > 0
    }

    fn enter(&self, pool: Weak<dyn CloseOldest>) {
        let mut pools = self.pools.borrow_mut();
        // Those of tables that a reload has replaced are gone.
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    /// From now on there is room for so many; what is kept stays until it is used.
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
        // Outside of the borrow, as dropping what they hold may call the pool.
        drop((idle, oldest));
        closed
    }
}

impl Drop for IdlePermit {
    fn drop(&mut self) {
        self.0.kept.set(self.0.kept.get() - 1);
    }
}

/// Whether a connection has been idle for so long that the backend would have closed it by now if
/// it closed after each reply.
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
