//! Load that changes in stages: linear changes of the rate, or of the number of connections.

use std::time::{Duration, Instant};

use crate::{Error, Shard};

/// Load that changes in stages, each a linear change from the end of the previous one.
#[derive(Clone, Debug, PartialEq)]
pub struct Ramp {
    /// Value at the start of the first stage: requests per second, or connections.
    pub from: f64,
    /// The stages, in their order.
    pub stages: Vec<RampStage>,
}

/// Stage of a ramp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RampStage {
    /// Duration of the stage. A stage of no duration changes the value at once.
    pub time: Duration,
    /// Value at the end of the stage.
    pub target: f64,
}

const MOST_STAGES: usize = 1000;
/// Maximum duration of all stages.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// Maximum value: the highest rate of an open loop.
const HIGHEST: f64 = 1e8;

impl Ramp {
    /// Checks the number of stages, and their targets and times. Fails if the target is 0 all the
    /// time, because no stage then has a load.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Invalid(what.to_owned()));
        if self.stages.is_empty() || self.stages.len() > MOST_STAGES {
            return refuse("from 1 to 1,000 stages are possible");
        }
        let mut values = self.stages.iter().map(|stage| stage.target).chain([self.from]);
        if !values.all(|value| (0.0..=HIGHEST).contains(&value)) {
            return refuse("the target of a stage must be from 0 to 100 million");
        }
        let total = self.stages.iter().try_fold(Duration::ZERO, |sum, s| sum.checked_add(s.time));
        if total.is_none_or(|total| total > LONGEST) {
            return refuse("the stages take more than a year");
        }
        if self.area() <= 0.0 {
            return refuse("no stage has a load: at least one needs a time and a target above 0");
        }
        Ok(())
    }

    /// Returns the total duration of all stages.
    pub fn time(&self) -> Duration {
        self.stages.iter().fold(Duration::ZERO, |sum, stage| sum.saturating_add(stage.time))
    }

    /// Returns the mean rate or mean number of connections over all stages.
    pub fn mean(&self) -> f64 {
        self.area() / self.time().as_secs_f64().max(1e-9)
    }

    /// Returns each stage with the value at its start.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (f64, RampStage)> + '_ {
        let starts = self.stages.iter().map(|stage| stage.target);
        [self.from].into_iter().chain(starts).zip(self.stages.iter().copied())
    }

    /// Returns the highest rate or number of connections.
    pub fn highest(&self) -> f64 {
        self.stages.iter().map(|stage| stage.target).fold(self.from, f64::max)
    }

    /// Returns the integral of the ramp over time. In a ramp of the rate, this is the number of
    /// requests.
    fn area(&self) -> f64 {
        self.segments().last().map_or(0.0, |last| last.before + last.area())
    }

    /// Returns the number of requests that are due until `time`, in seconds since the start.
    pub(crate) fn requests_until(&self, time: f64) -> f64 {
        let segment = self.segments().into_iter().rfind(|segment| segment.start <= time);
        segment.map_or(0.0, |segment| segment.before + segment.area_until(time - segment.start))
    }

    /// Returns the time in seconds until which `requests` requests are due: the inverse of
    /// [`requests_until`](Self::requests_until).
    pub(crate) fn time_of(&self, requests: f64) -> f64 {
        let is_last = |segment: &Segment| segment.time > 0.0 && segment.before <= requests;
        let segment = self.segments().into_iter().rfind(is_last);
        segment.map_or(0.0, |segment| segment.time_of(requests))
    }

    fn segments(&self) -> Vec<Segment> {
        let (mut start, mut before, mut from) = (0.0, 0.0, self.from);
        let segment = |stage: &RampStage| {
            let segment =
                Segment { start, time: stage.time.as_secs_f64(), from, to: stage.target, before };
            start += segment.time;
            before += segment.area();
            from = segment.to;
            segment
        };
        self.stages.iter().map(segment).collect()
    }
}

/// Stage, with its place in the ramp. Times are in seconds.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: f64,
    time: f64,
    from: f64,
    to: f64,
    /// Integral of all earlier stages.
    before: f64,
}

impl Segment {
    fn area(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.time
    }

    /// Returns the area of the first part of the stage.
    fn area_until(&self, time: f64) -> f64 {
        let time = time.clamp(0.0, self.time);
        let slope = if self.time > 0.0 { (self.to - self.from) / self.time } else { 0.0 };
        (self.from + slope * time / 2.0) * time
    }

