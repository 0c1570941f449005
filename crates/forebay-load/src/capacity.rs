//! Search for the highest rate at which a server meets goals, such as `p99<50ms`.
//!
//! Each step loads the server at one rate, in an open loop, and compares the outcome with the
//! goals. Near this highest rate (the limit), chance decides if a step passes. A plain bisection
//! would never recover from a step with a wrong result.
//!
//! This search keeps a probability for each possible limit instead. The next rate is the median of
//! these probabilities. The search ends when an interval with 95 % of the probability is narrow.
//!
//! Sources: Horstein, "Sequential Transmission Using Noiseless Feedback", IEEE Transactions on
//! Information Theory 9, 1963; Waeber, Frazier and Henderson, "Bisection Search with Noisy
//! Responses", SIAM Journal on Control and Optimization 51, 2013.

use std::sync::atomic::Ordering;
use std::time::Duration;

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
    /// True if the step met all goals.
    pub passed: bool,
    /// Values that decided about the step, as text for the report.
    pub why: String,
    /// Outcome of the load.
    pub outcome: Outcome,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Highest rate that meets the goals: the median of the probabilities.
    pub rate: f64,
    /// Interval that contains this rate with a probability of 95 %.
    pub interval: [f64; 2],
    /// Rate of a closed loop over the same connections, which is measured before the first step.
    pub closed_loop: f64,
    /// All steps, in the order of their execution.
    pub steps: Vec<Step>,
}

/// Maximum duration of a step, unless the duration in `Search` is longer.
const LONGEST_STEP: Duration = Duration::from_secs(60);
/// Maximum duration of the closed loop before the first step.
const FIRST_LOOK: Duration = Duration::from_secs(2);

const MOST_STEPS: usize = 30;
const FEWEST_STEPS: usize = 5;
/// The search ends when the ratio of the interval's ends is at most this value.
const NARROW: f64 = 1.05;

/// Maximum share of the planned rate that a passed step may miss.
// If a server is overloaded by 2 %, the step misses 2 %.
const SHORTFALL: f64 = 0.02;

/// Highest rate that the search considers, as a multiple of the closed loop's rate.
const HIGHEST: f64 = 1.5;
/// Lowest rate that the search considers, as a multiple of the closed loop's rate.
const LOWEST: f64 = 1.0 / 50.0;
/// Factor between neighbouring limits that the search considers.
const GRID: f64 = 1.005;
/// Width of the range around the limit where chance decides about a step, as a difference of
/// natural logarithms of rates.
const FUZZ: f64 = 0.015;
/// Probability that a step far from the limit is decided wrongly, for example because of a pause of
/// the machine.
const BLUNDER: f64 = 0.03;

/// Searches for the highest rate. `spec` describes the load without its rate and its end. `report`
/// is called after each step.
///
/// # Errors
/// Fails as [`run`](crate::run()) does. If the search is interrupted, returns the steps so far.
pub fn find_rate(
    spec: &Spec,
    search: &Search,
    control: &Control,
    report: &mut dyn FnMut(&Step),
) -> Result<Capacity, Error> {
    let mut turns = Turns::new(spec)?;
    let look = turns.run(Stop::Duration(search.step.min(FIRST_LOOK)), None, control)?;
    let closed_loop = look.rate_per_s();
    let mut belief = Belief::around(closed_loop.max(1.0));
    let mut steps: Vec<Step> = Vec::new();
    let is_cancelled = || control.cancelled.load(Ordering::Relaxed);
    while steps.len() < MOST_STEPS && !is_cancelled() && closed_loop > 0.0 {
        let rate = belief.quantile(0.5);
        let stop = Stop::Duration(search.duration(rate));
        let per_second = Rate { per_second: rate, arrivals: search.arrivals };
        let outcome = turns.run(stop, Some(per_second), control)?;
        if is_cancelled() {
            break;
        }
        let (passed, why) = search.judge(&outcome);
        belief.update(rate, passed);
        let step = Step { rate, passed, why, outcome };
        report(&step);
        steps.push(step);
        let [low, high] = belief.interval();
        if steps.len() >= FEWEST_STEPS && high <= low * NARROW {
            break;
        }
    }
    Ok(Capacity { rate: belief.quantile(0.5), interval: belief.interval(), closed_loop, steps })
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

    /// Returns true if the outcome meets all goals, with the values that decided.
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
    /// Returns true if at least one step met the goals.
    pub fn is_met(&self) -> bool {
        self.steps.iter().any(|step| step.passed)
    }

    /// Returns true if the interval is narrow after at least `FEWEST_STEPS` steps.
    pub fn is_sure(&self) -> bool {
        self.steps.len() >= FEWEST_STEPS && self.interval[1] <= self.interval[0] * NARROW
    }

    /// Returns the passed step with the highest rate, except for steps with a rate above the
    /// interval.
    pub fn best(&self) -> Option<&Step> {
        let passed = self.steps.iter().filter(|step| step.passed && step.rate <= self.interval[1]);
        passed.max_by(|left, right| left.rate.total_cmp(&right.rate))
    }
}

