//! A limit on connections to a backend that holds over all threads, for idle connections as well: a
//! process of php-fpm belongs to its connection for as long as that is open.
//!
//! A thread that may not open another connection waits in one queue with those of all threads, first
//! come, first served. It gets what comes first: the right to open one, or an open connection that
//! another request has done with. One of the same pool lies ready there: giving it to another thread
//! takes it off one event loop and puts it on the other, three system calls. Who waits makes the
//! other threads give up an idle connection: one of a pool as it is, one that requests share
//! (HTTP/2) by closing it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_engine::Detached;
use tokio::sync::{mpsc, oneshot};

/// The connections to one backend.
pub struct Permits {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    available: usize,
    idle: usize,
    waiters: VecDeque<Waiter>,
    holders: Vec<(HolderId, mpsc::UnboundedSender<()>)>,
    next_holder: HolderId,
}

/// A pool of connections of one thread.
pub type HolderId = u64;

/// Who waits for a connection.
pub struct Waiter {
    /// Where its grant is sent.
    pub sender: oneshot::Sender<Grant>,
    /// The pool that it would take one of.
    pub holder: HolderId,
}

/// The right to one connection; dropping it passes it on.
pub struct ConnectionPermit {
    permits: Arc<Permits>,
    is_idle: Cell<bool>,
    /// Who gets it, before all others that wait.
    heir: Cell<Option<Waiter>>,
}

/// What a request has waited for.
pub enum Grant {
    /// It may open a connection.
    Open(ConnectionPermit),
    /// It may use this connection.
    Reuse(Detached, ConnectionPermit),
    /// A connection lies ready in its pool.
    Ready,
}

impl Permits {
    /// At most `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { available: most, ..State::default() }) })
    }

    /// A holder of idle connections: it is notified whenever it should give one up.
    pub fn join(&self) -> (HolderId, mpsc::UnboundedReceiver<()>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.holders.retain(|(_, holder)| !holder.is_closed());
        state.next_holder += 1;
        let id = state.next_holder;
        state.holders.push((id, sender));
        (id, receiver)
    }

    /// The right to open a connection now, where there is one.
    pub fn try_acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let mut state = self.state();
        state.available = state.available.checked_sub(1)?;
        Some(self.permit())
    }

    /// The right to open a connection, now or later, for `holder`.
    pub fn acquire(
        self: &Arc<Self>,
        holder: HolderId,
    ) -> Result<ConnectionPermit, oneshot::Receiver<Grant>> {
        let mut state = self.state();
        if state.available > 0 {
            state.available -= 1;
            return Ok(self.permit());
        }
        let (sender, receiver) = oneshot::channel();
        state.waiters.push_back(Waiter { sender, holder });
        if state.idle > 0 {
            state.holders.retain(|(_, holder)| holder.send(()).is_ok());
        }
        Err(receiver)
    }

    fn permit(self: &Arc<Self>) -> ConnectionPermit {
        ConnectionPermit { permits: self.clone(), is_idle: Cell::new(false), heir: Cell::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_waiter(&mut self) -> Option<Waiter> {
        std::iter::from_fn(|| self.waiters.pop_front()).find(|waiter| !waiter.sender.is_closed())
    }
}

impl ConnectionPermit {
    /// The one that waits longest for a connection. Without one the connection counts as idle.
    pub fn next_waiter(&self) -> Option<Waiter> {
        let mut state = self.permits.state();
        let waiter = state.next_waiter();
        if waiter.is_none() && !self.is_idle.replace(true) {
            state.idle += 1;
        }
        waiter
    }

    /// The connection counts as idle; whether somebody waits for one.
    pub fn set_idle(&self) -> bool {
        let mut state = self.permits.state();
        state.idle += usize::from(!self.is_idle.replace(true));
        state.waiters.retain(|waiter| !waiter.sender.is_closed());
        !state.waiters.is_empty()
    }

    /// Whether somebody waits for it still, who gets it when it is dropped: the connection is to be
    /// closed.
    pub fn bequeath(&self) -> bool {
        let heir = self.permits.state().next_waiter();
        let has_heir = heir.is_some();
        self.heir.set(heir);
        has_heir
    }

    /// As [`Permits::join`].
    pub fn join(&self) -> (HolderId, mpsc::UnboundedReceiver<()>) {
        self.permits.join()
    }

    /// The connection is in use again.
    pub fn set_busy(&self) {
        if self.is_idle.replace(false) {
            self.permits.state().idle -= 1;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.set_busy();
        let heir = self.heir.take().filter(|heir| !heir.sender.is_closed());
        let waiter = {
            let mut state = self.permits.state();
            let waiter = heir.or_else(|| state.next_waiter());
            state.available += usize::from(waiter.is_none());
            waiter
        };
        if let Some(waiter) = waiter {
            // A waiter that has gone in this very moment gives it back, and its drop passes it on.
            let _ = waiter.sender.send(Grant::Open(self.permits.permit()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_granted_than_there_are() {
        let permits = Permits::new(2);
        let (first, second) = (permits.acquire(0).ok().unwrap(), permits.acquire(0).ok().unwrap());
        let mut third = permits.acquire(0).err().unwrap();
        let fourth = permits.acquire(0).err().unwrap();
        assert!(third.try_recv().is_err());
        drop(fourth);
        drop(first);
        let Ok(Grant::Open(third)) = third.try_recv() else { panic!("the third may open one") };
        drop((second, third));
        assert_eq!(permits.state().available, 2);
    }

    #[test]
    fn a_grant_that_nobody_fetches_goes_on() {
        let permits = Permits::new(1);
        let first = permits.acquire(0).ok().unwrap();
        let second = permits.acquire(0).err().unwrap();
        let mut third = permits.acquire(0).err().unwrap();
        drop(first);
        drop(second);
        assert!(matches!(third.try_recv(), Ok(Grant::Open(_))));
        drop(third);
        assert_eq!(permits.state().available, 1);
    }

    #[test]
    fn who_waits_makes_holders_give_up_what_is_idle() {
        let permits = Permits::new(1);
        let (_, mut holder) = permits.join();
        let first = permits.acquire(0).ok().unwrap();
        assert!(first.next_waiter().is_none(), "now it is idle");
        let second = permits.acquire(0).err().unwrap();
        assert!(holder.try_recv().is_ok());
        assert!(first.next_waiter().is_some());
        drop(second);
        drop(first);
        let state = permits.state();
        assert_eq!((state.available, state.idle), (1, 0));
    }

    #[test]
    fn who_waits_longest_gets_the_permit_of_a_shared_connection_that_is_closed() {
        let permits = Permits::new(1);
        let first = permits.acquire(0).ok().unwrap();
        assert!(!first.set_idle() && !first.bequeath());
        let mut waiting = [1, 2, 3].map(|holder| permits.acquire(holder).err());
        assert!(first.set_idle() && first.bequeath());
        // The heir leaves before it gets anything.
        waiting[0] = None;
        drop(first);
        let Ok(Grant::Open(second)) = waiting[1].as_mut().unwrap().try_recv() else {
            panic!("the next may open one")
        };
        assert!(waiting[2].as_mut().unwrap().try_recv().is_err());
        waiting[2] = None;
        assert!(!second.set_idle(), "nobody waits any more");
        drop(second);
        let state = permits.state();
        assert_eq!((state.available, state.idle), (1, 0));
    }
}