    /// Returns the due time of the request at `place`, in seconds since the start of the ramp. At
    /// this time, the integral of the ramp reaches `place`. `place` must be in this stage.
    fn time_of(&self, place: f64) -> f64 {
        let (area, slope) = (place - self.before, (self.to - self.from) / self.time);
        // Solves `from * t + slope / 2 * t * t = area` in a form that loses no digits by
        // cancellation.
        let root = (self.from * self.from + 2.0 * slope * area).max(0.0).sqrt();
        self.start + (2.0 * area / (self.from + root)).min(self.time)
    }

    /// Returns the first time from `earliest` on at which the ramp is at `level` or above. Returns
    /// `None` if this is not the case in this stage.
    fn reaches(&self, level: f64, earliest: f64) -> Option<f64> {
        let begin = earliest.max(self.start);
        if begin >= self.start + self.time {
            return None;
        }
        let slope = (self.to - self.from) / self.time;
        if self.from + slope * (begin - self.start) >= level {
            return Some(begin);
        }
        (self.to >= level).then(|| self.start + (level - self.from) / slope)
    }
}

/// Due times of one thread's requests, in an open loop whose rate changes in stages.
///
/// The integral of the ramp from its start to a time is the number of requests that are due until
/// then. The place of a request is the value of this integral at its due time. Equal gaps between
/// places give the rate of the ramp. Exponential gaps give a Poisson process with this rate.
#[derive(Clone, Debug)]
pub(crate) struct RampPlan {
    segments: Vec<Segment>,
    start: Instant,
    /// Index of the stage of the last place. Places only increase.
    stage: usize,
    place: f64,
    /// Number of threads, of all shards, that share the requests of the ramp.
    share: f64,
}

/// Due time after the end of the ramp.
const NEVER: Duration = Duration::from_secs(10 * 366 * 86_400);

impl RampPlan {
    /// Creates the plan of a thread for a turn that starts at `start`. `thread` contains the index
    /// of the thread and the number of threads.
    pub fn new(ramp: &Ramp, start: Instant, thread: (usize, usize), shard: Option<&Shard>) -> Self {
        // The threads of all shards have the places 0.5, 1.5 and so on, in turn. The integral of
        // the whole ramp is often a whole number. With the half, no place is exactly at its end.
        let (rank, share) = rank(thread, shard);
        Self { segments: ramp.segments(), start, stage: 0, place: rank + 0.5, share }
    }

    /// Moves the thread's first request to a random place, as a Poisson process requires. `gap`
    /// must be drawn from an exponential distribution with the mean 1.
    pub fn begin_at_random(&mut self, gap: f64) {
        self.place = gap * self.share;
    }

    /// Returns the due time of the request at the current place. After the last stage, the time is
    /// in the distant future.
    pub fn due(&mut self) -> Instant {
        while let Some(segment) = self.segments.get(self.stage) {
            if segment.time > 0.0 && self.place < segment.before + segment.area() {
                return self.start + Duration::from_secs_f64(segment.time_of(self.place));
            }
            self.stage += 1;
        }
        self.start + NEVER
    }

    /// Goes to the place of the next request. `gap` is a random factor with the mean 1.
    pub fn advance(&mut self, gap: f64) {
        self.place += gap * self.share;
    }
}

/// Times at which the connections of a thread are active, which means that they send requests. Only
/// a closed loop whose number of connections changes in stages has such times.
#[derive(Debug)]
pub(crate) struct ActiveTimes {
    segments: Vec<Segment>,
    start: Instant,
    /// Number of the thread's first connection among the connections of all threads and shards.
    first: f64,
    /// Difference between the numbers of neighbouring connections of the thread.
    step: f64,
}

impl ActiveTimes {
    /// Creates the times of a thread for a turn that starts at `start`. `thread` contains the index
    /// of the thread and the number of threads.
    pub fn new(ramp: &Ramp, start: Instant, thread: (usize, usize), shard: Option<&Shard>) -> Self {
        let (first, step) = rank(thread, shard);
        Self { segments: ramp.segments(), start, first, step }
    }

    /// Returns the first time from `due` on at which the connection `id` is active. While the ramp
    /// rises, connections become active in the order of their numbers. While the ramp falls, they
    /// become inactive in the reverse order. If the connection stays inactive, the time is in the
    /// distant future.
    pub fn next(&self, id: usize, due: Instant) -> Instant {
        // The number of connections is the value of the ramp, rounded.
        let level = self.first + self.step * id as f64 + 0.5;
        let earliest = due.saturating_duration_since(self.start).as_secs_f64();
        let time = self.segments.iter().find_map(|segment| segment.reaches(level, earliest));
        match time {
            Some(time) => (self.start + Duration::from_secs_f64(time)).max(due),
            None => self.start + NEVER,
        }
    }
}

