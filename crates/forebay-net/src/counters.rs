//! Counters of requests, connections and limits. Each thread writes only its own set, and a reader
//! adds up the sets of all threads.

mod routes;
mod top;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::limit::{Limit, PerLimit};
use crate::timing::Step;

pub use routes::{RouteCounters, RouteLabels, RouteRegistry, RouteTotals};
pub use top::{KINDS, Top, TopTimes, heaviest};

/// Upper bounds of the histogram buckets, in microseconds.
pub const BUCKETS: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000, 30_000_000,
];

/// The counters of one thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of replies by the first digit of the status. Index 0: requests without a reply.
    classes: [AtomicU64; 6],
    durations: Histogram,
    /// Durations per [`Step`], if steps are timed.
    steps: [Histogram; Step::ALL.len()],
    /// Number of times that each [`Limit`] was reached.
    limits: PerLimit<AtomicU64>,
    body_bytes: AtomicU64,
    accepted: AtomicU64,
    /// Who takes the time. Empty unless requests are timed.
    pub top: Top,
}

/// A histogram of durations. The last bucket counts durations above all bounds in [`BUCKETS`].
#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn count(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = BUCKETS.partition_point(|&end| end < micros);
        add(&self.buckets[bucket], 1);
        add(&self.sum_us, micros);
    }
}

impl Counters {
    /// Counts one finished request. `status` and `body_bytes` are those of the reply; `status` is 0
    /// without a reply. `took` is `None` if durations are not measured.
    pub fn count_request(&self, status: u16, body_bytes: u64, took: Option<Duration>) {
        let class = usize::from(status / 100).min(5);
        add(&self.classes[class], 1);
        add(&self.body_bytes, body_bytes);
        if let Some(took) = took {
            self.durations.count(took);
        }
    }

    /// Counts the duration of each step of a request.
    pub fn count_steps(&self, steps: impl Iterator<Item = (Step, Duration)>) {
        for (step, took) in steps {
            self.steps[step as usize].count(took);
        }
    }

    /// Counts that a limit was reached.
    pub fn count_limit(&self, limit: Limit) {
        add(&self.limits.0[limit as usize], 1);
    }

    /// Counts one accepted connection.
    pub fn count_connection(&self) {
        add(&self.accepted, 1);
    }
}

/// Adds to a counter. Each counter has one writer, so no atomic read-modify-write is needed.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// A copy of the histogram counts, added up over threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of durations in each bucket of [`BUCKETS`]. The last element counts longer durations.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Sum of all durations in microseconds.
    pub sum_us: u64,
}

impl Durations {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn add(&mut self, histogram: &Histogram) {
        for (sum, number) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += number.load(Ordering::Relaxed);
        }
        self.sum_us += histogram.sum_us.load(Ordering::Relaxed);
    }
}

/// The counters of all threads, added up at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of replies by the first digit of the status. Index 0: requests without a reply.
    pub classes: [u64; 6],
    /// Durations of requests.
    pub durations: Durations,
    /// Durations of each [`Step`] of the requests.
    pub steps: [Durations; Step::ALL.len()],
    /// Number of times that each limit was reached.
    pub limits: PerLimit<u64>,
    /// Bytes of reply bodies, without framing.
    pub body_bytes: u64,
    /// Accepted connections.
    pub accepted: u64,
}

impl Totals {
    /// Adds up the counters of `threads`.
    pub fn of(threads: &[Arc<Counters>]) -> Self {
        let mut totals = Self::default();
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        for thread in threads {
            for (sum, number) in totals.classes.iter_mut().zip(&thread.classes) {
                *sum += read(number);
            }
            for (sum, number) in totals.limits.0.iter_mut().zip(&thread.limits.0) {
                *sum += read(number);
            }
            totals.durations.add(&thread.durations);
            for (sum, histogram) in totals.steps.iter_mut().zip(&thread.steps) {
                sum.add(histogram);
            }
            totals.body_bytes += read(&thread.body_bytes);
            totals.accepted += read(&thread.accepted);
        }
        totals
    }

    /// Returns the number of replies of all kinds.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }
}
