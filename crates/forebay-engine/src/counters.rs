//! What is counted: one set of numbers per thread, written by that thread alone and added up by
//! whoever asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of the buckets that durations are counted in, in microseconds.
pub const BUCKETS: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000, 30_000_000,
];

/// The numbers of one thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// Replies by the first digit of their status; 0 where the client got none.
    classes: [AtomicU64; 6],
    /// Requests by duration, one more for those past the last bucket.
    durations: [AtomicU64; BUCKETS.len() + 1],
    duration_us: AtomicU64,
    body_bytes: AtomicU64,
    accepted: AtomicU64,
}

impl Counters {
    /// One reply. `took` where durations are measured.
    pub fn count_request(&self, status: u16, body_bytes: u64, took: Option<Duration>) {
        let class = usize::from(status / 100).min(5);
        add(&self.classes[class], 1);
        add(&self.body_bytes, body_bytes);
        if let Some(took) = took {
            let micros = took.as_micros() as u64;
            let bucket = BUCKETS.partition_point(|&end| end < micros);
            add(&self.durations[bucket], 1);
            add(&self.duration_us, micros);
        }
    }

    /// One connection.
    pub fn count_connection(&self) {
        add(&self.accepted, 1);
    }
}

/// Each number has one writer, so no read-modify-write is needed.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// The sums over all threads at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Replies by the first digit of their status; 0 where the client got none.
    pub classes: [u64; 6],
    /// Requests by duration, in the buckets of [`BUCKETS`] and past them.
    pub durations: [u64; BUCKETS.len() + 1],
    /// Sum of all durations, in microseconds.
    pub duration_us: u64,
    /// Bytes of reply bodies, without framing.
    pub body_bytes: u64,
    /// Connections taken.
    pub accepted: u64,
}

impl Totals {
    /// Adds up `threads`.
    pub fn of(threads: &[Arc<Counters>]) -> Self {
        let mut totals = Self::default();
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        for thread in threads {
            for (sum, number) in totals.classes.iter_mut().zip(&thread.classes) {
                *sum += read(number);
            }
            for (sum, number) in totals.durations.iter_mut().zip(&thread.durations) {
                *sum += read(number);
            }
            totals.duration_us += read(&thread.duration_us);
            totals.body_bytes += read(&thread.body_bytes);
            totals.accepted += read(&thread.accepted);
        }
        totals
    }

    /// Replies of all kinds.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }
}
