//! `[load.client]`: a command that loads the server instead of the built-in load generator.

use std::time::Duration;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::seconds;

/// Command that loads a server and prints a result.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Client {
    /// Command with its arguments. May contain placeholders, and `{url}`, `{duration}`,
    /// `{connections}` and `{seed}`.
    pub command: Vec<String>,
    /// Pattern or JSON pointer that finds the result in the output.
    pub metric: Find,
    /// Unit of the result, such as `transactions/s`.
    pub unit: String,
    /// Direction of better results.
    pub better: Better,
    /// Pattern or JSON pointer that finds the amount of work in the output. The server's CPU time
    /// is divided by this amount.
    pub count: Option<Find>,
    /// Time that the command may take in addition to the duration of the load.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Programs or Debian packages that the command requires.
    pub requires: Vec<String>,
    /// Runs the command once per slice instead of once per trial.
    pub in_slices: bool,
}

/// Direction of better results.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better, as for a rate.
    Higher,
    /// Less is better, as for a time.
    Lower,
}

/// Place of a number in the output of a command.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Find {
    /// Regular expression whose first group is the number. The last match counts.
    Pattern(String),
    /// JSON pointer (RFC 6901). If the whole output is a JSON object, the pointer applies to this
    /// object. Otherwise it applies to the last line that is a JSON object.
    Json(String),
}

/// Number that a client printed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Printed {
    /// The number as printed: finite and greater than 0.
    pub value: f64,
    /// Direction of better results.
    pub better: Better,
}

impl Printed {
    /// Returns the number, or its reciprocal if less is better, so that more is always better.
    pub fn goodness(self) -> f64 {
        match self.better {
            Better::Higher => self.value,
            Better::Lower => 1.0 / self.value,
        }
    }
}

impl Find {
    /// Finds the number in `output`. With a pattern, the last match counts. A JSON pointer applies
    /// to the whole output if that is a JSON object. Otherwise it applies to the last line that is
    /// a JSON object.
    ///
    /// # Errors
    /// Returns the reason why no number was found.
    pub fn number(&self, output: &str) -> Result<f64, String> {
        match self {
            Self::Pattern(pattern) => {
                let regex = Regex::new(pattern).map_err(|error| error.to_string())?;
                let found = regex.captures_iter(output).last().and_then(|found| found.get(1));
                let found = found.ok_or_else(|| format!("printed nothing that fits {pattern}"))?;
                let text = found.as_str().trim();
                text.parse().map_err(|_| format!("printed {:?}, which is no number", short(text)))
            }
            Self::Json(pointer) => {
                let is_object = |text: &str| {
                    serde_json::from_str(text).ok().filter(|value: &Value| value.is_object())
                };
                let json = is_object(output).or_else(|| output.lines().rev().find_map(is_object));
                let json = json.ok_or("printed no JSON object")?;
                let value = json.pointer(pointer);
                let value = value.ok_or_else(|| format!("printed JSON that has no {pointer}"))?;
                value.as_f64().ok_or_else(|| {
                    format!(
                        "printed {} as {pointer}, which is no number",
                        short(&value.to_string())
                    )
                })
            }
        }
    }
}

/// Returns the first 40 characters of a text, short enough for a message.
fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(pattern: &str, output: &str) -> Result<f64, String> {
        Find::Pattern(pattern.to_owned()).number(output)
    }

    fn json(pointer: &str, output: &str) -> Result<f64, String> {
        Find::Json(pointer.to_owned()).number(output)
    }

    #[test]
    fn a_pattern_finds_the_last_number() {
        let pgbench =
            "progress: 1.0 s, 900.1 tps\ntps = 912.345 (including)\ntps = 915.5 (excluding)\n";
        assert_eq!(pattern(r"tps = ([0-9.]+)", pgbench), Ok(915.5));
        assert_eq!(
            pattern(r"Transaction rate:\s+(\S+)", "Transaction rate:\t 12.5 trans/sec"),
            Ok(12.5)
        );
        assert!(pattern(r"tps = ([0-9.]+)", "nothing").unwrap_err().contains("nothing that fits"));
        assert!(pattern("(.*)", "").unwrap_err().contains("no number"));
        assert!(pattern(r"rate (\S+)", "rate 1,234").unwrap_err().contains("\"1,234\""));
    }

    #[test]
    fn a_pointer_finds_a_number_in_json_among_other_lines() {
        let output = "starting\n{\"a\": 1}\n{\"load\": {\"ms\": [12.5, 3]}}\nbye\n";
        assert_eq!(json("/load/ms/0", output), Ok(12.5));
        assert_eq!(json("/a", "{\n \"a\": 7\n}"), Ok(7.0));
        assert!(json("/a", output).unwrap_err().contains("has no /a"));
        assert!(json("/load", output).unwrap_err().contains("no number"));
        assert!(json("/a", "[1]\n2\n").unwrap_err().contains("no JSON object"));
    }
}
