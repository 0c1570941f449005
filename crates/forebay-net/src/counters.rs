//! Counters of requests, connections and limits. Each thread writes only its own set, and a reader
//! adds up the sets of all threads.

mod top;

pub use top::{KINDS, Top, TopTimes, heaviest};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::limit::{Limit, PerLimit};
use crate::timing::Step;

/// Upper bounds of the histogram buckets, in microseconds.
pub const BUCKETS: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000, 30_000_000,
];

/// The counters of one thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of replies by the first digit of the status. Index 0: requests without a reply.
    classes: [AtomicU64; 6],
    durations: Histogram,
    /// Durations per [`Step`], if steps are timed.
    steps: [Histogram; Step::ALL.len()],
    /// Number of times that each [`Limit`] was reached.
    limits: PerLimit<AtomicU64>,
    body_bytes: AtomicU64,
    accepted: AtomicU64,
    /// Who takes the time. Empty unless requests are timed.
    pub top: Top,
}

/// A histogram of durations. The last bucket counts durations above all bounds in [`BUCKETS`].
#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn count(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = BUCKETS.partition_point(|&end| end < micros);
        add(&self.buckets[bucket], 1);
        add(&self.sum_us, micros);
    }
}

impl Counters {
    /// Counts one finished request. `status` and `body_bytes` are those of the reply; `status` is 0
    /// without a reply. `took` is `None` if durations are not measured.
    pub fn count_request(&self, status: u16, body_bytes: u64, took: Option<Duration>) {
        let class = usize::from(status / 100).min(5);
        add(&self.classes[class], 1);
        add(&self.body_bytes, body_bytes);
        if let Some(took) = took {
            self.durations.count(took);
        }
    }

    /// Counts the duration of each step of a request.
    pub fn count_steps(&self, steps: impl Iterator<Item = (Step, Duration)>) {
        for (step, took) in steps {
            self.steps[step as usize].count(took);
        }
    }

    /// Counts that a limit was reached.
    pub fn count_limit(&self, limit: Limit) {
        add(&self.limits.0[limit as usize], 1);
    }

    /// Counts one accepted connection.
    pub fn count_connection(&self) {
        add(&self.accepted, 1);
    }
}

/// Adds to a counter. Each counter has one writer, so no atomic read-modify-write is needed.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// A copy of the histogram counts, added up over threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of durations in each bucket of [`BUCKETS`]. The last element counts longer durations.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Sum of all durations in microseconds.
    pub sum_us: u64,
}

impl Durations {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn add(&mut self, histogram: &Histogram) {
        for (sum, number) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += number.load(Ordering::Relaxed);
        }
        self.sum_us += histogram.sum_us.load(Ordering::Relaxed);
    }
}

/// The counters of all threads, added up at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of replies by the first digit of the status. Index 0: requests without a reply.
    pub classes: [u64; 6],
    /// Durations of requests.
    pub durations: Durations,
    /// Durations of each [`Step`] of the requests.
    pub steps: [Durations; Step::ALL.len()],
    /// Number of times that each limit was reached.
    pub limits: PerLimit<u64>,
    /// Bytes of reply bodies, without framing.
    pub body_bytes: u64,
    /// Accepted connections.
    pub accepted: u64,
}

impl Totals {
    /// Adds up the counters of `threads`.
    pub fn of(threads: &[Arc<Counters>]) -> Self {
        let mut totals = Self::default();
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        for thread in threads {
            for (sum, number) in totals.classes.iter_mut().zip(&thread.classes) {
                *sum += read(number);
            }
            for (sum, number) in totals.limits.0.iter_mut().zip(&thread.limits.0) {
                *sum += read(number);
            }
            totals.durations.add(&thread.durations);
            for (sum, histogram) in totals.steps.iter_mut().zip(&thread.steps) {
                sum.add(histogram);
            }
            totals.body_bytes += read(&thread.body_bytes);
            totals.accepted += read(&thread.accepted);
        }
        totals
    }

    /// Returns the number of replies of all kinds.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }
}

// Counters of single routes, which `route_metrics` of `[server]` turns on.

/// The methods that are counted one by one. All other methods are counted together, because a
/// client may send any word as the method.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "QUERY", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"];

/// The label of all other methods.
const OTHER: &str = "other";

/// The statuses that are counted one by one. An application may send any number, so other statuses
/// are counted by their class.
const STATUSES: [u16; 40] = [
    0, 101, 200, 201, 202, 204, 206, 207, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405,
    406, 408, 409, 410, 411, 412, 413, 414, 415, 416, 421, 422, 429, 431, 444, 499, 500, 501, 502,
    503, 504,
];

/// Number of status classes, from 1xx to 5xx.
const CLASSES: usize = 5;

/// Labels of a route in metrics.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteLabels {
    /// The first host name of the site, or its first listener.
    pub site: String,
    /// The route's `name`, or its paths.
    pub route: String,
}

