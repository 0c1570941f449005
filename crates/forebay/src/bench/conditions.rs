//! Conditions of `--fail-if`.

use forebay_load::{Goal, Judgement, Outcome};

/// Exit code if the measurement is inconclusive.
pub const INCONCLUSIVE: u8 = 4;

/// Result of the comparison with the conditions of `--fail-if`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// No condition holds.
    Fine,
    /// At least one condition holds.
    Hold,
    /// No condition holds, but at least one could not be decided.
    Unknown,
}

/// Compares the outcome with conditions. Prints those that hold or cannot be decided.
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
