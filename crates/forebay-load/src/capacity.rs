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

mod disturbance;

pub use disturbance::StepDisturbance;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::{Control, Error, Goal, Judgement, Outcome, Rate, Spec, Stop, Turns};
use disturbance::Evidence;

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

// The state of a search: probabilities of all limits that it considers.

/// Minimum and maximum number of steps of a search.
const FEWEST_STEPS: usize = 5;
const MOST_STEPS: usize = 30;
/// Maximum number of disturbed steps that missed the goals. The search then ends without a sure
/// result.
const MOST_DISTURBED: usize = 10;
/// The search ends when the ratio of the interval's ends is at most this value.
const NARROW: f64 = 1.05;

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
/// Probability that a disturbed step missed the goals, although the server would meet them.
const DISTURBED_BLUNDER: f64 = 0.35;

/// A search in progress.
#[derive(Debug)]
struct Searching {
    /// Probabilities after all steps.
    all: Belief,
    /// Probabilities without the disturbed steps that missed the goals.
    undisturbed: Belief,
    steps: usize,
    disturbed: usize,
}

impl Searching {
    pub fn around(closed_loop: f64) -> Self {
        let all = Belief::around(closed_loop);
        Self { undisturbed: all.clone(), all, steps: 0, disturbed: 0 }
    }

    /// Returns the estimate of the limit. The limit is above this rate with a probability of 50 %.
    /// The next step uses this rate.
    pub fn rate(&self) -> f64 {
        self.all.quantile(0.5)
    }

    /// Returns the interval that contains the limit with a probability of 95 %.
    pub fn interval(&self) -> [f64; 2] {
        self.all.interval()
    }

    /// Adds the result of a step. A disturbed step that missed the goals changes `all` less than
    /// other steps do, and does not change `undisturbed`.
    pub fn add(&mut self, rate: f64, passed: bool, is_disturbed: bool) {
        self.steps += 1;
        if is_disturbed && !passed {
            self.disturbed += 1;
            self.all.update(rate, passed, DISTURBED_BLUNDER);
        } else {
            self.all.update(rate, passed, BLUNDER);
            self.undisturbed.update(rate, passed, BLUNDER);
        }
    }

    /// Returns true if the result is sure. The search must have made at least `FEWEST_STEPS` steps.
    /// The interval must be narrow, and must stay narrow without the disturbed steps that missed
    /// the goals.
    pub fn is_sure(&self) -> bool {
        let is_narrow = |[low, high]: [f64; 2]| high <= low * NARROW;
        self.steps >= FEWEST_STEPS
            && is_narrow(self.interval())
            && is_narrow(self.undisturbed.interval())
    }

    pub fn is_over(&self) -> bool {
        self.is_sure() || self.steps >= MOST_STEPS || self.disturbed >= MOST_DISTURBED
    }
}

/// Probabilities of all limits that the search considers.
#[derive(Clone, Debug)]
struct Belief {
    /// Logarithms of the limits, in ascending order.
    limits: Vec<f64>,
    weights: Vec<f64>,
}

impl Belief {
    /// Creates the probabilities before the first step. `closed_loop` is the rate of the closed
    /// loop. Limits up to a third of this rate get a lower probability than higher limits.
    fn around(closed_loop: f64) -> Self {
        let (low, high) = ((closed_loop * LOWEST).ln(), (closed_loop * HIGHEST).ln());
        let count = ((high - low) / GRID.ln()).ceil() as usize;
        let limits: Vec<f64> = (0..=count).map(|n| low + n as f64 * GRID.ln()).collect();
        let weight = |limit: &f64| if *limit > (closed_loop / 3.0).ln() { 1.0 } else { 0.3 };
        let mut belief = Self { weights: limits.iter().map(weight).collect(), limits };
        belief.normalize();
        belief
    }

    /// Updates the probabilities with the result of a step at `rate`. `blunder` is the probability
    /// of a wrong result at a rate far from the limit: a step fails far below the limit, or passes
    /// far above it.
    fn update(&mut self, rate: f64, passed: bool, blunder: f64) {
        let rate = rate.ln();
        for (limit, weight) in self.limits.iter().zip(&mut self.weights) {
            let passes = 1.0 / (1.0 + (-(limit - rate) / FUZZ).exp());
            let passes = blunder + (1.0 - 2.0 * blunder) * passes;
            *weight *= if passed { passes } else { 1.0 - passes };
        }
        self.normalize();
    }

