//! Pairs of values for ratios: slices with the same round and number, or whole trials if there are
//! no slices.

use std::collections::BTreeMap;

use forebay_stat::{Ratio, ratio_of_rounds};

use crate::disturbance::Disturbance;
use crate::experiment::Printed;
use crate::results::Results;
use crate::trial::{Measured, Slice, counted};
use crate::watch::CpuMethod;

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
