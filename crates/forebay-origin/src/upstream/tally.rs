//! What is counted about the backends of a route. Each thread has numbers of its own, which it
//! alone writes; whoever asks adds them up.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The numbers of all threads.
#[derive(Debug, Default)]
pub struct Tallies {
    threads: Mutex<Vec<Arc<[Tally]>>>,
    /// Of threads that have given up theirs, as those do that serve by another configuration.
    past: Vec<Tally>,
}

/// Numbers about one backend.
#[derive(Debug, Default)]
struct Tally {
    active: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
}

/// Numbers about one backend at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests under way, and tunnels.
    pub active: u64,
    /// Requests sent, those that were sent again counted again.
    pub requests: u64,
    /// Of these, those that the backend failed at.
    pub failures: u64,
}

/// The numbers of one thread.
pub struct ThreadTally {
    all: Arc<Tallies>,
    own: Arc<[Tally]>,
}

/// A request under way to a backend.
pub struct Active(Rc<ThreadTally>, usize);

impl Tallies {
    /// For so many backends.
    pub fn new(backends: usize) -> Arc<Self> {
        let past = (0..backends).map(|_| Tally::default()).collect();
        Arc::new(Self { threads: Mutex::default(), past })
    }

    /// The numbers of the thread that asks.
    pub fn join(self: &Arc<Self>) -> Rc<ThreadTally> {
        let own: Arc<[Tally]> = self.past.iter().map(|_| Tally::default()).collect();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(own.clone());
        Rc::new(ThreadTally { all: self.clone(), own })
    }

    /// The sums about one backend.
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
    /// A request is sent to a backend.
    pub fn begin(self: &Rc<Self>, backend: usize) -> Active {
        let tally = &self.own[backend];
        add(&tally.active, 1);
        add(&tally.requests, 1);
        Active(self.clone(), backend)
    }

    /// A backend failed.
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

/// Each number has one writer, so no read-modify-write is needed.
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
