//! Due times of requests, in a closed or an open loop.

use std::time::{Duration, Instant};

use crate::ramp::RampPlan;
use crate::{Arrivals, Rate, Shard, Spec};

/// Source of the due times of a thread's requests, in a closed or an open loop.
#[derive(Clone, Debug)]
pub(crate) enum Pacer {
    /// Closed loop: the next request on a connection is due when this time has passed since the
    /// reply.
    Closed { think: Duration },
    /// Open loop: requests are due at planned instants. A free connection takes the next request of
    /// its thread. If none is free, requests wait in order.
    Open {
        next: Instant,
        plan: Plan,
        /// Delay of the request that was taken last.
        late: Duration,
    },
}

/// Generator of the gaps between the due times of one thread's requests, in an open loop.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    gap: Duration,
    arrivals: Arrivals,
    random: fastrand::Rng,
    /// Plan of a rate that changes in stages. `gap` is then unused.
    ramp: Option<Box<RampPlan>>,
}

impl Pacer {
    /// Creates the pacer of thread `index` of `threads`, for a turn that starts at `start`.
    pub fn new(spec: &Spec, start: Instant, index: usize, threads: usize) -> Self {
        let Some(Rate { per_second, arrivals }) = spec.rate else {
            return Self::Closed { think: spec.think.unwrap_or_default() };
        };
        // Each thread has an equal share of the rate. The plans of all threads of all shards are
        // evenly offset in time.
        let gap = Duration::from_secs_f64(threads as f64 / per_second);
        let phase = spec.shard.as_ref().map_or(0.0, Shard::phase);
        let mut next = start + gap.mul_f64((index as f64 + phase) / threads as f64);
        let mut plan = Plan { gap, arrivals, random: fastrand::Rng::new(), ramp: None };
        if let Some(ramp) = &spec.ramp {
            let mut ramp = RampPlan::new(ramp, start, (index, threads), spec.shard.as_ref());
            if arrivals == Arrivals::Poisson {
                ramp.begin_at_random(plan.factor());
            }
            next = ramp.due();
            plan.ramp = Some(Box::new(ramp));
        }
        Self::Open { next, plan, late: Duration::ZERO }
    }

    /// Returns a placeholder for a thread that runs no turn.
    pub fn none() -> Self {
        Self::Closed { think: Duration::ZERO }
    }

    /// Returns the due time of the first request of a connection in a turn.
    pub fn first(&mut self, now: Instant) -> Instant {
        match self {
            Self::Closed { .. } => now,
            Self::Open { .. } => self.next(now),
        }
    }

    /// Returns the due time of the next request on a connection whose reply arrived at `now`. In an
    /// open loop, this time may be in the past.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Instant {
        match self {
            Self::Closed { think } => now + *think,
            Self::Open { next, plan, late } => {
                let due = *next;
                *late = now.saturating_duration_since(due);
                *next = plan.after(due);
                due
            }
        }
    }

    /// Returns the due time of the next iteration of a virtual user who pauses until `rest`. In an
    /// open loop, the plan determines the due time, and `rest` is ignored.
    pub fn next_iteration(&mut self, now: Instant, rest: Instant) -> Instant {
        match self {
            Self::Closed { think } => now.max(rest) + *think,
            Self::Open { .. } => self.next(now),
        }
    }

    /// Returns the share of the planned rate that was missed: the delay at the end of the turn,
    /// divided by the duration since `start`. Returns 0 in a closed loop.
    ///
    /// If the turn ended at a planned time, `end` is this time. The delay is then `end` minus the
    /// due time of the first request that no connection took. If the turn ended after a number of
    /// requests, `end` is `None`. The delay is then that of the request that was taken last.
    pub fn shortfall(&self, start: Instant, end: Option<Instant>) -> f64 {
        let Self::Open { next, late, .. } = self else { return 0.0 };
        let share =
            |behind: Duration, of: Duration| behind.as_secs_f64() / of.as_secs_f64().max(1e-9);
        match end {
            Some(end) => {
                let whole = end.saturating_duration_since(start);
                share(end.saturating_duration_since(*next).min(whole), whole)
            }
            None => share(*late, next.saturating_duration_since(start) + *late),
        }
    }

    /// Counts the planned requests before `end` that no connection took.
    pub fn left(&mut self, end: Instant) -> u64 {
        let mut left = 0;
        while matches!(self, Self::Open { next, .. } if *next < end) {
            self.next(end);
            left += 1;
        }
        left
    }
}

