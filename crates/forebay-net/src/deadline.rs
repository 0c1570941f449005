//! Time limits on sockets. A task sets or clears a limit by storing a number, and one sweep per
//! tick enforces all limits.
//!
//! A timer per request would cost more than parsing the request. The sweep shuts down overdue
//! sockets: the waiting task then receives end of file, and finds the socket marked as expired. The
//! sweep also wakes tasks that wait for something else ([`Deadlines::timeout`]).
//!
//! A thread without connections does not tick ([`Deadlines::rest`]), because each tick wakes
//! tokio's event loop three times. When ticks resume, the tick number continues from its last
//! value. If the number jumped ahead, limits that were just set would end too early.

mod eviction;
mod outgoing;

pub use eviction::{Activity, Guest, Occupancy};

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use slab::Slab;
use tokio::sync::Notify;

use crate::byte_stream::Io;
use crate::tls::TlsSession;
use eviction::Candidates;
use outgoing::Outgoing;

/// Interval between sweeps. A deadline takes effect at most two intervals late.
pub const TICK: Duration = Duration::from_millis(100);

/// Time without data after which a tunnel is closed while the server stops.
const TUNNEL_QUIET: Duration = Duration::from_secs(3);

/// Number of ticks since the thread started. No ticks are counted while the thread rests.
pub type Ticks = u32;

/// A deadline that never passes.
pub const NEVER: Ticks = Ticks::MAX;

/// The sockets of one thread, the current tick and the time of day.
#[derive(Default)]
pub struct Deadlines {
    now: Cell<Ticks>,
    pub clock: Clock,
    is_resting: Cell<bool>,
    /// True after [`Deadlines::set_patient`].
    is_patient: Cell<bool>,
    /// Notified when ticks resume after a rest.
    resumed: Notify,
    sockets: RefCell<Slab<Rc<Watched>>>,
    outgoing: Outgoing,
    candidates: Candidates,
    /// Deadline and waiting task of each unfinished [`Deadlines::timeout`].
    waits: RefCell<Slab<(Ticks, Waker)>>,
}

/// Error: the time limit has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue;

/// The time limit of one [`Deadlines::timeout`]. The first poll adds the limit to
/// `Deadlines::waits`.
struct Wait<'a> {
    deadlines: &'a Deadlines,
    due: Ticks,
    key: Option<usize>,
}

impl Deadlines {
    /// Adds a socket to those that each tick checks. Returns the key for [`Deadlines::forget`].
    pub fn watch(&self, socket: Rc<Watched>) -> usize {
        self.resume();
        self.sockets.borrow_mut().insert(socket)
    }

    /// Removes a socket that [`Deadlines::watch`] has added. The socket closes when its last `Rc`
    /// is dropped.
    pub fn forget(&self, key: usize) {
        let socket = self.sockets.borrow_mut().try_remove(key);
        drop(socket);
    }

    /// Returns the current tick.
    pub fn now(&self) -> Ticks {
        self.now.get()
    }

    /// Returns the deadline of an operation that starts now and may take `after`. The deadline
    /// passes up to 0.2 s later, and never earlier.
    pub fn due(&self, after: Duration) -> Ticks {
        // Use 64 bits, because a 128-bit division takes as long as the rest of this function.
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let ticks = millis.div_ceil(TICK.as_millis() as u64) + 1;
        u32::try_from(ticks).map_or(NEVER, |ticks| self.now().saturating_add(ticks))
    }

