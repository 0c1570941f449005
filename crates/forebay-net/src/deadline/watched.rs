//! The part of a connection that a socket shares with the sweep of deadlines.

use std::cell::{Cell, OnceCell};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::{NEVER, Occupancy, Ticks};
use crate::byte_stream::Io;
use crate::tls::TlsSession;

/// The state of a connection that its thread checks or changes at each tick.
pub struct Watched {
    pub io: Io,
    /// TLS as a layer above `io`, if any.
    pub tls: OnceCell<Box<TlsSession>>,
    pub read_due: Cell<Ticks>,
    pub write_due: Cell<Ticks>,
    /// Time limit for a write that waits for room.
    pub write_limit: Cell<Duration>,
    /// True while output of [`Deadlines::send_soon`](super::Deadlines) waits to be sent.
    pub is_sending: Cell<bool>,
    /// True if the kernel had no room for a part of the output. A separate task sends the rest.
    pub has_rest: Cell<bool>,
    /// The task to wake when all output has been sent.
    pub at_sent: Cell<Option<Waker>>,
    /// The connection's activity. Eviction uses the activity to select connections to close.
    pub occupancy: Occupancy,
    pub tunnel: Cell<bool>,
    /// The task to wake at the next tick.
    pub at_tick: Cell<Option<Waker>>,
    pub expired: Cell<bool>,
}

impl Watched {
    /// Creates the state of a connection without time limits.
    pub fn new(io: Io) -> Self {
        Self {
            io,
            tls: OnceCell::new(),
            read_due: Cell::new(NEVER),
            write_due: Cell::new(NEVER),
            write_limit: Cell::new(Duration::MAX),
            is_sending: Cell::new(false),
            has_rest: Cell::new(false),
            at_sent: Cell::new(None),
            occupancy: Occupancy::default(),
            tunnel: Cell::new(false),
            at_tick: Cell::new(None),
            expired: Cell::new(false),
        }
    }

    pub fn expire(&self, how: Shutdown) {
        self.expired.set(true);
        self.read_due.set(NEVER);
        self.write_due.set(NEVER);
        self.shut_down(how);
    }

    /// Wakes the task that waits for the next tick.
    pub fn wake_at_tick(&self) {
        if let Some(waiting) = self.at_tick.take() {
            waiting.wake();
        }
    }

    /// Records that all output has been sent, and wakes the task that waits for this.
    pub fn set_sent(&self) {
        self.is_sending.set(false);
        if self.has_rest.replace(false) {
            self.write_due.set(NEVER);
        }
        if let Some(waiting) = self.at_sent.take() {
            waiting.wake();
        }
    }

    /// Shuts down the socket after a failed write. The task that reads from this socket then gets
    /// the end of the input.
    pub fn fail_sending(&self) {
        self.shut_down(Shutdown::Both);
        self.set_sent();
    }

    /// Returns true if a read would return bytes. Costs a system call.
    pub fn has_input(&self) -> bool {
        self.peek() == Some(true)
    }

    /// Returns `Some(true)` if bytes have arrived, `Some(false)` at the end of the input or after
    /// an error, else `None`.
    pub fn peek(&self) -> Option<bool> {
        if let Some(tls) = self.tls.get() {
            return tls.peek(&self.io);
        }
        let fd = match self.io.fd() {
            Ok(fd) => fd,
            Err(link) => return link.peek(),
        };
        match rustix::net::recv(fd, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((n, _)) => Some(n > 0),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) => Some(false),
        }
    }

    /// Returns true if the peer has reset the connection. The end of the peer's sending direction is
    /// no reset.
    pub fn is_reset(&self) -> bool {
        match self.io.fd() {
            Err(link) => link.is_reset(),
            Ok(fd) => rustix::net::recv(fd, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK)
                .is_err_and(|error| !matches!(error, Errno::AGAIN | Errno::INTR)),
        }
    }

    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.io.write(pieces),
            Some(tls) => tls.write(&self.io, pieces),
        }
    }

    pub fn send_file(&self, file: BorrowedFd<'_>, at: &mut u64, count: usize) -> io::Result<usize> {
        match self.tls.get() {
            None => self.io.send_file(file, at, count),
            Some(tls) => tls.send_file(&self.io, file, at, count),
        }
    }

    pub fn shut_down(&self, how: Shutdown) {
        match self.io.fd() {
            // Ignore ENOTCONN: the peer closed first.
            Ok(fd) => drop(rustix::net::shutdown(fd, how)),
            Err(link) => link.shut_down(how),
        }
    }
}
