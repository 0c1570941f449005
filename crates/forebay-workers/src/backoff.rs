//! Computes the pause before the next start if workers end right after their start.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Counts consecutive failed starts.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure. Returns the time until the next start: 0.1 s, doubled each time, at most
    /// 10 s.
    pub(crate) fn failed(&mut self) -> Duration {
        let delay = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        delay
    }

    /// Resets the count, because a worker has done work or has run for some time.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Returns true after three consecutive failures. Requests then fail instead of waiting for the
    /// next start.
    pub(crate) fn is_loop(&self) -> bool {
        self.failures >= 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_ten_seconds_and_starts_over() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..9).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert!(backoff.is_loop());
        backoff.succeeded();
        assert!(!backoff.is_loop());
        assert_eq!(backoff.failed().as_millis(), 100);
    }
}
