//! Summary of trials: one row per configuration, which all reports print.

use std::collections::BTreeMap;

use forebay_load::Failures;
use forebay_stat::{
    Estimate, Growth, Latency, Ratio, Summary, growth, holm, holm_levels, outliers, ratio_of_rounds,
};

use crate::disturbance::{Disturbance, disturbances, usual_calibration};
use crate::experiment::{self, Printed};
use crate::number;
use crate::results::{Experiment, Results};
use crate::trial::{Measured, Slice, Trial, counted};
use crate::watch::CpuMethod;

/// Figures of one configuration. Void trials contribute only to `notes` and to the counts of
/// requests.
#[derive(Clone, Debug)]
// More than 20 fields: one for each figure that the reports print in the line of a configuration.
pub struct Row {
    /// The configuration's name.
    pub name: String,
    /// True if the other configurations are compared with this one.
    pub baseline: bool,
    /// Version that the server's version command printed.
    pub version: Option<String>,
    /// Number of counted trials.
    pub counted: usize,
    /// Requests per second (or the number that a client printed), with its spread over the trials.
    pub rate: Option<Summary>,
    /// Latencies of all counted trials in one histogram, because percentiles must not be averaged.
    pub latency: Latency,
    /// CPU time of the server per completed request over all trials, in microseconds.
    pub cpu_us_per_request: Option<f64>,
    /// Ratio of the configuration's CPU time per request to the reference's, over pairs of slices
    /// or trials. Less is better.
    pub cpu_ratio: Option<Ratio>,
    /// Ratio of the configuration's maximum resident memory to the reference's, with trials paired
    /// by round. Less is better.
    pub memory_ratio: Option<Ratio>,
    /// Growth of memory with the number of requests; `None` if the trials have too few slices.
    pub leak: Option<Leak>,
    /// Number of slices of counted trials.
    pub slices: usize,
    /// Number of slices that other work on the machine disturbed. No ratio includes them.
    pub disturbed: usize,
    /// Mean growth of resident memory during the load, in bytes.
    pub memory_growth: Option<f64>,
    /// Maximum resident memory in all samples, in bytes.
    pub memory_most: Option<u64>,
    /// Failed requests, including those of void trials.
    pub failed: u64,
    /// Failed requests by kind.
    pub failures: Failures,
    /// Completed and failed requests, including those of void trials.
    pub requests: u64,
    /// Requests that were sent again because the server had not processed them.
    pub resent: u64,
    /// Name of the reference: the configuration to compare this one with, usually the baseline;
    /// `None` for the baseline itself.
    pub reference: Option<String>,
    /// Ratio of the configuration's rate to the reference's, over pairs of slices or trials. `None`
    /// if one of the rates is missing.
    pub ratio: Option<Ratio>,
    /// Unit of the number that a client command printed; `None` for the rate of the built-in load
    /// generator.
    pub unit: Option<String>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// Growth of memory with the number of requests, computed from the trials that have enough slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leak {
    /// Bytes of growth per request, as the mean over trials.
    pub slope: f64,
    /// 95 % interval of `slope` over the trials. With fewer than three trials, the interval comes
    /// from the slices of the first trial.
    pub ci95: [f64; 2],
    /// Number of trials that have enough slices.
    pub trials: usize,
    /// Number of trials whose memory grew and continued to grow.
    pub leaking: usize,
    /// Mean number of completed requests in a trial.
    pub requests: f64,
}

/// Growth of memory in a trial, in bytes. A cache that still fills may explain smaller growth.
/// Forebay grows by 8 MB over its first 80,000 requests on 256 new connections, and then no more.
const MOST_OF_A_CACHE: f64 = 16e6;

/// Maximum number of memory samples that are used of a trial. If the trial has more slices, each
/// sample covers several slices.
const MOST_BURSTS: usize = 12;

