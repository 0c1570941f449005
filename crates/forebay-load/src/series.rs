//! Counts of one load thread for each second of a run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_stat::Latency;

use crate::counts::StageTally;
use crate::tally::Tally;
use crate::{Requests, Second};

/// Counts of one load thread for each second of a run.
///
/// Each latency is first recorded only in the histogram of the tally. At the end of each second and
/// stage, this histogram is added to those of the second, the stage and the run, and then cleared.
#[derive(Debug)]
pub(crate) struct Series {
    /// End of the current second.
    end: Instant,
    seconds: Vec<Second>,
    /// Counts of the tally at the start of the current second.
    completed: u64,
    failed: u64,
    /// Latencies of the run that were already taken from the tally.
    whole: Latency,
    /// The end of a stage takes the latencies from the tally. This histogram keeps the latencies
    /// that belong to the current second.
    coarse: Latency,
    /// Stages of a ramp.
    stages: Option<Box<StageSeries>>,
}

/// Counts of each stage of a ramp.
#[derive(Debug)]
struct StageSeries {
    /// Ends of the stages that are not over.
    ends: VecDeque<Instant>,
    all: Vec<StageTally>,
    /// Counts of the tally at the start of the current stage.
    completed: u64,
    failed: u64,
    latency: Box<Latency>,
}

const SECOND: Duration = Duration::from_secs(1);

impl Series {
    /// Creates the series of a run that starts at `start`. The tally of the run must still be
    /// empty.
    pub fn new(start: Instant) -> Self {
        Self {
            end: start + SECOND,
            seconds: Vec::new(),
            completed: 0,
            failed: 0,
            whole: Latency::new(),
            coarse: Latency::coarse(),
            stages: None,
        }
    }

    /// Adds stages. `ends` contains the end of each stage; without stages, it is empty.
    pub fn with_stages(self, ends: &[Instant]) -> Self {
        let stages = (!ends.is_empty()).then(|| {
            Box::new(StageSeries {
                ends: ends.iter().copied().collect(),
                all: Vec::new(),
                completed: 0,
                failed: 0,
                latency: Box::default(),
            })
        });
        Self { stages, ..self }
    }

    /// Returns the end of the current second, or of the current stage if that is earlier.
    pub fn end(&self) -> Instant {
        self.stage_end().map_or(self.end, |end| end.min(self.end))
    }

    fn stage_end(&self) -> Option<Instant> {
        self.stages.as_ref().and_then(|stages| stages.ends.front().copied())
    }

    /// Returns the seconds that are over, from the index `first` on.
    pub fn since(&self, first: usize) -> &[Second] {
        &self.seconds[first..]
    }

    /// Returns the number of seconds that are over.
    pub fn len(&self) -> usize {
        self.seconds.len()
    }

    /// Ends all seconds and stages that are over at `now`.
    pub fn advance(&mut self, now: Instant, tally: &mut Tally) {
        while now >= self.end() {
            if self.stage_end().is_some_and(|end| end <= self.end) {
                self.close_stage(tally);
            } else {
                self.close(tally);
                self.end += SECOND;
            }
        }
    }

    /// Ends the last second and all stages, and returns their counts. Stores the latencies of the
    /// whole run in `tally`.
    pub fn finish(mut self, tally: &mut Tally) -> (Vec<Second>, Vec<StageTally>) {
        while self.stage_end().is_some() {
            self.close_stage(tally);
        }
        if tally.completed > self.completed || tally.failed > self.failed {
            self.close(tally);
        }
        tally.latency = self.whole;
        (self.seconds, self.stages.map(|stages| stages.all).unwrap_or_default())
    }

    /// Adds the latencies of the tally to those of the second, the stage and the whole run. Then
    /// removes them from the tally.
    fn take_latencies(&mut self, tally: &mut Tally) {
        if tally.latency.is_empty() {
            return;
        }
        self.coarse.merge(&tally.latency);
        self.whole.merge(&tally.latency);
        if let Some(stages) = &mut self.stages {
            stages.latency.merge(&tally.latency);
        }
        tally.latency.clear();
    }

    fn close_stage(&mut self, tally: &mut Tally) {
        self.take_latencies(tally);
        let Some(stages) = &mut self.stages else { return };
        stages.ends.pop_front();
        stages.all.push(StageTally {
            completed: tally.completed - stages.completed,
            failed: tally.failed - stages.failed,
            latency: std::mem::take(&mut stages.latency),
        });
        (stages.completed, stages.failed) = (tally.completed, tally.failed);
    }

