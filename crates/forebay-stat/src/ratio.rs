//! Candidate over baseline, paired by round.

use crate::t_quantile;

/// The ratio of a candidate to a baseline over paired rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Geometric mean of the paired ratios; NaN where no pair could be used.
    pub mean: f64,
    /// 95 % confidence interval of the mean, `[low, high]`; `[0, infinity]` below two pairs.
    pub ci95: [f64; 2],
    /// How many pairs were used.
    pub pairs: usize,
}

/// What a ratio of rates (more is better) allows to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval lies above 1.
    Faster,
    /// The whole interval lies below 1.
    Slower,
    /// The interval spans 1: no difference was shown. Printed as `~`.
    Same,
}

/// The ratio of `(candidate, baseline)` pairs: Student's t interval on the logarithms of the ratios,
/// taken back by exp (the paired t interval for a geometric mean; Kalibera and Jones, "Quantifying
/// Performance Changes with Effect Size Confidence Intervals", for reporting ratios that way).
///
/// Pairs with a value that is not positive and finite have no logarithm and are left out.
pub fn ratio_ci(pairs: &[(f64, f64)]) -> Ratio {
    let usable = |x: f64| x.is_finite() && x > 0.0;
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(candidate, baseline)| usable(*candidate) && usable(*baseline))
        .map(|(candidate, baseline)| candidate.ln() - baseline.ln())
        .collect();
    let n = logs.len();
    let Some(log) = crate::Summary::of(&logs) else {
        return Ratio { mean: f64::NAN, ci95: [0.0, f64::INFINITY], pairs: 0 };
    };
    if n < 2 {
        return Ratio { mean: log.mean.exp(), ci95: [0.0, f64::INFINITY], pairs: n };
    }
    let half = t_quantile(0.975, n as u32 - 1) * log.sd / (n as f64).sqrt();
    let ci95 = [(log.mean - half).exp(), (log.mean + half).exp()];
    Ratio { mean: log.mean.exp(), ci95, pairs: n }
}

impl Ratio {
    /// What the interval allows to say.
    pub fn verdict(&self) -> Verdict {
        match self.ci95 {
            [low, _] if low > 1.0 => Verdict::Faster,
            [_, high] if high < 1.0 => Verdict::Slower,
            _ => Verdict::Same,
        }
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
        assert_eq!(ratio.ci95, [0.0, f64::INFINITY]);
        assert_eq!(ratio.verdict(), Verdict::Same);
    }

    #[test]
    fn pairs_without_a_logarithm_are_left_out() {
        let ratio = ratio_ci(&[(0.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (2.0, 1.0)]);
        assert_eq!(ratio.pairs, 2);
        assert!((ratio.mean - 2.0).abs() < 1e-12);
        assert!(ratio_ci(&[]).mean.is_nan());
    }
}
