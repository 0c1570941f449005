//! Whether a warm-up has come to rest.

use std::time::Duration;

/// The rate is looked at over windows of this length.
pub const WINDOW: Duration = Duration::from_millis(250);
/// So many windows are compared with as many before them.
const WINDOWS: usize = 3;
/// Their means may differ by this share.
const ALIKE: f64 = 0.03;

/// Whether the last of `rates`, of a window each, are like those before them.
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
