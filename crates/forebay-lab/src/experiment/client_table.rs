//! Parses the table `[load.client]`.

use std::time::Duration;

use regex_lite::Regex;
use toml::Spanned;

use super::client::{Better, Client, Find};
use super::file::Matrix;
use super::parse::Reader;
use super::{Amount, Problem, file};

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
