//! New connections to a backend on which nothing has come yet, over all threads, and when another
//! is closed for one.
//!
//! A process of php-fpm, or of a server that forks beforehand, serves one connection for as long as
//! that is open, and takes up another then. Kept connections that always found the next request
//! left all others without an answer for as long as that went on: with five processes 27 of 32
//! clients. Whether a process has taken a connection up cannot be seen, so it is guessed: one that
//! has waited four times as long as requests usually wait for their first byte, and 5 ms at least,
//! is overdue, and a connection without a request is closed for it, the next that is done or one
//! that lies idle. It is one at the most for each new connection: where processes are not short, a
//! request that takes long costs one connection, and those that take as long as usual none.
//!
//! What is usual is learned from kept connections while new ones wait, and from new ones since
//! another was closed for them, as a process is theirs then; else a backend that has become slow
//! would have all connections closed, and nothing to learn from.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

/// A new connection is overdue after so many times the usual wait.
const TIMES_USUAL: u32 = 4;
/// And no earlier than this: another process may have had the processor.
const LEAST_PATIENCE: Duration = Duration::from_millis(5);
/// While nothing is known of what is usual.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// The usual wait is a moving average in which each request has this weight, one in so many.
const WEIGHT: i64 = 8;

/// The new connections to one backend that have no answer.
#[derive(Default)]
pub struct Unanswered {
    /// How many wait for which nothing was closed: the length of `waiting`, without its lock.
    count: AtomicUsize,
    /// For how long requests wait for their first byte, in microseconds; 0: not known.
    usual: AtomicU64,
    /// Some thread runs [`watch`].
    is_watched: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By their numbers, which grow, and since when they wait.
    waiting: VecDeque<(u64, Instant)>,
    /// Those for which another was closed, and since when.
    served: VecDeque<(u64, Instant)>,
    next: u64,
    /// Holders were asked for all that have lower numbers.
    asked: u64,
    holders: Vec<mpsc::UnboundedSender<()>>,
}

/// What a request that waits for its first byte is to [`Unanswered`].
pub enum Wait {
    /// Its connection is new.
    New(Newcomer),
    /// Its connection was kept, and new ones waited when it began.
    Kept(Arc<Unanswered>, Instant),
}

/// A new connection, until it is answered or closed.
pub struct Newcomer {
    unanswered: Arc<Unanswered>,
    number: u64,
}

/// Runs [`watch`]; to drop it, with its thread, lets another do so.
struct Watch(Arc<Unanswered>);

impl Unanswered {
    /// A connection is opened for a request. To be called on a thread with a runtime.
    pub fn open(self: &Arc<Self>) -> Wait {
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
        Wait::New(Newcomer { unanswered: self.clone(), number })
    }

    /// A request comes to a kept connection.
    pub fn reuse(self: &Arc<Self>) -> Option<Wait> {
        self.has_any().then(|| Wait::Kept(self.clone(), Instant::now()))
    }

    /// Whether a connection without a request is to be closed for a new one that is overdue. It
    /// counts as closed.
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

    /// As [`Unanswered::pop_overdue`], but nothing counts as closed.
    pub fn is_overdue(&self) -> bool {
        self.has_any() && self.is_first_overdue(&self.state())
    }

    /// A holder of idle connections. It is asked for one when a new connection has become overdue.
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

