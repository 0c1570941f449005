//! Decisions about the configurations of an experiment, for continuous integration. Each
//! configuration is fine, has a problem, or was not measured well enough to decide.

use crate::junit::{self, Decision};
use forebay_lab::{Experiment, Results, Row, report, rows};

/// Result of an experiment: each configuration is fine, has a problem, or is undecided.
pub struct Decisions {
    title: String,
    /// Names of the configurations, with the decision about each.
    cases: Vec<(String, Decision)>,
}

/// Number of further rounds that the advice names if there is only one round and no interval.
const FIRST_ROUNDS: u32 = 5;
/// Maximum number of rounds that the advice names.
const MOST_ROUNDS: u32 = 1000;

impl Decisions {
    /// Classifies each configuration. If `threshold` is given, a configuration that is slower than
    /// its reference by more than this share has a problem.
    pub fn of(experiment: &Experiment, threshold: Option<f64>) -> Self {
        let rows = rows(experiment);
        let decide = |((row, problems), results): ((Row, Vec<String>), &Results)| {
            let decision = if !problems.is_empty() {
                Decision::Problem(problems.join("; "))
            } else if let Some(why) = uncounted(&row, results) {
                Decision::Undecided(why)
            } else {
                let decision = threshold.map(|threshold| compared(experiment, &row, threshold));
                decision.unwrap_or(Decision::Fine)
            };
            (row.name, decision)
        };
        let cases = rows.into_iter().zip(experiment.problems()).zip(&experiment.results);
        Self { title: experiment.plan.title.clone(), cases: cases.map(decide).collect() }
    }

    /// Returns true if a configuration has a problem.
    pub fn has_problem(&self) -> bool {
        self.cases.iter().any(|(_, decision)| matches!(decision, Decision::Problem(_)))
    }

    /// Returns true if at least one configuration is undecided, because its measurement is
    /// inconclusive.
    pub fn is_undecided(&self) -> bool {
        self.cases.iter().any(|(_, decision)| matches!(decision, Decision::Undecided(_)))
    }

    /// Returns JUnit XML with a test case for each configuration. An undecided configuration
    /// becomes an `error` element.
    pub fn junit(&self) -> String {
        junit::suite("forebay.compare", &self.title, &self.cases)
    }

    /// Prints problems and undecided configurations to standard error. On GitHub Actions, prints
    /// them as annotations. Outside of GitHub Actions, omits servers that did not start, because
    /// the caller has printed these.
    pub fn print(&self, experiment: &Experiment) {
        let on_github = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
        for ((name, decision), results) in self.cases.iter().zip(&experiment.results) {
            let (kind, why) = match decision {
                _ if !on_github && results.start_failure().is_some() => continue,
                Decision::Fine => continue,
                Decision::Problem(why) => ("error", why),
                Decision::Undecided(why) => ("warning", why),
            };
            // Servers wrote a part of this text, so control characters are replaced.
            let line = format!("{name}: {why}").replace(char::is_control, " ");
            if on_github {
                let line = annotation(&line);
                super::print_stderr(format_args!("::{kind} title=forebay compare::{line}"));
            } else {
                super::print_stderr(line);
            }
        }
    }
}

/// Returns the reason why all trials of a configuration are void. Returns `None` if at least one
/// trial is not void, or if the configuration has no trial.
fn uncounted(row: &Row, results: &Results) -> Option<String> {
    if row.counted > 0 {
        return None;
    }
    let void = results.trials.iter().find_map(|trial| trial.void.as_ref())?;
    Some(format!("inconclusive: no trial counts: {void}"))
}

/// Classifies a configuration by the ratio of its rate to the rate of its reference. If this ratio
/// shows no problem and is inconclusive, the ratio of the CPU times may show a problem.
fn compared(experiment: &Experiment, row: &Row, threshold: f64) -> Decision {
    let Some(reference) = &row.reference else { return Decision::Fine };
    let undecided = |why: String| Decision::Undecided(format!("inconclusive: {why}"));
    let Some(ratio) = &row.ratio else {
        return undecided(format!("no round has a counted trial of {reference}, too"));
    };
    let limit = 1.0 - threshold;
    let percent = threshold * 100.0;
    if ratio.ci95[1] < 1.0 && ratio.mean < limit {
        let by = (1.0 - ratio.mean) * 100.0;
        let interval = report::interval(ratio);
        return Decision::Problem(format!(
            "slower than {reference} by {by:.1} % ({interval} of the ratio), more than the \
             {percent:.1} % allowed"
        ));
    }
    if ratio.has_interval() && ratio.ci95[0] >= limit {
        return Decision::Fine;
    }
    // On a busy machine, CPU time varies less than the rate, so CPU time can show a problem that
    // the rate does not show. Equal CPU times prove nothing: a server that only waits longer uses
    // no more CPU time.
    if let Some(cpu) = &row.cpu_ratio
        && cpu.ci95[0] > 1.0
        && cpu.mean > 1.0 + threshold
    {
        let (by, interval) = ((cpu.mean - 1.0) * 100.0, report::interval(cpu));
        return Decision::Problem(format!(
            "takes {by:.1} % more CPU time per request than {reference} ({interval} of the ratio), \
             more than the {percent:.1} % allowed; its rate is inconclusive"
        ));
    }
    if !ratio.has_interval() {
        let rounds = report::more_rounds(experiment, FIRST_ROUNDS);
        return undecided(format!(
            "run {rounds}: a single round gives {:.3} times the rate of {reference} and no interval",
            ratio.mean
        ));
    }
    let why = format!(
        "the {} of the ratio to {reference} includes the limit of {limit:.3}",
        report::interval(ratio)
    );
    let distance = (ratio.mean.ln() - limit.ln()).abs();
    match ratio.rounds_for(distance, MOST_ROUNDS) {
        Some(rounds) => {
            let more = rounds.saturating_sub(ratio.pairs as u32).max(1);
            undecided(format!("run {}: {why}", report::more_rounds(experiment, more)))
        }
        None => undecided(format!(
            "{why}, and {MOST_ROUNDS} rounds would not decide: use a quieter machine or another \
             --threshold"
        )),
    }
}

/// Escapes the text of a GitHub workflow command. A line break would end the command.
fn annotation(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junit_has_a_case_for_each_configuration() {
        let cases = vec![
            ("a".to_owned(), Decision::Fine),
            ("b <\"&".to_owned(), Decision::Problem("the server\nwas gone".to_owned())),
            ("c".to_owned(), Decision::Undecided("inconclusive".to_owned())),
        ];
        let xml = Decisions { title: "T".to_owned(), cases }.junit();
        let document = roxmltree::Document::parse(&xml).unwrap();
        let suite = document.root_element();
        let attributes = ["tests", "failures", "errors"].map(|name| suite.attribute(name));
        assert_eq!(attributes, [Some("3"), Some("1"), Some("1")]);
        let names: Vec<_> = suite.children().filter_map(|case| case.attribute("name")).collect();
        assert_eq!(names, ["a", "b <\"&", "c"]);
        let failure = document.descendants().find(|node| node.has_tag_name("failure")).unwrap();
        assert_eq!(failure.attribute("message"), Some("the server was gone"));
    }

    #[test]
    fn an_annotation_stays_on_its_line() {
        assert_eq!(annotation("5 %\n::error::x"), "5 %25%0A::error::x");
    }
}
