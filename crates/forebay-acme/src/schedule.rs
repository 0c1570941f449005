//! Computes the times of renewals and retries.

use std::time::{Duration, SystemTime};

use crate::state::Stored;

/// Pause after the first failure. Each further failure in a row doubles the pause.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Returns the time of the renewal: after two thirds of the certificate's lifetime, plus a random
/// part of up to a thirtieth of the lifetime. The random part spreads the renewals of certificates
/// that were issued together.
pub fn renewal(stored: &Stored) -> SystemTime {
    let life = stored.not_after.duration_since(stored.not_before).unwrap_or_default();
    stored.not_before + life * 2 / 3 + (life / 30).mul_f64(fastrand::f64())
}

/// Returns the pause after a failure. `failures` is the number of failures in a row before this
/// one.
///
/// Authorities allow about five failed validations per hour, so each failure doubles the pause. A
/// random part of up to a quarter is subtracted from the pause.
pub fn pause(failures: u32) -> Duration {
    let doubled = PAUSE.saturating_mul(1 << failures.min(16)).min(PAUSE_LIMIT);
    doubled.mul_f64(1.0 - fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let not_before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let stored = Stored {
            chain: String::new(),
            key: String::new(),
            not_before,
            not_after: not_before + Duration::from_secs(90),
        };
        for _ in 0..100 {
            let after = renewal(&stored).duration_since(not_before).unwrap().as_secs_f64();
            assert!((60.0..=63.0).contains(&after), "{after}");
        }
    }

    #[test]
    fn pauses_double_up_to_six_hours() {
        for (failures, most) in [(0, 60), (1, 120), (5, 1920), (9, 21_600), (u32::MAX, 21_600)] {
            let pause = pause(failures).as_secs_f64();
            let most = f64::from(most);
            assert!(pause <= most && pause >= most * 0.74, "{failures}: {pause}");
        }
    }
}
