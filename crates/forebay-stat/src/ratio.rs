//! Ratio of a candidate to a baseline. An experiment has rounds, and the servers restart before
//! each round. Within a round, candidate and baseline are loaded in turns, one slice of load each.
//! Their slices with the same number are a pair.

use crate::trimmed::Estimate;
use crate::trimmed::t_quantile;

/// Ratio of a candidate to a baseline over paired rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Estimated ratio: a geometric mean that leaves out extreme slices; NaN if no slice is usable.
    pub mean: f64,
    /// Confidence interval of the ratio, `[low, high]`; `[0, infinity]` if too few slices exist. By
    /// default, its confidence is 95 %, for this comparison alone. [`set_level`](Self::set_level)
    /// changes this, for example so that all intervals of a report together have a confidence of 95
    /// %.
    pub ci95: [f64; 2],
    /// Probability that `ci95` does not contain the true ratio, such as 0.05.
    pub level: f64,
    /// Number of comparisons that `level` takes into account.
    pub comparisons: usize,
    /// Number of rounds with at least one usable pair.
    pub pairs: usize,
    /// Number of usable pairs of slices, over all rounds.
    pub slices: usize,
    /// Two-sided p-value of the hypothesis that candidate and baseline are equal; NaN without an
    /// interval.
    pub p: f64,
    /// `p` corrected for the number of comparisons ([`holm`](crate::holm())). It equals `p` until
    /// the caller corrects it.
    pub p_holm: f64,
    /// Estimate on the logarithmic scale from which `ci95` and `p` are computed.
    log: Option<Estimate>,
}

/// Conclusion from a ratio of rates. A larger rate is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is above 1.
    Faster,
    /// The whole interval is below 1.
    Slower,
    /// No relevant difference was shown. Reports print it as `~`.
    Same,
}

/// Ratios that count as equal: a difference of up to 2 % has no practical relevance.
const INDIFFERENT: [f64; 2] = [0.98, 1.02];

/// Default of [`Ratio::level`]: the intervals have a confidence of 95 %.
const ALPHA: f64 = 0.05;

/// Minimum number of slices for an interval from a single round.
const FEWEST_SLICES: usize = 5;

/// Computes the ratio of `(candidate, baseline)` pairs, one pair per round.
pub fn ratio_ci(pairs: &[(f64, f64)]) -> Ratio {
    let rounds: Vec<Vec<(f64, f64)>> = pairs.iter().map(|pair| vec![*pair]).collect();
    ratio_of_rounds(&rounds)
}

/// Computes the ratio of `(candidate, baseline)` pairs of slices, grouped by round.
///
/// The figure of a round is the 20 % trimmed mean of the logarithms of its ratios. The estimate is
/// the mean of the figures of all rounds. Its interval is Student's t interval, with rounds - 1
/// degrees of freedom.
///
/// Each round is a random start of the servers, with several slices. This is a one-way mixed model
/// (Searle, Casella and McCulloch, "Variance Components", chapter 3). If all rounds have the same
/// number of slices, the variance of the estimate is the variance of the figures divided by the
/// number of rounds. With different numbers of slices, this formula is an approximation.
///
/// An experiment must repeat the part whose results vary (Kalibera and Jones, "Quantifying
/// Performance Changes with Effect Size Confidence Intervals"). Here, this part is the start of the
/// servers.
///
/// A single round gets Yuen's interval over its slices ([`Estimate`]), or no interval if it has
/// fewer than five slices. Yuen's interval does not include the variation between server starts.
///
/// Pairs with a value that is not positive and finite have no logarithm and are skipped.
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
        ci95: log.map_or([0.0, f64::INFINITY], |log| log.interval(ALPHA).map(f64::exp)),
        level: ALPHA,
        comparisons: 1,
        pairs: logs.len(),
        slices,
        p,
        p_holm: p,
        log,
    }
}