/// Returns the rank of a thread among the threads of all shards, and the number of all these
/// threads. `index` is the index of the thread among the `threads` threads of this shard.
fn rank((index, threads): (usize, usize), shard: Option<&Shard>) -> (f64, f64) {
    let (number, shards) = shard.map_or((0, 1), |s| (s.number - 1, s.count));
    (index as f64 * f64::from(shards) + f64::from(number), threads as f64 * f64::from(shards))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(from: f64, stages: &[(u64, f64)]) -> Ramp {
        let stage =
            |&(ms, target): &(u64, f64)| RampStage { time: Duration::from_millis(ms), target };
        Ramp { from, stages: stages.iter().map(stage).collect() }
    }

    #[test]
    fn the_rate_is_linear_in_each_stage_and_the_sum_is_exact() {
        // 50 + 100 + 0 + 100 requests.
        let ramp = ramp(
            0.0,
            &[(1000, 100.0), (1000, 100.0), (0, 0.0), (500, 0.0), (0, 50.0), (2000, 50.0)],
        );
        assert!((ramp.mean() * 4.5 - 250.0).abs() < 1e-9);
        let start = Instant::now();
        for (threads, shards) in [(1, 1), (3, 1), (2, 4)] {
            let mut times = Vec::new();
            for place in 0..threads * shards {
                let shard = format!("{}/{shards}", place / threads + 1).parse().unwrap();
                let mut plan =
                    RampPlan::new(&ramp, start, (place % threads, threads), Some(&shard));
                loop {
                    let due = plan.due() - start;
                    if due >= NEVER {
                        break;
                    }
                    times.push(due.as_secs_f64());
                    plan.advance(1.0);
                }
            }
            let count =
                |from: f64, to: f64| times.iter().filter(|t| **t >= from && **t < to).count();
            assert_eq!(times.len(), 250);
            // In the first half of a rise from 0, a quarter of its requests are due: 12.5 of 50.
            assert_eq!([count(0.0, 1.0), count(1.0, 2.0), count(2.0, 2.5)], [50, 100, 0]);
            assert_eq!((count(0.0, 0.5), count(2.5, 3.5)), (12, 50));
        }
    }

    #[test]
    fn connections_begin_and_end_by_their_rank() {
        let ramp = ramp(1.0, &[(1000, 5.0), (1000, 5.0), (500, 0.0)]);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let active = |threads: usize, ms: u64| {
            let times = |index| ActiveTimes::new(&ramp, start, (index, threads), None);
            let is_active = |rank: usize| {
                let (index, id) = (rank % threads, rank / threads);
                times(index).next(id, at(ms)) == at(ms)
            };
            (0..5).map(is_active).collect::<Vec<_>>()
        };
        for threads in [1, 2] {
            assert_eq!(active(threads, 0), [true, false, false, false, false]);
            assert_eq!(active(threads, 500), [true, true, true, false, false]);
            assert_eq!(active(threads, 1500), [true; 5]);
            assert_eq!(active(threads, 2250), [true, true, true, false, false]);
            assert_eq!(active(threads, 2600), [false; 5]);
        }
        let times = ActiveTimes::new(&ramp, start, (0, 1), None);
        assert_eq!((times.next(2, start) - start).as_millis(), 375);
        assert!(times.next(4, at(2500)) > at(1_000_000));
        // A connection that has ended begins again in a later stage.
        let again = ramp_again();
        let times = ActiveTimes::new(&again, start, (0, 1), None);
        assert_eq!((times.next(0, at(1500)) - start).as_millis(), 2000);
    }

    fn ramp_again() -> Ramp {
        ramp(0.0, &[(0, 1.0), (1000, 1.0), (0, 0.0), (1000, 0.0), (0, 2.0), (1000, 2.0)])
    }

    #[test]
    fn impossible_ramps_are_refused() {
        for (ramp, why) in [
            (ramp(0.0, &[]), "from 1 to 1,000"),
            (ramp(0.0, &[(1000, 0.0)]), "no stage has a load"),
            (ramp(5.0, &[(0, 5.0)]), "no stage has a load"),
            (ramp(0.0, &[(1000, f64::NAN)]), "from 0 to 100 million"),
            (ramp(0.0, &[(1000, 1e9)]), "from 0 to 100 million"),
            (ramp(0.0, &[(u64::MAX, 1.0)]), "more than a year"),
            (ramp(1.0, &[(1, 1.0); 1001]), "from 1 to 1,000"),
        ] {
            assert!(ramp.validate().unwrap_err().to_string().contains(why), "{why}");
        }
        assert!(ramp_again().validate().is_ok());
    }
}