    fn is_first_overdue(&self, state: &State) -> bool {
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

    /// Asks holders for those that have become overdue since the last time; when to do so again, if
    /// any of those that wait may become so.
    fn ask_holders(&self) -> Option<Instant> {
        let mut state = self.state();
        let (now, patience) = (Instant::now(), self.patience());
        let State { waiting, asked, holders, next: opened, .. } = &mut *state;
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
        // Within the lock: whoever opens one after it finds that nobody watches.
        self.is_watched.store(next.is_some(), Ordering::Relaxed);
        next.map(|(_, due)| due)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks holders whenever it is time to, until nothing waits for which they were not asked.
async fn watch(watch: Watch) {
    tokio::time::sleep(LEAST_PATIENCE).await;
    while let Some(next) = watch.0.ask_holders() {
        tokio::time::sleep_until(next.max(Instant::now() + LEAST_PATIENCE)).await;
    }
}

impl Wait {
    /// The first byte has come.
    pub fn end(self) {
        match self {
            Self::Kept(unanswered, since) => unanswered.learn(since.elapsed()),
            Self::New(newcomer) => newcomer.unanswered.learn(newcomer.leave()),
        }
    }
}

impl Newcomer {
    /// Takes it off the list; how long it has waited, since another was closed for it if one was.
    fn leave(&self) -> Duration {
        let mut state = self.unanswered.state();
        if let Some(since) = take(&mut state.waiting, self.number) {
            self.unanswered.count.fetch_sub(1, Ordering::Relaxed);
            return since.elapsed();
        }
        take(&mut state.served, self.number).map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for Newcomer {
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

    fn on_a_paused_clock(test: impl AsyncFnOnce(Arc<Unanswered>)) {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build_local(LocalOptions::default());
        runtime.unwrap().block_on(test(Arc::default()));
    }

    #[test]
    fn one_connection_is_closed_for_each_that_is_overdue() {
        on_a_paused_clock(async |unanswered| {
            let _waiting = [unanswered.open(), unanswered.open()];
            sleep(FIRST_PATIENCE / 2).await;
            let _later = unanswered.open();
            assert!(!unanswered.pop_overdue());
            sleep(FIRST_PATIENCE / 2).await;
            assert!(unanswered.is_overdue());
            assert!(unanswered.pop_overdue() && unanswered.pop_overdue());
            assert!(!unanswered.pop_overdue(), "the third has not waited for as long");
        });
    }

    #[test]
    fn nothing_is_closed_for_what_has_been_answered() {
        on_a_paused_clock(async |unanswered| {
            let (first, second) = (unanswered.open(), unanswered.open());
            sleep(FIRST_PATIENCE).await;
            drop(first);
            assert!(unanswered.pop_overdue());
            assert!(!unanswered.pop_overdue());
            second.end();
            assert_eq!(unanswered.count.load(Ordering::Relaxed), 0);
            assert_eq!(unanswered.state().served.len(), 0);
        });
    }

    #[test]
    fn what_takes_as_long_as_on_kept_connections_is_not_overdue() {
        for (usual, overdue) in [(1, LEAST_PATIENCE), (200, Duration::from_millis(800))] {
            on_a_paused_clock(async |unanswered| {
                let _first = unanswered.open();
                for _ in 0..64 {
                    let kept = unanswered.reuse().expect("one waits");
                    sleep(Duration::from_millis(usual)).await;
                    kept.end();
                }
                while unanswered.pop_overdue() {}
                let _new = unanswered.open();
                sleep(overdue - Duration::from_millis(1)).await;
                assert!(!unanswered.pop_overdue(), "{usual}");
                sleep(Duration::from_millis(2)).await;
                assert!(unanswered.pop_overdue(), "{usual}");
                assert!(unanswered.reuse().is_none(), "nobody is left to compare with");
            });
        }
    }

    #[test]
    fn a_backend_that_has_become_slow_is_learned_from_new_connections_alone() {
        on_a_paused_clock(async |unanswered| {
            unanswered.learn(Duration::from_millis(1));
            let mut closed = 0;
            for _ in 0..64 {
                let new = unanswered.open();
                sleep(2 * LEAST_PATIENCE).await;
                closed += usize::from(unanswered.pop_overdue());
                sleep(Duration::from_millis(390)).await;
                new.end();
            }
            assert!((1..5).contains(&closed), "{closed}");
        });
    }

    #[test]
    fn holders_are_asked_once_for_what_has_become_overdue() {
        on_a_paused_clock(async |unanswered| {
            let mut asked = unanswered.join();
            for _ in 0..2 {
                let _first = unanswered.open();
                sleep(FIRST_PATIENCE / 2).await;
                assert!(asked.try_recv().is_err());
                let _second = unanswered.open();
                sleep(10 * FIRST_PATIENCE).await;
                let times = std::iter::from_fn(|| asked.try_recv().ok()).count();
                assert!((1..=2).contains(&times), "{times}");
                assert!(!unanswered.is_watched.load(Ordering::Relaxed));
            }
        });
    }
}
