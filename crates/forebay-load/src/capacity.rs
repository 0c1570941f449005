//! Search for the highest rate at which a server meets goals, such as `p99<50ms`.
//!
//! Each step loads the server at one rate, in an open loop, and compares the outcome with the
//! goals. Near this highest rate (the limit), chance decides if a step passes. A plain bisection
//! would never recover from a step with a wrong result.
//!
//! This search keeps a probability for each possible limit instead. The next rate is the median of
//! these probabilities. The search ends when an interval with 95 % of the probability is narrow.
//! Other work on the machine may disturb a step (`disturbance`). If a disturbed step fails, this
//! says little about the server, so the search does more steps. The result of the search is sure
//! only if the steps without such failures give a narrow interval, too.
//!
//! Sources: Horstein, "Sequential Transmission Using Noiseless Feedback", IEEE Transactions on
//! Information Theory 9, 1963; Waeber, Frazier and Henderson, "Bisection Search with Noisy
//! Responses", SIAM Journal on Control and Optimization 51, 2013.

use std::sync::atomic::Ordering;
use std::time::Duration;

mod belief;
mod disturbance;

use belief::Searching;
use disturbance::Evidence;

pub use disturbance::StepDisturbance;

use crate::{Control, Error, Goal, Judgement, Outcome, Rate, Spec, Stop, Turns};

/// Settings of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// Goals of each step. A step passes if it meets all goals and sends its requests at the
    /// planned rate.
    pub goals: Vec<Goal>,
    /// Duration of a step. Steps at low rates take longer, because a percentile needs enough
    /// requests.
    pub step: Duration,
    /// Distribution of the planned instants in time.
    pub arrivals: crate::Arrivals,
}

/// One step of the search: a load at one rate.
#[derive(Clone, Debug)]
pub struct Step {
    /// Rate in requests per second.
    pub rate: f64,
    /// True if the step met all goals, and missed the rate by at most 2 %.
    pub passed: bool,
    /// Values that decided about the step, as text for the report.
    pub why: String,
    /// Sign that other work on the machine disturbed the step.
    pub disturbance: Option<StepDisturbance>,
    /// Outcome of the load.
    pub outcome: Outcome,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Estimate of the highest rate that meets the goals. The real limit is higher with a
    /// probability of 50 %.
    pub rate: f64,
    /// Interval that contains this rate with a probability of 95 %.
    pub interval: [f64; 2],
    /// Rate of a closed loop over the same connections, which is measured before the first step.
    pub closed_loop: f64,
    /// True if the interval is narrow after enough steps that were not disturbed.
    pub is_sure: bool,
    /// All steps, in the order of their execution.
    pub steps: Vec<Step>,
}

/// Maximum duration of a step, unless the duration in `Search` is longer.
const LONGEST_STEP: Duration = Duration::from_secs(60);
/// Maximum duration of the closed loop before the first step.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Largest share of the planned rate that a step may miss and still pass.
// At a rate 5 % above the server's limit, a step misses about 5 % of the rate.
const SHORTFALL: f64 = 0.02;

/// Searches for the highest rate at which the load meets the goals of `search`. Ignores the rate
/// and the end in `spec`. Calls `report` after each step. If the search is cancelled, returns the
/// result of the steps so far.
///
/// # Errors
/// Fails as [`run`](crate::run()) does.
pub fn find_rate(
    spec: &Spec,
    search: &Search,
    control: &Control,
    report: &mut dyn FnMut(&Step),
) -> Result<Capacity, Error> {
    let mut turns = Turns::new(spec)?;
    let first_look = Stop::Duration(search.step.min(FIRST_LOOK));
    let (usual, look) = Evidence::of(|| turns.run(first_look, None, control));
    let closed_loop = look?.rate_per_s();
    let mut searching = Searching::around(closed_loop.max(1.0));
    let mut steps: Vec<Step> = Vec::new();
    let is_cancelled = || control.cancelled.load(Ordering::Relaxed);
    while !searching.is_over() && !is_cancelled() && closed_loop > 0.0 {
        let rate = searching.rate();
        let stop = Stop::Duration(search.duration(rate));
        let per_second = Rate { per_second: rate, arrivals: search.arrivals };
        let (evidence, outcome) = Evidence::of(|| turns.run(stop, Some(per_second), control));
        let outcome = outcome?;
        if is_cancelled() {
            break;
        }
        let (passed, why) = search.judge(&outcome);
        let disturbance = evidence.disturbance(&usual);
        searching.add(rate, passed, disturbance.is_some());
        let step = Step { rate, passed, why, disturbance, outcome };
        report(&step);
        steps.push(step);
    }
    let (rate, interval, is_sure) = (searching.rate(), searching.interval(), searching.is_sure());
    Ok(Capacity { rate, interval, closed_loop, is_sure, steps })
}

impl Search {
    /// Returns the duration of a step at `rate`. The goals need a minimum number of requests, so a
    /// low rate needs a longer step, up to `LONGEST_STEP`.
    fn duration(&self, rate: f64) -> Duration {
        let samples = self.goals.iter().map(Goal::samples).max().unwrap_or(1);
        // Fewer requests than planned may arrive by chance, so the factor 1.2 adds a reserve.
        let needed = Duration::from_secs_f64((samples as f64 * 1.2 / rate).min(1e6));
        self.step.max(needed).min(LONGEST_STEP.max(self.step))
    }

    /// Returns true and the values of all goals if the outcome meets all goals. Otherwise returns
    /// false and the reason: the shortfall is larger than [`SHORTFALL`], or a goal is missed or
    /// cannot be judged.
    fn judge(&self, outcome: &Outcome) -> (bool, String) {
        if outcome.shortfall > SHORTFALL {
            let missed = outcome.shortfall * 100.0;
            return (false, format!("missed the rate by {missed:.0} %"));
        }
        let mut values = Vec::new();
        for goal in &self.goals {
            match goal.judge(outcome) {
                Judgement::True(value) => values.push(value),
                Judgement::False(value) | Judgement::Unknown(value) => return (false, value),
            }
        }
        (true, values.join(", "))
    }
}

impl Capacity {
    /// Returns true if at least one step passed.
    pub fn is_met(&self) -> bool {
        self.steps.iter().any(|step| step.passed)
    }

    /// Returns the number of disturbed steps that did not pass.
    pub fn disturbed(&self) -> usize {
        let is_disturbed = |step: &&Step| !step.passed && step.disturbance.is_some();
        self.steps.iter().filter(is_disturbed).count()
    }

    /// Returns the step with the highest rate among the steps that passed. Ignores steps whose rate
    /// is above [`Self::interval`]. Returns `None` if no step remains.
    pub fn best(&self) -> Option<&Step> {
        let passed = self.steps.iter().filter(|step| step.passed && step.rate <= self.interval[1]);
        passed.max_by(|left, right| left.rate.total_cmp(&right.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_long_enough_for_their_percentiles() {
        let search = |goal: &str| Search {
            goals: vec![goal.parse().unwrap()],
            step: Duration::from_secs(3),
            arrivals: crate::Arrivals::Even,
        };
        assert_eq!(search("p99<50ms").duration(1000.0), Duration::from_secs(3));
        assert_eq!(search("p99<50ms").duration(100.0), Duration::from_secs(12));
        assert_eq!(search("p99.9<50ms").duration(1.0), LONGEST_STEP);
    }
}