/// Returns one row per configuration, in the order of the plan.
pub fn rows(experiment: &Experiment) -> Vec<Row> {
    let judged = judged(experiment);
    let named = |name: &str| {
        experiment.results.iter().position(|results| results.configuration.name == name)
    };
    let mut rows: Vec<Row> = experiment
        .results
        .iter()
        .zip(&judged)
        .map(|(results, own)| {
            let reference = experiment.plan.reference(&results.configuration);
            let index = reference.and_then(named);
            let reference = index.map(|index| (&experiment.results[index], &judged[index]));
            let unit = experiment.plan.load.client.as_ref().map(|client| client.unit.clone());
            Row { unit, ..row(results, own, reference) }
        })
        .collect();
    // The report gives a verdict for each ratio. Correct all ratios together, so that `alpha`
    // limits the chance that any of these verdicts is wrong.
    let ratios = rows.iter_mut().flat_map(|row| {
        let Row { ratio, cpu_ratio, memory_ratio, .. } = row;
        [ratio, cpu_ratio, memory_ratio].into_iter().flatten()
    });
    correct(ratios.collect(), experiment.alpha);
    rows
}

/// Returns the slices of each configuration. If other work disturbed a slice, the slice has a
/// [`Disturbance`].
pub fn judged(experiment: &Experiment) -> Vec<Judged<'_>> {
    let slices = experiment.results.iter().flat_map(|results| counted(&results.trials));
    let usual = usual_calibration(slices.flat_map(|(_, measured)| &measured.slices));
    let judge = |results| Judged::new(results, |slices: &[Slice]| disturbances(slices, usual));
    experiment.results.iter().map(judge).collect()
}

/// Corrects the p-values and the intervals of `ratios` for several comparisons, with Holm's method.
/// `alpha` is the probability that at least one interval does not contain its true ratio.
fn correct(mut ratios: Vec<&mut Ratio>, alpha: f64) {
    let own: Vec<f64> = ratios.iter().map(|ratio| ratio.p).collect();
    ratios.iter_mut().for_each(|ratio| ratio.widen(alpha));
    let p: Vec<f64> = ratios.iter().map(|ratio| ratio.p).collect();
    let comparisons = p.iter().filter(|p| !p.is_nan()).count();
    let levels = holm_levels(&own, alpha);
    for ((ratio, corrected), level) in ratios.iter_mut().zip(holm(&p)).zip(levels) {
        ratio.p_holm = corrected;
        ratio.comparisons = comparisons;
        ratio.set_level(level);
    }
}

/// Returns the figures of one configuration for the table. The ratios are relative to `reference`.
fn row(results: &Results, judged: &Judged<'_>, reference: Option<(&Results, &Judged<'_>)>) -> Row {
    let counted: Vec<&Measured> = counted(&results.trials).map(|(_, measured)| measured).collect();
    let rates: Vec<f64> = counted.iter().map(|measured| measured.rate()).collect();
    let watched = || counted.iter().filter(|measured| measured.is_watched());
    let growth: Vec<f64> = watched().map(|measured| measured.memory_growth()).collect();
    let mut latency = Latency::new();
    counted.iter().for_each(|measured| latency.merge(&measured.outcome.latency));
    let ratio = |figure| reference.and_then(|(_, theirs)| judged.ratio(theirs, figure));
    let leak = leak(&counted);
    let total = results.requests();
    Row {
        name: results.configuration.name.clone(),
        baseline: results.configuration.baseline,
        version: results.version.clone(),
        counted: counted.len(),
        rate: Summary::of(&rates),
        latency,
        cpu_us_per_request: cpu_us_per_request(&counted),
        cpu_ratio: ratio(&CPU),
        memory_ratio: ratio(&MEMORY),
        leak,
        slices: judged.slices(),
        disturbed: judged.disturbed().values().sum(),
        memory_growth: Summary::of(&growth).map(|summary| summary.mean),
        memory_most: watched().map(|measured| measured.server.most.rss).max(),
        failed: total.failed,
        requests: total.completed + total.failed,
        resent: total.resent,
        failures: total.failures,
        ratio: ratio(&RATE),
        reference: reference.map(|(results, _)| results.configuration.name.clone()),
        unit: None,
        notes: notes(results, judged, leak),
    }
}

