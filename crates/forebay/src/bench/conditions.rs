//! Conditions of `--fail-if`.

use forebay_load::{Goal, Judgement, Outcome, PartCounts, RunDecision};

use crate::junit::Decision;

/// Exit code if the measurement is inconclusive.
pub const INCONCLUSIVE: u8 = 4;

/// Result of [`check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// No condition holds.
    Fine,
    /// At least one condition holds.
    Hold,
    /// No condition holds, but at least one could not be decided.
    Unknown,
}

/// Checks the outcome for each condition of `--fail-if`. Prints the conditions that hold, and the
/// reason for each condition that is inconclusive.
pub fn check(goals: &[Goal], outcome: &Outcome, print: impl Fn(&str)) -> Conditions {
    let mut result = Conditions::Fine;
    for condition in goals {
        let line = match condition.judge(outcome) {
            Judgement::False(_) => continue,
            Judgement::True(value) => {
                result = Conditions::Hold;
                format!("--fail-if {condition}: {value}")
            }
            Judgement::Unknown(why) => {
                if result == Conditions::Fine {
                    result = Conditions::Unknown;
                }
                format!("--fail-if inconclusive: {why}")
            }
        };
        print(&line);
    }
    result
}

/// Returns the test cases of `--junit`: one each for the requests, the load, each step of a
/// scenario, each condition of `--fail-if`, and `--against`.
pub fn cases(
    goals: &[Goal],
    outcome: &Outcome,
    allows_failures: bool,
    against: Option<&RunDecision>,
) -> Vec<(String, Decision)> {
    let (failed, errors) = (outcome.requests.failed, outcome.error_replies());
    let requests = if (failed > 0 || errors > 0) && !allows_failures {
        let first =
            outcome.first_failure.as_deref().map_or(String::new(), |why| format!(": {why}"));
        Decision::Problem(format!("{failed} failed, {errors} replies were 4xx/5xx{first}"))
    } else {
        Decision::Fine
    };
    let problems = outcome.problems();
    let load = if outcome.is_interrupted {
        Decision::Undecided("a signal ended the run".to_owned())
    } else if let Some(doubt) = outcome.rate_doubt().filter(|_| problems.is_empty()) {
        Decision::Undecided(doubt)
    } else if problems.is_empty() {
        Decision::Fine
    } else {
        Decision::Problem(problems.join("; "))
    };
    let condition = |goal: &Goal| {
        let decision = match goal.judge(outcome) {
            Judgement::False(_) => Decision::Fine,
            Judgement::True(value) => Decision::Problem(value),
            Judgement::Unknown(why) => Decision::Undecided(why),
        };
        (format!("fail-if {goal}"), decision)
    };
    let compared = against.map(|decision| match decision {
        RunDecision::Fine => Decision::Fine,
        RunDecision::Worse(why) => Decision::Problem(why.clone()),
        RunDecision::Undecided(why) => Decision::Undecided(why.clone()),
    });
    let step = |part: &PartCounts| {
        let kinds = part.failures.by_kind().into_iter().filter(|(_, count)| *count > 0);
        let kinds: Vec<_> = kinds.map(|(kind, count)| format!("{kind}: {count}")).collect();
        let decision = if part.failed == 0 || allows_failures {
            Decision::Fine
        } else {
            Decision::Problem(format!("{} failed ({})", part.failed, kinds.join(", ")))
        };
        Some((format!("step {}", part.name.as_deref()?), decision))
    };
    let fixed = [("requests".to_owned(), requests), ("load".to_owned(), load)];
    let compared = compared.map(|decision| ("against".to_owned(), decision));
    let steps = outcome.parts.iter().filter_map(step);
    fixed.into_iter().chain(steps).chain(goals.iter().map(condition)).chain(compared).collect()
}