/// Computes the ratio of a candidate to a baseline from slices of two separate runs, such as one
/// slice per second. The slices are not paired.
///
/// The figure of a run is the 20 % trimmed mean of the logarithms of its slices. The logarithm of
/// the ratio is the difference of the two figures. Its interval is the two-sample interval of Yuen
/// ("The two-sample trimmed t for unequal population variances", Biometrika 61, 1974), with the
/// degrees of freedom of Welch. Neighbouring slices of a run resemble each other. The standard
/// error of a run is therefore multiplied by the square root of (1 + r) / (1 - r). Here, r is the
/// correlation of neighbouring slices (first-order autoregression).
///
/// The interval covers only the variation within the two runs. It does not cover the variation
/// between runs, such as the effect of restarts, which can be larger.
///
/// Values that are not positive and finite have no logarithm and are skipped. With fewer than five
/// slices on a side, there is no interval.
pub fn ratio_of_runs(candidate: &[f64], baseline: &[f64]) -> Ratio {
    let logs = |slices: &[f64]| -> Vec<f64> {
        slices.iter().filter(|x| x.is_finite() && **x > 0.0).map(|x| x.ln()).collect()
    };
    let (ours, theirs) = (logs(candidate), logs(baseline));
    let sides = (Estimate::correlated(&ours), Estimate::correlated(&theirs));
    let difference = match sides {
        (Some(ours), Some(theirs)) => Some(ours.minus(&theirs)),
        _ => None,
    };
    let slices = ours.len().min(theirs.len());
    let log = difference.filter(|_| slices >= FEWEST_SLICES);
    let p = log.map_or(f64::NAN, |log| log.p());
    Ratio {
        mean: difference.map_or(f64::NAN, |difference| difference.mean.exp()),
        ci95: log.map_or([0.0, f64::INFINITY], |log| log.interval(ALPHA).map(f64::exp)),
        level: ALPHA,
        comparisons: 1,
        pairs: 1,
        slices,
        p,
        p_holm: p,
        log,
    }
}

impl Ratio {
    /// Returns [`Verdict::Same`] if the interval includes 1, or if the ratio is within 2 % of 1.
    /// Otherwise, the ratio decides between [`Verdict::Faster`] and [`Verdict::Slower`].
    pub fn verdict(&self) -> Verdict {
        // Even without a difference, one in twenty 95 % intervals excludes 1 by chance, usually by
        // little. A mean close to 1 therefore counts as equal.
        if (INDIFFERENT[0]..=INDIFFERENT[1]).contains(&self.mean) {
            return Verdict::Same;
        }
        match self.ci95 {
            [low, _] if low > 1.0 => Verdict::Faster,
            [_, high] if high < 1.0 => Verdict::Slower,
            _ => Verdict::Same,
        }
    }

    /// Returns true if the whole interval is within 2 % of 1. A larger difference is then excluded,
    /// and a smaller one has no practical relevance.
    pub fn is_negligible(&self) -> bool {
        let [low, high] = self.ci95;
        low >= INDIFFERENT[0] && high <= INDIFFERENT[1]
    }

    /// Replaces the interval by one that contains the true ratio with probability 1 - `alpha`.
    /// Multiplies the p-value by 0.05 / `alpha`, so that the caller can compare it with 0.05 as
    /// usual. Callers that look at the data several times during a run need this wider interval,
    /// because each look may find a false result.
    pub fn widen(&mut self, alpha: f64) {
        if let Some(log) = &self.log {
            self.p = (log.p() * ALPHA / alpha).min(1.0);
            self.p_holm = self.p;
        }
        self.set_level(alpha);
    }

    /// Replaces the interval by one that contains the true ratio with probability 1 - `level`.
    pub fn set_level(&mut self, level: f64) {
        self.level = level;
        if let Some(log) = &self.log {
            self.ci95 = log.interval(level).map(f64::exp);
        }
    }

    /// Returns the number of rounds that an interval needs so that its half width on the
    /// logarithmic scale is at most `distance`. The estimate assumes that later rounds vary as
    /// much as the rounds so far. Returns `None` for fewer than two rounds, or if more than `most`
    /// rounds would be needed.
    pub fn rounds_for(&self, distance: f64, most: u32) -> Option<u32> {
        let log = self.log.as_ref().filter(|_| self.pairs > 1)?;
        let spread = log.error * (self.pairs as f64).sqrt();
        let half = |rounds: u32| {
            let quantile = t_quantile(1.0 - self.level / 2.0, rounds - 1);
            quantile * spread / f64::from(rounds).sqrt()
        };
        (self.pairs as u32..=most).find(|&rounds| half(rounds) <= distance)
    }

    /// Returns the half width of the interval as a factor minus 1, such as 0.02 for 2 %. Returns
    /// infinity without an interval.
    pub fn half_width(&self) -> f64 {
        ((self.ci95[1] / self.ci95[0]).ln() / 2.0).exp() - 1.0
    }