/// Returns the growth of the server's memory per request, in each trial and over all trials.
/// Returns `None` if every trial has too few memory samples.
fn leak(counted: &[&Measured]) -> Option<Leak> {
    let growths: Vec<Growth> =
        counted.iter().filter_map(|measured| growth(&bursts(&measured.slices))).collect();
    let first = growths.first()?;
    let served: u64 = counted.iter().map(|measured| measured.outcome.requests.completed).sum();
    let slopes: Vec<f64> = growths.iter().map(|growth| growth.slope).collect();
    let over_trials = Estimate::plain(&slopes).filter(|_| slopes.len() > 2);
    Some(Leak {
        slope: slopes.iter().sum::<f64>() / slopes.len() as f64,
        ci95: over_trials.map_or(first.ci95, |estimate| estimate.interval(0.05)),
        trials: growths.len(),
        leaking: growths.iter().filter(|growth| growth.is_leak()).count(),
        requests: served as f64 / counted.len() as f64,
    })
}

/// Joins consecutive slices into at most `MOST_BURSTS` bursts. Returns two numbers for each burst:
/// the requests since the start of the trial, and the resident memory after the burst.
fn bursts(slices: &[Slice]) -> Vec<(f64, f64)> {
    let joined = slices.len().div_ceil(MOST_BURSTS).max(1);
    let mut served = 0;
    let bursts = slices.chunks(joined).map(|burst| {
        served += burst.iter().map(|slice| slice.completed).sum::<u64>();
        (served as f64, burst[burst.len() - 1].rss as f64)
    });
    bursts.collect()
}

impl Leak {
    /// Returns true if the growth is so small that it may come from a cache of the server that was
    /// not full yet.
    pub fn may_be_cache(&self) -> bool {
        self.slope * self.requests < MOST_OF_A_CACHE
    }

    /// Returns true if memory grew in more than half of the trials, and the interval of the mean
    /// growth is above 0.
    pub fn is_leak(&self) -> bool {
        self.leaking * 2 > self.trials && self.ci95[0] > 0.0
    }
}

fn cpu_us_per_request(counted: &[&Measured]) -> Option<f64> {
    let completed: u64 = counted.iter().map(|measured| measured.outcome.requests.completed).sum();
    let is_seen = completed > 0 && counted.iter().all(|measured| measured.is_watched());
    let cpu: f64 = counted.iter().map(|m| m.server.cpu.total().as_secs_f64() * 1e6).sum();
    is_seen.then(|| cpu / completed as f64)
}

fn all_measured(results: &Results) -> impl Iterator<Item = &Measured> {
    results.trials.iter().filter_map(|trial| trial.measured.as_ref())
}

/// Returns the notes below the row of a configuration, each without control characters.
fn notes(results: &Results, judged: &Judged<'_>, leak: Option<Leak>) -> Vec<String> {
    let mut notes = Vec::new();
    if !results.missing.is_empty() {
        notes.push(experiment::in_words(&results.missing));
    }
    notes.extend(results.configuration.notes.clone());
    notes.extend(
        results.configuration.reference.as_ref().map(|name| format!("compared with {name}")),
    );
    notes.extend(results.configuration.saved.as_ref().map(|date| {
        format!(
            "measured on {date}, not together with the others: the ratio includes changes since then"
        )
    }));
    notes.extend(void_notes(&results.trials));
    notes.extend(failure_note(results));
    notes.extend(resent_note(results));
    notes.extend(leak.filter(Leak::is_leak).map(leak_note));
    notes.extend(disturbance_note(judged));
    notes.extend(outlier_note(&results.trials));
    let mut happened: Vec<&String> = results.trials.iter().flat_map(|trial| &trial.notes).collect();
    happened.sort();
    happened.dedup();
    notes.extend(happened.into_iter().cloned());
    notes.into_iter().map(harmless).collect()
}

