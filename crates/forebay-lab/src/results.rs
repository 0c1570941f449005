//! Results of an experiment.

use crate::experiment::{Configuration, Plan};
use crate::machine::Machine;
use crate::profile::Profile;
use crate::trial::{Halt, Trial};

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

    /// Returns true if a trial failed for a reason other than the load generator's limits.
    pub fn found_failures(&self) -> bool {
        self.results.iter().flat_map(|results| &results.trials).any(|trial| trial.failed)
    }
}
