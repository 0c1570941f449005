//! Candidate over baseline, paired by round and, within a round, by slice.

use crate::trimmed::Estimate;

/// The ratio of a candidate to a baseline over paired rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Geometric mean of the paired ratios, trimmed within rounds; NaN where no pair could be used.
    pub mean: f64,
    /// 95 % confidence interval of the mean, `[low, high]`; `[0, infinity]` where there is none.
    pub ci95: [f64; 2],
    /// How many rounds were used.
    pub pairs: usize,
    /// How many paired slices were used in all.
    pub slices: usize,
    /// Two-sided p-value of no difference; NaN where there is no interval.
    pub p: f64,
    /// The same, corrected for as many comparisons as there were ([`holm`](crate::holm())).
    pub p_holm: f64,
    /// What interval and p come from, in logarithms.
    log: Option<Estimate>,
}

/// What a ratio of rates (more is better) allows to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval lies above 1.
    Faster,
    /// The whole interval lies below 1.
    Slower,
    /// No difference that matters was shown. Printed as `~`.
    Same,
}

/// A difference of up to 2 % matters to nobody.
const INDIFFERENT: [f64; 2] = [0.98, 1.02];

/// A single round gives an interval of its own from this many slices on.
const FEWEST_SLICES: usize = 5;

/// The ratio of `(candidate, baseline)` pairs, one for each round.
pub fn ratio_ci(pairs: &[(f64, f64)]) -> Ratio {
    let rounds: Vec<Vec<(f64, f64)>> = pairs.iter().map(|pair| vec![*pair]).collect();
    ratio_of_rounds(&rounds)
}

/// The ratio of `(candidate, baseline)` pairs of slices, by round.
///
/// A round's figure is the 20 % trimmed mean of the logarithms of its ratios. The model is a mixed
/// one of one way: rounds (each with servers started anew) are random, slices lie within them. Where
/// rounds have equally many slices the variance of the mean is that of the rounds' figures, whatever
/// its parts, so the interval is Student's t over those, with rounds - 1 degrees of freedom (Searle,
/// Casella and McCulloch, "Variance Components", chapter 3; Kalibera and Jones, "Quantifying
/// Performance Changes with Effect Size Confidence Intervals", for repeating at the level where
/// chance enters). With a single round it is Yuen's over the slices, which does not know how starts
/// differ.
///
/// Pairs with a value that is not positive and finite have no logarithm and are left out.
pub fn ratio_of_rounds(rounds: &[Vec<(f64, f64)>]) -> Ratio {
    let usable = |x: f64| x.is_finite() && x > 0.0;
    let logs: Vec<Vec<f64>> = rounds
        .iter()
        .map(|pairs| {
            let pairs = pairs.iter().filter(|(ours, theirs)| usable(*ours) && usable(*theirs));
            pairs.map(|(ours, theirs)| ours.ln() - theirs.ln()).collect()
        })
        .filter(|logs: &Vec<f64>| !logs.is_empty())
        .collect();
    let slices = logs.iter().map(Vec::len).sum();
    let figures: Vec<f64> = logs
        .iter()
        .map(|logs| Estimate::trimmed(logs).map_or(logs[0], |estimate| estimate.mean))
        .collect();
    let log = match logs.as_slice() {
        [only] if only.len() < FEWEST_SLICES => None,
        [only] => Estimate::trimmed(only),
        _ => Estimate::plain(&figures),
    };
    let mean = log.map(|log| log.mean).or(figures.first().copied());
    let p = log.map_or(f64::NAN, |log| log.p());
    Ratio {
        mean: mean.map_or(f64::NAN, f64::exp),
        ci95: log.map_or([0.0, f64::INFINITY], |log| log.interval(0.05).map(f64::exp)),
        pairs: logs.len(),
        slices,
        p,
        p_holm: p,
        log,
    }
}

