//! A task for the browsers of new visitors.

use std::time::Duration;

use super::{Secret, When};

/// A task that the browser of a new visitor solves before the route answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Number of leading zero bits of the hash that a browser finds, from 1 to 32. Default 16.
    pub difficulty: u8,
    /// The time that a visitor without JavaScript waits; at least a second. `None`: such visitors
    /// are refused. Default 10 s.
    pub delay: Option<Duration>,
    /// The time for which a visitor is not asked again. Default 7 days.
    pub lifetime: Duration,
    /// The requests that are challenged. `None`: all.
    pub when: Option<Box<When>>,
    /// True if paths of feeds are challenged, too.
    pub feeds: bool,
    /// The secret for signatures. `None`: one of the store or of the process.
    pub secret: Option<Secret>,
}
