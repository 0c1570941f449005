//! Outlier flags for trials. The functions flag outliers but never drop them.

use crate::summary::median;

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