/// Probabilities of all limits that the search considers.
#[derive(Debug)]
struct Belief {
    /// Logarithms of the limits, in ascending order.
    limits: Vec<f64>,
    weights: Vec<f64>,
}

impl Belief {
    /// Creates the probabilities before the first step. Limits below a third of the closed loop's
    /// rate get a lower probability.
    fn around(closed_loop: f64) -> Self {
        let (low, high) = ((closed_loop * LOWEST).ln(), (closed_loop * HIGHEST).ln());
        let count = ((high - low) / GRID.ln()).ceil() as usize;
        let limits: Vec<f64> = (0..=count).map(|n| low + n as f64 * GRID.ln()).collect();
        let weight = |limit: &f64| if *limit > (closed_loop / 3.0).ln() { 1.0 } else { 0.3 };
        let mut belief = Self { weights: limits.iter().map(weight).collect(), limits };
        belief.normalize();
        belief
    }

    /// Updates the probabilities with the result of a step.
    fn update(&mut self, rate: f64, passed: bool) {
        let rate = rate.ln();
        for (limit, weight) in self.limits.iter().zip(&mut self.weights) {
            let passes = 1.0 / (1.0 + (-(limit - rate) / FUZZ).exp());
            let passes = BLUNDER + (1.0 - 2.0 * BLUNDER) * passes;
            *weight *= if passed { passes } else { 1.0 - passes };
        }
        self.normalize();
    }

    fn normalize(&mut self) {
        let sum: f64 = self.weights.iter().sum();
        self.weights.iter_mut().for_each(|weight| *weight /= sum);
    }

    /// Returns the rate `r` for which the limit is below `r` with the probability `p`.
    fn quantile(&self, p: f64) -> f64 {
        let mut sum = 0.0;
        for (limit, weight) in self.limits.iter().zip(&self.weights) {
            sum += weight;
            if sum >= p {
                return limit.exp();
            }
        }
        self.limits.last().map_or(0.0, |limit| limit.exp())
    }

    fn interval(&self) -> [f64; 2] {
        [self.quantile(0.025), self.quantile(0.975)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_noisy_server_is_found_within_5_percent_in_19_of_20_searches() {
        let mut random = fastrand::Rng::with_seed(9);
        let mut steps = 0;
        let mut right = 0;
        for _ in 0..200 {
            let limit: f64 = 100.0 + 800.0 * random.f64();
            let mut belief = Belief::around(1000.0);
            for step in 1..=MOST_STEPS {
                let rate = belief.quantile(0.5);
                // Within about 3 % of the limit, chance decides about a step. Farther away, one
                // step in fifty is decided wrongly.
                let chance = 1.0 / (1.0 + (-(limit.ln() - rate.ln()) / 0.012).exp());
                let passed = (random.f64() < chance) != (random.f64() < 0.02);
                belief.update(rate, passed);
                let [low, high] = belief.interval();
                if step >= FEWEST_STEPS && high <= low * NARROW {
                    break;
                }
                steps += 1;
            }
            right += usize::from((belief.quantile(0.5) / limit - 1.0).abs() < 0.05);
        }
        assert!(right >= 190, "{right} of 200");
        assert!(steps / 200 < 20, "{} steps", steps / 200);
    }

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
