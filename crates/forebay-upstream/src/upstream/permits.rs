//! Limit of connections to a backend over all threads. The limit includes idle connections, because
//! each occupies a process of php-fpm while it is open.
//!
//! If the limit is reached, a request enters a queue that all threads share. The request later gets
//! a permit to open a connection, or an open connection that another request no longer needs.
//!
//! Forebay learns the limit of a FastCGI application ([`Permits::learning`]). There is none at first.
//! If a new connection waits too long for its first reply, another one is closed for it
//! (`pending_connections`). If the reply then comes soon, the application serves no more connections
//! than there are. Their number is then the limit: further requests wait for one of them, because
//! each connection beyond would only be served in place of another. Sometimes, one request goes beyond
//! the limit, and the limit grows if this request is served. So does a request that has waited for a
//! second.
//!
//! If a request waits, Forebay asks each thread with idle connections to give up one of them. Such
//! a connection moves to the request's thread, or is closed if several requests can share it
//! (HTTP/2).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_net::socket::Detached;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Time after which a request may go beyond a learned limit. Doubles with each such request that is
/// not served.
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// Maximum of this time.
const LAST_PROBE: Duration = Duration::from_secs(64);
/// Maximum time that a request waits because of a learned limit.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A number of connections that no process can have.
const NO_LIMIT: usize = usize::MAX / 2;

/// Permits for connections to one backend.
pub struct Permits {
    state: Mutex<PermitState>,
    learns: bool,
}

/// The next request that may go beyond a learned limit.
#[derive(Debug)]
struct Probe {
    at: Instant,
    interval: Duration,
    /// True if a request has gone beyond the limit, and it is not known if it was served.
    is_open: bool,
}

#[derive(Default)]
struct PermitState {
    available: usize,
    idle: usize,
    waiters: VecDeque<Waiter>,
    holders: Vec<(HolderId, mpsc::UnboundedSender<()>)>,
    next_holder: HolderId,
    /// Set while a learned limit holds.
    probe: Option<Probe>,
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
    /// True if the connection is beyond a learned limit, and has not been served yet.
    is_probe: Cell<bool>,
    /// True if nobody gets the permit when it is dropped.
    is_retired: Cell<bool>,
    /// Request that gets the permit first when this permit is dropped.
    heir: Cell<Option<Waiter>>,
}

