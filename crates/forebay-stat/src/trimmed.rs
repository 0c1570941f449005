//! Trimmed mean and its confidence interval. A few extreme samples hardly change a trimmed mean.

use crate::student::{t_quantile, t_two_sided};

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