    /// Returns true if the ratio has an interval.
    pub fn has_interval(&self) -> bool {
        self.log.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_known_logarithms() {
        // The log ratios are 0.1, 0.2 and 0.3. Their mean is 0.2, their standard deviation 0.1, and
        // the half width is 4.302652730 * 0.1 / sqrt(3).
        let pairs = [0.1f64, 0.2, 0.3].map(|log| (100.0 * log.exp(), 100.0));
        let ratio = ratio_ci(&pairs);
        let half: f64 = 0.248_413_772;
        assert!((ratio.mean - 0.2f64.exp()).abs() < 1e-12);
        assert!((ratio.ci95[0] - (0.2 - half).exp()).abs() < 1e-8);
        assert!((ratio.ci95[1] - (0.2 + half).exp()).abs() < 1e-8);
        assert_eq!(ratio.verdict(), Verdict::Same);
    }

    #[test]
    fn intervals_of_two_runs_contain_the_true_ratio_in_19_of_20_cases() {
        let mut random = fastrand::Rng::with_seed(3);
        for correlation in [0.0, 0.5] {
            let mut run = |level: f64| -> Vec<f64> {
                let mut state = 0.0;
                let noise =
                    |random: &mut fastrand::Rng| (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                let step = |_| {
                    state = correlation * state + noise(&mut random);
                    level * (0.05 * state).exp()
                };
                (0..40).map(step).collect()
            };
            let right = (0..400)
                .filter(|_| {
                    let [low, high] = ratio_of_runs(&run(90.0), &run(100.0)).ci95;
                    low <= 0.9 && 0.9 <= high
                })
                .count();
            // 380 of 400 are expected.
            assert!((360..=398).contains(&right), "{right} of 400 with {correlation}");
        }
    }

    #[test]
    fn two_short_runs_have_no_interval() {
        let ratio = ratio_of_runs(&[2.0; 4], &[1.0; 9]);
        assert!((ratio.mean - 2.0).abs() < 1e-12 && !ratio.has_interval(), "{ratio:?}");
        assert!(ratio_of_runs(&[], &[0.0, -1.0, f64::NAN]).mean.is_nan());
        let same = ratio_of_runs(&[3.0; 9], &[3.0; 9]);
        assert_eq!((same.ci95, same.verdict()), ([1.0, 1.0], Verdict::Same));
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
    fn the_verdict_follows_the_interval_at_every_level() {
        let mut ratio = ratio_ci(&[(106.0, 100.0), (109.0, 100.0), (104.0, 100.0)]);
        assert_eq!(ratio.verdict(), Verdict::Faster);
        for level in [0.05, 0.02, 0.01, 0.001] {
            ratio.set_level(level);
            let is_above = ratio.ci95[0] > 1.0;
            assert_eq!(ratio.verdict() == Verdict::Faster, is_above, "{ratio:?}");
        }
        assert_eq!(ratio.verdict(), Verdict::Same);
    }

    #[test]
    fn a_difference_below_2_percent_is_none_however_certain_it_is() {
        let certain = |percent: f64| ratio_ci(&[(percent, 100.0), (percent, 100.0)]).verdict();
        assert_eq!([101.9, 98.1].map(certain), [Verdict::Same; 2]);
        assert_eq!([102.1, 97.9].map(certain), [Verdict::Faster, Verdict::Slower]);
    }

    #[test]
    fn more_rounds_narrow_the_interval() {
        let ratio = ratio_ci(&[(104.0, 100.0), (100.0, 103.0), (101.0, 100.0), (99.0, 100.0)]);
        let half = ratio.half_width().ln_1p();
        assert_eq!(ratio.rounds_for(half * 1.001, 100), Some(4));
        let rounds = ratio.rounds_for(half / 2.0, 100).unwrap();
        assert!((8..16).contains(&rounds), "{rounds}");
        assert_eq!(ratio.rounds_for(half / 100.0, 1000), None);
        assert_eq!(ratio_ci(&[(2.0, 1.0)]).rounds_for(0.1, 100), None);
    }

    /// Draws from the normal distribution of mean 0 and standard deviation 1 (Box and Muller 1958).
    fn normal(random: &mut fastrand::Rng) -> f64 {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.f64()).cos()
    }

    /// Returns the share of 2,000 simulated experiments whose interval contains the true ratio. The
    /// logarithms of rounds differ by 2 %, and those of slices within a round by another 5 %. One
    /// pair of slices in twenty is an outlier in either direction.
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
        // A share of 2,000 draws with probability 0.95 is within 0.015 of 0.95 in 499 of 500 runs.
        // With one slice per round, nothing can be trimmed, and extreme rounds make the interval
        // wider than necessary. This error is safe, so the test allows it.
        for (rounds, slices) in [(3, 20), (6, 20), (6, 1), (12, 7)] {
            let share = coverage(rounds, slices);
            let most = if slices == 1 { 0.985 } else { 0.965 };
            assert!((0.935..=most).contains(&share), "{rounds} rounds of {slices}: {share}");
        }
    }
}
