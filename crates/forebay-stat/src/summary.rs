//! Mean, spread and median of repeated trials.

/// Summary of the samples of repeated trials.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of samples.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (divisor n - 1); 0 for a single sample.
    pub sd: f64,
    /// Standard deviation in percent of the mean; 0 if the mean is 0.
    pub sd_pct: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Middle sample, or the mean of the two middle samples.
    pub median: f64,
}

impl Summary {
    /// Summarizes `samples`. Returns `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let median = median(samples)?;
        // Two passes (first the mean, then the squared deviations) avoid the cancellation of digits
        // that a sum of squares causes.
        let n = samples.len();
        let mean = samples.iter().sum::<f64>() / n as f64;
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        let sd = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        let sd_pct = if mean == 0.0 { 0.0 } else { 100.0 * sd / mean.abs() };
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { n, mean, sd, sd_pct, min, max, median })
    }
}

/// Returns the middle sample, or the mean of the two middle samples. Returns `None` without
/// samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sample() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((summary.n, summary.mean, summary.median), (8, 5.0, 4.5));
        assert_eq!((summary.min, summary.max), (2.0, 9.0));
        // The sample standard deviation is sqrt(32 / 7).
        assert!((summary.sd - 2.138_089_935).abs() < 1e-9);
        assert!((summary.sd_pct - 42.761_798_70).abs() < 1e-7);
    }

    /// As in the NIST StRD data set NumAcc4, a large mean must not hide the deviations.
    #[test]
    fn large_mean_keeps_its_deviation() {
        let summary = Summary::of(&[1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0]).unwrap();
        assert!((summary.sd - 30f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn one_sample_has_no_spread() {
        let summary = Summary::of(&[3.0]).unwrap();
        assert_eq!((summary.mean, summary.sd, summary.median), (3.0, 0.0, 3.0));
    }

    #[test]
    fn no_sample_has_no_summary() {
        assert_eq!(Summary::of(&[]), None);
    }
}
