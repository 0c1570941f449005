//! Retries that a reply's status causes, and sets of statuses.

use std::ops::RangeInclusive;

/// Retries of requests whose reply has one of these statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRetry {
    /// The statuses, from 400 to 599. Default 502, 503 and 504.
    pub statuses: StatusRanges,
    /// The methods of requests that Forebay may send to another server. Default GET, HEAD and
    /// OPTIONS.
    pub methods: Vec<String>,
    /// The largest number of servers that get a request, from 2 to [`super::Upstream::MOST`].
    /// Default 3.
    pub attempts: u32,
    /// The largest number of retries per 100 requests of the last 10 s, from 1 to 100. Default 10.
    pub budget: u32,
}

/// A set of statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRanges(pub Vec<RangeInclusive<u16>>);

impl StatusRanges {
    /// Returns true if `status` is in the set.
    pub fn contain(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}