impl Plan {
    /// Returns the planned time of the request after the one that is due at `due`.
    fn after(&mut self, due: Instant) -> Instant {
        if self.ramp.is_none() {
            return due + self.gap();
        }
        let factor = self.factor();
        self.ramp.as_mut().map_or(due, |ramp| {
            ramp.advance(factor);
            ramp.due()
        })
    }

    fn gap(&mut self) -> Duration {
        match self.arrivals {
            Arrivals::Even => self.gap,
            Arrivals::Poisson => self.gap.mul_f64(self.factor()),
        }
    }

    /// Returns the ratio of the next gap to the mean gap.
    fn factor(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Even => 1.0,
            // Apply the inverse of the exponential distribution function. `f64()` is less than 1,
            // so the logarithm is finite.
            Arrivals::Poisson => -(1.0 - self.random.f64()).ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Url;

    fn spec(rate: Option<Rate>, think: Option<Duration>) -> Spec {
        Spec { rate, think, ..Spec::new(Url::parse("http://h/").unwrap()) }
    }

    #[test]
    fn closed_loop_is_due_at_the_reply() {
        let now = Instant::now();
        let mut pacer = Pacer::new(&spec(None, None), now, 0, 1);
        assert_eq!((pacer.first(now), pacer.next(now)), (now, now));
        assert_eq!(pacer.left(now + Duration::from_secs(9)), 0);
    }

    #[test]
    fn thinking_delays_all_but_the_first() {
        let (now, think) = (Instant::now(), Duration::from_secs(1));
        let mut pacer = Pacer::new(&spec(None, Some(think)), now, 0, 1);
        assert_eq!((pacer.first(now), pacer.next(now)), (now, now + think));
    }

    #[test]
    fn even_arrivals_keep_the_plan_when_late() {
        let rate = Rate { per_second: 100.0, arrivals: Arrivals::Even };
        let start = Instant::now();
        let mut pacer = Pacer::new(&spec(Some(rate), None), start, 1, 2);
        let late = start + Duration::from_secs(1);
        let offsets: Vec<_> = (0..3).map(|_| (pacer.next(late) - start).as_millis()).collect();
        assert_eq!(offsets, [10, 30, 50]);
        // No connection took the instant at 70 ms or a later one. The last request was 950 ms late.
        assert!(
            (pacer.shortfall(start, Some(start + Duration::from_millis(140))) - 0.5).abs() < 1e-6
        );
        assert!((pacer.shortfall(start, None) - 950.0 / 1020.0).abs() < 1e-6);
        assert_eq!(pacer.left(start + Duration::from_millis(111)), 3, "those at 70, 90, 110 ms");
        assert_eq!(pacer.shortfall(start, Some(start + Duration::from_millis(120))), 0.0);
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_spread_of_an_exponential() {
        let random = fastrand::Rng::with_seed(7);
        let gap = Duration::from_millis(10);
        let mut plan = Plan { gap, arrivals: Arrivals::Poisson, random, ramp: None };
        let gaps: Vec<f64> = (0..20_000).map(|_| plan.gap().as_secs_f64()).collect();
        let summary = forebay_stat::Summary::of(&gaps).unwrap();
        assert!((summary.mean - 0.01).abs() < 0.0003, "{summary:?}");
        assert!((summary.sd - 0.01).abs() < 0.0005, "{summary:?}");
    }
}
