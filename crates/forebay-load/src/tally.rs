//! Counts of one load thread.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use forebay_stat::Latency;

use crate::grpc::GrpcReply;
use crate::inspection::{Inspection, Mismatch};
use crate::transport::Handshake;
use crate::transport::ServerAddresses;
use crate::{Bytes, Failures, GrpcCounts, Handshakes, Requests, Second, SlowCounts, ThreadSeconds};

/// Counts of one load thread. At the end, the counts of all threads are added up.
#[derive(Debug)]
pub(crate) struct Tally {
    pub sent: u64,
    pub resent: u64,
    pub completed: u64,
    pub unsent: u64,
    pub in_flight: u64,
    pub failures: Failures,
    pub failed: u64,
    pub bytes: Bytes,
    pub latency: Latency,
    pub handshakes: Handshakes,
    pub first_failure: Option<String>,
    /// Counts of each request of a mixed load; empty if all requests are equal.
    pub parts: Vec<PartTally>,
    /// Counts of the iterations of each scenario.
    pub iterations: Vec<IterationTally>,
    /// Replies of gRPC.
    grpc: Option<Box<GrpcCounts>>,
    /// Results of slow peers; `None` if connections send and read as fast as possible.
    pub slow: Option<Box<SlowCounts>>,
    status: Vec<u64>,
}

/// Counts of one request of a mixed load.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartTally {
    pub completed: u64,
    pub failed: u64,
    pub failures: Failures,
    /// Sum of the latencies of completed requests.
    pub time: Duration,
    /// Histogram of the latencies; `None` if the load has too many different requests.
    pub latency: Option<Box<Latency>>,
}

/// Counts of the iterations of one scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct IterationTally {
    pub started: u64,
    pub completed: u64,
    pub failed: u64,
    /// Times of completed iterations.
    pub time: Box<Latency>,
}

