//! Counters of single routes, which `route_metrics` of `[server]` turns on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Durations, Histogram, add};

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
    /// Counts one finished request, as [`Counters::count_request`](super::Counters::count_request)
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
