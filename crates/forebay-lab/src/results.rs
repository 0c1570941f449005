//! Results of an experiment.

use std::time::Duration;

use forebay_load::Requests;

use crate::experiment::{Configuration, MaxFailed, Plan};
use crate::machine::Machine;
use crate::number;
use crate::profile::Profile;
use crate::trial::{Halt, StartFailure, Trial, counted};

/// Experiment that was run completely or partly.
#[derive(Debug)]
pub struct Experiment {
    /// The validated experiment file.
    pub plan: Plan,
    /// Seed of the order.
    pub seed: u64,
    /// The baseline was compared with itself.
    pub against_itself: bool,
    /// Machine of the experiment.
    pub machine: Machine,
    /// Results per configuration, in the order of the plan.
    pub results: Vec<Results>,
    /// Number of rounds with a trial of every configuration.
    pub rounds_finished: u32,
    /// Time that the rounds took, including those of earlier parts.
    pub elapsed: Duration,
    /// One minus the level of the intervals: 0.05, except in an experiment that ended early because
    /// its intervals were narrow enough.
    pub alpha: f64,
    /// Reason why the experiment ended early, as text.
    pub incomplete: Option<String>,
    /// Reason why the experiment ended early, as data.
    pub halt: Option<Halt>,
}

/// Results of one configuration.
#[derive(Debug)]
pub struct Results {
    /// The configuration.
    pub configuration: Configuration,
    /// Missing requirements. If there are any, the configuration was not tried.
    pub missing: Vec<String>,
    /// Output of its version command.
    pub version: Option<String>,
    /// Its trials, in the order of the rounds.
    pub trials: Vec<Trial>,
    /// Result of its profile trial, if there was one.
    pub profile: Option<Profile>,
}

impl Results {
    /// Returns true if the configuration can run here: nothing is missing, and it is not from a
    /// saved report.
    pub fn can_run(&self) -> bool {
        self.missing.is_empty() && self.configuration.saved.is_none()
    }

    /// Returns the counts of all trials, including void ones.
    pub fn requests(&self) -> Requests {
        let measured = self.trials.iter().filter_map(|trial| trial.measured.as_ref());
        let mut sum = Requests::default();
        measured.for_each(|measured| sum.add(&measured.outcome.requests));
        sum
    }

    /// Returns the reason why the server never started, if it did not start in any trial.
    pub fn start_failure(&self) -> Option<&StartFailure> {
        let first = self.trials.first()?.start_failure.as_ref();
        first.filter(|_| self.trials.iter().all(|trial| trial.start_failure.is_some()))
    }

    /// Returns the problems that make this configuration's results those of a load that did not
    /// work. `allowed` is the number of failures that do not count.
    fn problems(&self, allowed: MaxFailed) -> Vec<String> {
        let mut problems = Vec::new();
        let failed = self.trials.iter().find(|trial| trial.failed);
        problems.extend(failed.and_then(|trial| trial.void.clone()));
        let requests = self.requests();
        let total = requests.completed + requests.failed;
        if !allowed.allows(requests.failed, total) {
            let mut measured = self.trials.iter().filter_map(|trial| trial.measured.as_ref());
            let first = measured.find_map(|measured| measured.outcome.first_failure.as_ref());
            problems.push(format!(
                "{} of {} requests failed{}",
                number::count(requests.failed),
                number::count(total),
                first.map(|first| format!("; the first: {first}")).unwrap_or_default()
            ));
        }
        let missed = counted(&self.trials).map(|(_, measured)| &measured.outcome);
        let missed = missed.filter(|outcome| outcome.has_missed_rate());
        let missed = missed.map(|outcome| outcome.shortfall).fold(0.0, f64::max);
        if missed > 0.0 {
            problems.push(format!("missed the wanted rate by {:.0} %", missed * 100.0));
        }
        problems
    }

    /// Converts the results to a reference for the current configuration that starts in the same
    /// way.
    pub fn saved(self, label: &str, date: &str) -> Self {
        let configuration = Configuration {
            name: format!("{} ({label})", self.configuration.name),
            baseline: false,
            reference: None,
            saved: Some(date.to_owned()),
            ..self.configuration
        };
        // A saved report does not contain the stacks.
        Self { configuration, profile: None, ..self }
    }
}

impl Experiment {
    /// Returns true if there is at least one trial.
    pub fn measured_anything(&self) -> bool {
        self.results.iter().any(|results| !results.trials.is_empty())
    }

    /// Returns the problems of each configuration: trials that failed for a reason other than the
    /// load generator's limits, more failed requests than allowed, a wanted rate that was missed.
    pub fn problems(&self) -> Vec<Vec<String>> {
        let allowed = self.plan.check.max_failed.unwrap_or_default();
        let problems = |results: &Results| match results.configuration.saved {
            // They were reported when they were measured.
            Some(_) => Vec::new(),
            None => results.problems(allowed),
        };
        self.results.iter().map(problems).collect()
    }

    /// Returns the time of one round; `None` before the first is over.
    pub fn round_time(&self) -> Option<Duration> {
        let rounds = self.results.iter().map(|results| results.trials.len()).max()?;
        (rounds > 0 && !self.elapsed.is_zero()).then(|| self.elapsed / rounds as u32)
    }
}