    fn close(&mut self, tally: &mut Tally) {
        self.take_latencies(tally);
        let mut histogram = String::new();
        if !self.coarse.is_empty() {
            histogram = self.coarse.encode();
            self.coarse.clear();
        }
        self.seconds.push(Second {
            completed: tally.completed - self.completed,
            failed: tally.failed - self.failed,
            histogram,
        });
        (self.completed, self.failed) = (tally.completed, tally.failed);
    }
}

/// Adds `other` to `sum`. `other` begins `offset` seconds after the beginning of `sum`.
pub(crate) fn add_series(sum: &mut Vec<Second>, other: Vec<Second>, offset: usize) {
    let needed = offset + other.len();
    if sum.len() < needed {
        sum.resize_with(needed, Second::default);
    }
    sum[offset..].iter_mut().zip(other).for_each(|(sum, other)| sum.add(other));
}

// State of a running load, for code that observes or cancels it.

/// State of a running load, shared with the code that observes or cancels it.
#[derive(Debug, Default)]
pub struct Control {
    /// Ends the run early when it is set to true. The outcome then covers the time so far.
    pub cancelled: Arc<AtomicBool>,
    /// Number of requests completed so far. Each thread adds its count about every 50 ms.
    pub completed: AtomicU64,
    /// Number of requests failed so far, updated like `completed`.
    pub failed: AtomicU64,
    /// Counts of each second, for a view of the running load; `None` without a view.
    pub live: Option<LiveCounts>,
}

/// Counts that the load threads post about once per second. A view takes them.
// A load thread holds the lock only for a `push`, once per second. The view holds the lock only to
// swap two vectors, and not while it draws.
#[derive(Debug, Default)]
pub struct LiveCounts(Mutex<Vec<ThreadSeconds>>);

/// Counts of one load thread.
#[derive(Clone, Debug)]
pub struct ThreadSeconds {
    /// Index of the thread.
    pub thread: usize,
    /// Index of the first second in `seconds`, from the start of the run.
    pub first: usize,
    /// Seconds that have ended since the thread's previous post.
    pub seconds: Vec<Second>,
    /// Counts of the thread since the start of the run.
    pub requests: Requests,
    /// Description of the thread's first failed request.
    pub first_failure: Option<String>,
}

/// Maximum number of posts that are kept. If the view no longer takes them, newer posts are dropped.
const MOST_POSTS: usize = 100_000;

impl LiveCounts {
    /// Adds the counts of a thread. Drops the counts if `MOST_POSTS` earlier posts were not taken
    /// yet.
    pub(crate) fn post(&self, counts: ThreadSeconds) {
        let mut posts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if posts.len() < MOST_POSTS {
            posts.push(counts);
        }
    }

    /// Takes all counts that were posted since the previous call.
    pub fn take(&self) -> Vec<ThreadSeconds> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
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
        let (seconds, _) = series.finish(&mut tally);
        let counts: Vec<_> = seconds.iter().map(|s| (s.completed, s.failed)).collect();
        assert_eq!(counts, [(1, 1), (0, 0), (0, 0), (2, 0)]);
        assert_eq!((tally.latency.count(), seconds[3].latency().count()), (3, 2));
        let first = seconds.clone();
        assert!(seconds[3].latency().max_us().abs_diff(300_000) < 3000);

        let mut tally = Tally::new(0);
        let ends = [300, 1500, 1500, 2000].map(|ms| start + Duration::from_millis(ms));
        let mut series = Series::new(start).with_stages(&ends);
        for ms in [200, 400, 900, 1200, 1700] {
            series.advance(start + Duration::from_millis(ms), &mut tally);
            complete(&mut tally, ms);
        }
        series.advance(start + Duration::from_millis(2000), &mut tally);
        complete(&mut tally, 2100);
        let (seconds, stages) = series.finish(&mut tally);
        let of = |counts: &[(u64, u64)]| counts.to_vec();
        let counts = seconds.iter().map(|s| (s.completed, s.latency().count()));
        assert_eq!(counts.collect::<Vec<_>>(), of(&[(3, 3), (2, 2), (1, 1)]));
        let counts = stages.iter().map(|s| (s.completed, s.latency.count()));
        assert_eq!(counts.collect::<Vec<_>>(), of(&[(1, 1), (3, 3), (0, 0), (1, 1)]));
        assert_eq!(tally.latency.count(), 6);

        let seconds = first;
        let mut sum = Vec::new();
        add_series(&mut sum, seconds.clone(), 1);
        add_series(&mut sum, seconds, 0);
        let counts: Vec<_> = sum.iter().map(|s| (s.completed, s.failed)).collect();
        assert_eq!(counts, [(1, 1), (1, 1), (0, 0), (2, 0), (2, 0)]);
        assert_eq!(sum[0].latency().count(), 1);
    }
}