    fn normalize(&mut self) {
        let sum: f64 = self.weights.iter().sum();
        self.weights.iter_mut().for_each(|weight| *weight /= sum);
    }

    /// Returns the quantile `p` of the limit: with the probability `p`, the limit is below this
    /// rate.
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

    /// Result of a simulated step.
    struct Simulated {
        passed: bool,
        is_disturbed: bool,
    }

    /// Simulates a search. `step` returns the result of a step at a rate.
    fn search(mut step: impl FnMut(f64) -> Simulated) -> Searching {
        let mut searching = Searching::around(1000.0);
        while !searching.is_over() {
            let rate = searching.rate();
            let Simulated { passed, is_disturbed } = step(rate);
            searching.add(rate, passed, is_disturbed);
        }
        searching
    }

    /// Returns the result of a step on a quiet machine. Within about 3 % of the limit, chance
    /// decides about a step. Farther away, one step in fifty is decided wrongly.
    fn noisy(random: &mut fastrand::Rng, limit: f64, rate: f64) -> bool {
        let chance = 1.0 / (1.0 + (-(limit.ln() - rate.ln()) / 0.012).exp());
        (random.f64() < chance) != (random.f64() < 0.02)
    }

    fn is_right(searching: &Searching, limit: f64) -> bool {
        (searching.rate() / limit - 1.0).abs() < 0.05
    }

    #[test]
    fn the_limit_of_a_noisy_server_is_found_within_5_percent_in_19_of_20_searches() {
        let mut random = fastrand::Rng::with_seed(9);
        let (mut steps, mut right) = (0, 0);
        for _ in 0..200 {
            let limit: f64 = 100.0 + 800.0 * random.f64();
            let searching = search(|rate| Simulated {
                passed: noisy(&mut random, limit, rate),
                is_disturbed: false,
            });
            steps += searching.steps;
            right += usize::from(is_right(&searching, limit));
        }
        assert!(right >= 190, "{right} of 200");
        assert!(steps / 200 < 20, "{} steps", steps / 200);
    }

    /// Simulates 200 searches on a machine with pauses, which last for several steps and affect 2
    /// of 5 steps on average. During a pause, steps at more than 80 % of the limit fail. `detected`
    /// is the share of such steps that count as disturbed. Returns the number of sure results, and
    /// the number of sure results that are wrong.
    fn with_pauses(detected: f64) -> (usize, usize) {
        let mut random = fastrand::Rng::with_seed(11);
        let (mut sure, mut wrong) = (0, 0);
        for _ in 0..200 {
            let limit: f64 = 100.0 + 800.0 * random.f64();
            let mut is_paused = false;
            let searching = search(|rate| {
                is_paused = random.f64() < if is_paused { 0.7 } else { 0.2 };
                let passed = noisy(&mut random, limit, rate) && !(is_paused && rate > limit * 0.8);
                Simulated { passed, is_disturbed: is_paused && random.f64() < detected }
            });
            sure += usize::from(searching.is_sure());
            wrong += usize::from(searching.is_sure() && !is_right(&searching, limit));
        }
        (sure, wrong)
    }

    #[test]
    fn a_disturbed_search_is_not_sure_of_a_wrong_rate() {
        let (sure, wrong) = with_pauses(0.95);
        assert!(wrong * 50 <= sure, "{wrong} of {sure} sure results are wrong");
        assert!(sure > 100, "{sure} of 200 searches are sure");
        // Without the detection, many sure results are wrong.
        let (sure, wrong) = with_pauses(0.0);
        assert!(wrong * 10 > sure, "{wrong} of {sure}");
    }

    #[test]
    fn a_search_on_a_machine_that_is_always_disturbed_ends_without_a_sure_result() {
        let searching = search(|rate| Simulated { passed: rate < 400.0, is_disturbed: true });
        assert!(!searching.is_sure());
        assert!(searching.steps < MOST_STEPS, "{}", searching.steps);
        let searching = search(|_| Simulated { passed: false, is_disturbed: true });
        assert!(!searching.is_sure());
        assert_eq!(searching.steps, MOST_DISTURBED);
    }
}
