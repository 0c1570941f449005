//! `[load.client]`: a command that loads the server instead of the built-in load generator.

use std::time::Duration;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Spanned;

use super::file::{self, Matrix};
use super::parse::Reader;
use super::{Amount, Problem, seconds};

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

// Parses the table `[load.client]`.

/// Default of `timeout`: time in addition to the duration of the load.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_UNIT: &str = "per second";

impl Reader<'_> {
    /// Parses the command of `[load.client]`. Returns `None` if the file has no such table.
    pub(super) fn client(&self, load: &file::Load) -> Result<Option<Client>, Problem> {
        let Some(typed) = &load.client else { return Ok(None) };
        self.refuse_beside_client(load)?;
        let client = typed.get_ref();
        if client.command.get_ref().first().is_none_or(String::is_empty) {
            let help = "give it as a list: [\"h2load\", \"-D\", \"{duration}\", \"{url}\"]";
            return Err(self.at(client.command.span(), "an empty command", help));
        }
        let metric = client.metric.get_ref();
        let better = match metric.better.as_ref().map(|better| better.get_ref().as_str()) {
            None | Some("higher") => Better::Higher,
            Some("lower") => Better::Lower,
            Some(_) => {
                let span = metric.better.as_ref().map_or(0..0, Spanned::span);
                return Err(self.at(span, "not a direction", "give \"higher\" or \"lower\""));
            }
        };
        Ok(Some(Client {
            command: client.command.get_ref().clone(),
            metric: self.find(&client.metric)?,
            unit: metric.unit.clone().unwrap_or_else(|| DEFAULT_UNIT.to_owned()),
            better,
            count: client.count.as_ref().map(|count| self.find(count)).transpose()?,
            timeout: self.duration(&client.timeout, DEFAULT_TIMEOUT)?,
            requires: client.requires.clone(),
            in_slices: load.slice.is_some(),
        }))
    }

    /// Rejects keys of `[load]` that only the built-in load generator supports.
    fn refuse_beside_client(&self, load: &file::Load) -> Result<(), Problem> {
        let warmup = load.warmup.as_ref().filter(
            |typed| matches!(typed.get_ref(), toml::Value::Integer(requests) if *requests != 0),
        );
        let given = [
            ("requests", load.requests.as_ref().map(Spanned::span)),
            ("rate", load.rate.as_ref().map(Spanned::span)),
            ("think", load.think.as_ref().map(Spanned::span)),
            ("steady", load.steady.as_ref().map(Spanned::span)),
            ("streams", load.streams.as_ref().map(Spanned::span)),
            ("threads", load.threads.as_ref().map(Spanned::span)),
            ("a number of requests to warm up with", warmup.map(Spanned::span)),
        ];
        match given.into_iter().find_map(|(key, span)| Some((key, span?))) {
            Some((key, span)) => {
                let message = format!("{key} has no effect with [load.client]");
                let help = "give times (duration, warmup) and put the rest into its command";
                Err(self.at(span, message, help))
            }
            None => Ok(()),
        }
    }

    /// Rejects matrix keys that have no effect on a client command.
    pub(super) fn refuse_in_matrix(
        &self,
        matrix: &Matrix,
        client: Option<&Client>,
    ) -> Result<(), Problem> {
        let is_built_in =
            |key: &&Spanned<String>| ["rate", "streams"].contains(&key.get_ref().as_str());
        match matrix.keys().find(is_built_in).filter(|_| client.is_some()) {
            Some(key) => {
                let message = format!("{} has no effect with [load.client]", key.get_ref());
                Err(self.at(key.span(), message, "leave it out"))
            }
            None => Ok(()),
        }
    }

    /// Checks the position of the number in a client's output: a regular expression with one group,
    /// or a JSON pointer.
    fn find(&self, typed: &Spanned<file::Find>) -> Result<Find, Problem> {
        let wrong = |message: &str, help: &str| Err(self.at(typed.span(), message, help));
        match typed.get_ref() {
            file::Find { pattern: Some(pattern), json: None, .. } => match Regex::new(pattern) {
                Ok(regex) if regex.captures_len() == 2 => Ok(Find::Pattern(pattern.clone())),
                Ok(_) => wrong(
                    "a pattern needs one group, around the number",
                    "such as 'tps = ([0-9.]+)'; (?:...) groups without being one",
                ),
                Err(error) => wrong(
                    &format!("not a regular expression: {error}"),
                    "such as 'tps = ([0-9.]+)', in single quotes",
                ),
            },
            file::Find { pattern: None, json: Some(json), .. } if json.starts_with('/') => {
                Ok(Find::Json(json.clone()))
            }
            file::Find { pattern: None, json: Some(_), .. } => {
                wrong("not a JSON pointer", "begin it with /, as in \"/requests/rate\" (RFC 6901)")
            }
            _ => wrong("not a place of a number", "give pattern or json, one of them"),
        }
    }

    /// Returns the length of a slice. Without the key `slice`, a trial with a client command and a
    /// duration has one slice: the command runs once for the whole duration. Fails if `slice` is
    /// not a valid duration.
    pub(super) fn slice(
        &self,
        load: &file::Load,
        amount: Amount,
        default: Duration,
    ) -> Result<Duration, Problem> {
        let default = match amount {
            Amount::Duration(duration) if load.client.is_some() => duration,
            _ => default,
        };
        self.duration(&load.slice, default)
    }
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
