//! Limit of connections to a backend over all threads. The limit includes idle connections, because
//! each occupies a process of php-fpm while it is open.
//!
//! If the limit is reached, a request enters a queue that all threads share. The request later gets
//! a permit to open a connection, or an open connection that another request no longer needs.
//!
//! If a request waits, Forebay asks each thread with idle connections to give up one of them. Such
//! a connection moves to the request's thread, or is closed if several requests can share it
//! (HTTP/2).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_net::socket::Detached;
use tokio::sync::{mpsc, oneshot};

/// Permits for connections to one backend.
pub struct Permits {
    state: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    available: usize,
    idle: usize,
    waiters: VecDeque<Waiter>,
    holders: Vec<(HolderId, mpsc::UnboundedSender<()>)>,
    next_holder: HolderId,
}

/// Number of a thread's pool of connections.
pub type HolderId = u64;

/// A request that waits for a connection.
pub struct Waiter {
    /// Sends the grant to the request.
    pub sender: oneshot::Sender<Grant>,
    /// Pool of the request's thread.
    pub holder: HolderId,
}

/// The right to have one connection. The drop of a permit passes this right to a waiting request.
pub struct ConnectionPermit {
    permits: Arc<Permits>,
    is_idle: Cell<bool>,
    /// Request that gets the permit first when this permit is dropped.
    heir: Cell<Option<Waiter>>,
}

/// Result of waiting.
pub enum Grant {
    /// The request may open a connection.
    Open(ConnectionPermit),
    /// The request may use this connection.
    Reuse(Detached, ConnectionPermit),
    /// A connection for the request is ready in the pool of its thread.
    Ready,
}

impl Permits {
    /// Creates the limit: at most `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(PermitState { available: most, ..PermitState::default() }),
        })
    }

    /// Registers a thread's pool of idle connections. The receiver gets a message when the pool
    /// should give up an idle connection, because a request waits.
    pub fn join(&self) -> (HolderId, mpsc::UnboundedReceiver<()>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.holders.retain(|(_, holder)| !holder.is_closed());
        state.next_holder += 1;
        let id = state.next_holder;
        state.holders.push((id, sender));
        (id, receiver)
    }

    /// Returns a permit if one is available now.
    pub fn try_acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let mut state = self.state();
        state.available = state.available.checked_sub(1)?;
        Some(self.permit())
    }

    /// Returns a permit for `holder`. If no permit is available, returns a receiver that gets a
    /// permit later.
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

    fn state(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermitState {
    fn next_waiter(&mut self) -> Option<Waiter> {
        std::iter::from_fn(|| self.waiters.pop_front()).find(|waiter| !waiter.sender.is_closed())
    }
}

impl ConnectionPermit {
    /// Removes and returns the request that has waited longest. If no request waits, counts the
    /// connection of this permit as idle, and returns `None`.
    pub fn next_waiter(&self) -> Option<Waiter> {
        let mut state = self.permits.state();
        let waiter = state.next_waiter();
        if waiter.is_none() && !self.is_idle.replace(true) {
            state.idle += 1;
        }
        waiter
    }

    /// Counts the connection as idle. Returns true if a request waits.
    pub fn set_idle(&self) -> bool {
        let mut state = self.permits.state();
        state.idle += usize::from(!self.is_idle.replace(true));
        state.waiters.retain(|waiter| !waiter.sender.is_closed());
        !state.waiters.is_empty()
    }

    /// Chooses the request that gets this permit when the permit is dropped. Returns false if no
    /// request waits. If the result is true, the caller must close the connection and drop the
    /// permit.
    pub fn bequeath(&self) -> bool {
        let heir = self.permits.state().next_waiter();
        let has_heir = heir.is_some();
        self.heir.set(heir);
        has_heir
    }

    /// Calls [`Permits::join`].
    pub fn join(&self) -> (HolderId, mpsc::UnboundedReceiver<()>) {
        self.permits.join()
    }

    /// Counts the connection as in use, after it was idle.
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
            // If this request no longer waits, the send fails and drops the new permit. This drop
            // passes the permit to the next request.
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
    fn waiting_requests_make_holders_give_up_idle_connections() {
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
    fn the_longest_wait_gets_the_permit_of_a_closed_shared_connection() {
        let permits = Permits::new(1);
        let first = permits.acquire(0).ok().unwrap();
        assert!(!first.set_idle() && !first.bequeath());
        let mut waiting = [1, 2, 3].map(|holder| permits.acquire(holder).err());
        assert!(first.set_idle() && first.bequeath());
        // The request that would get the permit leaves first.
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
