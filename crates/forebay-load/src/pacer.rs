//! When requests are due, in a closed or an open loop, and how many of them a thread may send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ramp::RampPlan;
use crate::{Arrivals, Rate, Shard, Spec, Stop};

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

// Divides the number of requests of a run among its threads.

/// Number of requests that one thread may still send. In a run of n requests, all threads together
/// send exactly n requests.
///
/// The threads draw requests from a common stock in batches, which avoids an atomic operation per
/// request. Batches become smaller as the stock becomes smaller. So near the end of the run, no
/// thread keeps many requests while other threads have none.
#[derive(Debug)]
pub(crate) struct RequestBudget {
    held: u64,
    /// Common stock of all threads. `None` if the run ends after a time.
    stock: Option<Arc<AtomicU64>>,
    threads: u64,
}

const BATCH_LIMIT: u64 = 256;

impl RequestBudget {
    pub fn of(stop: Stop, threads: usize) -> Vec<Self> {
        let stock = match stop {
            Stop::Requests(n) => Some(Arc::new(AtomicU64::new(n))),
            Stop::Duration(_) => None,
        };
        let claim = |_| Self { held: 0, stock: stock.clone(), threads: threads as u64 };
        (0..threads).map(claim).collect()
    }

    pub fn none() -> Self {
        Self { held: 0, stock: Some(Arc::default()), threads: 1 }
    }

    /// Drops the requests that are left in this budget.
    pub fn close(&mut self) {
        *self = Self::none();
    }

    /// Takes one request from the budget. Returns false if no request is left.
    #[inline]
    pub fn take(&mut self) -> bool {
        if self.held == 0 && !self.draw() {
            return false;
        }
        self.held -= 1;
        true
    }

    /// Returns true if this thread can take no further request.
    pub fn is_empty(&self) -> bool {
        let is_empty = |stock: &Arc<AtomicU64>| stock.load(Ordering::Relaxed) == 0;
        self.held == 0 && self.stock.as_ref().is_some_and(is_empty)
    }

    /// Returns true if the run ends after a number of requests.
    pub fn limited(&self) -> bool {
        self.stock.is_some()
    }

    fn draw(&mut self) -> bool {
        let Some(stock) = &self.stock else {
            self.held = u64::MAX;
            return true;
        };
        // A batch is an eighth of a thread's share of the stock, so batches become smaller with the
        // stock.
        let batch = |left: u64| left.min((left / (self.threads * 8)).clamp(1, BATCH_LIMIT));
        let drawn = stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left > 0).then(|| left - batch(left))
        });
        let Ok(left) = drawn else { return false };
        self.held = batch(left);
        true
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

    #[test]
    fn exactly_as_many_as_there_are() {
        for n in [1, 2, 3, 17, 1000, 100_003] {
            let mut claims = RequestBudget::of(Stop::Requests(n), 3);
            let mut taken = 0;
            loop {
                let round = claims.iter_mut().map(|claim| u64::from(claim.take())).sum::<u64>();
                taken += round;
                if round == 0 {
                    break;
                }
            }
            assert_eq!(taken, n);
        }
    }

    #[test]
    fn threads_draw_exactly_n_together() {
        let taken: u64 = std::thread::scope(|scope| {
            let count = |mut claim: RequestBudget| std::iter::repeat_with(move || claim.take());
            let threads: Vec<_> = RequestBudget::of(Stop::Requests(50_001), 4)
                .into_iter()
                .map(|claim| scope.spawn(move || count(claim).take_while(|t| *t).count() as u64))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 50_001);
    }

    #[test]
    fn a_duration_never_runs_out() {
        let mut claim = RequestBudget::of(Stop::Duration(Duration::from_secs(1)), 1).remove(0);
        assert!((0..1000).all(|_| claim.take()));
        assert!(!claim.limited());
    }
}
