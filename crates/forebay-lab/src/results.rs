//! What came of an experiment.

use crate::experiment::{Configuration, Plan};
use crate::machine::Machine;
use crate::profile::Profile;
use crate::trial::{Halt, Trial};

/// An experiment that was run, to its end or not.
#[derive(Debug)]
pub struct Experiment {
    /// What was to be done.
    pub plan: Plan,
    /// What the order came from.
    pub seed: u64,
    /// Whether the baseline was compared with itself.
    pub against_itself: bool,
    /// What it ran on.
    pub machine: Machine,
    /// One per configuration, in the order of the plan.
    pub results: Vec<Results>,
    /// Rounds in which every configuration was tried.
    pub rounds_finished: u32,
    /// The level of its intervals is 1 less this: 95 %, but for an experiment that ended because of
    /// them.
    pub alpha: f64,
    /// Why there are no more rounds, in words.
    pub incomplete: Option<String>,
    /// The same as data.
    pub halt: Option<Halt>,
}

/// What came of one configuration.
#[derive(Debug)]
pub struct Results {
    /// The configuration.
    pub configuration: Configuration,
    /// What it requires and this machine lacks; it was not tried then.
    pub missing: Vec<String>,
    /// What its version command printed.
    pub version: Option<String>,
    /// Its trials, in the order of the rounds.
    pub trials: Vec<Trial>,
    /// What its profile trial showed, where there was one.
    pub profile: Option<Profile>,
}

impl Results {
    /// Whether it can be tried here: nothing is missing, and it is none of old figures alone.
    pub fn can_run(&self) -> bool {
        self.missing.is_empty() && self.configuration.saved.is_none()
    }

    /// These as what a configuration is compared with that is started in the same way now.
    pub fn saved(self, label: &str, date: &str) -> Self {
        let configuration = Configuration {
            name: format!("{} ({label})", self.configuration.name),
            baseline: false,
            reference: None,
            saved: Some(date.to_owned()),
            ..self.configuration
        };
        // Its stacks are not saved.
        Self { configuration, profile: None, ..self }
    }
}

impl Experiment {
    /// Whether there is anything to show.
    pub fn measured_anything(&self) -> bool {
        self.results.iter().any(|results| !results.trials.is_empty())
    }

    /// Whether a trial was lost to something other than the load generator's limits.
    pub fn found_failures(&self) -> bool {
        self.results.iter().flat_map(|results| &results.trials).any(|trial| trial.failed)
    }
}
