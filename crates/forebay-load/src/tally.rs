//! Counts of one load thread.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use forebay_stat::Latency;

use crate::inspection::{Inspection, Mismatch};
use crate::transport::Handshake;
use crate::{Bytes, Failures, Handshakes, Requests};

/// Counts of one load thread, merged with those of other threads at the end.
#[derive(Debug)]
pub(crate) struct Tally {
    pub sent: u64,
    pub resent: u64,
    pub completed: u64,
    pub unsent: u64,
    pub failures: Failures,
    pub failed: u64,
    pub bytes: Bytes,
    pub latency: Latency,
    pub handshakes: Handshakes,
    pub first_failure: Option<String>,
    status: Vec<u64>,
}

/// Step at which a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Connect,
    Read,
    Write,
    Timeout,
    Protocol,
    Check,
}

impl Tally {
    pub fn new() -> Self {
        Self {
            sent: 0,
            resent: 0,
            completed: 0,
            unsent: 0,
            failures: Failures::default(),
            failed: 0,
            bytes: Bytes::default(),
            latency: Latency::new(),
            handshakes: Handshakes::default(),
            first_failure: None,
            status: vec![0; 1000],
        }
    }

    /// Counts a complete reply, regardless of the check. `body` is the length of its body.
    #[inline]
    fn reply(&mut self, status: u16, body: u64) {
        self.status[usize::from(status).min(999)] += 1;
        self.bytes.body += body;
    }

    /// Counts a completed request.
    #[inline]
    fn complete(&mut self, latency: Duration) {
        self.completed += 1;
        self.latency.record(latency);
    }

    /// Counts a complete reply as a completed or a failed request, depending on the check.
    #[inline]
    pub fn judge(&mut self, status: u16, inspected: &Inspection, latency: Duration) {
        let length = inspected.length();
        self.reply(status, length);
        match inspected.mismatch(status) {
            None => self.complete(latency),
            Some(Mismatch::Status(expected)) => {
                let why = format_args!("a reply has status {status}, not {expected}");
                self.fail(Failure::Check, &why);
            }
            Some(Mismatch::Body) => {
                let body = format_args!("its body of {length} bytes lacks the expected text");
                let why = format_args!("a reply has status {status}, but {body}");
                self.fail(Failure::Check, &why);
            }
        }
    }

    /// Counts a successful handshake.
    pub fn shook_hands(&mut self, handshake: &Handshake) {
        self.handshakes.record(handshake.is_resumed, handshake.time);
    }

    /// Counts a failed request.
    pub fn fail(&mut self, failure: Failure, why: &dyn fmt::Display) {
        let (count, name) = match failure {
            Failure::Connect => (&mut self.failures.connect, "connect"),
            Failure::Read => (&mut self.failures.read, "read"),
            Failure::Write => (&mut self.failures.write, "write"),
            Failure::Timeout => (&mut self.failures.timeout, "timeout"),
            Failure::Protocol => (&mut self.failures.protocol, "protocol"),
            Failure::Check => (&mut self.failures.check, "check"),
        };
        *count += 1;
        self.failed += 1;
        self.first_failure.get_or_insert_with(|| format!("{name}: {why}"));
    }

    /// Adds another thread's counts.
    pub fn merge(&mut self, other: Self) {
        self.sent += other.sent;
        self.resent += other.resent;
        self.completed += other.completed;
        self.unsent += other.unsent;
        self.failed += other.failed;
        self.failures.add(&other.failures);
        self.bytes.read += other.bytes.read;
        self.bytes.body += other.bytes.body;
        self.latency.merge(&other.latency);
        self.handshakes.add(&other.handshakes);
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.status.iter_mut().zip(other.status).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Returns the counts in the form of the outcome.
    pub fn requests(&self) -> Requests {
        let seen = self.status.iter().enumerate().filter(|(_, count)| **count > 0);
        let status: BTreeMap<u16, u64> =
            seen.map(|(status, count)| (status as u16, *count)).collect();
        Requests {
            sent: self.sent,
            resent: self.resent,
            completed: self.completed,
            failed: self.failed,
            unsent: self.unsent,
            failures: self.failures.clone(),
            status,
        }
    }
}
