//! Profiles in the reports: file names of the stacks, a summary in JSON, and a section of the HTML
//! page.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::chart::{self, Unit};
use crate::number;
use crate::profile::{Function, KERNEL, Profile, Stacks, functions};
use crate::{Experiment, Results};

/// Maximum number of functions that JSON and the HTML page list for a profile.
const MOST_FUNCTIONS: usize = 50;
/// Maximum number of characters of a configuration's name in a file name.
const LONGEST_NAME: usize = 60;

/// Returns the file name for each configuration's stacks. A configuration without stacks has
/// `None`.
pub fn folded_names(experiment: &Experiment) -> Vec<Option<String>> {
    let named = experiment.results.iter().zip(names(experiment));
    named.map(|(results, name)| stacks(results).map(|_| name)).collect()
}

/// Reads the stacks of all profiles from the files in `folder`, because the JSON report does not
/// contain the stacks. If a file cannot be read, replaces the profile with an empty one that states
/// the reason.
pub fn read_folded(experiment: &mut Experiment, folder: &Path) {
    let names = names(experiment);
    for (results, name) in experiment.results.iter_mut().zip(names) {
        let profile = results.profile.as_mut().filter(|profile| profile.frequency > 0);
        let Some(profile) = profile else { continue };
        let file = File::open(folder.join(&name)).map_err(|error| error.to_string());
        match file.and_then(|file| Stacks::read_folded(BufReader::new(file))) {
            Ok(stacks) => profile.stacks = stacks,
            Err(why) => {
                let why = format!("cannot read {name}: {why}; --resume --profile creates it again");
                *profile = Profile::none(why);
            }
        }
    }
}

/// Returns a file name for every configuration, even for one without stacks. The names then do not
/// depend on which configurations have stacks.
fn names(experiment: &Experiment) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut name = |results: &Results| {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' };
        let name: String =
            results.configuration.name.chars().map(plain).take(LONGEST_NAME).collect();
        let mut file = format!("profile-{name}.folded");
        let mut number = 1;
        // Compare the names in lower case, because some file systems do not distinguish upper and
        // lower case.
        while !taken.insert(file.to_ascii_lowercase()) {
            number += 1;
            file = format!("profile-{name}-{number}.folded");
        }
        file
    };
    experiment.results.iter().map(&mut name).collect()
}

/// Returns the summary of a profile for the JSON report. Returns null if the configuration was not
/// profiled.
pub fn json_of(results: &Results, file: Option<String>) -> Value {
    let Some(profile) = &results.profile else { return Value::Null };
    let samples = profile.stacks.samples();
    let share = |count: u64| count as f64 / samples as f64;
    let us = profile.us_per_request();
    let function = |of: &Function<'_>| {
        json!({
            "function": of.name.strip_suffix(KERNEL).unwrap_or(of.name),
            "kernel": of.name.ends_with(KERNEL),
            "self": share(of.own[0]),
            "total": share(of.total[0]),
            "self_us_per_request": us.map(|us| us * of.own[0] as f64),
        })
    };
    let all = functions(&profile.stacks);
    json!({
        "samples": samples,
        "frequency_hz": profile.frequency,
        "requests": profile.requests,
        "cpu_us_per_request": us.map(|us| us * samples as f64).filter(|_| samples > 0),
        "file": file,
        "functions": all.iter().take(MOST_FUNCTIONS).map(function).collect::<Vec<_>>(),
        "server_timing_ms": profile.timings,
        "notes": profile.notes,
    })
}

/// Section of the HTML page about profiles.
#[derive(Serialize)]
pub struct ProfilesView<'a> {
    /// Notes that apply to all profiles.
    notes: Vec<&'a str>,
    profiles: Vec<ProfileView<'a>>,
}

#[derive(Serialize)]
struct ProfileView<'a> {
    name: &'a str,
    figures: Option<String>,
    timings: Option<String>,
    notes: Vec<&'a str>,
    chart: Option<String>,
    file: Option<String>,
    /// Rows of a table: name, share of the function itself, share including the functions that it
    /// calls.
    functions: Vec<[String; 3]>,
    difference: Option<DifferenceView<'a>>,
}

/// Comparison of a profile with the profile of the configuration's reference.
#[derive(Serialize)]
struct DifferenceView<'a> {
    reference: &'a str,
    unit: &'static str,
    chart: Option<String>,
    /// Rows of a table: name, time in the function itself, this time in the reference, difference.
    functions: Vec<[String; 4]>,
}

/// Returns the section of the page, or `None` if no configuration was profiled. If all profiles
/// failed for the same reason, the section contains only this reason.
pub fn view(experiment: &Experiment) -> Option<ProfilesView<'_>> {
    let profiled = || experiment.results.iter().filter_map(|results| results.profile.as_ref());
    let first = profiled().next()?;
    let is_same = |profile: &Profile| profile.notes == first.notes && profile.stacks.samples() == 0;
    if profiled().all(is_same) {
        let notes = first.notes.iter().map(String::as_str).collect();
        return Some(ProfilesView { notes, profiles: Vec::new() });
    }
    let files = folded_names(experiment);
    let both = experiment.results.iter().zip(files);
    let profiles = both.filter_map(|(results, file)| profile_view(experiment, results, file));
    Some(ProfilesView { notes: Vec::new(), profiles: profiles.collect() })
}