    /// Waits for `future` at most `after`. Each tick checks the limit, because a timer of tokio for
    /// each waiting request would cost too much.
    ///
    /// # Errors
    /// Returns `Overdue` if the future takes longer than `after`. The error comes up to 0.2 s late.
    pub async fn timeout<F: Future>(
        &self,
        after: Duration,
        future: F,
    ) -> Result<F::Output, Overdue> {
        let mut wait = Wait { deadlines: self, due: self.due(after), key: None };
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => wait.poll_overdue(context).map(Err),
        })
        .await
    }

    /// Advances to the next tick, shuts down overdue sockets and wakes overdue waits.
    pub fn tick(&self) {
        let now = self.now.get() + 1;
        self.now.set(now);
        self.clock.tick();
        for (_, socket) in self.sockets.borrow().iter() {
            socket.wake_at_tick();
            if socket.write_due.get() <= now {
                socket.expire(Shutdown::Both);
            } else if socket.read_due.get() <= now {
                socket.expire(Shutdown::Read);
            }
        }
        for (_, (due, waker)) in self.waits.borrow().iter() {
            if *due <= now {
                waker.wake_by_ref();
            }
        }
    }

    /// Releases memory that the remaining connections do not need.
    pub fn shrink(&self) {
        let mut sockets = self.sockets.borrow_mut();
        if sockets.capacity() > 4 * sockets.len() {
            sockets.shrink_to_fit();
        }
        drop(sockets);
        self.outgoing.shrink();
    }

    /// Returns true if no socket and no task needs a tick.
    pub fn is_empty(&self) -> bool {
        self.sockets.borrow().is_empty() && self.waits.borrow().is_empty()
    }

    /// Begins a rest of the thread, and waits for [`Deadlines::resume`], which ends the rest. The
    /// caller must not call [`Deadlines::tick`] during the rest. Call this only if
    /// [`Deadlines::is_empty`] returns true.
    pub async fn rest(&self) {
        self.is_resting.set(true);
        self.awake().await;
    }

    /// Waits for the end of the rest that [`Deadlines::rest`] has begun. Returns at once if the
    /// thread does not rest.
    pub async fn awake(&self) {
        while self.is_resting.get() {
            self.resumed.notified().await;
        }
    }

    /// Ends a rest and updates the time of day immediately. The next tick follows after 0.1 s.
    pub fn resume(&self) {
        if self.is_resting.replace(false) {
            self.clock.tick();
            self.resumed.notify_waiters();
        }
    }

    /// While the server stops, keeps idle connections open for 2 s, for one more request.
    // A client may send a request just before it learns that its connection closes. During an
    // upgrade, the old process can wait for this request, and answer it with `Connection: close` or
    // GOAWAY.
    pub fn set_patient(&self) {
        self.is_patient.set(true);
    }

    /// Closes every idle connection without unread input. A connection that has not carried a
    /// request closes only after 1 s of idleness. After [`Self::set_patient`], every connection
    /// closes only after 2 s of idleness. Tunnels close after 3 s without data. Call this
    /// repeatedly while the server stops.
    pub fn close_idle(&self) {
        let quiet = self.tunnel_quiet();
        for (_, socket) in self.sockets.borrow().iter() {
            if socket.occupancy.may_close(self.now(), self.is_patient.get())
                && !socket.is_sending.get()
                && !socket.has_input()
            {
                // The connection's task may have to send GOAWAY or `close_notify` of TLS, so end
                // only the input.
                socket.expire(Shutdown::Read);
            } else if socket.tunnel.get() {
                socket.read_due.set(socket.read_due.get().min(quiet));
            }
        }
    }

    /// Returns the time at which a tunnel closes while the server stops, if no data arrives until
    /// then.
    pub fn tunnel_quiet(&self) -> Ticks {
        self.due(TUNNEL_QUIET)
    }
}

impl Wait<'_> {
    fn poll_overdue(&mut self, context: &Context<'_>) -> Poll<Overdue> {
        if self.deadlines.now() >= self.due {
            return Poll::Ready(Overdue);
        }
        self.deadlines.resume();
        let mut waits = self.deadlines.waits.borrow_mut();
        match self.key {
            Some(key) => waits[key].1.clone_from(context.waker()),
            None => self.key = Some(waits.insert((self.due, context.waker().clone()))),
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let key = self.key;
        let wait = key.and_then(|key| self.deadlines.waits.borrow_mut().try_remove(key));
        // Drop the waker after the borrow of `waits` has ended. The waker may own a task. The drop
        // of this task may drop another `Wait`, which borrows `waits`, too.
        drop(wait);
    }
}

/// The state of a connection that its thread checks or changes at each tick.
pub struct Watched {
    pub io: Io,
    /// TLS as a layer above `io`, if any.
    pub tls: OnceCell<Box<TlsSession>>,
    pub read_due: Cell<Ticks>,
    pub write_due: Cell<Ticks>,
    /// Time limit for a write that waits for room.
    pub write_limit: Cell<Duration>,
    /// True while output of [`Deadlines::send_soon`](Deadlines) waits to be sent.
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

/// The wall clock of one thread, updated at each tick.
pub struct Clock {
    second: Cell<u64>,
    date: RefCell<String>,
}

impl Default for Clock {
    /// Creates a clock that shows the current time.
    fn default() -> Self {
        let clock = Self { second: Cell::new(0), date: RefCell::default() };
        clock.tick();
        clock
    }
}

impl Clock {
    /// Updates the time, and formats the date if a new second has begun.
    pub fn tick(&self) {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second.replace(second) {
            *self.date.borrow_mut() = httpdate::fmt_http_date(now);
        }
    }

    /// Returns the seconds since 1970.
    pub fn second(&self) -> u64 {
        self.second.get()
    }

    /// Appends the `Date` field line (RFC 9110 section 6.6.1).
    pub fn append_date(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(self.date.borrow().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}
