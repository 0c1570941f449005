//! Detection of slices that other work on the machine disturbed. A slice is excluded only because
//! of counters read during the slice, never because of its rate.

use std::fmt;
use std::time::Duration;

use forebay_load::Outcome;
use forebay_stat::median;

use crate::experiment::{Amount, Configuration, Load};
use crate::number;
use crate::trial::Slice;
use crate::watch::Series;

/// Sign that other work disturbed a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// The hypervisor gave the processors to other machines.
    Steal,
    /// The server's threads waited longer for a processor than usual.
    RunDelay,
    /// A loop of fixed work took longer than usual.
    Calibration,
}

/// Minimum stolen processor time that makes a slice disturbed. The limit applies to the sum over
/// all processors, as a share of the slice's duration.
const STEAL: f64 = 0.1;
/// A slice is disturbed if its run-queue delay, as a share of its duration, exceeds this limit: the
/// configuration's median share times `USUAL_RUN_DELAY`, plus `RUN_DELAY`. The median is not zero:
/// in every slice, the server's threads compete with each other and with the client.
const RUN_DELAY: f64 = 0.25;
const USUAL_RUN_DELAY: f64 = 1.5;
/// Minimum ratio of the calibration loop's time in a disturbed slice to its median in the
/// experiment.
const CALIBRATION: f64 = 1.2;

/// Minimum number of slices that give a useful median.
const FEWEST_SLICES: usize = 10;

/// Returns one result for each of `slices`: the kind of disturbance by other work, or `None`. All
/// `slices` belong to one configuration.
///
/// With fewer than ten slices, all results are `None`. `calibration` is the median time of the
/// calibration loop in the whole experiment.
pub fn disturbances(slices: &[Slice], calibration: Duration) -> Vec<Option<Disturbance>> {
    if slices.len() < FEWEST_SLICES {
        return vec![None; slices.len()];
    }
    let share =
        |slice: &Slice, part: Duration| part.as_secs_f64() / slice.duration.as_secs_f64().max(1e-9);
    let delays: Vec<f64> =
        slices.iter().map(|slice| share(slice, slice.evidence.run_delay)).collect();
    let usual = median(&delays).unwrap_or(0.0);
    let judge = |(slice, delay): (&Slice, &f64)| {
        let evidence = &slice.evidence;
        if share(slice, evidence.steal) > STEAL {
            Some(Disturbance::Steal)
        } else if *delay > usual * USUAL_RUN_DELAY + RUN_DELAY {
            Some(Disturbance::RunDelay)
        } else if evidence.calibration > calibration.mul_f64(CALIBRATION) {
            Some(Disturbance::Calibration)
        } else {
            None
        }
    };
    slices.iter().zip(&delays).map(judge).collect()
}

/// Returns the median time of the calibration loop over all slices.
pub fn usual_calibration<'a>(slices: impl Iterator<Item = &'a Slice>) -> Duration {
    let times: Vec<f64> = slices.map(|slice| slice.evidence.calibration.as_secs_f64()).collect();
    Duration::from_secs_f64(median(&times).unwrap_or(0.0))
}

impl fmt::Display for Disturbance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Steal => "stolen processor time",
            Self::RunDelay => "run-queue delay",
            Self::Calibration => "a slower calibration loop",
        })
    }
}

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

/// A server counts as busy if it uses more than this share of its usable cores. The clients' pauses
/// count as the limit if the rate exceeds this share of the highest rate that the pauses allow.
const BUSY: f64 = 0.9;