/// Returns the note on one line without control characters, because servers wrote parts of it.
fn harmless(note: String) -> String {
    note.replace(char::is_control, " ")
}

fn leak_note(leak: Leak) -> String {
    let [low, high] = leak.ci95.map(number::size);
    let (size, trials) = (number::size(leak.slope), leak.trials);
    let requests = number::count(leak.requests as u64);
    let (what, doubt) = if leak.may_be_cache() {
        ("grows by", ": a leak, or a cache that still fills; a longer duration shows which")
    } else {
        ("leaks", "")
    };
    format!(
        "{what} {size} a request [{low}, {high}], in {} of {trials} trials of {requests} requests{doubt}",
        leak.leaking
    )
}

fn disturbance_note(judged: &Judged<'_>) -> Option<String> {
    let found = judged.disturbed();
    let why: Vec<String> = found.iter().map(|(what, count)| format!("{count} {what}")).collect();
    let (out, of) = (found.values().sum::<usize>(), judged.slices());
    (out > 0).then(|| format!("{out} of {of} slices disturbed and left out: {}", why.join(", ")))
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

/// Returns a note that counts the failed requests by kind and quotes the first failure. Returns
/// `None` if no request failed.
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

/// Returns a note with the number of requests that were sent again. Returns `None` if there are
/// none.
fn resent_note(results: &Results) -> Option<String> {
    let resent = results.requests().resent;
    (resent > 0).then(|| {
        let count = number::count(resent);
        format!("{count} requests resent, as the server had not processed them")
    })
}

/// Returns a note that names the rounds with outlying rates. These rounds are still counted.
/// Returns `None` if there is no such round, or if fewer than four trials count.
fn outlier_note(trials: &[Trial]) -> Option<String> {
    let counted: Vec<(&Trial, &Measured)> = counted(trials).collect();
    if counted.len() < 4 {
        return None;
    }
    let rates: Vec<f64> = counted.iter().map(|(_, m)| m.rate()).collect();
    let rounds: Vec<String> = outliers(&rates)
        .iter()
        .zip(&counted)
        .filter(|(apart, _)| **apart)
        .map(|(_, (trial, _))| trial.id.round.to_string())
        .collect();
    if rounds.is_empty() {
        return None;
    }
    Some(format!("the rate of round {} is an outlier (it counts nevertheless)", rounds.join(", ")))
}

// Pairs of values for ratios: slices with the same round and number, or whole trials if there are
// no slices.

/// Slices of a configuration's counted trials. If other work disturbed a slice, the slice has a
/// [`Disturbance`].
#[derive(Debug, Default)]
pub struct Judged<'a> {
    /// Trials, by the number of their round.
    rounds: BTreeMap<u32, Round<'a>>,
    is_isolated: bool,
}

/// The measurements of one round: of the whole trial, and of its slices.
#[derive(Debug)]
struct Round<'a> {
    whole: &'a Measured,
    slices: Vec<(&'a Slice, Option<Disturbance>)>,
}

/// Figure to compare between configurations, with the functions that compute it for a slice and for
/// a whole trial.
pub struct Figure {
    slice: fn(&Slice) -> f64,
    whole: fn(&Measured) -> f64,
    /// Returns true if the measurements are precise enough for single slices.
    fits_slices: fn(&Measured) -> bool,
}

/// Requests per second, or the number that a client printed (its reciprocal if less is better).
pub const RATE: Figure = Figure {
    slice: |slice| slice.printed.map_or_else(|| slice.rate(), Printed::goodness),
    whole: Measured::goodness,
    fits_slices: |_| true,
};

/// CPU time of the server per request. Clock ticks (10 ms) are too coarse for a single slice, so
/// values of slices need a control group.
pub const CPU: Figure = Figure {
    slice: Slice::cpu_us_per_request,
    whole: |measured| measured.cpu_us_per_request().unwrap_or(f64::NAN),
    fits_slices: |measured| measured.server.cpu_method == CpuMethod::Cgroup,
};