/// Maximum number of different requests that have their own histograms. A histogram takes 200 kB
/// per thread.
const HISTOGRAMS: usize = 32;

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
    /// Creates the counts for a mixed load of `parts` requests. `parts` is 0 if all requests are
    /// equal.
    pub fn new(parts: usize) -> Self {
        let latency = (1..=HISTOGRAMS).contains(&parts).then(Box::default);
        let part = PartTally { latency, ..PartTally::default() };
        Self {
            sent: 0,
            resent: 0,
            completed: 0,
            unsent: 0,
            in_flight: 0,
            failures: Failures::default(),
            failed: 0,
            bytes: Bytes::default(),
            latency: Latency::new(),
            handshakes: Handshakes::default(),
            first_failure: None,
            parts: vec![part; parts],
            iterations: Vec::new(),
            grpc: None,
            slow: None,
            status: vec![0; 1000],
        }
    }

    /// Creates the counts for the requests and scenarios of a run.
    pub fn of(target: &ServerAddresses) -> Self {
        let iterations = vec![IterationTally::default(); target.scenarios()];
        let slow = target.slow().is_used().then(|| Box::new(SlowCounts::new(target.slow())));
        Self { iterations, slow, ..Self::new(target.parts()) }
    }

    /// Counts a complete reply, even one that fails the check. `body` is the length of its body.
    #[inline]
    pub fn reply(&mut self, status: u16, body: u64) {
        self.status[usize::from(status).min(999)] += 1;
        self.bytes.body += body;
    }

    #[inline]
    fn complete(&mut self, latency: Duration) {
        self.completed += 1;
        self.latency.record(latency);
    }

    /// Counts a completed request of a mixed load.
    #[inline]
    pub fn complete_part(&mut self, request: usize, latency: Duration) {
        self.complete(latency);
        if let Some(part) = self.parts.get_mut(request) {
            part.complete(latency);
        }
    }

    /// Counts a complete reply as a completed request, or as a failed one if it does not pass the
    /// check.
    #[inline]
    pub fn judge(
        &mut self,
        status: u16,
        inspected: &Inspection,
        latency: Duration,
        (target, request): (&ServerAddresses, usize),
    ) {
        let length = inspected.length();
        self.reply(status, length);
        if let Some(reply) = inspected.grpc() {
            self.grpc.get_or_insert_default().count(reply.status(status).ok(), reply.messages());
        }
        match inspected.mismatch(status) {
            None => self.complete_part(request, latency),
            Some(mismatch) => self.mismatched(&mismatch, status, inspected, (target, request)),
        }
    }

    /// Counts a reply that does not pass the check.
    #[cold]
    fn mismatched(
        &mut self,
        mismatch: &Mismatch,
        status: u16,
        inspected: &Inspection,
        (target, request): (&ServerAddresses, usize),
    ) {
        let length = inspected.length();
        match mismatch {
            Mismatch::Status(expected) => {
                let (url, quote) = (target.url(request), inspected.quote());
                let why =
                    format_args!("{url}: a reply has status {status}, not {expected}; {quote}");
                self.fail(Failure::Check, request, &why);
            }
            Mismatch::Grpc(failed) => {
                let url = target.url(request);
                let text = inspected.grpc().map(GrpcReply::text).unwrap_or_default();
                let why = format_args!("{url}: a reply has the gRPC status {failed}, {text}");
                self.fail(Failure::Check, request, &why);
            }
            Mismatch::NotGrpc(wrong) => {
                let url = target.url(request);
                let why = format_args!("{url}: a reply is not valid gRPC: {wrong}");
                self.fail(Failure::Protocol, request, &why);
            }
            Mismatch::Body => {
                let body = format_args!("its body of {length} bytes lacks the expected text");
                let (url, quote) = (target.url(request), inspected.quote());
                let why = format_args!("{url}: a reply has status {status}, but {body}; {quote}");
                self.fail(Failure::Check, request, &why);
            }
        }
    }

    pub fn shook_hands(&mut self, handshake: &Handshake) {
        self.handshakes.record(handshake.is_resumed, handshake.time);
    }

    #[cold]
    pub fn fail(&mut self, failure: Failure, request: usize, why: &dyn fmt::Display) {
        if let Some(part) = self.parts.get_mut(request) {
            part.failed += 1;
            *failure.count(&mut part.failures).0 += 1;
        }
        let (count, name) = failure.count(&mut self.failures);
        *count += 1;
        self.failed += 1;
        self.first_failure.get_or_insert_with(|| format!("{name}: {why}"));
    }

    /// Adds the counts of another thread.
    pub fn merge(&mut self, other: Self) {
        self.sent += other.sent;
        self.resent += other.resent;
        self.completed += other.completed;
        self.unsent += other.unsent;
        self.in_flight += other.in_flight;
        self.failed += other.failed;
        self.failures.add(&other.failures);
        self.bytes.read += other.bytes.read;
        self.bytes.body += other.bytes.body;
        self.latency.merge(&other.latency);
        self.handshakes.add(&other.handshakes);
        self.first_failure = self.first_failure.take().or(other.first_failure);
        if self.parts.is_empty() {
            self.parts = other.parts;
        } else {
            self.parts.iter_mut().zip(&other.parts).for_each(|(mine, theirs)| mine.merge(theirs));
        }
        if self.iterations.is_empty() {
            self.iterations = other.iterations;
        } else {
            let both = self.iterations.iter_mut().zip(&other.iterations);
            both.for_each(|(mine, theirs)| mine.merge(theirs));
        }
        match (&mut self.grpc, other.grpc) {
            (Some(mine), Some(theirs)) => mine.add(&theirs),
            (mine, theirs) => *mine = mine.take().or(theirs),
        }
        SlowCounts::add(&mut self.slow, other.slow);
        self.status.iter_mut().zip(other.status).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Returns the counts so far, to show them during the run. `seconds` are the seconds that ended
    /// since the previous call. `first` is the index of the first of these seconds.
    pub fn live(&self, thread: usize, first: usize, seconds: &[Second]) -> ThreadSeconds {
        ThreadSeconds {
            thread,
            first,
            seconds: seconds.to_vec(),
            requests: self.requests(),
            first_failure: self.first_failure.clone(),
        }
    }

    /// Converts the counts to those of the outcome.
    pub fn requests(&self) -> Requests {
        // Skip the status 0, because raw replies have no status.
        let seen = self.status.iter().enumerate().skip(1).filter(|(_, count)| **count > 0);
        let status: BTreeMap<u16, u64> =
            seen.map(|(status, count)| (status as u16, *count)).collect();
        Requests {
            sent: self.sent,
            resent: self.resent,
            completed: self.completed,
            failed: self.failed,
            unsent: self.unsent,
            in_flight: self.in_flight,
            failures: self.failures.clone(),
            status,
            grpc: self.grpc.as_deref().cloned(),
        }
    }
}

impl Failure {
    /// Returns the count of this kind of failure, and the name of the kind.
    fn count(self, failures: &mut Failures) -> (&mut u64, &'static str) {
        match self {
            Self::Connect => (&mut failures.connect, "connect"),
            Self::Read => (&mut failures.read, "read"),
            Self::Write => (&mut failures.write, "write"),
            Self::Timeout => (&mut failures.timeout, "timeout"),
            Self::Protocol => (&mut failures.protocol, "protocol"),
            Self::Check => (&mut failures.check, "check"),
        }
    }
}

impl IterationTally {
    /// Counts the end of an iteration that took `time`. The times of failed iterations are not
    /// recorded.
    pub fn end(&mut self, has_failed: bool, time: Duration) {
        if has_failed {
            self.failed += 1;
        } else {
            self.completed += 1;
            self.time.record(time);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.started += other.started;
        self.completed += other.completed;
        self.failed += other.failed;
        self.time.merge(&other.time);
    }
}

impl PartTally {
    fn complete(&mut self, latency: Duration) {
        self.completed += 1;
        self.time += latency;
        if let Some(histogram) = &mut self.latency {
            histogram.record(latency);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.completed += other.completed;
        self.failed += other.failed;
        self.failures.add(&other.failures);
        self.time += other.time;
        if let (Some(mine), Some(theirs)) = (&mut self.latency, &other.latency) {
            mine.merge(theirs);
        }
    }
}
