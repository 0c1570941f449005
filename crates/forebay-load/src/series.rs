//! Counts of each second of a run, of one load thread.

use std::time::{Duration, Instant};

use forebay_stat::Latency;

use crate::Second;
use crate::tally::Tally;

/// Counts of each second of a run, of one load thread.
///
/// The tally's histogram covers only the current second, so a request costs no more than without a
/// series. At the end of a second, its latencies are added to those of the whole run.
#[derive(Debug)]
pub(crate) struct Series {
    /// End of the current second.
    end: Instant,
    seconds: Vec<Second>,
    /// Counts of the tally at the start of the current second.
    completed: u64,
    failed: u64,
    /// Latencies of the earlier seconds.
    whole: Latency,
    coarse: Latency,
}

const SECOND: Duration = Duration::from_secs(1);

impl Series {
    /// Creates the series of a run that starts at `start`, with a new tally.
    pub fn new(start: Instant) -> Self {
        Self {
            end: start + SECOND,
            seconds: Vec::new(),
            completed: 0,
            failed: 0,
            whole: Latency::new(),
            coarse: Latency::coarse(),
        }
    }

    /// Returns the end of the current second.
    pub fn end(&self) -> Instant {
        self.end
    }

    /// Returns the seconds that are over, from the index `first` on.
    pub fn since(&self, first: usize) -> &[Second] {
        &self.seconds[first..]
    }

    /// Returns the number of seconds that are over.
    pub fn len(&self) -> usize {
        self.seconds.len()
    }

    /// Ends all seconds that are over at `now`.
    pub fn advance(&mut self, now: Instant, tally: &mut Tally) {
        while now >= self.end {
            self.close(tally);
            self.end += SECOND;
        }
    }

    /// Ends the last second, and gives the tally the latencies of the whole run.
    pub fn finish(mut self, tally: &mut Tally) -> Vec<Second> {
        if tally.completed > self.completed || tally.failed > self.failed {
            self.close(tally);
        }
        tally.latency = self.whole;
        self.seconds
    }

    fn close(&mut self, tally: &mut Tally) {
        let mut histogram = String::new();
        if !tally.latency.is_empty() {
            self.coarse.clear();
            self.coarse.merge(&tally.latency);
            histogram = self.coarse.encode();
            self.whole.merge(&tally.latency);
            tally.latency.clear();
        }
        self.seconds.push(Second {
            completed: tally.completed - self.completed,
            failed: tally.failed - self.failed,
            histogram,
        });
        (self.completed, self.failed) = (tally.completed, tally.failed);
    }
}

/// Adds `other`, which begins `offset` seconds after the beginning of `sum`.
pub(crate) fn add_series(sum: &mut Vec<Second>, other: Vec<Second>, offset: usize) {
    let needed = offset + other.len();
    if sum.len() < needed {
        sum.resize_with(needed, Second::default);
    }
    sum[offset..].iter_mut().zip(other).for_each(|(sum, other)| sum.add(other));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Failure;

    #[test]
    fn seconds_add_up_to_the_run() {
        let start = Instant::now();
        let mut tally = Tally::new(0);
        let mut series = Series::new(start);
        let complete = |tally: &mut Tally, us: u64| {
            tally.completed += 1;
            tally.latency.record_us(us);
        };
        complete(&mut tally, 100);
        tally.fail(Failure::Read, 0, &"it broke");
        // The thread was paused for two seconds.
        series.advance(start + Duration::from_millis(3100), &mut tally);
        complete(&mut tally, 300_000);
        complete(&mut tally, 100);
        let seconds = series.finish(&mut tally);
        let counts: Vec<_> = seconds.iter().map(|s| (s.completed, s.failed)).collect();
        assert_eq!(counts, [(1, 1), (0, 0), (0, 0), (2, 0)]);
        assert_eq!((tally.latency.count(), seconds[3].latency().count()), (3, 2));
        assert!(seconds[3].latency().max_us().abs_diff(300_000) < 3000);

        let mut sum = Vec::new();
        add_series(&mut sum, seconds.clone(), 1);
        add_series(&mut sum, seconds, 0);
        let counts: Vec<_> = sum.iter().map(|s| (s.completed, s.failed)).collect();
        assert_eq!(counts, [(1, 1), (1, 1), (0, 0), (2, 0), (2, 0)]);
        assert_eq!(sum[0].latency().count(), 1);
    }
}
