//! New connections to a backend, of all threads, that have not received a reply yet. Decides when
//! Forebay closes another connection, so that the backend can serve a new one.
//!
//! A process of php-fpm or of a pre-forking server serves one connection until it closes, then
//! accepts another. If kept connections always got the next request, all other connections would
//! wait for a reply: with five processes, 27 of 32 clients waited.
//!
//! Forebay cannot see if a process has accepted a connection. A new connection is overdue after
//! four times the usual wait for the first byte of a reply, and at least 5 ms. Forebay then closes
//! a connection that has no request, at most one for each new connection.
//!
//! Forebay learns the usual wait from new connections alone. A server may need much longer for the
//! first reply on a connection than for later ones: to Mono, 40 ms instead of 3. If Forebay has
//! closed another connection for a new connection, the wait counts from that close.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

/// Multiple of the usual wait after which a new connection is overdue.
const TIMES_USUAL: u32 = 4;
/// Minimum wait, because the backend's process may have had to wait for the CPU.
const LEAST_PATIENCE: Duration = Duration::from_millis(5);
/// Wait after which a connection is overdue while the usual wait is unknown.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// The usual wait is a moving average, in which a request has the weight 1/`WEIGHT`.
const WEIGHT: i64 = 8;

/// New connections to one backend that have not received a reply yet.
#[derive(Default)]
pub struct PendingConnections {
    /// Number of connections in `waiting`, readable without the lock.
    count: AtomicUsize,
    /// Usual time from a request to the first byte of its reply, in microseconds. 0 means unknown.
    usual: AtomicU64,
    /// True if a thread runs [`watch`]. May be false although a thread runs `watch`: the next new
    /// connection then starts another `watch`, which does no harm.
    is_watched: AtomicBool,
    state: Mutex<PendingState>,
}

#[derive(Default)]
struct PendingState {
    /// Increasing numbers and start times of the waiting connections.
    waiting: VecDeque<(u64, Instant)>,
    /// Numbers of the new connections for which another connection was closed, and the times of
    /// these closes.
    served: VecDeque<(u64, Instant)>,
    next: u64,
    /// [`watch`] has asked `holders` about all overdue connections with numbers below this one.
    asked: u64,
    /// Holders of idle connections.
    holders: Vec<mpsc::UnboundedSender<()>>,
}

/// A new connection, until it receives a reply or is closed.
pub struct PendingConnection {
    all: Arc<PendingConnections>,
    number: u64,
}

/// Marks that a thread runs [`watch`]. When this value is dropped, for example because the thread
/// ends, another thread may run `watch`.
struct Watch(Arc<PendingConnections>);

