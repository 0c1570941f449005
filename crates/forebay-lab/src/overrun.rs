//! Detection of slices that last longer than planned because replies to a few connections arrive
//! late.
//!
//! Some servers dedicate a process to each kept-alive connection. If such a server has fewer
//! processes than connections, some connections have no process. These wait until the server closes
//! an idle connection, seconds later. Every slice ends only when the replies on the waiting
//! connections have arrived.

use std::time::Duration;

use forebay_load::Outcome;

use crate::experiment::{Amount, Load};
use crate::number;

/// Ratio of actual to expected duration above which slices get a note.
const LATE: f64 = 1.5;
/// Total excess below which slices get no note.
const LEAST: Duration = Duration::from_millis(100);

/// Planned and actual duration of all slices of a trial, in total.
#[derive(Debug, Default)]
pub struct Overrun {
    slices: u32,
    expected: Duration,
    took: Duration,
}

impl Overrun {
    /// Adds a slice. If `amount` is a duration, the slice is expected to take this duration. If
    /// `amount` is a number of requests, the expected duration is computed from their median
    /// latency. The computation assumes that every connection is busy all the time.
    pub fn add(&mut self, amount: Amount, outcome: &Outcome) {
        let expected = match amount {
            Amount::Duration(duration) => duration,
            Amount::Requests(requests) => {
                let at_once = (outcome.connections * outcome.streams).max(1) as u64;
                let median = Duration::from_micros(outcome.latency.percentile_us(50.0));
                median.mul_f64(requests.div_ceil(at_once) as f64)
            }
        };
        self.slices += 1;
        self.expected += expected;
        self.took += outcome.duration;
    }

    /// Returns a note with advice if the slices lasted much longer than expected. Returns `None` if
    /// there are fewer than two slices, or if the load is a number of requests at a given rate.
    /// `latency` covers the whole trial.
    pub fn note(&self, load: &Load, latency: &forebay_stat::Latency) -> Option<String> {
        // If a number of requests is sent at a given rate, the rate determines the duration. A long
        // slice is then no sign of late replies.
        let is_paced = load.rate.is_some() && matches!(load.amount, Amount::Requests(_));
        let is_late = self.took > self.expected.mul_f64(LATE) && self.took > self.expected + LEAST;
        if self.slices < 2 || is_paced || !is_late {
            return None;
        }
        let each = |time: Duration| time / self.slices;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let (expected, took) =
            (number::time(us(each(self.expected))), number::time(us(each(self.took))));
        let usual = Duration::from_micros(latency.percentile_us(50.0));
        let median = number::time(us(usual));
        if usual * 2 > each(self.expected) {
            return Some(format!(
                "slices lasted {took} instead of {expected}, as requests take {median}: give [load] a \
                 longer slice"
            ));
        }
        let connections = load.connections;
        Some(format!(
            "slices lasted {took} instead of {expected} although most requests take {median}: some \
             connections are served late, as by a server with fewer processes than kept connections; \
             give it {connections} processes, or isolated = true"
        ))
    }
}

#[cfg(test)]
mod tests {
    use forebay_stat::Latency;

    use super::*;
    use crate::experiment::Plan;

    const MS: Duration = Duration::from_millis(1);

    fn load(lines: &str) -> Load {
        let text = format!(
            "[load]\nconnections = 4\n{lines}\n[[configuration]]\nname = \"a\"\nurl = \"http://h/\"\n"
        );
        Plan::parse(std::path::Path::new("a.toml"), &text).unwrap().load
    }

    /// Returns the outcome of a slice that lasted `ms`, with a median latency of `median_ms`.
    fn outcome(median_ms: u64, ms: u32) -> Outcome {
        let mut latency = Latency::new();
        (0..100).for_each(|_| latency.record_us(median_ms * 1000));
        Outcome { connections: 4, duration: MS * ms, latency, ..Outcome::default() }
    }

    fn note(load: &Load, median_ms: u64, ms: u32) -> Option<String> {
        let outcome = outcome(median_ms, ms);
        let mut overrun = Overrun::default();
        load.slices().into_iter().for_each(|amount| overrun.add(amount, &outcome));
        overrun.note(load, &outcome.latency)
    }

    #[test]
    fn late_connections_are_told_from_slow_requests() {
        let load = load("duration = \"750ms\"\nslice = \"150ms\"");
        assert_eq!(note(&load, 2, 155), None);
        let late = note(&load, 2, 5000).unwrap();
        assert!(late.starts_with("slices lasted 5.00 s instead of 150 ms although"), "{late}");
        assert!(late.contains("give it 4 processes"), "{late}");
        let slow = note(&load, 200, 300).unwrap();
        assert!(slow.contains("give [load] a longer slice"), "{slow}");
    }

    #[test]
    fn slices_of_requests_are_judged_by_their_latencies() {
        // A slice of 80 requests over 4 connections takes 20 times 2 ms.
        assert_eq!(note(&load("requests = 400"), 2, 50), None);
        assert!(note(&load("requests = 400"), 2, 3000).unwrap().contains("instead of 40.0 ms"));
        assert_eq!(note(&load("requests = 400\nrate = 10"), 2, 3000), None, "paced");
        assert_eq!(note(&load("requests = 40"), 2, 3000), None, "one slice waits for nobody else");
    }
}
