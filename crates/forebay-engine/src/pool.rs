//! Connections to one backend that wait to be used again.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::deadline::{Deadlines, TICK, Ticks};
use crate::socket::Socket;

/// The idle connections of one thread to one backend; the one used last is used first, so that
/// the others can grow old and be closed. `H` is what each connection holds as long as it is open.
pub struct Pool<H> {
    idle: RefCell<Vec<Idle<H>>>,
    keep: usize,
    idle_time: Duration,
    has_hasty_backend: Cell<bool>,
}

/// A connection that closes by itself so soon after a reply was closed because of that reply.
const HASTE: Duration = Duration::from_secs(1);

struct Idle<H> {
    socket: Socket,
    held: H,
    since: Ticks,
    due: Ticks,
}

impl<H> Pool<H> {
    /// A pool that keeps up to `keep` connections, each unused for at most `idle_time`.
    pub fn new(keep: usize, idle_time: Duration) -> Self {
        let has_hasty_backend = Cell::new(false);
        Self { idle: RefCell::default(), keep, idle_time, has_hasty_backend }
    }

    /// An idle connection that seems to be alive, and whether it has been idle for long enough to
    /// know that the backend did not mean to close it after its last reply. What the backend has
    /// closed is dropped.
    pub fn take(&self, deadlines: &Deadlines) -> Option<(Socket, H, bool)> {
        loop {
            let Idle { socket, held, since, due } = self.idle.borrow_mut().pop()?;
            if socket.is_stale() {
                self.note_close(since, deadlines);
            } else if due > deadlines.now() {
                let is_settled = deadlines.now() >= since.saturating_add(2);
                return Some((socket, held, is_settled));
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
                self.note_close(entry.since, deadlines);
            }
            is_stale || entry.due <= deadlines.now()
        };
        let old: Vec<_> = self.idle.borrow_mut().extract_if(.., is_old).collect();
        // Outside of the borrow, as what they hold may have something to say to the pool.
        drop(old);
    }

    /// Whether the backend has been seen to close connections that it had not said it would.
    pub fn has_hasty_backend(&self) -> bool {
        self.has_hasty_backend.get()
    }

    /// The backend is one that closes connections without a word.
    pub fn expect_haste(&self) {
        self.has_hasty_backend.set(true);
    }

    fn note_close(&self, since: Ticks, deadlines: &Deadlines) {
        let haste = (HASTE.as_millis() / TICK.as_millis()) as Ticks;
        if deadlines.now() < since.saturating_add(haste) {
            self.expect_haste();
        }
    }
}
