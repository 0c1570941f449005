//! Which request is next: by the order and times of a log, or by weight in a mixed load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::spec::is_idempotent;
use crate::{Protocol, Shard, Spec};

/// Requests of a log, with the times at which they were sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// Requests in the order of their times, each with its index and the time since the first one.
    pub entries: Vec<(u32, Duration)>,
    /// Lines or entries that cannot be sent, by reason. The value contains their number, and the
    /// position of the first one in the file.
    pub skipped: BTreeMap<&'static str, (u64, u64)>,
    /// Factor of the log's pace; `None` sends requests as fast as replies arrive, or at the rate of
    /// the run.
    pub speed: Option<f64>,
}

/// Summary of a log that a run replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayRun {
    /// Number of requests in the log that can be sent.
    pub requests: u64,
    /// Number of lines or entries that cannot be sent.
    pub skipped: u64,
    /// Factor of the log's pace; `None` if the log's times were not used.
    pub speed: Option<f64>,
}

impl Replay {
    /// Returns the time from the start at which request `number` of the log is due. After its last
    /// entry, the log starts again. Returns `None` if the log does not determine the times.
    pub(crate) fn due(&self, number: u64) -> Option<Duration> {
        let length = self.entries.len() as u64;
        let (lap, position) = (number / length, number % length);
        let (_, time) = self.entries[position as usize];
        let time = time.as_secs_f64() + self.period() * lap as f64;
        Some(Duration::try_from_secs_f64(time / self.speed?).unwrap_or(Duration::MAX))
    }

    /// Returns the time in seconds from one start of the log to the next: the time of its last
    /// request, plus the mean gap between its requests. Returns 1 for a log with a single request.
    fn period(&self) -> f64 {
        let length = self.entries.last().map_or(0.0, |(_, time)| time.as_secs_f64());
        match self.entries.len() {
            0 | 1 => 1.0,
            count => length + (length / (count - 1) as f64).max(1e-3),
        }
    }

    /// Returns the number of requests that can be sent, and the number of lines that cannot.
    pub fn summary(&self) -> ReplayRun {
        let skipped = self.skipped.values().map(|(count, _)| count).sum();
        ReplayRun { requests: self.entries.len() as u64, skipped, speed: self.speed }
    }

    /// Returns the number of lines or entries that cannot be sent, with the reasons. Returns `None`
    /// if there are none.
    pub fn skipped_text(&self) -> Option<String> {
        let reasons = self.skipped.iter().map(|(why, (count, first))| match count {
            1 => format!("{first}: {why}"),
            _ => format!("{first} and {} more: {why}", count - 1),
        });
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        let count: u64 = self.skipped.values().map(|(count, _)| count).sum();
        (count > 0).then(|| format!("(not sent: {count}; number {reasons})"))
    }
}

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

// Choice of the next request of a mixed load, by weight.

/// Order of the requests of a mixed load, for one thread.
#[derive(Debug)]
pub(crate) struct Mix {
    /// Indices of the requests; empty if all requests are equal.
    order: Arc<[u32]>,
    next: usize,
    is_mixed: bool,
    /// Requests of a log, which are sent in its order.
    schedule: Option<Box<Schedule>>,
    /// For each request, true if it may be sent again on another connection.
    may_resend: Arc<[bool]>,
}

/// Maximum length of the order. With a larger sum of weights, the shares are rounded.
const MAX_ROUND: u64 = 100_000;

