//! How long to wait before the next start when workers end as soon as they are started.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Counts starts in a row that came to nothing.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// One more failed; the time until the next start: 0.1 s, doubled each time, at most 10 s.
    pub(crate) fn failed(&mut self) -> Duration {
        let delay = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        delay
    }

    /// A worker has done work, or has stayed.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// So many have failed in a row that requests should not wait for the next.
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
