//! Computes the times of renewals and retries, for certificates of any lifetime.

use std::time::{Duration, SystemTime};

use crate::state::Stored;

/// Pause after the first failure. Each further failure in a row doubles the pause.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Longest time from a successful order to the next order of the certificate.
const REST: Duration = Duration::from_secs(3600);

/// Time in which an authority wants a certificate to be renewed (ARI, RFC 9773).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start: SystemTime,
    pub end: SystemTime,
}

/// Returns the time of the renewal: after two thirds of the certificate's lifetime, plus a random
/// part of up to a thirtieth of the lifetime. The random part spreads the renewals of certificates
/// that were issued together.
pub fn renewal(stored: &Stored) -> SystemTime {
    let life = lifetime(stored);
    stored.not_before + life * 2 / 3 + (life / 30).mul_f64(fastrand::f64())
}

/// Returns a random time in the authority's window, but never less than an eighth of the lifetime before
/// the certificate ends, because a failed order needs time for others.
pub fn in_window(window: Window, stored: &Stored) -> SystemTime {
    let length = window.end.duration_since(window.start).unwrap_or_default();
    let chosen = window.start + length.mul_f64(fastrand::f64());
    chosen.min(stored.not_after - lifetime(stored) / 8)
}

/// Returns the earliest time of the next order after a successful one. With a wrong clock, or an
/// authority with a window in the past, each new certificate could be due immediately.
pub fn rest(stored: &Stored, now: SystemTime) -> SystemTime {
    now + (lifetime(stored) / 3).clamp(PAUSE, REST)
}

/// Returns the pause after a failure. `failures` is the number of failures in a row before this
/// one, and `left` the rest of the certificate's life; `None` without a valid certificate.
///
/// Authorities allow about five failed validations per hour, so each failure doubles the pause. A
/// random part of up to a quarter is subtracted from it. An eighth of what is left is the limit, so that
/// a certificate of six days gets many attempts, but the pause is at least a minute.
pub fn pause(failures: u32, left: Option<Duration>) -> Duration {
    let doubled = PAUSE.saturating_mul(1 << failures.min(16)).min(PAUSE_LIMIT);
    let limit = left.map_or(PAUSE_LIMIT, |left| (left / 8).max(PAUSE));
    doubled.min(limit).mul_f64(1.0 - fastrand::f64() / 4.0)
}

fn lifetime(stored: &Stored) -> Duration {
    stored.not_after.duration_since(stored.not_before).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn issued(now: SystemTime, life: u64) -> Stored {
        let not_after = now + Duration::from_secs(life);
        Stored { chain: String::new(), key: String::new(), not_before: now, not_after }
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        for life in [HOUR, 6 * DAY, 45 * DAY, 90 * DAY, 398 * DAY] {
            let stored = issued(at(1_000_000), life);
            for _ in 0..100 {
                let after = renewal(&stored).duration_since(stored.not_before).unwrap();
                let part = after.as_secs_f64() / life as f64;
                assert!((2.0 / 3.0..=0.7).contains(&part), "{life}: {part}");
                assert!(rest(&stored, stored.not_before) <= renewal(&stored));
            }
        }
    }

    #[test]
    fn pauses_double_up_to_six_hours() {
        for (failures, most) in [(0, 60), (1, 120), (5, 1920), (9, 21_600), (u32::MAX, 21_600)] {
            let pause = pause(failures, None).as_secs_f64();
            let most = f64::from(most);
            assert!(pause <= most && pause >= most * 0.74, "{failures}: {pause}");
        }
    }

    /// Lets an authority refuse orders until `recovers`, and returns the number of failed orders and the time
    /// of the success.
    fn renew(stored: &Stored, recovers: SystemTime) -> (u32, SystemTime) {
        let (mut failures, mut now) = (0, renewal(stored));
        while now < recovers {
            let left = stored.not_after.duration_since(now).ok().filter(|left| !left.is_zero());
            let pause = pause(failures, left);
            if let Some(left) = left {
                assert!(pause <= (left / 8).max(PAUSE), "{pause:?} with {left:?} left");
            }
            now += pause;
            failures += 1;
        }
        (failures, now)
    }

    #[test]
    fn years_of_certificates_of_six_days_pass_without_an_expired_one() {
        fastrand::seed(6);
        let (mut now, mut orders, mut failed) = (at(1_000_000_000), 0, 0);
        let end = now + Duration::from_secs(3 * 365 * DAY);
        while now < end {
            let stored = issued(now, 6 * DAY);
            // The authority is away around the renewal: for a moment, or nearly to the end.
            let outage = Duration::from_secs(5 * DAY + fastrand::u64(0..DAY - HOUR));
            let (failures, renewed) = renew(&stored, now + outage);
            let left = stored.not_after.duration_since(renewed).expect("it has not expired");
            assert!(!left.is_zero() && failures < 60, "{failures}");
            (now, orders, failed) = (renewed, orders + 1, failed + failures);
        }
        assert!((182..=219).contains(&orders), "{orders} orders in three years");
        assert!(failed / orders < 30, "{failed} of {orders}");
    }

    #[test]
    fn the_window_of_the_authority_counts_but_never_too_late() {
        let stored = issued(at(10 * DAY), 6 * DAY);
        let window = Window { start: at(11 * DAY), end: at(12 * DAY) };
        let times: Vec<_> = (0..100).map(|_| in_window(window, &stored)).collect();
        assert!(times.iter().all(|time| (window.start..=window.end).contains(time)));
        assert!(times.iter().any(|time| *time != times[0]), "a random time");
        // A window in the past: at once.
        let past = Window { start: at(DAY), end: at(2 * DAY) };
        assert!(in_window(past, &stored) < stored.not_before);
        // Windows near or after the end, and one that ends before it begins.
        let latest = stored.not_after - Duration::from_secs(6 * DAY / 8);
        for (start, end) in [(16, 16), (100, 200), (200, 100)] {
            let window = Window { start: at(start * DAY), end: at(end * DAY) };
            assert_eq!(in_window(window, &stored), latest);
        }
    }

    #[test]
    fn a_certificate_that_is_due_at_once_is_not_ordered_without_a_pause() {
        let now = at(1000 * DAY);
        // The clock is years ahead, or the lifetime is absurd.
        for (begin, life) in [(at(0), 90 * DAY), (now, 1), (now, 0), (now, 90 * DAY)] {
            let rest = rest(&issued(begin, life), now).duration_since(now).unwrap().as_secs();
            assert!((60..=HOUR).contains(&rest), "{rest}");
        }
    }
}
