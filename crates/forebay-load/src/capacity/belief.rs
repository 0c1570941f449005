//! The state of a search: probabilities of all limits that it considers.

/// Minimum and maximum number of steps of a search.
pub(super) const FEWEST_STEPS: usize = 5;
pub(super) const MOST_STEPS: usize = 30;
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
pub(super) struct Searching {
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
