//! Checks that results of two runs may be combined. A resumed run requires an identical experiment.
//! A comparison with saved results requires the same load and machine.

use serde_json::Value;

use crate::experiment::Plan;
use crate::machine::Machine;
use crate::results::{Experiment, Results};

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
