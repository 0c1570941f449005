//! Option `--against`: compares the run with an earlier one.

use std::fmt::Write;
use std::path::Path;

use forebay_load::{Outcome, Replay, RunComparison, RunDecision, Spec, differs};
use serde_json::Value;

use super::report::{INDENT, WIDTH, figure, time, wrapped};
use crate::merge;

/// The run that `--against` names.
pub struct Earlier<'a> {
    file: &'a Path,
    outcome: Outcome,
}

impl<'a> Earlier<'a> {
    /// Reads the file of `--against`, which has the result of an earlier run. Fails if the result
    /// has no series of seconds.
    pub fn read(file: &'a Path) -> Result<Self, String> {
        let wrong = |why: String| format!("--against {}: {why}", file.display());
        let outcome = merge::read(file).map_err(wrong)?;
        if outcome.series.is_empty() {
            return Err(wrong("it has no series of seconds".to_owned()));
        }
        Ok(Self { file, outcome })
    }

    /// Checks before a new run that the earlier run had the load of `spec`.
    pub fn check(&self, spec: &Spec) -> Result<(), String> {
        let planned = Outcome {
            connections: spec.connections,
            streams: spec.streams,
            protocol: spec.url.protocol(),
            method: spec.method.clone(),
            rate: spec.rate,
            replay: spec.replay.as_deref().map(Replay::summary),
            // The requests of a mixed load are known only after the run, so they are not compared
            // here.
            parts: self.outcome.parts.clone(),
            ..Outcome::default()
        };
        let file = self.file.display();
        differs(&self.outcome, &planned)
            .map_or(Ok(()), |why| Err(format!("--against {file}: {why}")))
    }

    /// Compares the new run `outcome` with the earlier run. Returns the comparison, and the same as
    /// text for people.
    pub fn compare(&self, outcome: &Outcome, threshold: f64) -> (RunComparison, String) {
        let comparison = RunComparison::of(&self.outcome, outcome, threshold);
        let mut out = format!("\nAgainst {}:\n", self.file.display());
        for metric in &comparison.metrics {
            let value = |value| if metric.more_is_better { figure(value) } else { time(value) };
            let (old, new) = (value(metric.old), value(metric.new));
            let [low, high] = metric.ratio.ci95;
            let interval = if metric.ratio.has_interval() {
                format!("(95 % interval {low:.3} to {high:.3})")
            } else {
                "(no interval)".to_owned()
            };
            let ratio = metric.ratio.mean;
            // Writing to a string does not fail.
            let _ =
                writeln!(out, "  {:<10}{old} -> {new}, ratio {ratio:.3} {interval}", metric.name);
        }
        let percent = threshold * 100.0;
        let conclusion = match comparison.decision() {
            RunDecision::Fine => format!("not worse by more than {percent:.0} %"),
            RunDecision::Worse(why) => format!("worse by more than {percent:.0} %: {why}"),
            RunDecision::Undecided(why) => format!("inconclusive: {why}"),
        };
        for (index, part) in wrapped(&conclusion, WIDTH - INDENT).iter().enumerate() {
            let name = if index == 0 { "Result" } else { "" };
            let _ = writeln!(out, "  {name:<10}{part}");
        }
        out += "  The intervals cover only the variation within the two runs. A restart of the\n  \
                server or another state of the machine can change a run by more. To decide,\n  \
                use `forebay compare`, which measures both versions in turns.\n";
        (comparison, out)
    }

    /// Returns the object `against` of the JSON.
    pub fn to_json(&self, comparison: &RunComparison) -> Value {
        let mut json = comparison.to_json();
        json["file"] = self.file.display().to_string().into();
        json
    }
}