/// Returns the reason if the trial is void because the load generator limited the rate, not the
/// server.
///
/// The load generator is the limit if its threads were busy for more than 85 % of the time, and the
/// server used less than 90 % of the usable cores. Returns `None` in all other cases, and if
/// Forebay did not observe the server's processes.
pub(crate) fn client_bound(
    usable_cores: f64,
    outcome: &Outcome,
    server: &Series,
) -> Option<String> {
    let taken = server.cpu.total().as_secs_f64() / outcome.duration.as_secs_f64().max(1e-9);
    let is_known = server.most.processes > 0;
    if !outcome.client.saturated || !is_known || taken >= BUSY * usable_cores {
        return None;
    }
    let reason = "bound by the load generator, whose threads were busy while the server was not; \
                  give [load] more threads, or cores of its own";
    Some(reason.to_owned())
}

/// Returns a note if the clients' pauses limited the rate, not the server. Returns `None` for a
/// load without pauses.
///
/// If replies take no time, `c` clients with pauses of `z` seconds send `c / z` requests/s
/// (Little's law). The pauses are the limit if the rate exceeds 90 % of `c / z`.
pub(crate) fn think_bound(load: &Load, outcome: &Outcome) -> Option<String> {
    let most = f64::from(load.connections) / load.think?.as_secs_f64();
    let rate = outcome.requests.completed as f64 / outcome.duration.as_secs_f64().max(1e-9);
    (rate > BUSY * most).then(|| {
        format!(
            "bound by the clients' pauses, which allow {} requests/s: compare the times of replies",
            number::rate(most)
        )
    })
}

/// Returns the number of cores that a server could use, at most one per thread of the server.
/// Without `cpus`, each thread of the client takes one core. The server has the remaining cores,
/// but at least one.
pub(crate) fn usable_cores(
    cores: usize,
    configuration: &Configuration,
    outcome: &Outcome,
    server: &Series,
) -> f64 {
    let open = match configuration.cpus.len() {
        0 => cores.saturating_sub(outcome.threads).max(1),
        listed => listed,
    };
    open.min(server.most.threads.max(1) as usize) as f64
}

/// Length of the time window over which each rate is computed.
pub const WINDOW: Duration = Duration::from_millis(250);
/// Number of latest windows that are compared with as many windows before them.
const WINDOWS: usize = 3;
/// Maximum relative difference between the two means for a steady rate.
const ALIKE: f64 = 0.03;

