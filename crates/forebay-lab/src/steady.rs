//! Detection of a steady rate during the warm-up.

use std::time::Duration;

/// Length of the time window over which each rate is computed.
pub const WINDOW: Duration = Duration::from_millis(250);
/// Number of latest windows that are compared with as many windows before them.
const WINDOWS: usize = 3;
/// Maximum relative difference between the two means for a steady rate.
const ALIKE: f64 = 0.03;

/// Returns true if the mean of the latest `WINDOWS` rates differs by at most 3 % from the mean of
/// the `WINDOWS` rates before them. `rates` has one rate per window. Returns false if there are too
/// few rates.
pub fn is_steady(rates: &[f64]) -> bool {
    let Some(first) = rates.len().checked_sub(2 * WINDOWS) else { return false };
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / WINDOWS as f64;
    let (before, last) = (mean(&rates[first..first + WINDOWS]), mean(&rates[first + WINDOWS..]));
    (last - before).abs() <= ALIKE * before.max(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_rises_is_not_steady_and_noise_is_none() {
        assert!(!is_steady(&[100.0; 5]), "too few");
        assert!(is_steady(&[100.0; 6]));
        assert!(is_steady(&[10.0, 50.0, 90.0, 104.0, 98.0, 100.0, 101.0, 97.0, 103.0]));
        assert!(!is_steady(&[70.0, 80.0, 85.0, 90.0, 95.0, 100.0]));
        assert!(!is_steady(&[100.0, 100.0, 100.0, 90.0, 88.0, 85.0]));
        assert!(is_steady(&[0.0; 6]), "nothing at all is told elsewhere");
    }
}
