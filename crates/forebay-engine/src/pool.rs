//! Connections to one backend that wait to be used again.

use std::cell::RefCell;
use std::time::Duration;

use crate::deadline::{Deadlines, Ticks};
use crate::socket::Socket;

/// An idle connection.
pub struct Idle {
    /// The connection.
    pub socket: Socket,
    due: Ticks,
}

/// The idle connections of one thread to one backend; the one used last is used first, so that
/// the others can grow old and be closed.
pub struct Pool {
    idle: RefCell<Vec<Idle>>,
    keep: usize,
    idle_time: Duration,
}

impl Pool {
    /// A pool that keeps up to `keep` connections, each unused for at most `idle_time`.
    pub fn new(keep: usize, idle_time: Duration) -> Self {
        Self { idle: RefCell::default(), keep, idle_time }
    }

    /// An idle connection that seems to be alive. What the backend has closed is dropped.
    pub fn take(&self, deadlines: &Deadlines) -> Option<Socket> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { socket, due }) = idle.pop() {
            if due > deadlines.now() && !socket.is_stale() {
                return Some(socket);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is under way.
    pub fn put(&self, socket: Socket, deadlines: &Deadlines) {
        socket.unlimit_read();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.keep {
            idle.push(Idle { socket, due: deadlines.due(self.idle_time) });
        }
    }

    /// Closes what has been idle for too long or was closed by the backend.
    pub fn prune(&self, deadlines: &Deadlines) {
        self.idle
            .borrow_mut()
            .retain(|entry| entry.due > deadlines.now() && !entry.socket.is_stale());
    }
}