/// When the first reply came on a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Before the connection was overdue.
    InTime,
    /// Soon after another connection was closed for it, so the backend serves no more connections.
    AfterClose,
    /// Long after such a close, so the reply was only slow.
    Slow,
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
            learns: false,
        })
    }

    /// Creates a limit that Forebay learns.
    pub fn learning() -> Arc<Self> {
        let state = PermitState { available: NO_LIMIT, ..PermitState::default() };
        Arc::new(Self { state: Mutex::new(state), learns: true })
    }

    /// Returns how long a request may wait of the time that it has to connect.
    pub fn longest_wait(&self, limit: Duration) -> Duration {
        if self.learns { limit.min(LONGEST_WAIT) } else { limit }
    }

    /// Returns a permit beyond a learned limit, for a request that has waited long enough. Returns
    /// `None` beyond the limit of a configuration.
    pub fn exceed(self: &Arc<Self>) -> Option<ConnectionPermit> {
        if let Some(probe) = &mut self.state().probe {
            probe.is_open = true;
        }
        self.learns.then(|| self.permit(true))
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
        Some(self.permit(false))
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
            return Ok(self.permit(false));
        }
        if let Some(probe) = &mut state.probe
            && probe.at <= Instant::now()
        {
            (probe.at, probe.is_open) = (Instant::now() + probe.interval, true);
            return Ok(self.permit(true));
        }
        let (sender, receiver) = oneshot::channel();
        state.waiters.push_back(Waiter { sender, holder });
        if state.idle > 0 {
            state.holders.retain(|(_, holder)| holder.send(()).is_ok());
        }
        Err(receiver)
    }

    fn permit(self: &Arc<Self>, is_probe: bool) -> ConnectionPermit {
        ConnectionPermit {
            permits: self.clone(),
            is_idle: Cell::new(false),
            is_probe: Cell::new(is_probe),
            is_retired: Cell::new(false),
            heir: Cell::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probe {
    /// Returns the next probe if the last one was served in place of another connection.
    fn after(last: Option<&Self>) -> Self {
        let interval = match last {
            Some(last) if last.is_open => (2 * last.interval).min(LAST_PROBE),
            Some(last) => last.interval,
            None => FIRST_PROBE,
        };
        Self { at: Instant::now() + interval, interval, is_open: false }
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

    /// Records when the first reply came on the connection, which may teach a limit or lift it.
    pub fn was_served(&self, arrival: Arrival) {
        if !self.permits.learns {
            return;
        }
        let mut state = self.permits.state();
        let waiter = match arrival {
            // The application serves one more: the next request may go beyond the limit at once.
            Arrival::InTime if self.is_probe.replace(false) => {
                let Some(probe) = &mut state.probe else { return };
                *probe = Probe { at: Instant::now(), interval: FIRST_PROBE, is_open: false };
                state.next_waiter()
            }
            Arrival::InTime => None,
            Arrival::AfterClose => {
                state.probe = Some(Probe::after(state.probe.as_ref()));
                state.available = 0;
                None
            }
            // The close was in vain.
            Arrival::Slow => {
                let is_limited = state.probe.is_some();
                let waiter = if is_limited { state.next_waiter() } else { None };
                state.available += usize::from(is_limited && waiter.is_none());
                waiter
            }
        };
        drop(state);
        if let Some(waiter) = waiter {
            let is_probe = arrival == Arrival::InTime;
            // If this request no longer waits, the drop of the permit passes it on.
            let _ = waiter.sender.send(Grant::Open(self.permits.permit(is_probe)));
        }
    }

    /// Makes the drop of this permit available to nobody, because its connection is closed for one
    /// that is overdue.
    pub fn give_up(&self) {
        self.is_retired.set(self.permits.learns);
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
        if self.is_retired.get() {
            return;
        }
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
            let _ = waiter.sender.send(Grant::Open(self.permits.permit(false)));
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

    /// Runs a test with a learned limit of two: a third connection was closed for another.
    fn with_two_learned(test: impl AsyncFnOnce(Arc<Permits>, [ConnectionPermit; 2])) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let permits = Permits::learning();
            let [first, second, third] = [1, 2, 3].map(|_| permits.acquire(0).ok().unwrap());
            third.give_up();
            drop(third);
            second.was_served(Arrival::AfterClose);
            assert!(permits.acquire(0).is_err());
            test(permits, [first, second]).await;
        });
    }

    #[test]
    fn a_learned_limit_outlives_its_connections() {
        with_two_learned(async |permits, both| {
            drop(both);
            let again = [1, 2].map(|_| permits.acquire(0).ok());
            assert!(again.iter().all(Option::is_some) && permits.acquire(0).is_err());
        });
    }

    #[test]
    fn requests_beyond_a_learned_limit_are_rare_until_one_is_served() {
        with_two_learned(async |permits, [_first, second]| {
            tokio::time::sleep(FIRST_PROBE).await;
            let probe = permits.acquire(0).ok().unwrap();
            let mut waiting = permits.acquire(0).err().unwrap();
            second.give_up();
            drop(second);
            probe.was_served(Arrival::AfterClose);
            tokio::time::sleep(FIRST_PROBE).await;
            assert!(permits.acquire(0).is_err(), "the last one was served in place of another");
            tokio::time::sleep(FIRST_PROBE).await;
            let next = permits.acquire(0).ok().unwrap();
            assert!(waiting.try_recv().is_err());
            next.was_served(Arrival::InTime);
            assert!(waiting.try_recv().is_ok(), "there is a process for another");
            assert!(permits.acquire(0).is_ok());
        });
    }

    #[test]
    fn a_close_in_vain_changes_no_limit() {
        with_two_learned(async |permits, [first, second]| {
            first.give_up();
            drop(first);
            assert!(permits.acquire(0).is_err());
            second.was_served(Arrival::Slow);
            assert!(permits.acquire(0).is_ok());
        });
        let permits = Permits::learning();
        let both = [1, 2].map(|_| permits.acquire(0).ok().unwrap());
        both[0].give_up();
        both[1].was_served(Arrival::Slow);
        assert!(permits.acquire(0).is_ok(), "there is no limit");
    }

    #[test]
    fn a_request_that_has_waited_goes_beyond_a_learned_limit_only() {
        with_two_learned(async |permits, _both| {
            assert_eq!(permits.longest_wait(2 * LONGEST_WAIT), LONGEST_WAIT);
            assert!(permits.exceed().is_some());
        });
        let fixed = Permits::new(1);
        assert_eq!(fixed.longest_wait(2 * LONGEST_WAIT), 2 * LONGEST_WAIT);
        assert!(fixed.exceed().is_none());
        fixed.acquire(0).ok().unwrap().give_up();
        assert!(fixed.acquire(0).is_ok());
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
