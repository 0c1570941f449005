//! Limits on the number of requests.

use std::time::Duration;

use super::Template;

/// A limit on the number of requests with the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests in `period`; at least one.
    pub requests: u32,
    /// The time of `requests`; more than zero.
    pub period: Duration,
    /// Requests that may come at once, beyond the next one.
    pub burst: u32,
    /// The key.
    pub key: Template,
    /// True if the requests of a burst wait until the rate admits them.
    pub delay: bool,
}

impl RateLimit {
    /// Returns the time from one request to the next at the limit.
    pub fn interval(&self) -> Duration {
        // At least a nanosecond, so that a key's time always advances.
        (self.period / self.requests).max(Duration::from_nanos(1))
    }

    /// Returns the time that the requests of a burst are ahead of the rate.
    pub fn ahead(&self) -> Duration {
        self.interval().saturating_mul(self.burst)
    }
}
