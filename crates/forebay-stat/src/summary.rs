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

/// Modified z-score above which a sample is an outlier.
const THRESHOLD: f64 = 3.5;

/// Flags the samples whose modified z-score exceeds 3.5, in the order of `samples`.
///
/// The score is 0.6745 (x - median) / MAD. MAD is the median absolute deviation (Iglewicz and
/// Hoaglin, "How to Detect and Handle Outliers", 1993; NIST/SEMATECH e-Handbook 1.3.5.17).
///
/// If more than half of the samples are equal, MAD is 0. The score is then
/// (x - median) / (1.253314 MeanAD). MeanAD is the mean absolute deviation, the usual substitute,
/// which IBM SPSS also uses.
pub fn outliers(samples: &[f64]) -> Vec<bool> {
    let Some(middle) = median(samples) else { return Vec::new() };
    let deviations: Vec<f64> = samples.iter().map(|x| (x - middle).abs()).collect();
    let mad = median(&deviations).unwrap_or_default();
    let mean_ad = deviations.iter().sum::<f64>() / samples.len() as f64;
    let unit = if mad > 0.0 { mad / 0.6745 } else { 1.253_314 * mean_ad };
    deviations.iter().map(|deviation| unit > 0.0 && deviation / unit > THRESHOLD).collect()
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

#[cfg(test)]
mod outlier_tests {
    use super::*;

    #[test]
    fn flags_the_sample_that_stands_apart() {
        // The median is 101 and the deviations are 1, 0, 1, 2, 1 and 49, so MAD is 1. 49 * 0.6745
        // is above 3.5, and 2 * 0.6745 is below.
        let samples = [100.0, 101.0, 102.0, 99.0, 102.0, 150.0];
        assert_eq!(outliers(&samples), [false, false, false, false, false, true]);
    }

    #[test]
    fn equal_samples_have_no_outlier() {
        assert_eq!(outliers(&[5.0; 4]), [false; 4]);
        assert!(outliers(&[]).is_empty());
    }

    #[test]
    fn one_apart_from_equals_is_flagged() {
        let mut samples = [5.0; 12];
        samples[3] = 50.0;
        let flags = outliers(&samples);
        assert_eq!(flags.iter().filter(|flag| **flag).count(), 1);
        assert!(flags[3]);
    }
}
