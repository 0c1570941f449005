//! Limits on the number of requests.

use std::time::Duration;

use super::{Placeholder, Template};

/// A limit on the number of requests with the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The largest number of requests in `period`; at least one.
    pub requests: u32,
    /// The period of `requests`; more than zero.
    pub period: Duration,
    /// The number of requests that may arrive earlier than the rate allows.
    pub burst: u32,
    /// The text that selects a counter. Requests with the same text are counted together.
    pub key: Template,
    /// True if requests that arrive earlier wait until the rate admits them.
    pub delay: bool,
}

impl RateLimit {
    /// Returns the time from one request to the next if requests arrive exactly at the rate.
    pub fn interval(&self) -> Duration {
        // The interval is at least a nanosecond, so that the time of the next request always
        // advances.
        (self.period / self.requests).max(Duration::from_nanos(1))
    }

    /// Returns true if the key contains the user, who is known only after authentication.
    pub fn needs_user(&self) -> bool {
        self.key.depends_on(&|value| *value == Placeholder::User)
    }

    /// Returns how early a request of a burst may arrive, compared with the rate: half a second for
    /// `10/s` with a burst of 5.
    pub fn ahead(&self) -> Duration {
        self.interval().saturating_mul(self.burst)
    }
}

/// A limit on the number of requests with the same key that run at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The largest number of requests; at least one.
    pub max: u32,
    /// The text that selects a counter.
    pub key: Template,
}

/// A limit on the speed of each reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthLimit {
    /// Bytes per second, at least 1.
    pub rate: u64,
    /// The number of bytes at the start of a reply that the limit does not apply to. Default 0.
    pub after: u64,
}

/// Time limits of a route for slow clients. `None`: the time limit of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTimeouts {
    /// Limit between two reads of a request body; above zero.
    pub body_idle: Option<Duration>,
    /// The longest time that a write waits for a client that reads nothing; above zero.
    pub write: Option<Duration>,
}
