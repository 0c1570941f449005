//! Trimmed mean and its confidence interval. A few extreme samples hardly change a trimmed mean.

use std::f64::consts::FRAC_2_PI;

/// Share of the samples that the trimmed mean leaves out at each end.
const TRIM: f64 = 0.2;

/// Upper bound of the estimated correlation of neighbouring samples. At a higher correlation, the
/// samples say almost nothing about the mean.
const HIGHEST_R: f64 = 0.9;

/// Trimmed or plain mean with its standard error.
///
/// The error of the 20 % trimmed mean is that of Yuen ("The two-sample trimmed t for unequal
/// population variances", Biometrika 61, 1974), for one sample. Its square is
/// (n - 1) s² / (h (h - 1)). Here s² is the winsorized variance, and h is the number of kept
/// samples. The degrees of freedom are h - 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Trimmed or plain mean.
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
    /// Degrees of freedom of Student's t.
    pub degrees: u32,
}

impl Estimate {
    /// Returns the 20 % trimmed mean of `samples`, or `None` for fewer than two samples.
    pub fn trimmed(samples: &[f64]) -> Option<Self> {
        let n = samples.len();
        if n < 2 {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let cut = (TRIM * n as f64).floor() as usize;
        let kept = n - 2 * cut;
        let mean = sorted[cut..n - cut].iter().sum::<f64>() / kept as f64;
        let (low, high) = (sorted[cut], sorted[n - cut - 1]);
        sorted[..cut].fill(low);
        sorted[n - cut..].fill(high);
        let winsorized = sorted.iter().sum::<f64>() / n as f64;
        // The factor (n - 1) s² of the formula is this sum of squares.
        let squares: f64 = sorted.iter().map(|x| (x - winsorized).powi(2)).sum();
        let error = (squares / (kept * (kept - 1)) as f64).sqrt();
        Some(Self { mean, error, degrees: kept as u32 - 1 })
    }

    /// Returns the plain mean of `samples` with its standard error, or `None` for fewer than two
    /// samples.
    pub fn plain(samples: &[f64]) -> Option<Self> {
        let n = samples.len();
        let summary = crate::Summary::of(samples).filter(|_| n > 1)?;
        let error = summary.sd / (n as f64).sqrt();
        Some(Self { mean: summary.mean, error, degrees: n as u32 - 1 })
    }

    /// Returns the 20 % trimmed mean of `samples`, which must be in the order of their time. The
    /// error takes into account that neighbouring samples resemble each other. Returns `None` for
    /// fewer than two samples.
    pub(crate) fn correlated(samples: &[f64]) -> Option<Self> {
        let estimate = Self::trimmed(samples)?;
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        let products: f64 =
            samples.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
        let r = if squares > 0.0 { (products / squares).clamp(0.0, HIGHEST_R) } else { 0.0 };
        Some(Self { error: estimate.error * ((1.0 + r) / (1.0 - r)).sqrt(), ..estimate })
    }

    /// Returns the difference of two independent means, with Welch's degrees of freedom.
    pub(crate) fn minus(&self, other: &Self) -> Self {
        let squares = [self.error.powi(2), other.error.powi(2)];
        let sum: f64 = squares.iter().sum();
        let terms = squares[0].powi(2) / f64::from(self.degrees.max(1))
            + squares[1].powi(2) / f64::from(other.degrees.max(1));
        let degrees = if terms > 0.0 { sum.powi(2) / terms } else { f64::from(self.degrees) };
        Self {
            mean: self.mean - other.mean,
            error: sum.sqrt(),
            degrees: degrees.floor().max(1.0) as u32,
        }
    }

    /// Returns the interval that contains the true mean with probability 1 - `alpha`.
    pub fn interval(&self, alpha: f64) -> [f64; 2] {
        let half = t_quantile(1.0 - alpha / 2.0, self.degrees) * self.error;
        [self.mean - half, self.mean + half]
    }

    /// Returns the two-sided p-value of the hypothesis that the true mean is 0.
    pub fn p(&self) -> f64 {
        if self.error > 0.0 {
            return t_two_sided(self.mean / self.error, self.degrees);
        }
        if self.mean == 0.0 { 1.0 } else { 0.0 }
    }
}

/// Returns the `p` quantile of Student's t distribution with `degrees` degrees of freedom.
///
/// The function inverts the distribution function of Abramowitz and Stegun 26.7.3 and 26.7.4 by
/// bisection. The sums in these formulas are finite for whole degrees of freedom, so the result is
/// exact except for rounding. Returns NaN if `degrees` is 0, or if `p` is not greater than 0 and
/// less than 1.
pub fn t_quantile(p: f64, degrees: u32) -> f64 {
    if degrees == 0 || !(p > 0.0 && p < 1.0) {
        return f64::NAN;
    }
    if p < 0.5 {
        return -t_quantile(1.0 - p, degrees);
    }
    // At the quantile x, the probability of |t| <= x is `central`.
    let central = 2.0 * p - 1.0;
    // Double the upper bound until it exceeds the quantile, then bisect.
    let (mut low, mut high) = (0.0, 1.0);
    while central_probability(high, degrees) < central && high < 1e300 {
        high *= 2.0;
    }
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return middle;
        }
        if central_probability(middle, degrees) < central {
            low = middle;
        } else {
            high = middle;
        }
    }
}

