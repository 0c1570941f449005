//! Order and due times of the requests of a log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{Replay, Shard};

/// Order of the requests of a log. All threads share one position in the log, so each request is
/// sent once before the log starts again.
#[derive(Debug)]
pub(crate) struct Schedule {
    replay: Arc<Replay>,
    /// Number of requests that all threads have taken.
    taken: Arc<AtomicU64>,
    /// A shard takes every `step`th request of the log, from `first` on.
    first: u64,
    step: u64,
    start: Instant,
    /// Delay of the request that this thread took last.
    late: Duration,
    /// True in exactly one thread. This thread counts the requests that no thread took.
    counts_rest: bool,
}

/// Next request of a mixed load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRequest {
    /// Index of the request.
    pub request: usize,
    /// Due time, if the log determines it.
    pub due: Option<Instant>,
}

impl Schedule {
    /// Creates the schedule of `shard`, or of the whole log.
    pub fn new(replay: &Arc<Replay>, shard: Option<&Shard>) -> Self {
        let (first, step) = shard.map_or((0, 1), |s| (u64::from(s.number) - 1, u64::from(s.count)));
        let (replay, taken) = (replay.clone(), Arc::default());
        let (start, late) = (Instant::now(), Duration::ZERO);
        Self { replay, taken, first, step, start, late, counts_rest: false }
    }

    /// Returns the schedule for one thread. All threads share the position in the log.
    pub fn for_thread(&self, thread: usize) -> Self {
        let (replay, taken) = (self.replay.clone(), self.taken.clone());
        Self { replay, taken, counts_rest: thread == 0, ..*self }
    }

    /// Begins a run.
    pub fn begin(&mut self, start: Instant) {
        (self.start, self.late) = (start, Duration::ZERO);
    }

    /// Returns true if the log determines the due times.
    pub fn is_paced(&self) -> bool {
        self.replay.speed.is_some()
    }

    /// Takes the next request.
    pub fn take(&mut self, now: Instant) -> NextRequest {
        let next = self.at(self.taken.fetch_add(1, Ordering::Relaxed));
        self.late = next.due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        next
    }

    /// Returns the request that follows after `number` requests of this shard. After its last
    /// entry, the log starts again.
    fn at(&self, number: u64) -> NextRequest {
        let entries = &self.replay.entries;
        let number = number.saturating_mul(self.step).saturating_add(self.first);
        let length = entries.len() as u64;
        let (request, _) = entries[(number % length) as usize];
        let due = self.replay.due(number).map(|after| self.start + after.min(LONGEST));
        NextRequest { request: request as usize, due }
    }

    /// Returns the delay of the replay as a share of the run's duration. If the run ended at the
    /// time `end`, the delay is `end` minus the due time of the next request. If the run ended
    /// after a number of requests, `end` is `None`. The delay is then that of the request which
    /// this thread took last.
    pub fn shortfall(&self, end: Option<Instant>) -> f64 {
        let share =
            |behind: Duration, of: Duration| behind.as_secs_f64() / of.as_secs_f64().max(1e-9);
        let next = self.at(self.taken.load(Ordering::Relaxed)).due.unwrap_or(self.start);
        match end {
            Some(end) => {
                let whole = end.saturating_duration_since(self.start);
                share(end.saturating_duration_since(next).min(whole), whole)
            }
            None => share(self.late, self.start.elapsed()),
        }
    }

    /// Counts the requests that were due before `end` and that no thread took, up to [`MOST_LEFT`].
    /// Only one thread counts these requests (`counts_rest`). All other threads return 0.
    pub fn left(&self, end: Instant) -> u64 {
        let is_due = |number: u64| self.at(number).due.is_some_and(|due| due < end);
        let from = self.taken.load(Ordering::Relaxed);
        let mut left = 0;
        while self.counts_rest && left < MOST_LEFT && is_due(from + left) {
            left += 1;
        }
        left
    }
}

/// Longest time until a request. Later ones are never due.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);
/// Maximum number of requests that are counted as not sent.
const MOST_LEFT: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(times: &[u64], speed: Option<f64>) -> Arc<Replay> {
        let entry = |(index, ms): (usize, &u64)| (index as u32, Duration::from_millis(*ms));
        let entries = times.iter().enumerate().map(entry).collect();
        Arc::new(Replay { entries, speed, ..Replay::default() })
    }

    #[test]
    fn the_log_starts_again_after_its_end() {
        let mut schedule = Schedule::new(&replay(&[0, 100, 300], Some(2.0)), None).for_thread(0);
        let start = Instant::now();
        schedule.begin(start);
        let taken: Vec<_> = (0..5)
            .map(|_| schedule.take(start))
            .map(|next| (next.request, (next.due.unwrap() - start).as_millis()))
            .collect();
        assert_eq!(taken, [(0, 0), (1, 50), (2, 150), (0, 225), (1, 275)]);
        assert_eq!(schedule.left(start + Duration::from_millis(451)), 2, "those at 375 and 450 ms");
        let behind = schedule.shortfall(Some(start + Duration::from_millis(750)));
        assert!((behind - 0.5).abs() < 1e-9, "{behind}");
    }

    #[test]
    fn threads_and_shards_divide_the_log() {
        let replay = replay(&[0; 10], None);
        let mut seen = Vec::new();
        for number in 1..=3 {
            let shard = format!("{number}/3").parse().unwrap();
            let whole = Schedule::new(&replay, Some(&shard));
            let mut threads = [whole.for_thread(0), whole.for_thread(1)];
            let count = if number == 1 { 4 } else { 3 };
            for index in 0..count {
                let next = threads[index % 2].take(Instant::now());
                assert_eq!(next.due, None);
                seen.push(next.request);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}
