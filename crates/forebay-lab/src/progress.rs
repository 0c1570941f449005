//! Progress output on standard error during an experiment.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::experiment::{Configuration, Plan};
use crate::number;
use crate::profile::Profile;
use crate::schedule::{Group, Progress};
use crate::trial::Trial;

/// Printer of a line for each finished trial, above a progress bar if standard error is a terminal.
pub struct ProgressLines {
    bar: Option<ProgressBar>,
    rounds: u32,
    name_width: usize,
    unit: String,
    /// Notes that were already shown, without their digits, each with the name of its
    /// configuration.
    shown: BTreeSet<(String, String)>,
}

impl ProgressLines {
    /// Creates the output for the trials of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let width = |configuration: &Configuration| configuration.name.chars().count();
        let name_width = plan.configurations.iter().map(width).max().unwrap_or(0);
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::no_length();
            bar.set_style(style());
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        let unit = plan.load.client.as_ref().map_or("requests/s", |client| &client.unit).to_owned();
        Self { bar, rounds: plan.rounds, name_width, unit, shown: BTreeSet::new() }
    }
}

impl Progress for ProgressLines {
    fn expect(&mut self, trials: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(trials);
        }
    }

    fn begin(&mut self, round: u32, group: &Group<'_>) {
        if let Some(bar) = &self.bar {
            let names: Vec<&str> =
                group.members.iter().map(|member| member.configuration.name.as_str()).collect();
            bar.set_message(format!("round {round} of {}: {}", self.rounds, names.join(", ")));
        }
    }

    fn end(&mut self, configuration: &Configuration, trial: &Trial) {
        let (id, rounds, width) = (trial.id, self.rounds, self.name_width);
        let line = format!(
            "round {:>2}/{rounds}  {:<width$}  {}",
            id.round,
            configuration.name,
            result(trial, &self.unit)
        );
        self.print(&line);
        for note in &trial.notes {
            // Print a note only once per configuration. The notes of two rounds may differ only in
            // their figures, so compare them without digits.
            let about: String = note.chars().filter(|c| !c.is_ascii_digit()).collect();
            if self.shown.insert((configuration.name.clone(), about)) {
                self.print(&format!("             {}", note.replace(char::is_control, " ")));
            }
        }
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    fn begin_profile(&mut self, configuration: &Configuration) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("profile: {}", configuration.name));
        }
    }

    fn end_profile(&mut self, configuration: &Configuration, profile: &Profile) {
        let mut parts = Vec::new();
        if profile.stacks.samples() > 0 {
            parts.push(format!("{} samples", number::count(profile.stacks.samples())));
            let requests =
                profile.requests.map(|requests| format!("{} requests", number::count(requests)));
            parts.extend(requests);
        }
        parts.extend(profile.notes.iter().cloned());
        let width = self.name_width;
        let text = parts.join(", ").replace(char::is_control, " ");
        self.print(&format!("profile      {:<width$}  {text}", configuration.name));
    }
}

impl ProgressLines {
    fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => {
                // A closed pipe (for example one to `head`) must not end the experiment.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        }
    }
}

impl Drop for ProgressLines {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn result(trial: &Trial, unit: &str) -> String {
    let rate = trial.measured.as_ref().map(|measured| {
        let failed = match measured.outcome.requests.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        format!("{:>9} {unit}{failed}", number::rate(measured.rate()))
    });
    match (rate, &trial.void) {
        (Some(rate), None) => rate,
        (Some(rate), Some(void)) => format!("{rate}, void: {void}"),
        (None, Some(void)) => format!("void: {void}"),
        (None, None) => "not measured".to_owned(),
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{bar:24} {pos}/{len} trials, {elapsed} of about {duration}  {msg}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar())
}
