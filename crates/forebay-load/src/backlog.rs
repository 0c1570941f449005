//! Backlog of an open loop: the requests that are due and have no reply yet. A server that is too
//! slow for the rate makes it grow, even if there are enough connections to send each request in
//! time.

use std::time::{Duration, Instant};

use crate::{Ramp, RampStage, Spec};

/// Time during which the growth of the backlog is measured, from the start of the run.
///
/// A server that keeps up has a constant backlog: the requests that it works on. The backlog only
/// grows at first, until the earliest replies arrive, so the window begins later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BacklogWindow {
    from: Duration,
    to: Duration,
}

/// Number of requests that have ended, and number of those that are due and have not ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BacklogSample {
    pub ended: u64,
    pub backlog: u64,
}

/// Samples at both ends of the windows of a run.
#[derive(Clone, Debug)]
pub(crate) struct BacklogSamples {
    start: Instant,
    windows: Vec<BacklogWindow>,
    samples: Vec<BacklogSample>,
}

/// Longest time until the end of a window. Later windows never end.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Growth, as a share of the due requests, that any run may have.
const TOLERANCE: f64 = 0.05;

/// Growth that chance can cause, in standard deviations of the difference of both backlogs.
const CHANCE: f64 = 3.0;

impl BacklogWindow {
    pub fn length(&self) -> Duration {
        self.to - self.from
    }

    /// Returns the windows of a run: the second half of the run, or of each stage of a ramp. Returns
    /// none for a closed loop.
    pub fn all(spec: &Spec) -> Vec<Self> {
        let half = |from: Duration, time: Duration| Self { from: from + time / 2, to: from + time };
        match (&spec.ramp, spec.rate) {
            (Some(ramp), Some(_)) => {
                let mut start = Duration::ZERO;
                let window = |stage: &RampStage| {
                    start += stage.time;
                    half(start - stage.time, stage.time)
                };
                ramp.stages.iter().map(window).collect()
            }
            _ => {
                let time = spec.planned_time().map(|time| time.min(LONGEST));
                time.map(|time| half(Duration::ZERO, time)).into_iter().collect()
            }
        }
    }
}

impl BacklogSamples {
    /// Creates an empty list for a run that begins at `start`.
    pub fn new(windows: Vec<BacklogWindow>, start: Instant) -> Self {
        Self { start, windows, samples: Vec::new() }
    }

    /// Returns true if a sample is due at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        let window = self.windows.get(self.samples.len() / 2);
        window.is_some_and(|window| {
            now >= self.start
                + if self.samples.len().is_multiple_of(2) { window.from } else { window.to }
        })
    }

    pub fn push(&mut self, sample: BacklogSample) {
        self.samples.push(sample);
    }

    /// Takes the samples that are still missing at the end of the run.
    pub fn finish(&mut self, sample: BacklogSample) {
        self.samples.resize(self.windows.len() * 2, sample);
    }

    /// Adds the samples of another thread.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.samples.iter_mut().zip(&other.samples) {
            mine.ended += theirs.ended;
            mine.backlog += theirs.backlog;
        }
    }

    /// Returns the largest share of the due requests of a window by which the backlog grew more than
    /// the rate explains. Returns 0 if this is little or can be chance. `share` is the share of the ramp's
    /// requests that this machine sends.
    pub fn shortfall(&self, ramp: Option<&Ramp>, share: f64) -> f64 {
        let pairs = self.samples.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let shares = self.windows.iter().zip(pairs).map(|(window, (from, to))| {
            let expected = match ramp {
                Some(ramp) => {
                    let (begin, end) = (window.from.as_secs_f64(), window.to.as_secs_f64());
                    // The requests of this time before the window had no reply yet.
                    let whole = ramp.requests_until(begin);
                    let latency = begin - ramp.time_of(whole - from.backlog as f64 / share);
                    (ramp.requests_until(end) - ramp.requests_until(end - latency)) * share
                }
                None => from.backlog as f64,
            };
            let growth = to.backlog as f64 - expected;
            let due = (to.ended + to.backlog).saturating_sub(from.ended + from.backlog) as f64;
            let is_chance = growth <= CHANCE * (to.backlog as f64 + expected).sqrt();
            let share = (growth / due.max(1.0)).min(1.0);
            if is_chance || share <= TOLERANCE { 0.0 } else { share }
        });
        shares.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrivals, Rate, Stop, Url};

    /// Returns the shortfall of a load of 10 seconds with `rate` requests per second, of which a
    /// server answers `capacity` per second, each after `latency` seconds.
    fn shortfall(spec: &Spec, latency: f64, capacity: f64) -> f64 {
        let start = Instant::now();
        let mut samples = BacklogSamples::new(BacklogWindow::all(spec), start);
        let ramp = spec.ramp.as_deref();
        let (mut ended, mut arrivals) = (0.0_f64, Vec::new());
        for ms in 0..10_000 {
            let at = f64::from(ms + 1) / 1000.0;
            let due = ramp.map_or(at * spec.rate.unwrap().per_second, |r| r.requests_until(at));
            arrivals.push(due);
            let begun = ms as f64 - latency * 1000.0;
            let answerable = if begun < 0.0 { 0.0 } else { arrivals[begun as usize] };
            ended = (ended + capacity / 1000.0).min(answerable.max(ended));
            let now = start + Duration::from_millis(ms as u64 + 1);
            while samples.is_due(now) {
                let backlog = (due - ended).round() as u64;
                samples.push(BacklogSample { ended: ended as u64, backlog });
            }
        }
        samples.shortfall(ramp, 1.0)
    }

    #[test]
    fn a_backlog_that_grows_is_a_missed_rate_and_a_constant_one_is_none() {
        let rate = Some(Rate { per_second: 1000.0, arrivals: Arrivals::Even });
        let base = Spec {
            rate,
            stop: Stop::Duration(Duration::from_secs(10)),
            ..Spec::new(Url::parse("http://h/").unwrap())
        };
        let counted = Spec { stop: Stop::Requests(10_000), ..base.clone() };
        let stages = |stages: &[(u64, f64)]| {
            let stage =
                |&(s, target): &(u64, f64)| RampStage { time: Duration::from_secs(s), target };
            let ramp = Ramp { from: 0.0, stages: stages.iter().map(stage).collect() };
            base.clone().with_ramp(ramp).unwrap()
        };
        let plateau = stages(&[(1, 1000.0), (5, 1000.0), (4, 0.0)]);
        let rise = stages(&[(10, 1000.0)]);
        for (name, spec, latency, capacity, missed) in [
            ("fast", &base, 0.01, 2000.0, 0.0),
            ("slow replies", &base, 1.1, 2000.0, 0.0),
            ("slow replies, counted", &counted, 1.1, 2000.0, 0.0),
            ("too slow", &base, 0.01, 890.0, 0.11),
            ("too slow, counted", &counted, 0.01, 890.0, 0.11),
            ("caught up in a later stage", &plateau, 0.01, 800.0, 0.2),
            ("slow replies in stages", &plateau, 0.4, 2000.0, 0.0),
            ("slow replies to a rising rate", &rise, 0.5, 2000.0, 0.0),
            ("a rising rate", &rise, 0.01, 700.0, 0.1),
        ] {
            let got = shortfall(spec, latency, capacity);
            let right = if missed == 0.0 { got < 0.05 } else { got > missed * 0.9 };
            assert!(right, "{name}: {got}");
        }
        assert!(BacklogWindow::all(&Spec { rate: None, ..base }).is_empty());
    }
}