impl PendingConnections {
    /// Records a new connection for a request. Must be called on a thread with a runtime.
    pub fn open(self: &Arc<Self>) -> PendingConnection {
        let number = {
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            state.waiting.push_back((number, Instant::now()));
            self.count.fetch_add(1, Ordering::Relaxed);
            number
        };
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            tokio::task::spawn_local(watch(Watch(self.clone())));
        }
        PendingConnection { all: self.clone(), number }
    }

    /// Returns true if a new connection is overdue. The caller must then close an idle connection.
    /// Records this close for the oldest new connection, so that a second close for the same
    /// connection is not requested.
    pub fn pop_overdue(&self) -> bool {
        if !self.has_any() {
            return false;
        }
        let mut state = self.state();
        if !self.is_first_overdue(&state) {
            return false;
        }
        let Some((number, _)) = state.waiting.pop_front() else { return false };
        state.served.push_back((number, Instant::now()));
        self.count.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Returns true if a new connection is overdue. Records nothing, unlike
    /// [`PendingConnections::pop_overdue`].
    pub fn is_overdue(&self) -> bool {
        self.has_any() && self.is_first_overdue(&self.state())
    }

    /// Registers a holder of idle connections. The receiver gets a message when a new connection is
    /// overdue.
    pub fn join(&self) -> mpsc::UnboundedReceiver<()> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.holders.retain(|holder| !holder.is_closed());
        state.holders.push(sender);
        receiver
    }

    fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn is_first_overdue(&self, state: &PendingState) -> bool {
        state.waiting.front().is_some_and(|(_, since)| since.elapsed() >= self.patience())
    }

    fn patience(&self) -> Duration {
        match self.usual.load(Ordering::Relaxed) {
            0 => FIRST_PATIENCE,
            usual => LEAST_PATIENCE.max(Duration::from_micros(usual) * TIMES_USUAL),
        }
    }

    fn learn(&self, wait: Duration) {
        let wait = wait.as_micros().max(1) as u64;
        let usual = match self.usual.load(Ordering::Relaxed) {
            0 => wait,
            usual => usual.saturating_add_signed((wait as i64 - usual as i64) / WEIGHT).max(1),
        };
        self.usual.store(usual, Ordering::Relaxed);
    }

    /// Asks the holders to close an idle connection, if new connections have become overdue since
    /// the last call. Returns the time at which the next new connection becomes overdue. Returns
    /// `None` if all new connections are overdue already, or if there are none.
    fn ask_holders(&self) -> Option<Instant> {
        let mut state = self.state();
        let (now, patience) = (Instant::now(), self.patience());
        let PendingState { waiting, asked, holders, next: opened, .. } = &mut *state;
        let mut next = None;
        let mut asks = false;
        for &(number, since) in waiting.iter().filter(|(number, _)| number >= asked) {
            if since + patience > now {
                next = Some((number, since + patience));
                break;
            }
            asks = true;
        }
        *asked = next.map_or(*opened, |(number, _)| number);
        if asks {
            holders.retain(|holder| holder.send(()).is_ok());
        }
        // Store the value while the lock is held. A thread that adds a connection after the unlock
        // reads this value, and starts `watch` if the value is false.
        self.is_watched.store(next.is_some(), Ordering::Relaxed);
        next.map(|(_, due)| due)
    }

    fn state(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the holders to close an idle connection each time that a new connection becomes overdue.
/// Ends when all new connections have become overdue or have got their first byte.
async fn watch(watch: Watch) {
    tokio::time::sleep(LEAST_PATIENCE).await;
    while let Some(next) = watch.0.ask_holders() {
        tokio::time::sleep_until(next.max(Instant::now() + LEAST_PATIENCE)).await;
    }
}

impl PendingConnection {
    /// Ends the wait, because the first byte has arrived.
    pub fn end(self) {
        self.all.learn(self.leave());
    }

    /// Removes the connection from the list. Returns its waiting time, which begins when the
    /// connection is opened. The waiting time begins anew when an idle connection is closed in
    /// favor of this connection.
    fn leave(&self) -> Duration {
        let mut state = self.all.state();
        if let Some(since) = take(&mut state.waiting, self.number) {
            self.all.count.fetch_sub(1, Ordering::Relaxed);
            return since.elapsed();
        }
        take(&mut state.served, self.number).map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.leave();
    }
}

fn take(from: &mut VecDeque<(u64, Instant)>, number: u64) -> Option<Instant> {
    let at = from.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    from.remove(at).map(|(_, since)| since)
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.is_watched.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::time::sleep;

    fn on_a_paused_clock(test: impl AsyncFnOnce(Arc<PendingConnections>)) {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build_local(LocalOptions::default());
        runtime.unwrap().block_on(test(Arc::default()));
    }

    #[test]
    fn one_connection_is_closed_for_each_that_is_overdue() {
        on_a_paused_clock(async |pending| {
            let _waiting = [pending.open(), pending.open()];
            sleep(FIRST_PATIENCE / 2).await;
            let _later = pending.open();
            assert!(!pending.pop_overdue());
            sleep(FIRST_PATIENCE / 2).await;
            assert!(pending.is_overdue());
            assert!(pending.pop_overdue() && pending.pop_overdue());
            assert!(!pending.pop_overdue(), "the third has not waited for as long");
        });
    }

    #[test]
    fn nothing_is_closed_for_what_has_been_answered() {
        on_a_paused_clock(async |pending| {
            let (first, second) = (pending.open(), pending.open());
            sleep(FIRST_PATIENCE).await;
            drop(first);
            assert!(pending.pop_overdue());
            assert!(!pending.pop_overdue());
            second.end();
            assert_eq!(pending.count.load(Ordering::Relaxed), 0);
            assert_eq!(pending.state().served.len(), 0);
        });
    }

    #[test]
    fn a_wait_as_long_as_that_of_other_new_connections_is_not_overdue() {
        for (usual, overdue) in [(1, LEAST_PATIENCE), (200, Duration::from_millis(800))] {
            on_a_paused_clock(async |pending| {
                for _ in 0..64 {
                    let new = pending.open();
                    sleep(Duration::from_millis(usual)).await;
                    new.end();
                }
                let _new = pending.open();
                sleep(overdue - Duration::from_millis(1)).await;
                assert!(!pending.pop_overdue(), "{usual}");
                sleep(Duration::from_millis(2)).await;
                assert!(pending.pop_overdue(), "{usual}");
            });
        }
    }

    #[test]
    fn a_backend_that_has_become_slow_is_learned_from_new_connections_alone() {
        on_a_paused_clock(async |pending| {
            pending.learn(Duration::from_millis(1));
            let mut closed = 0;
            for _ in 0..64 {
                let new = pending.open();
                sleep(2 * LEAST_PATIENCE).await;
                closed += usize::from(pending.pop_overdue());
                sleep(Duration::from_millis(390)).await;
                new.end();
            }
            assert!((1..5).contains(&closed), "{closed}");
        });
    }

    #[test]
    fn holders_are_asked_once_for_what_has_become_overdue() {
        on_a_paused_clock(async |pending| {
            let mut asked = pending.join();
            for _ in 0..2 {
                let _first = pending.open();
                sleep(FIRST_PATIENCE / 2).await;
                assert!(asked.try_recv().is_err());
                let _second = pending.open();
                sleep(10 * FIRST_PATIENCE).await;
                let times = std::iter::from_fn(|| asked.try_recv().ok()).count();
                assert!((1..=2).contains(&times), "{times}");
                assert!(!pending.is_watched.load(Ordering::Relaxed));
            }
        });
    }
}
