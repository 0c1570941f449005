//! Limits the number of workers that run at the same time if requests only compute.
//!
//! Such requests gain nothing if more workers than processors run: the processes evict each other's
//! data from the CPU caches. A script that prints the time takes twice as many cycles with ten
//! running workers as with two. So a request waits for a worker that will finish soon, instead of
//! waking another. If requests sleep (for example, while they wait for a database), each request
//! gets an idle worker at once.
//!
//! The kernel counts the sleeps of each process. A worker whose requests only compute sleeps
//! between requests, but never within one, however busy the machine is.

use crate::worker::{Window, WorkerShared, WorkerState};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// First part of the time that a request waits for a busy worker while another worker is idle.
/// After this time, the request waits on only while as many workers run as there are processors. A
/// worker that began its request within this time counts as running: it probably finishes soon.
pub(crate) const MOMENT: Duration = Duration::from_millis(5);
/// Size of a window: the number of a worker's requests between two readings of its sleeps.
const WINDOW: u64 = 64;
/// Number of sleeps within requests that a window may contain if its requests only compute.
const FEW: u64 = 4;
/// From this score on, requests wait for busy workers. Each window in which requests only computed
/// adds 1 to the score, up to `MOST`. Each other window subtracts `LESS`.
const ENOUGH: u32 = 4;
const MOST: u32 = 8;
const LESS: u32 = 2;

/// Decides how many workers may run at the same time. Recent requests determine if requests only
/// compute, or sleep as well.
#[derive(Debug)]
pub(crate) struct Pace {
    processors: usize,
    /// Score of the assumption that requests only compute, from 0 to [`MOST`].
    computing: u32,
}

impl Pace {
    /// Returns true if a request should wait for one of these workers although another worker is
    /// idle.
    pub(crate) fn holds<'a>(
        &self,
        workers: impl IntoIterator<Item = &'a Arc<WorkerShared>>,
        now: Instant,
    ) -> bool {
        self.computes() && self.have_begun(workers, now, MOMENT)
    }

    /// Returns true if, for each processor, there is a worker with a request that began less than
    /// `within` ago.
    pub(crate) fn have_begun<'a>(
        &self,
        workers: impl IntoIterator<Item = &'a Arc<WorkerShared>>,
        now: Instant,
        within: Duration,
    ) -> bool {
        let at_work = |shared: &&Arc<WorkerShared>| {
            shared.state() == WorkerState::Busy && now.duration_since(shared.since()) < within
        };
        workers.into_iter().filter(at_work).take(self.processors).count() == self.processors
    }

    /// Returns true if the score of recent windows shows that requests only compute.
    pub(crate) fn computes(&self) -> bool {
        self.computing >= ENOUGH
    }

    /// Raises the score if the requests of this window only computed, and lowers it if they slept.
    pub(crate) fn learn(&mut self, window: Window) {
        let between = WINDOW.saturating_sub(window.prefetched);
        self.computing = if window.sleeps <= between + FEW {
            MOST.min(self.computing + 1)
        } else {
            self.computing.saturating_sub(LESS)
        };
    }
}

#[cfg(test)]
impl Pace {
    /// Returns a pace with a given number of processors and kind of requests.
    pub(crate) fn known(processors: usize, computes: bool) -> Pace {
        Pace { processors, computing: if computes { MOST } else { 0 } }
    }
}

impl Default for Pace {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { processors, computing: 0 }
    }
}

/// Returns the activity of this worker during its last [`WINDOW`] requests. Returns `None` if the
/// number of its requests is no multiple of `WINDOW`, or if the kernel hides the number of sleeps.
pub(crate) fn window(shared: &WorkerShared) -> Option<Window> {
    if !shared.requests.load(Ordering::Relaxed).is_multiple_of(WINDOW) {
        return None;
    }
    let mut file = File::open(format!("/proc/{}/status", shared.pid.as_raw_nonzero())).ok()?;
    let mut status = [0; 4096];
    let len = file.read(&mut status).ok()?;
    let status = str::from_utf8(&status[..len]).ok()?;
    let (_, sleeps) = status.rsplit_once("\nvoluntary_ctxt_switches:")?;
    let sleeps = sleeps.lines().next()?.trim().parse().ok()?;
    Some(shared.window(sleeps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::PrefetchQueue;
    use rustix::process::getpid;

    fn begun() -> Arc<WorkerShared> {
        let (prefetch, _its_end) = PrefetchQueue::pair().unwrap();
        let shared = WorkerShared::new(1, getpid(), prefetch, u64::MAX);
        shared.enter(WorkerState::Busy);
        Arc::new(shared)
    }

    #[test]
    fn requests_that_only_compute_are_held_once_each_processor_has_one() {
        let mut pace = Pace { processors: 2, computing: 0 };
        let workers = [begun(), begun()];
        let now = workers[1].since();
        for _ in 0..ENOUGH {
            assert!(!pace.holds(&workers, now), "too little is known yet");
            pace.learn(Window { sleeps: WINDOW, prefetched: 0 });
        }
        assert!(!pace.holds(&workers[..1], now));
        assert!(pace.holds(&workers, now));
        assert!(!pace.holds(&workers, now + MOMENT), "these take longer");
        workers[0].enter(WorkerState::Idle);
        assert!(!pace.holds(&workers, workers[1].since()));
    }

    #[test]
    fn requests_that_sleep_are_not_held() {
        let mut pace = Pace { processors: 1, computing: MOST };
        let workers = [begun()];
        assert!(pace.holds(&workers, workers[0].since()));
        pace.learn(Window { sleeps: 2 * WINDOW, prefetched: 0 });
        assert!(pace.holds(&workers, workers[0].since()), "one window says little");
        for _ in 0..2 {
            pace.learn(Window { sleeps: 2 * WINDOW, prefetched: 0 });
        }
        assert!(!pace.holds(&workers, workers[0].since()));
    }

    #[test]
    fn requests_that_sleep_although_the_next_lies_there_do_not_only_compute() {
        let mut pace = Pace { processors: 1, computing: ENOUGH };
        pace.learn(Window { sleeps: WINDOW - 20, prefetched: 20 });
        assert!(pace.computes());
        pace.learn(Window { sleeps: WINDOW, prefetched: 20 });
        assert!(!pace.computes());
    }

    #[test]
    fn sleeps_are_counted_by_windows() {
        let shared = begun();
        let mut seen = Vec::new();
        for _ in 0..2 * WINDOW {
            shared.begin_request(b"");
            shared.count_prefetched();
            seen.extend(window(&shared));
        }
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[1].prefetched, WINDOW);
        assert_eq!(shared.window(seen[0].sleeps + seen[1].sleeps + 3).sleeps, 3);
    }
}