impl Mix {
    /// Returns one mix per thread. Each thread starts at a different position of the same order.
    pub fn of(spec: &Spec, threads: usize) -> Vec<Self> {
        let weights: Vec<u32> = match &spec.scenario {
            Some(plan) => plan.scenarios.iter().map(|scenario| scenario.weight).collect(),
            None => spec.parts.iter().map(|part| part.weight).collect(),
        };
        let order: Arc<[u32]> = match weights.len() {
            // An empty order means that all requests are equal. The order `[0]` means a single
            // request that must be encoded anew each time, because of its placeholders or cookies.
            0 | 1 if spec.has_values() => [0].into(),
            0 | 1 => Arc::default(),
            _ => order(&weights).into(),
        };
        // A message over WebSocket, gRPC or `tcp` may have any effect, so it is never sent again.
        let protocol = spec.url.protocol();
        let has_messages =
            protocol.is_websocket() || protocol.is_grpc() || protocol == Protocol::Tcp;
        let may_resend: Arc<[bool]> = if has_messages {
            vec![false; spec.parts.len().max(1)].into()
        } else if spec.parts.is_empty() {
            [is_idempotent(&spec.method)].into()
        } else {
            spec.parts.iter().map(|part| is_idempotent(&part.method)).collect()
        };
        let phase = spec.shard.as_ref().map_or(0.0, Shard::phase);
        let position = |thread: usize| {
            (order.len() as f64 * (thread as f64 + phase) / threads as f64) as usize
        };
        let schedule =
            spec.replay.as_ref().map(|replay| Schedule::new(replay, spec.shard.as_ref()));
        let mix = |thread: usize| Self {
            is_mixed: !order.is_empty() || schedule.is_some(),
            schedule: schedule.as_ref().map(|schedule| Box::new(schedule.for_thread(thread))),
            next: position(thread).min(order.len().saturating_sub(1)),
            order: order.clone(),
            may_resend: may_resend.clone(),
        };
        (0..threads).map(mix).collect()
    }

    /// Returns true if requests can differ: several requests, a replayed log, or a request with
    /// placeholders or cookies.
    #[inline]
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Returns the index of the scenario for the next virtual user.
    pub fn next_scenario(&mut self) -> usize {
        let scenario = self.order[self.next] as usize;
        self.next = (self.next + 1) % self.order.len();
        scenario
    }

    pub fn next(&mut self, now: Instant) -> NextRequest {
        if let Some(schedule) = &mut self.schedule {
            return schedule.take(now);
        }
        let request = self.order[self.next] as usize;
        self.next = (self.next + 1) % self.order.len();
        NextRequest { request, due: None }
    }

    pub fn begin(&mut self, start: Instant) {
        if let Some(schedule) = &mut self.schedule {
            schedule.begin(start);
        }
    }

    /// Returns the schedule of a replayed log that determines the due times. Returns `None` if no
    /// log is replayed, or if the log determines only the order of the requests.
    pub fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_deref().filter(|schedule| schedule.is_paced())
    }

    /// Returns true if `request` may be sent again on another connection.
    pub fn may_resend(&self, request: usize) -> bool {
        self.may_resend[request]
    }
}

/// Returns the order of the requests, by nginx's smooth weighted round robin. Each request occurs
/// in proportion to its weight, and its occurrences are evenly spread. For example, the weights 2
/// and 1 give the order `0, 1, 0`.
fn order(weights: &[u32]) -> Vec<u32> {
    let divisor = weights.iter().fold(0, |divisor, weight| gcd(divisor, *weight)).max(1);
    let total: u64 = weights.iter().map(|weight| u64::from(weight / divisor)).sum();
    if weights.iter().all(|weight| weight / divisor == 1) {
        return (0..weights.len() as u32).collect();
    }
    let mut behind = vec![0i64; weights.len()];
    let mut order = Vec::new();
    for _ in 0..total.min(MAX_ROUND) {
        for (behind, weight) in behind.iter_mut().zip(weights) {
            *behind += i64::from(weight / divisor);
        }
        let most = (0..behind.len()).rev().max_by_key(|&index| behind[index]).unwrap_or(0);
        behind[most] -= total as i64;
        order.push(most as u32);
    }
    order
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

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

    #[test]
    fn requests_occur_by_weight_and_evenly_spread() {
        assert_eq!(order(&[1, 1, 1]), [0, 1, 2]);
        assert_eq!(order(&[30, 10]), [0, 0, 1, 0]);
        assert_eq!(order(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
        let order = order(&[7, 2, 1]);
        let count = |request| order.iter().filter(|other| **other == request).count();
        assert_eq!([0, 1, 2].map(count), [7, 2, 1]);
    }

    #[test]
    fn a_large_weight_costs_no_memory() {
        assert_eq!(order(&[u32::MAX, 1]).len(), MAX_ROUND as usize);
    }
}