impl Ratio {
    /// What the interval, and where there were several comparisons Holm's correction, allow to say:
    /// nothing where the interval spans 1, or lies within 2 % of it.
    pub fn verdict(&self) -> Verdict {
        let [low, high] = self.ci95;
        let is_negligible = low >= INDIFFERENT[0] && high <= INDIFFERENT[1];
        if is_negligible || self.p_holm > 0.05 {
            return Verdict::Same;
        }
        match self.ci95 {
            [low, _] if low > 1.0 => Verdict::Faster,
            [_, high] if high < 1.0 => Verdict::Slower,
            _ => Verdict::Same,
        }
    }

    /// Makes interval and p-value those of a level of `alpha` in place of 0.05: for a look that is one
    /// of several.
    pub fn widen(&mut self, alpha: f64) {
        if let Some(log) = &self.log {
            self.ci95 = log.interval(alpha).map(f64::exp);
            self.p = (log.p() * 0.05 / alpha).min(1.0);
            self.p_holm = self.p;
        }
    }

    /// How far the ends of the interval are from its middle, as a factor less 1; infinite without one.
    pub fn half_width(&self) -> f64 {
        ((self.ci95[1] / self.ci95[0]).ln() / 2.0).exp() - 1.0
    }

    /// Whether there is an interval at all.
    pub fn has_interval(&self) -> bool {
        self.log.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_known_logarithms() {
        // Log ratios 0.1, 0.2, 0.3: mean 0.2, sd 0.1, half width 4.302652730 * 0.1 / sqrt(3).
        let pairs = [0.1f64, 0.2, 0.3].map(|log| (100.0 * log.exp(), 100.0));
        let ratio = ratio_ci(&pairs);
        let half: f64 = 0.248_413_772;
        assert!((ratio.mean - 0.2f64.exp()).abs() < 1e-12);
        assert!((ratio.ci95[0] - (0.2 - half).exp()).abs() < 1e-8);
        assert!((ratio.ci95[1] - (0.2 + half).exp()).abs() < 1e-8);
        assert_eq!(ratio.verdict(), Verdict::Same);
    }

    #[test]
    fn a_steady_ratio_is_certain() {
        let faster = ratio_ci(&[(220.0, 110.0), (200.0, 100.0), (198.0, 99.0)]);
        assert!((faster.mean - 2.0).abs() < 1e-12);
        assert_eq!(faster.verdict(), Verdict::Faster);
        let slower = ratio_ci(&[(50.0, 100.0), (51.0, 100.0), (49.0, 100.0)]);
        assert_eq!(slower.verdict(), Verdict::Slower);
    }

    #[test]
    fn swapping_sides_inverts_the_interval() {
        let pairs = [(10.0, 8.0), (11.0, 8.5), (9.0, 8.2), (12.0, 9.0)];
        let there = ratio_ci(&pairs);
        let back = ratio_ci(&pairs.map(|(a, b)| (b, a)));
        assert!((there.mean * back.mean - 1.0).abs() < 1e-12);
        assert!((there.ci95[0] * back.ci95[1] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn one_pair_has_an_unbounded_interval() {
        let ratio = ratio_ci(&[(2.0, 1.0)]);
        assert_eq!((ratio.ci95, ratio.mean), ([0.0, f64::INFINITY], 2.0));
        assert_eq!(ratio.verdict(), Verdict::Same);
    }

    #[test]
    fn pairs_without_a_logarithm_are_left_out() {
        let ratio = ratio_ci(&[(0.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (2.0, 1.0)]);
        assert_eq!((ratio.pairs, ratio.mean), (2, 2.0));
        assert!(ratio_ci(&[]).mean.is_nan());
        assert_eq!(ratio_ci(&[]).verdict(), Verdict::Same);
    }

    #[test]
    fn a_certain_difference_within_two_percent_is_none() {
        let ratio = ratio_ci(&[(101.0, 100.0), (101.1, 100.0), (100.9, 100.0)]);
        assert!(ratio.ci95[0] > 1.0 && ratio.ci95[1] < 1.02, "{ratio:?}");
        assert_eq!(ratio.verdict(), Verdict::Same);
    }

    #[test]
    fn a_disturbed_slice_does_not_widen_a_round() {
        let round = |shift: f64| {
            let mut slices: Vec<(f64, f64)> =
                (0..10).map(|k| (105.0 + shift + f64::from(k % 3), 100.0)).collect();
            slices[4] = (20.0, 100.0);
            slices
        };
        let ratio = ratio_of_rounds(&[round(0.0), round(0.5), round(-0.3), round(0.1)]);
        assert_eq!((ratio.pairs, ratio.slices), (4, 40));
        assert!(ratio.ci95[0] > 1.04 && ratio.ci95[1] < 1.08, "{ratio:?}");
    }

    #[test]
    fn a_single_round_of_many_slices_has_an_interval() {
        let slices: Vec<(f64, f64)> = (0..20).map(|k| (110.0 + f64::from(k % 5), 100.0)).collect();
        let ratio = ratio_of_rounds(&[slices]);
        assert!(ratio.has_interval());
        assert_eq!((ratio.pairs, ratio.verdict()), (1, Verdict::Faster));
    }

    #[test]
    fn a_look_among_several_has_a_wider_interval() {
        let pairs = [(103.0, 100.0), (106.0, 100.0), (104.0, 100.0), (105.0, 100.0)];
        let (plain, mut among) = (ratio_ci(&pairs), ratio_ci(&pairs));
        among.widen(0.05);
        assert_eq!(among, plain);
        among.widen(0.05 / 12.0);
        assert!(among.ci95[0] < plain.ci95[0] && among.half_width() > plain.half_width());
        assert!((among.p / plain.p - 12.0).abs() < 1e-6);
        assert_eq!(ratio_ci(&[]).half_width(), f64::INFINITY);
    }

    #[test]
    fn holm_takes_a_verdict_back() {
        let mut ratio = ratio_ci(&[(106.0, 100.0), (109.0, 100.0), (104.0, 100.0)]);
        assert_eq!(ratio.verdict(), Verdict::Faster);
        ratio.p_holm = 0.2;
        assert_eq!(ratio.verdict(), Verdict::Same);
    }

    /// A draw from the normal distribution of mean 0 and standard deviation 1 (Box and Muller 1958).
    fn normal(random: &mut fastrand::Rng) -> f64 {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.f64()).cos()
    }

    /// Of 2,000 simulated experiments, the share whose interval holds the truth: rounds differ by 2 %, each
    /// slice by another 5 %, and one pair of slices in twenty is wild on either side.
    fn coverage(rounds: usize, slices: usize) -> f64 {
        const EXPERIMENTS: usize = 2000;
        let (truth, mut random): (f64, _) = (1.05, fastrand::Rng::with_seed(20));
        let holds = (0..EXPERIMENTS).filter(|_| {
            let round = |random: &mut fastrand::Rng| {
                let start = 0.02 * normal(random);
                let slice = |random: &mut fastrand::Rng| {
                    let spread = if random.f64() < 0.05 { 0.5 } else { 0.05 };
                    let log = truth.ln() + start + spread * normal(random);
                    (1000.0 * log.exp(), 1000.0)
                };
                (0..slices).map(|_| slice(random)).collect::<Vec<_>>()
            };
            let rounds: Vec<_> = (0..rounds).map(|_| round(&mut random)).collect();
            let [low, high] = ratio_of_rounds(&rounds).ci95;
            (low..=high).contains(&truth)
        });
        holds.count() as f64 / EXPERIMENTS as f64
    }

    #[test]
    fn the_interval_holds_the_truth_in_95_of_100_experiments() {
        // Of 2,000 draws with probability 0.95 the share is within 0.015 of it but for one time in 500. Where
        // nothing can be trimmed, wild rounds make the interval wider than it need be: that errs safely.
        for (rounds, slices) in [(3, 20), (6, 20), (6, 1), (12, 7)] {
            let share = coverage(rounds, slices);
            let most = if slices == 1 { 0.985 } else { 0.965 };
            assert!((0.935..=most).contains(&share), "{rounds} rounds of {slices}: {share}");
        }
    }
}
