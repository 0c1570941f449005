//! Results of an experiment.

use std::time::Duration;

use forebay_load::Requests;

use crate::experiment::{Configuration, MaxFailed, Plan};
use crate::machine::Machine;
use crate::number;
use crate::profile::Profile;
use crate::trial::{Halt, StartFailure, Trial, counted};

/// Experiment that was run completely or in part.
#[derive(Debug)]
pub struct Experiment {
    /// The validated experiment file.
    pub plan: Plan,
    /// Seed from which the order of trials and turns is derived.
    pub seed: u64,
    /// True if the experiment compared the baseline with itself.
    pub against_itself: bool,
    /// Description of the machine that ran the experiment.
    pub machine: Machine,
    /// Results per configuration, in the order of the plan.
    pub results: Vec<Results>,
    /// Number of complete rounds. A complete round contains a trial of every configuration.
    pub rounds_finished: u32,
    /// Time that the rounds took, including the rounds of earlier runs that this run resumed.
    pub elapsed: Duration,
    /// Error probability of all intervals together, which is 1 minus their confidence level: 0.05.
    /// With `Options::until`, the check after each round uses up a part of the 0.05. This value is
    /// then the part that the reported intervals use.
    pub alpha: f64,
    /// Reason why the experiment ended before its last round, as text.
    pub incomplete: Option<String>,
    /// Reason why the experiment ended before its last round, as data.
    pub halt: Option<Halt>,
}

/// Results of one configuration of the experiment.
#[derive(Debug)]
pub struct Results {
    /// The configuration that was measured.
    pub configuration: Configuration,
    /// Missing requirements. If there are any, the configuration was not measured.
    pub missing: Vec<String>,
    /// First line that the configuration's version command printed.
    pub version: Option<String>,
    /// Trials of the configuration, in the order of the rounds.
    pub trials: Vec<Trial>,
    /// Result of the configuration's profile trial, if there was one.
    pub profile: Option<Profile>,
}

impl Results {
    /// Returns true if the configuration can run here: no requirement is missing, and its results
    /// do not come from a saved report.
    pub fn can_run(&self) -> bool {
        self.missing.is_empty() && self.configuration.saved.is_none()
    }

    /// Returns the sum of the request counts of all trials, including void ones.
    pub fn requests(&self) -> Requests {
        let measured = self.trials.iter().filter_map(|trial| trial.measured.as_ref());
        let mut sum = Requests::default();
        measured.for_each(|measured| sum.add(&measured.outcome.requests));
        sum
    }

    /// Returns the first failure if the server started in none of the trials. Returns `None` if the
    /// server started in a trial, or if there is no trial yet.
    pub fn start_failure(&self) -> Option<&StartFailure> {
        let first = self.trials.first()?.start_failure.as_ref();
        first.filter(|_| self.trials.iter().all(|trial| trial.start_failure.is_some()))
    }

    /// Returns reasons not to trust this configuration's results: a failed server, more failed
    /// requests than `allowed`, or a load generator that missed the wanted rate.
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

    /// Converts saved results into a reference for comparisons with the current configuration.
    /// `label` is added to the reference's name.
    pub fn saved(self, label: &str, date: &str) -> Self {
        let configuration = Configuration {
            name: format!("{} ({label})", self.configuration.name),
            baseline: false,
            reference: None,
            saved: Some(date.to_owned()),
            ..self.configuration
        };
        // A saved report does not contain the call stacks of the profile.
        Self { configuration, profile: None, ..self }
    }
}

impl Experiment {
    /// Returns true if there is at least one trial.
    pub fn measured_anything(&self) -> bool {
        self.results.iter().any(|results| !results.trials.is_empty())
    }

    /// Returns the problems of each configuration: a failed server, more failed requests than
    /// allowed, or a load generator that missed the wanted rate. A configuration from a saved
    /// report has no problems here.
    pub fn problems(&self) -> Vec<Vec<String>> {
        let allowed = self.plan.check.max_failed.unwrap_or_default();
        let problems = |results: &Results| match results.configuration.saved {
            // The run that saved these results has reported their problems.
            Some(_) => Vec::new(),
            None => results.problems(allowed),
        };
        self.results.iter().map(problems).collect()
    }

    /// Returns the mean time of one round; `None` before the first round is over.
    pub fn round_time(&self) -> Option<Duration> {
        let rounds = self.results.iter().map(|results| results.trials.len()).max()?;
        (rounds > 0 && !self.elapsed.is_zero()).then(|| self.elapsed / rounds as u32)
    }
}
