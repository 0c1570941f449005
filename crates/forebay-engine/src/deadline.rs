//! Time limits on sockets: set and cleared by storing a number, enforced by one sweep per tick.
//!
//! A timer per request would cost more than the request's parsing. Instead each socket carries the
//! tick at which its current read or write is overdue; a sweep shuts down what is. The task waiting
//! on that socket then wakes with end of file and finds the socket marked as expired. Who waits for
//! something else ([`Deadlines::timeout`]) is woken by the same sweep.
//!
//! A thread without connections does not tick ([`Deadlines::rest`]): each tick ends three waits of
//! tokio's event loop, two for its timer wheel and one for its own eventfd. Missed ticks are not
//! made up for, so that a time limit computed just before the thread resumes is not shortened.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::net::Shutdown;
use slab::Slab;
use tokio::sync::Notify;

use crate::clock::Clock;

mod eviction;
mod outgoing;
mod watched;

use eviction::Candidates;
pub use eviction::{Activity, Guest, Occupancy};
use outgoing::Outgoing;
pub use watched::Watched;

/// How often deadlines are looked at, which is how late one may be.
pub const TICK: Duration = Duration::from_millis(100);

/// How long a tunnel may carry nothing once the server is stopping.
const TUNNEL_QUIET: Duration = Duration::from_secs(1);

/// Ticks since the thread started, but for those during which it rested.
pub type Ticks = u32;

/// Never due.
pub const NEVER: Ticks = Ticks::MAX;

/// The sockets of one thread, the tick it is and the time of day.
#[derive(Default)]
pub struct Deadlines {
    now: Cell<Ticks>,
    pub(crate) clock: Clock,
    is_resting: Cell<bool>,
    /// Notified when ticks go on after a rest.
    resumed: Notify,
    sockets: RefCell<Slab<Rc<Watched>>>,
    outgoing: Outgoing,
    candidates: Candidates,
    /// Waits of [`Deadlines::timeout`], each with the tick at which it is overdue.
    waits: RefCell<Slab<(Ticks, Waker)>>,
}

/// What was waited for has not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue;

/// A wait that the sweep knows of, from its first poll on.
struct Wait<'a> {
    deadlines: &'a Deadlines,
    due: Ticks,
    key: Option<usize>,
}

impl Deadlines {
    /// Watches a socket until [`Deadlines::forget`].
    pub(crate) fn watch(&self, socket: Rc<Watched>) -> usize {
        self.resume();
        self.sockets.borrow_mut().insert(socket)
    }

    /// Ends the watching, and closes the socket when nobody else holds it.
    pub(crate) fn forget(&self, key: usize) {
        let socket = self.sockets.borrow_mut().try_remove(key);
        drop(socket);
    }

    /// The current tick.
    pub fn now(&self) -> Ticks {
        self.now.get()
    }

    /// The tick at which something started now is overdue: never earlier than `after` from now.
    pub fn due(&self, after: Duration) -> Ticks {
        // In 64 bits: a division of 128 takes as long as the rest of a step.
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let ticks = millis.div_ceil(TICK.as_millis() as u64) + 1;
        u32::try_from(ticks).map_or(NEVER, |ticks| self.now().saturating_add(ticks))
    }

    /// Waits for `future` without setting a timer, as every request may have to, in a queue.
    ///
    /// # Errors
    /// `Overdue` where it takes longer than `after`, noticed up to 0.2 s late and never early.
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

    /// Moves to the next tick, shuts down every socket and wakes every wait that is overdue.
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

    /// Gives memory back that so few connections do not need.
    pub(crate) fn shrink(&self) {
        let mut sockets = self.sockets.borrow_mut();
        if sockets.capacity() > 4 * sockets.len() {
            sockets.shrink_to_fit();
        }
        drop(sockets);
        self.outgoing.shrink();
    }

    /// Whether there is nothing that a tick could end or wake.
    pub(crate) fn is_empty(&self) -> bool {
        self.sockets.borrow().is_empty() && self.waits.borrow().is_empty()
    }

    /// Waits, without ticks, for [`Deadlines::resume`]. To be called where [`Deadlines::is_empty`].
    pub(crate) async fn rest(&self) {
        self.is_resting.set(true);
        self.awake().await;
    }

    /// Waits for the end of a rest, if there is one.
    pub async fn awake(&self) {
        while self.is_resting.get() {
            self.resumed.notified().await;
        }
    }

    /// Ends a rest: the time of day is right at once, and the next tick comes in 0.1 s.
    pub(crate) fn resume(&self) {
        if self.is_resting.replace(false) {
            self.clock.tick();
            self.resumed.notify_waiters();
        }
    }

    /// Closes every connection on which no request is under way and none has come in, and lets
    /// tunnels that fall quiet be overdue. To be called again and again while stopping.
    pub fn close_idle(&self) {
        let quiet = self.tunnel_quiet();
        for (_, socket) in self.sockets.borrow().iter() {
            if socket.occupancy.is_idle() && !socket.is_sending.get() && !socket.has_input() {
                // Its owner may have something to send at the end: GOAWAY, or TLS's `close_notify`.
                socket.expire(Shutdown::Read);
            } else if socket.tunnel.get() {
                socket.read_due.set(socket.read_due.get().min(quiet));
            }
        }
    }

    /// When a tunnel is overdue that falls quiet now, while the server stops.
    pub(crate) fn tunnel_quiet(&self) -> Ticks {
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
        // Outside of the borrow: a waker may own a task, whose drop may drop another `Wait`.
        drop(wait);
    }
}