/// Maximum resident memory of the server in a trial.
pub const MEMORY: Figure = Figure {
    slice: |slice| slice.rss as f64,
    whole: |measured| measured.server.most.rss as f64,
    fits_slices: |_| false,
};

impl<'a> Judged<'a> {
    /// Collects the counted trials of `results`. `judge` decides for each slice if it was
    /// disturbed.
    pub fn new(results: &'a Results, judge: impl Fn(&[Slice]) -> Vec<Option<Disturbance>>) -> Self {
        let all: Vec<Slice> = counted(&results.trials)
            .flat_map(|(_, measured)| measured.slices.iter().copied())
            .collect();
        let mut verdicts = judge(&all).into_iter();
        let mut rounds = BTreeMap::new();
        for (trial, whole) in counted(&results.trials) {
            let slices = whole.slices.iter();
            let slices = slices.map(|slice| (slice, verdicts.next().flatten())).collect();
            rounds.insert(trial.id.round, Round { whole, slices });
        }
        let configuration = &results.configuration;
        Self { rounds, is_isolated: configuration.isolated || configuration.saved.is_some() }
    }

    /// Returns the number of slices in all rounds.
    pub fn slices(&self) -> usize {
        self.rounds.values().map(|round| round.slices.len()).sum()
    }

    /// Returns the number of disturbed slices, by the kind of disturbance.
    pub fn disturbed(&self) -> BTreeMap<Disturbance, usize> {
        let mut found = BTreeMap::new();
        let slices = self.rounds.values().flat_map(|round| &round.slices);
        for disturbance in slices.filter_map(|(_, disturbance)| *disturbance) {
            *found.entry(disturbance).or_default() += 1;
        }
        found
    }

    /// Returns one result for each slice of the configuration in `round`: the kind of disturbance
    /// by other work, or `None`. Returns an empty list if the configuration's trial of this round
    /// does not count.
    pub fn evidence(&self, round: u32) -> Vec<Option<Disturbance>> {
        let round = self.rounds.get(&round);
        round.into_iter().flat_map(|round| &round.slices).map(|(_, found)| *found).collect()
    }

    /// Returns the ratio of this configuration's `figure` to the `figure` of the reference
    /// `baseline`. Returns `None` if no round has values of both configurations.
    pub fn ratio(&self, baseline: &Judged<'_>, figure: &Figure) -> Option<Ratio> {
        let is_apart = self.is_isolated || baseline.is_isolated;
        let rounds: Vec<Vec<(f64, f64)>> = self
            .rounds
            .iter()
            .filter_map(|(number, ours)| {
                let theirs = baseline.rounds.get(number)?;
                Some(ours.pairs(theirs, figure, is_apart))
            })
            .collect();
        Some(ratio_of_rounds(&rounds)).filter(|ratio| ratio.pairs > 0)
    }
}

impl Round<'_> {
    fn pairs(&self, other: &Round<'_>, figure: &Figure, is_apart: bool) -> Vec<(f64, f64)> {
        let fits = |round: &Round<'_>| {
            round.slices.len() > 1 && (figure.fits_slices)(round.whole) && !is_apart
        };
        if !fits(self) || !fits(other) {
            return vec![((figure.whole)(self.whole), (figure.whole)(other.whole))];
        }
        let calm = |round: &Round<'_>| -> BTreeMap<u32, f64> {
            let calm = round.slices.iter().filter(|(_, disturbance)| disturbance.is_none());
            calm.map(|(slice, _)| (slice.number, (figure.slice)(slice))).collect()
        };
        let theirs = calm(other);
        let pair = |(number, ours): (u32, f64)| Some((ours, *theirs.get(&number)?));
        calm(self).into_iter().filter_map(pair).collect()
    }
}
