//! Connections to one backend that wait to be used again.

use std::cell::RefCell;
use std::time::Duration;

use crate::deadline::{Deadlines, Ticks};
use crate::socket::Socket;

/// The idle connections of one thread to one backend; the one used last is used first, so that
/// the others can grow old and be closed. `H` is what each connection holds as long as it is open.
pub struct Pool<H> {
    idle: RefCell<Vec<Idle<H>>>,
    keep: usize,
    idle_time: Duration,
}

struct Idle<H> {
    socket: Socket,
    held: H,
    due: Ticks,
}

impl<H> Pool<H> {
    /// A pool that keeps up to `keep` connections, each unused for at most `idle_time`.
    pub fn new(keep: usize, idle_time: Duration) -> Self {
        Self { idle: RefCell::default(), keep, idle_time }
    }

    /// An idle connection that seems to be alive. What the backend has closed is dropped.
    pub fn take(&self, deadlines: &Deadlines) -> Option<(Socket, H)> {
        loop {
            let Idle { socket, held, due } = self.idle.borrow_mut().pop()?;
            if due > deadlines.now() && !socket.is_stale() {
                return Some((socket, held));
            }
        }
    }

    /// Keeps a connection on which nothing is under way.
    pub fn put(&self, socket: Socket, held: H, deadlines: &Deadlines) {
        socket.unlimit_read();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.keep {
            idle.push(Idle { socket, held, due: deadlines.due(self.idle_time) });
        }
    }

    /// Closes what has been idle for too long or was closed by the backend.
    pub fn prune(&self, deadlines: &Deadlines) {
        let is_old = |entry: &mut Idle<H>| entry.due <= deadlines.now() || entry.socket.is_stale();
        let old: Vec<_> = self.idle.borrow_mut().extract_if(.., is_old).collect();
        // Outside of the borrow, as what they hold may have something to say to the pool.
        drop(old);
    }
}
