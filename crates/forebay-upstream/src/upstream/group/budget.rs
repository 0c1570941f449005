//! Limits retries after certain statuses (key `retry`) to a share of a group's requests.
//!
//! If all backends are overloaded, each retry adds load, and the overload lasts longer. The budget
//! is that of Finagle and linkerd (`RetryBudget`): a share of the requests of the last 10 s, and a
//! few retries for groups with little traffic.

use std::sync::{Mutex, PoisonError};

use forebay_conf as conf;

use super::{Group, Set};

/// Number of seconds over which requests and retries are counted.
const WINDOW: usize = 10;
/// Number of retries in a window that are allowed without regard to the number of requests. A
/// linkerd proxy allows ten each second.
const ALWAYS: u64 = 10;

/// A group's rule for retries after certain statuses, with the budget that limits these retries.
pub struct Retries {
    rule: conf::StatusRetry,
    counts: Mutex<Counts>,
}

/// Requests and retries of the last seconds.
#[derive(Default)]
struct Counts {
    /// Second of the latest entry.
    now: u64,
    /// Requests and retries by second, modulo the window.
    seconds: [(u64, u64); WINDOW],
}

impl Retries {
    pub fn new(rule: conf::StatusRetry) -> Self {
        Self { rule, counts: Mutex::default() }
    }

    /// Counts a request. `second` is the time since the start.
    pub fn count_request(&self, second: u64) {
        self.with_counts(second, |counts| counts.at(second).0 += 1);
    }

    /// Returns true if the rule allows a retry of a request with this method, after `attempts`
    /// attempts and a reply with this status.
    pub fn are_for(&self, status: u16, method: &[u8], attempts: u32) -> bool {
        let Self { rule, .. } = self;
        rule.statuses.contain(status)
            && attempts < rule.attempts
            && rule.methods.iter().any(|allowed| allowed.as_bytes() == method)
    }

    /// Takes a retry from the budget. Returns false if the budget is used up.
    pub fn take(&self, second: u64) -> bool {
        self.with_counts(second, |counts| {
            let sum = |(requests, retries), second: &(u64, u64)| {
                (requests + second.0, retries + second.1)
            };
            let (requests, retries) = counts.seconds.iter().fold((0, 0), sum);
            let allowed = (requests * u64::from(self.rule.budget) / 100).max(ALWAYS);
            let may = retries < allowed;
            counts.at(second).1 += u64::from(may);
            may
        })
    }

    fn with_counts<T>(&self, second: u64, act: impl FnOnce(&mut Counts) -> T) -> T {
        // Ignore the poison of a panic, because the counts are valid after each update.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.advance(second);
        act(&mut counts)
    }
}

impl Group {
    /// Counts a request for the budget of retries.
    #[inline]
    pub fn count_request(&self) {
        if let Some(retries) = &self.retries {
            retries.count_request(self.started.elapsed().as_secs());
        }
    }

    /// Returns true if another backend should get a request, after a backend has answered with
    /// `status`. In this case, takes a retry from the budget. `tried` contains the backends that
    /// have got the request.
    pub fn takes_retry(&self, status: u16, method: &[u8], tried: Set) -> bool {
        let Some(retries) = &self.retries else { return false };
        // Another backend must be up. A retry at a backend that is down would only give a worse
        // error.
        let others = self.tiers.iter().fold(0, |all, tier| all | tier) & self.up() & !tried;
        retries.are_for(status, method, tried.count_ones())
            && others != 0
            && retries.take(self.started.elapsed().as_secs())
    }
}

impl Counts {
    /// Clears the counts of the seconds after the latest entry, up to `second`.
    fn advance(&mut self, second: u64) {
        let passed = second.saturating_sub(self.now).min(WINDOW as u64);
        for ago in 0..passed {
            *self.at(second - ago) = (0, 0);
        }
        self.now = self.now.max(second);
    }

    fn at(&mut self, second: u64) -> &mut (u64, u64) {
        &mut self.seconds[(second % WINDOW as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries(budget: u32) -> Retries {
        let statuses = conf::StatusRanges(vec![502..=504]);
        let methods = vec!["GET".to_owned()];
        Retries::new(conf::StatusRetry { statuses, methods, attempts: 3, budget })
    }

    fn taken(retries: &Retries, second: u64) -> usize {
        (0..1000).filter(|_| retries.take(second)).count()
    }

    #[test]
    fn retries_are_a_share_of_the_requests_of_the_last_seconds() {
        let retries = retries(20);
        for second in 0..10 {
            (0..50).for_each(|_| retries.count_request(second));
        }
        assert_eq!(taken(&retries, 9), 100, "20 % of 500");
        assert_eq!(
            taken(&retries, 10),
            0,
            "the retries count for 10 s, though 50 requests are past"
        );
        assert_eq!(taken(&retries, 18), 0);
        assert_eq!(taken(&retries, 19), 10, "all are past, and a few are always allowed");
        assert_eq!(taken(&retries, 1_000_000), 10);
    }

    #[test]
    fn only_chosen_statuses_and_methods_are_resent() {
        let retries = retries(100);
        assert!(retries.are_for(503, b"GET", 1) && retries.are_for(502, b"GET", 2));
        assert!(!retries.are_for(503, b"GET", 3), "three backends were tried");
        assert!(!retries.are_for(500, b"GET", 1) && !retries.are_for(503, b"POST", 1));
    }
}