/// Prepares a configuration's profile for the page. Values are in microseconds per request, or in
/// percent if the number of requests is unknown. Returns `None` if the configuration was not
/// profiled.
fn profile_view<'a>(
    experiment: &'a Experiment,
    results: &'a Results,
    file: Option<String>,
) -> Option<ProfileView<'a>> {
    let profile = results.profile.as_ref()?;
    let name = results.configuration.name.as_str();
    let samples = profile.stacks.samples();
    let unit = match profile.us_per_request() {
        Some(us) => Unit { worth: [us, 0.0], name: PER_REQUEST },
        None => Unit { worth: [100.0 / samples.max(1) as f64, 0.0], name: "%" },
    };
    let share = |count: u64| format!("{:.1} %", count as f64 * 100.0 / samples as f64);
    let row = |of: &Function<'_>| [words(of.name), share(of.own[0]), share(of.total[0])];
    let all = functions(&profile.stacks);
    let label = format!("Flame graph of {name}: its functions are listed below");
    Some(ProfileView {
        name,
        figures: (samples > 0).then(|| figures(profile)),
        timings: timings(profile),
        notes: profile.notes.iter().map(String::as_str).collect(),
        chart: chart::flame(&profile.stacks, unit, &label),
        file,
        functions: all.iter().take(MOST_FUNCTIONS).map(row).collect(),
        difference: difference(experiment, results),
    })
}

const PER_REQUEST: &str = "µs/request";

/// Formats the totals of a profile: `1,480 samples at 499 Hz, 41,234 requests, 71.9 µs/request`. If
/// the number of requests is unknown, the text contains only samples and frequency.
fn figures(profile: &Profile) -> String {
    let samples = profile.stacks.samples();
    let taken = format!("{} samples at {} Hz", number::count(samples), profile.frequency);
    match (profile.requests, profile.us_per_request()) {
        (Some(requests), Some(us)) => format!(
            "{taken}, {} requests, {} {PER_REQUEST}",
            number::count(requests),
            number::significant(us * samples as f64)
        ),
        _ => taken,
    }
}

/// Formats the processing steps that the server reported: `head 21 µs, route 3 µs`. Returns `None`
/// if the server reported no steps.
fn timings(profile: &Profile) -> Option<String> {
    let step = |(name, ms): &(String, f64)| format!("{name} {}", number::time(ms * 1e3));
    let steps: Vec<String> = profile.timings.iter().map(step).collect();
    (!steps.is_empty()).then(|| steps.join(", "))
}

/// Compares the profile with the profile of the reference. Returns `None` if there is no reference,
/// or if one of the two profiles has no samples.
fn difference<'a>(experiment: &'a Experiment, results: &'a Results) -> Option<DifferenceView<'a>> {
    let reference = experiment.plan.reference(&results.configuration)?;
    let theirs = experiment.results.iter().find(|of| of.configuration.name == reference)?;
    let (ours, both) = (results.profile.as_ref()?, stacks(results)?.beside(stacks(theirs)?));
    let theirs = theirs.profile.as_ref()?;
    let share = |profile: &Profile| 100.0 / profile.stacks.samples() as f64;
    let unit = match (ours.us_per_request(), theirs.us_per_request()) {
        (Some(ours), Some(theirs)) => Unit { worth: [ours, theirs], name: PER_REQUEST },
        _ => Unit { worth: [share(ours), share(theirs)], name: "%" },
    };
    let name = &results.configuration.name;
    let label = format!(
        "Flame graph of {name} beside {reference}: the largest differences are listed below"
    );
    let worth = |of: &Function<'_>| [0, 1].map(|side| of.own[side] as f64 * unit.worth[side]);
    let by = |of: &Function<'_>| worth(of)[0] - worth(of)[1];
    let mut all = functions(&both);
    all.sort_by(|a, b| by(b).abs().total_cmp(&by(a).abs()).then(a.name.cmp(b.name)));
    let row = |of: &Function<'_>| {
        let [ours, theirs] = worth(of);
        let sign = if ours < theirs { "\u{2212}" } else { "+" };
        let change = number::significant((ours - theirs).abs());
        let [ours, theirs] = [ours, theirs].map(number::significant);
        [words(of.name), ours, theirs, format!("{sign}{change}")]
    };
    Some(DifferenceView {
        reference,
        unit: unit.name,
        chart: chart::flame_difference(&both, unit, &label),
        functions: all.iter().filter(|of| of.own != [0, 0]).take(MOST_FUNCTIONS).map(row).collect(),
    })
}

/// Returns the stacks of a configuration, if any were sampled.
fn stacks(results: &Results) -> Option<&Stacks> {
    results.profile.as_ref().map(|profile| &profile.stacks).filter(|stacks| stacks.samples() > 0)
}

fn words(name: &str) -> String {
    match name.strip_suffix(KERNEL) {
        Some(name) => format!("{name} (kernel)"),
        None => name.to_owned(),
    }
}
