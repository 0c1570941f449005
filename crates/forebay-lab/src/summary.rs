//! From trials to one row per configuration: what all reports print.

use std::collections::BTreeMap;

use forebay_stat::{Latency, Ratio, Summary, outliers, ratio_ci};

use crate::Experiment;
use crate::Results;
use crate::trial::{Measured, Trial};

/// One configuration's figures. Void trials count for nothing but `failed` and `notes`.
#[derive(Clone, Debug)]
pub struct Row {
    /// The configuration's name.
    pub name: String,
    /// Whether the others are compared with it.
    pub baseline: bool,
    /// What its server calls itself.
    pub version: Option<String>,
    /// Trials that count.
    pub counted: usize,
    /// Requests per second over the trials.
    pub rate: Option<Summary>,
    /// All latencies of all trials in one histogram: percentiles are never averaged.
    pub latency: Latency,
    /// The server's CPU time per completed request over all trials, in microseconds.
    pub cpu_us_per_request: Option<f64>,
    /// Mean growth of resident memory during the load, in bytes.
    pub memory_growth: Option<f64>,
    /// Largest resident memory seen, in bytes.
    pub memory_most: Option<u64>,
    /// Failed requests, those of void trials included.
    pub failed: u64,
    /// Rate over the baseline's, paired by round; none for the baseline and where either lacks.
    pub ratio: Option<Ratio>,
    /// What else is to be known.
    pub notes: Vec<String>,
}

/// One row per configuration, in the order of the plan.
pub fn rows(experiment: &Experiment) -> Vec<Row> {
    let baseline = rates_by_round(experiment.baseline());
    experiment.results.iter().map(|results| row(results, &baseline)).collect()
}

fn row(results: &Results, baseline: &BTreeMap<u32, f64>) -> Row {
    let counted: Vec<&Measured> = counted(&results.trials).map(|(_, measured)| measured).collect();
    let rates: Vec<f64> = counted.iter().map(|measured| measured.outcome.rate_per_s()).collect();
    let growth: Vec<f64> = counted.iter().filter_map(|measured| measured.memory_growth()).collect();
    let mut latency = Latency::new();
    counted.iter().for_each(|measured| latency.merge(&measured.outcome.latency));
    Row {
        name: results.configuration.name.clone(),
        baseline: results.configuration.baseline,
        version: results.version.clone(),
        counted: counted.len(),
        rate: Summary::of(&rates),
        latency,
        cpu_us_per_request: cpu_us_per_request(&counted),
        memory_growth: Summary::of(&growth).map(|summary| summary.mean),
        memory_most: counted.iter().map(|measured| measured.server.most.rss).max(),
        failed: all_measured(results).map(|measured| measured.outcome.requests.failed).sum(),
        ratio: ratio(results, baseline),
        notes: notes(results),
    }
}

fn cpu_us_per_request(counted: &[&Measured]) -> Option<f64> {
    let completed: u64 = counted.iter().map(|measured| measured.outcome.requests.completed).sum();
    let cpu: f64 = counted.iter().map(|m| m.server.cpu.total().as_secs_f64() * 1e6).sum();
    (completed > 0).then(|| cpu / completed as f64)
}

fn ratio(results: &Results, baseline: &BTreeMap<u32, f64>) -> Option<Ratio> {
    if results.configuration.baseline {
        return None;
    }
    let own = rates_by_round(results);
    let pairs: Vec<(f64, f64)> =
        own.iter().filter_map(|(round, rate)| Some((*rate, *baseline.get(round)?))).collect();
    Some(ratio_ci(&pairs)).filter(|ratio| ratio.pairs > 0)
}

fn rates_by_round(results: &Results) -> BTreeMap<u32, f64> {
    let rate =
        |(trial, measured): (&Trial, &Measured)| (trial.slot.round, measured.outcome.rate_per_s());
    counted(&results.trials).map(rate).collect()
}

/// The trials that count, with what they measured.
pub fn counted(trials: &[Trial]) -> impl Iterator<Item = (&Trial, &Measured)> {
    trials
        .iter()
        .filter(|trial| trial.void.is_none())
        .filter_map(|trial| Some((trial, trial.measured.as_ref()?)))
}

fn all_measured(results: &Results) -> impl Iterator<Item = &Measured> {
    results.trials.iter().filter_map(|trial| trial.measured.as_ref())
}

fn notes(results: &Results) -> Vec<String> {
    let mut notes = Vec::new();
    if !results.missing.is_empty() {
        let names = results.missing.join(" ");
        notes.push(format!("not installed: {names} (apt-get install {names})"));
    }
    notes.extend(results.configuration.notes.clone());
    notes.extend(void_notes(&results.trials));
    notes.extend(failure_note(results));
    notes.extend(outlier_note(&results.trials));
    let mut happened: Vec<&String> = results.trials.iter().flat_map(|trial| &trial.notes).collect();
    happened.dedup();
    notes.extend(happened.into_iter().cloned());
    notes.into_iter().map(harmless).collect()
}

/// On one line and without what could command a terminal: some of it comes from servers.
fn harmless(note: String) -> String {
    note.replace(char::is_control, " ")
}

fn void_notes(trials: &[Trial]) -> Vec<String> {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for reason in trials.iter().filter_map(|trial| trial.void.as_deref()) {
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    let of = trials.len();
    reasons.into_iter().map(|(why, count)| format!("{count} of {of} trials void: {why}")).collect()
}

fn failure_note(results: &Results) -> Option<String> {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    let mut first = None;
    for measured in all_measured(results) {
        for (kind, count) in measured.outcome.requests.failures.by_kind() {
            *kinds.entry(kind).or_default() += count;
        }
        first = first.or(measured.outcome.first_failure.as_deref());
    }
    let counts: Vec<String> = kinds
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    if counts.is_empty() {
        return None;
    }
    let first = first.map(|first| format!("; the first: {first}")).unwrap_or_default();
    Some(format!("failed requests: {}{first}", counts.join(", ")))
}

/// Says which rounds stand apart from the others. They count all the same.
fn outlier_note(trials: &[Trial]) -> Option<String> {
    let counted: Vec<(&Trial, &Measured)> = counted(trials).collect();
    if counted.len() < 4 {
        return None;
    }
    let rates: Vec<f64> = counted.iter().map(|(_, m)| m.outcome.rate_per_s()).collect();
    let rounds: Vec<String> = outliers(&rates)
        .iter()
        .zip(&counted)
        .filter(|(apart, _)| **apart)
        .map(|(_, (trial, _))| trial.slot.round.to_string())
        .collect();
    if rounds.is_empty() {
        return None;
    }
    Some(format!("the rate of round {} stands apart (counted all the same)", rounds.join(", ")))
}
