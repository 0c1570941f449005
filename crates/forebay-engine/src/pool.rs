//! Connections to one backend that wait to be used again.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::deadline::{Deadlines, TICK, Ticks};
use crate::socket::Socket;

/// The idle connections of one thread to one backend. LIFO, so surplus connections age out. `H` is
/// what each connection holds as long as it is open.
pub struct Pool<H> {
    idle: RefCell<Vec<Idle<H>>>,
    keep: usize,
    idle_time: Duration,
    keep_alive: Cell<KeepAlive>,
}

/// How the backend ends connections, as far as has been seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeepAlive {
    /// None was used twice yet.
    Unknown,
    /// It leaves them open after a reply.
    Observed,
    /// It closes without `Connection: close`. Seen at a tick; `None`: known from the start.
    Violated(Option<Ticks>),
}

/// For how long an unannounced close is remembered: a backend may just have been restarted.
const MEMORY: Duration = Duration::from_secs(600);

/// A connection that closes by itself so soon after a reply was closed because of that reply.
const GRACE: Duration = Duration::from_secs(1);

struct Idle<H> {
    socket: Socket,
    held: H,
    since: Ticks,
    due: Ticks,
}

impl<H> Pool<H> {
    /// A pool that keeps up to `keep` connections, each unused for at most `idle_time`.
    pub fn new(keep: usize, idle_time: Duration) -> Self {
        let keep_alive = Cell::new(KeepAlive::Unknown);
        Self { idle: RefCell::default(), keep, idle_time, keep_alive }
    }

    /// An idle connection that seems to be alive, and whether it has been idle for long enough to
    /// know that the backend did not mean to close it after its last reply. What the backend has
    /// closed is dropped.
    pub fn take(&self, deadlines: &Deadlines) -> Option<(Socket, H, bool)> {
        loop {
            let Idle { socket, held, since, due } = self.idle.borrow_mut().pop()?;
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
                let is_settled = |entry: &Idle<H>| is_settled(entry.since, deadlines);
                let at = idle.iter().rposition(is_settled)?;
                idle.remove(at)
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
        if idle.len() < self.keep {
            let (since, due) = (deadlines.now(), deadlines.due(self.idle_time));
            idle.push(Idle { socket, held, since, due });
        }
    }

    /// Closes what has been idle for too long or was closed by the backend.
    pub fn prune(&self, deadlines: &Deadlines) {
        let is_old = |entry: &mut Idle<H>| {
            let is_stale = entry.socket.is_stale();
            if is_stale {
                self.record_close(entry.since, deadlines);
            } else if is_past_grace(entry.since, deadlines) {
                self.record_keeping(deadlines);
            }
            is_stale || entry.due <= deadlines.now()
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
    pub fn record_violation(&self, deadlines: &Deadlines) {
        if self.keep_alive.get() != KeepAlive::Violated(None) {
            self.keep_alive.set(KeepAlive::Violated(Some(deadlines.now())));
        }
    }

    /// A connection was open still when it was used again, or for a while after a reply.
    pub fn record_keeping(&self, deadlines: &Deadlines) {
        let memory = (MEMORY.as_millis() / TICK.as_millis()) as Ticks;
        match self.keep_alive.get() {
            KeepAlive::Unknown => self.keep_alive.set(KeepAlive::Observed),
            KeepAlive::Violated(Some(at)) if deadlines.now() > at.saturating_add(memory) => {
                self.keep_alive.set(KeepAlive::Observed);
            }
            KeepAlive::Observed | KeepAlive::Violated(_) => {}
        }
    }

    fn record_close(&self, since: Ticks, deadlines: &Deadlines) {
        if !is_past_grace(since, deadlines) {
            self.record_violation(deadlines);
        }
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
