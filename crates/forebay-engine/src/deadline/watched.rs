//! What a socket and the sweep of deadlines share of a connection.

use std::cell::{Cell, OnceCell};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown};

use super::{NEVER, Occupancy, Ticks};
use crate::byte_stream::Io;
use crate::tls::Session;

/// What the sweep of deadlines sees of a socket.
pub struct Watched {
    pub io: Io,
    /// The TLS between reads and writes and `io`, if there is any.
    pub tls: OnceCell<Box<Session>>,
    pub read_due: Cell<Ticks>,
    pub write_due: Cell<Ticks>,
    /// How long writing may wait for the peer to make room.
    pub write_limit: Cell<Duration>,
    /// Something that was given to [`Deadlines::send_soon`](super::Deadlines) has not been sent.
    pub is_sending: Cell<bool>,
    /// Of that, the kernel has had no room for some, which a task of its own sends.
    pub has_rest: Cell<bool>,
    /// Who is to be woken when all has been sent.
    pub at_sent: Cell<Option<Waker>>,
    /// Whether it may be closed at any time.
    pub occupancy: Occupancy,
    pub tunnel: Cell<bool>,
    /// Who is to be woken at the next tick.
    pub at_tick: Cell<Option<Waker>>,
    pub expired: Cell<bool>,
}

impl Watched {
    /// A connection that has all the time it wants.
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

    /// Wakes who waits for the next tick, which has come.
    pub fn wake_at_tick(&self) {
        if let Some(waiting) = self.at_tick.take() {
            waiting.wake();
        }
    }

    /// All that was to be sent has been.
    pub fn set_sent(&self) {
        self.is_sending.set(false);
        if self.has_rest.replace(false) {
            self.write_due.set(NEVER);
        }
        if let Some(waiting) = self.at_sent.take() {
            waiting.wake();
        }
    }

    /// Sending has failed: the socket is shut down, and its reader gets end of file.
    pub fn fail_sending(&self) {
        self.shut_down(Shutdown::Both);
        self.set_sent();
    }

    /// Whether a read would give bytes. A system call.
    pub fn has_input(&self) -> bool {
        self.peek() == Some(true)
    }

    /// Bytes (`Some(true)`), the end of the stream or an error (`Some(false)`), or nothing yet.
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
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Err(_) => Some(false),
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
            // ENOTCONN: the peer closed first; nothing to do.
            Ok(fd) => drop(rustix::net::shutdown(fd, how)),
            Err(link) => link.shut_down(how),
        }
    }
}