/// Returns the two-sided p-value of `t`: the probability that a t-distributed variable is further
/// from 0 than `t`. Returns NaN if `degrees` is 0 or `t` is NaN.
pub fn t_two_sided(t: f64, degrees: u32) -> f64 {
    if degrees == 0 || t.is_nan() {
        return f64::NAN;
    }
    (1.0 - central_probability(t.abs(), degrees)).clamp(0.0, 1.0)
}

/// Returns the probability that a t-distributed variable is between `-t` and `t`.
fn central_probability(t: f64, degrees: u32) -> f64 {
    let degrees_f = f64::from(degrees);
    let theta = (t / degrees_f.sqrt()).atan();
    let (sin, cos) = theta.sin_cos();
    let odd = degrees % 2 == 1;
    // Each term is cos^k times a product of (k - 1) / k. The exponent k rises by 2, up to
    // degrees - 2.
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = if degrees == 1 { 0.0 } else { term };
    let mut k = if odd { 3 } else { 2 };
    while k + 2 <= degrees {
        term *= cos * cos * f64::from(k - 1) / f64::from(k);
        sum += term;
        k += 2;
    }
    if odd { FRAC_2_PI * (theta + sin * sum) } else { sin * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wild_samples_do_not_move_it() {
        let calm = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.02, 0.98, 1.0];
        let mut wild = calm;
        (wild[2], wild[4]) = (-50.0, 400.0);
        let (calm, wild) = (Estimate::trimmed(&calm).unwrap(), Estimate::trimmed(&wild).unwrap());
        assert!((calm.mean - wild.mean).abs() < 0.02, "{wild:?}");
        assert!(wild.error < 3.0 * calm.error, "{wild:?}");
    }

    #[test]
    fn equal_samples_are_certain() {
        let none = Estimate::trimmed(&[0.0; 7]).unwrap();
        assert_eq!((none.interval(0.05), none.p()), ([0.0, 0.0], 1.0));
        assert_eq!(Estimate::trimmed(&[0.5; 7]).unwrap().p(), 0.0);
    }

    #[test]
    fn one_sample_has_no_error() {
        assert_eq!(Estimate::trimmed(&[3.0]), None);
        assert_eq!(Estimate::plain(&[3.0]), None);
    }
}

#[cfg(test)]
mod student_tests {
    use super::*;

    /// Each element is `(p, degrees, scipy.stats.t.ppf(p, degrees))`. The usual printed tables
    /// agree.
    const PUBLISHED: &[(f64, u32, f64)] = &[
        (0.975, 1, 12.706_204_736_432_095),
        (0.975, 2, 4.302_652_729_749_462),
        (0.975, 3, 3.182_446_305_284_263),
        (0.975, 4, 2.776_445_105_197_793),
        (0.975, 5, 2.570_581_835_636_314),
        (0.975, 6, 2.446_911_851_144_97),
        (0.975, 9, 2.262_157_162_798_205),
        (0.975, 10, 2.228_138_851_964_939),
        (0.975, 29, 2.045_229_642_132_703),
        (0.975, 30, 2.042_272_456_301_236),
        (0.975, 100, 1.983_971_518_523_55),
        (0.95, 5, 2.015_048_373_333_023_4),
        (0.995, 5, 4.032_142_983_555_227),
        (0.9, 7, 1.414_923_927_650_763_4),
    ];

    #[test]
    fn agrees_with_published_values() {
        for &(p, degrees, expected) in PUBLISHED {
            let found = t_quantile(p, degrees);
            assert!((found / expected - 1.0).abs() < 1e-9, "{p} {degrees}: {found} {expected}");
        }
    }

    #[test]
    fn is_symmetric_around_the_median() {
        assert!(t_quantile(0.5, 7).abs() < 1e-12);
        assert!((t_quantile(0.025, 5) + t_quantile(0.975, 5)).abs() < 1e-9);
    }

    #[test]
    fn no_quantile_outside_the_distribution() {
        assert!(t_quantile(0.975, 0).is_nan());
        assert!(t_quantile(1.0, 3).is_nan());
        assert!(t_quantile(f64::NAN, 3).is_nan());
    }
}