/// The counters of one route on one thread. Only that thread writes them.
#[derive(Debug)]
pub struct RouteCounters {
    /// Number of requests by method and status.
    requests: Box<[[AtomicU64; STATUSES.len() + CLASSES]; METHODS.len() + 1]>,
    durations: Histogram,
    body_bytes: AtomicU64,
}

impl Default for RouteCounters {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            requests: Box::new(std::array::from_fn(|_| zeros())),
            durations: Histogram::default(),
            body_bytes: AtomicU64::new(0),
        }
    }
}

impl RouteCounters {
    /// Counts one finished request, as [`Counters::count_request`](Counters::count_request)
    /// does.
    pub fn count(&self, method: &[u8], status: u16, body_bytes: u64, took: Option<Duration>) {
        let known = METHODS.iter().position(|name| name.as_bytes() == method);
        let requests = &self.requests[known.unwrap_or(METHODS.len())];
        add(&requests[status_index(status)], 1);
        add(&self.body_bytes, body_bytes);
        if let Some(took) = took {
            self.durations.count(took);
        }
    }
}

fn status_index(status: u16) -> usize {
    STATUSES.binary_search(&status).unwrap_or_else(|_| {
        let class = usize::from(status / 100).clamp(1, CLASSES);
        STATUSES.len() + class - 1
    })
}

/// Returns the label of the statuses with this index. Status 0 is a request without a reply.
fn status_label(index: usize) -> String {
    match STATUSES.get(index) {
        Some(status) => status.to_string(),
        None => format!("{}xx", index - STATUSES.len() + 1),
    }
}

/// The counters of one route, added up over threads at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTotals {
    /// The route.
    pub labels: RouteLabels,
    /// Method, status and number of requests. Numbers of zero are left out.
    pub requests: Vec<(&'static str, String, u64)>,
    /// Durations of requests.
    pub durations: Durations,
    /// Bytes of reply bodies, without framing.
    pub body_bytes: u64,
}

/// The counters of all routes. A reload keeps the counters of routes whose labels stay the same.
#[derive(Debug, Default)]
pub struct RouteRegistry(Mutex<BTreeMap<RouteLabels, Vec<Arc<RouteCounters>>>>);

impl RouteRegistry {
    /// Returns the counters of a route for the thread number `thread`. Routes with the same labels
    /// share counters.
    pub fn counters(&self, labels: RouteLabels, thread: usize) -> Arc<RouteCounters> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_route = all.entry(labels).or_default();
        if of_route.len() <= thread {
            of_route.resize_with(thread + 1, Arc::default);
        }
        of_route[thread].clone()
    }

    /// Adds up the counters of all threads.
    pub fn totals(&self) -> Vec<RouteTotals> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(labels, threads)| totals(labels, threads)).collect()
    }
}

/// Adds up the counters of one route over its threads.
fn totals(labels: &RouteLabels, threads: &[Arc<RouteCounters>]) -> RouteTotals {
    let mut requests = Vec::new();
    for (at, method) in METHODS.iter().chain([&OTHER]).enumerate() {
        for index in 0..STATUSES.len() + CLASSES {
            let number =
                |thread: &Arc<RouteCounters>| thread.requests[at][index].load(Ordering::Relaxed);
            match threads.iter().map(number).sum() {
                0 => {}
                sum => requests.push((*method, status_label(index), sum)),
            }
        }
    }
    let mut durations = Durations::default();
    threads.iter().for_each(|thread| durations.add(&thread.durations));
    let body_bytes = threads.iter().map(|thread| thread.body_bytes.load(Ordering::Relaxed)).sum();
    RouteTotals { labels: labels.clone(), requests, durations, body_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_in_order_and_others_are_counted_by_class() {
        assert!(STATUSES.is_sorted());
        for (status, label) in
            [(0, "0"), (200, "200"), (299, "2xx"), (999, "5xx"), (42, "1xx"), (504, "504")]
        {
            assert_eq!(status_label(status_index(status)), label, "{status}");
        }
    }

    #[test]
    fn threads_are_added_up_and_other_methods_share_a_label() {
        let registry = RouteRegistry::default();
        let labels = || RouteLabels { site: "a.example".into(), route: "/x/*".into() };
        let took = Some(Duration::from_millis(2));
        registry.counters(labels(), 1).count(b"GET", 200, 10, took);
        registry.counters(labels(), 0).count(b"GET", 200, 5, took);
        registry.counters(labels(), 0).count(b"BREW", 418, 1, None);
        let [totals] = &registry.totals()[..] else { panic!() };
        let counted = [("GET", "200".to_owned(), 2), ("other", "4xx".to_owned(), 1)];
        assert_eq!(totals.requests, counted);
        assert_eq!((totals.body_bytes, totals.durations.count()), (16, 2));
    }
}