/// Returns true if the mean of the latest `WINDOWS` rates differs by at most 3 % from the mean of
/// the `WINDOWS` rates before them. `rates` has one rate per window. Returns false if there are too
/// few rates.
pub fn is_steady(rates: &[f64]) -> bool {
    let Some(first) = rates.len().checked_sub(2 * WINDOWS) else { return false };
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / WINDOWS as f64;
    let (before, last) = (mean(&rates[first..first + WINDOWS]), mean(&rates[first + WINDOWS..]));
    (last - before).abs() <= ALIKE * before.max(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Evidence;

    const MS: Duration = Duration::from_millis(1);

    fn slice(steal: Duration, run_delay: Duration, calibration: Duration) -> Slice {
        let evidence = Evidence { steal, run_delay, calibration };
        let duration = 150 * MS;
        Slice { number: 0, duration, completed: 100, cpu: MS, rss: 0, evidence, printed: None }
    }

    #[test]
    fn each_evidence_is_told_from_what_is_usual() {
        let usual = slice(Duration::ZERO, 60 * MS, MS);
        let mut slices = vec![usual; 10];
        slices[1] = slice(20 * MS, 60 * MS, MS);
        slices[2] = slice(10 * MS, 60 * MS, MS);
        slices[3] = slice(Duration::ZERO, 200 * MS, MS);
        slices[4] = slice(Duration::ZERO, 90 * MS, MS);
        slices[5] = slice(Duration::ZERO, 60 * MS, MS * 5 / 4);
        let found = disturbances(&slices, usual_calibration(slices.iter()));
        let mut expected = vec![None; 10];
        expected[1] = Some(Disturbance::Steal);
        expected[3] = Some(Disturbance::RunDelay);
        expected[5] = Some(Disturbance::Calibration);
        assert_eq!(found, expected);
    }

    #[test]
    fn the_result_of_a_slice_is_no_evidence() {
        let mut slices = vec![slice(Duration::ZERO, MS, MS); 10];
        (slices[3].completed, slices[3].cpu) = (1, 100 * MS);
        assert_eq!(disturbances(&slices, MS), [None; 10]);
        assert!(disturbances(&[], MS).is_empty());
        assert_eq!(disturbances(&[slice(MS * 100, MS, MS); 9], MS), [None; 9], "too few");
    }
}

#[cfg(test)]
mod overrun_tests {
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

#[cfg(test)]
mod bound_tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::Plan;
    use crate::watch::{Cpu, CpuMethod, Glance};

    fn server(cores_taken: f64, threads: u64) -> Series {
        let user = Duration::from_secs_f64(cores_taken);
        Series {
            cpu: Cpu { user, system: Duration::ZERO },
            cpu_method: CpuMethod::Proc,
            memory: Vec::new(),
            rss_start: 0,
            rss_end: 0,
            load: None,
            most: Glance { threads, processes: 1, ..Glance::default() },
        }
    }

    fn outcome(saturated: bool) -> Outcome {
        Outcome {
            duration: Duration::from_secs(1),
            client: forebay_load::ClientUsage { saturated, ..Default::default() },
            ..Outcome::default()
        }
    }

    fn is_void(cores: usize, saturated: bool, server: &Series) -> bool {
        let text = "[load]\n[[configuration]]\nname = \"a\"\nstart = [\"a\"]\n\
                    url = \"http://127.0.0.1:{port}\"\n";
        let plan = Plan::parse(std::path::Path::new("a.toml"), text).unwrap();
        let outcome = outcome(saturated);
        let cores = usable_cores(cores, &plan.configurations[0], &outcome, server);
        client_bound(cores, &outcome, server).is_some()
    }

    #[test]
    fn a_trial_is_void_where_only_the_client_was_busy() {
        assert!(is_void(2, true, &server(0.5, 4)));
        assert!(!is_void(2, false, &server(0.5, 4)), "the client was idle");
        assert!(!is_void(2, true, &server(0.95, 4)), "both were busy");
        assert!(!is_void(8, true, &server(0.95, 1)), "one thread cannot take more than a core");
        assert!(is_void(8, true, &server(0.95, 8)), "it could have taken seven cores");
    }

    #[test]
    fn a_trial_tells_whether_the_clients_pauses_were_its_limit() {
        let text = "[load]\nthink = \"500ms\"\nconnections = 80\n[[configuration]]\nname = \"a\"\n\
                    start = [\"a\"]\nurl = \"http://127.0.0.1:{port}\"\n";
        let plan = Plan::parse(std::path::Path::new("a.toml"), text).unwrap();
        assert!(plan.configurations[0].isolated, "a turn may be shorter than a pause");
        let bound = |completed| {
            let mut outcome = outcome(false);
            outcome.requests.completed = completed;
            think_bound(&plan.load, &outcome)
        };
        assert!(bound(154).unwrap().contains("160 requests/s"), "{:?}", bound(154));
        assert_eq!(bound(22), None);
    }
}

#[cfg(test)]
mod steady_tests {
    use super::*;

    #[test]
    fn a_rate_that_rises_is_not_steady_and_noise_is_none() {
        assert!(!is_steady(&[100.0; 5]), "too few");
        assert!(is_steady(&[100.0; 6]));
        assert!(is_steady(&[10.0, 50.0, 90.0, 104.0, 98.0, 100.0, 101.0, 97.0, 103.0]));
        assert!(!is_steady(&[70.0, 80.0, 85.0, 90.0, 95.0, 100.0]));
        assert!(!is_steady(&[100.0, 100.0, 100.0, 90.0, 88.0, 85.0]));
        assert!(is_steady(&[0.0; 6]), "nothing at all is told elsewhere");
    }
}
