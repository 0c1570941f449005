//! Counters of a route's backends. Each thread writes its own numbers; readers add them up.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counters of all threads.
#[derive(Debug, Default)]
pub struct Tallies {
    threads: Mutex<Vec<Arc<[Tally]>>>,
    /// Sums of the counters that no thread uses any more, such as those of an earlier
    /// configuration.
    past: Vec<Tally>,
}

/// Counters of one backend.
#[derive(Debug, Default)]
struct Tally {
    active: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
}

/// Counters of one backend at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Active requests and tunnels.
    pub active: u64,
    /// Requests sent. Each resend counts again.
    pub requests: u64,
    /// Requests that failed because of the backend.
    pub failures: u64,
}

/// Counters of one thread.
pub struct ThreadTally {
    all: Arc<Tallies>,
    own: Arc<[Tally]>,
}

/// An active request at a backend.
pub struct Active(Rc<ThreadTally>, usize);

impl Tallies {
    /// Creates counters for `backends` backends.
    pub fn new(backends: usize) -> Arc<Self> {
        let past = (0..backends).map(|_| Tally::default()).collect();
        Arc::new(Self { threads: Mutex::default(), past })
    }

    /// Returns new counters for the calling thread.
    pub fn join(self: &Arc<Self>) -> Rc<ThreadTally> {
        let own: Arc<[Tally]> = self.past.iter().map(|_| Tally::default()).collect();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(own.clone());
        Rc::new(ThreadTally { all: self.clone(), own })
    }

    /// Returns the sums for one backend.
    pub fn of(&self, backend: usize) -> Counted {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let all = threads.iter().map(|own| &own[backend]).chain([&self.past[backend]]);
        all.fold(Counted::default(), |sum, tally| Counted {
            active: sum.active + tally.active.load(Ordering::Relaxed),
            requests: sum.requests + tally.requests.load(Ordering::Relaxed),
            failures: sum.failures + tally.failures.load(Ordering::Relaxed),
        })
    }
}

impl ThreadTally {
    /// Counts a request to a backend.
    pub fn begin(self: &Rc<Self>, backend: usize) -> Active {
        let tally = &self.own[backend];
        add(&tally.active, 1);
        add(&tally.requests, 1);
        Active(self.clone(), backend)
    }

    /// Counts a failure of a backend.
    pub fn failed(&self, backend: usize) {
        add(&self.own[backend].failures, 1);
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        add(&self.0.own[self.1].active, u64::MAX);
    }
}

impl Drop for ThreadTally {
    fn drop(&mut self) {
        let mut threads = self.all.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|other| !Arc::ptr_eq(other, &self.own));
        for (past, own) in self.all.past.iter().zip(self.own.iter()) {
            past.requests.fetch_add(own.requests.load(Ordering::Relaxed), Ordering::Relaxed);
            past.failures.fetch_add(own.failures.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Adds to a counter of the calling thread. No other thread writes this counter, so a load and a
/// store are enough.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_not_forgotten() {
        let all = Tallies::new(2);
        let (one, other) = (all.join(), all.join());
        let active = one.begin(1);
        drop(other.begin(1));
        other.failed(1);
        assert_eq!(all.of(0), Counted::default());
        assert_eq!(all.of(1), Counted { active: 1, requests: 2, failures: 1 });
        drop((active, one, other));
        assert_eq!(all.of(1), Counted { active: 0, requests: 2, failures: 1 });
        assert!(all.threads.lock().unwrap().is_empty());
    }
}
