//! Results of an experiment, and whether results of two runs may be combined.

use std::time::Duration;

use forebay_load::Requests;
use serde_json::Value;

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

// Checks that results of two runs may be combined. A resumed run requires an identical experiment.
// A comparison with saved results requires the same load and machine.

/// Keys that may differ between two runs of the same experiment.
const WORDS: [&str; 4] = ["title", "notes", "rounds", "max_failed"];

/// Copies trials, profiles, seed, machine and progress of `earlier` into `experiment`.
///
/// # Errors
/// Returns the first difference between the experiments.
pub fn take_over(experiment: &mut Experiment, earlier: Experiment) -> Result<(), String> {
    if let Some(difference) = difference(experiment, &earlier) {
        return Err(difference);
    }
    experiment.seed = earlier.seed;
    experiment.machine = earlier.machine;
    experiment.rounds_finished = earlier.rounds_finished;
    experiment.elapsed = earlier.elapsed;
    for (results, earlier) in experiment.results.iter_mut().zip(earlier.results) {
        results.trials = earlier.trials;
        results.profile = earlier.profile;
    }
    Ok(())
}

/// Returns the reason why saved results cannot be compared with results of `plan` on this machine.
/// Returns `None` if the results can be compared.
pub fn incomparable(saved: &Experiment, plan: &Plan) -> Option<String> {
    let loads = [&saved.plan, plan].map(|plan| {
        serde_json::json!({ "load": plan.load, "check": plan.check, "services": plan.services })
    });
    changed("", &loads[0], &loads[1]).or_else(|| other_machine(&saved.machine, &Machine::here()))
}

fn difference(now: &Experiment, earlier: &Experiment) -> Option<String> {
    if now.against_itself != earlier.against_itself {
        return Some("one of the two is an experiment against itself (--aa)".to_owned());
    }
    let plans =
        [&earlier.plan, &now.plan].map(|plan| serde_json::to_value(plan).unwrap_or_default());
    changed("", &plans[0], &plans[1])
        .or_else(|| other_machine(&earlier.machine, &now.machine))
        .or_else(|| earlier.results.iter().zip(&now.results).find_map(|(a, b)| other_server(a, b)))
}

/// Describes the first difference between two JSON values. The description names the path of the
/// difference, which starts with `place`. In a path, an element of a list is shown as its `name` in
/// quotes, or as its index if the element has no `name`. Ignores the keys in `WORDS`. Returns
/// `None` if the values are equal.
fn changed(place: &str, was: &Value, is: &Value) -> Option<String> {
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => {
            let mut keys: Vec<&String> = was.keys().chain(is.keys()).collect();
            keys.sort();
            keys.dedup();
            keys.retain(|key| !WORDS.contains(&key.as_str()));
            let at = |key: &str| format!("{place}{}{key}", if place.is_empty() { "" } else { "." });
            let none = Value::Null;
            keys.into_iter().find_map(|key| {
                changed(&at(key), was.get(key).unwrap_or(&none), is.get(key).unwrap_or(&none))
            })
        }
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => {
            let at = |index: usize| match was[index]["name"].as_str() {
                Some(name) => format!("{place} \"{name}\""),
                None => format!("{place}[{index}]"),
            };
            (0..was.len()).find_map(|index| changed(&at(index), &was[index], &is[index]))
        }
        (Value::Array(was), Value::Array(is)) => {
            Some(format!("there were {} {place} and there are {}", was.len(), is.len()))
        }
        _ if was == is => None,
        _ => Some(format!("{place} was {} and is {}", short(was), short(is))),
    }
}

fn short(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn other_machine(was: &Machine, is: &Machine) -> Option<String> {
    let identity = |machine: &Machine| {
        [
            ("processor", machine.cpu.clone()),
            ("number of cores", machine.cores.to_string()),
            ("kernel", machine.kernel.clone()),
            ("system", machine.os.clone()),
            ("version of forebay", machine.forebay.clone()),
        ]
    };
    identity(was).into_iter().zip(identity(is)).find_map(|((what, was), (_, is))| {
        (was != is).then(|| format!("the machine's {what} was {was:?} and is {is:?}"))
    })
}

fn other_server(was: &Results, is: &Results) -> Option<String> {
    let name = &is.configuration.name;
    if was.missing != is.missing {
        let list =
            |names: &[String]| if names.is_empty() { "nothing".into() } else { names.join(" ") };
        let (was, is) = (list(&was.missing), list(&is.missing));
        return Some(format!("{name} lacked {was} and lacks {is}"));
    }
    let version = |results: &Results| results.version.clone().unwrap_or_default();
    let (was, is) = (version(was), version(is));
    (was != is).then(|| format!("the version of {name} was {was:?} and is {is:?}"))
}
