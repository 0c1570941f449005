//! Parses the tables `[load.client]`, `[[service]]` and `[matrix]`. Every configuration is measured with each combination of the values
//! in this table.

use std::ops::RangeInclusive;
use std::time::Duration;

use regex_lite::Regex;
use toml::{Spanned, Value};

use super::client::{Better, Client, Find};
use super::file::{self, Matrix};
use super::parse::{
    DEFAULT_READY_TIMEOUT, DEFAULT_STOP_TIMEOUT, MAX_CONNECTIONS, MAX_STREAMS, Reader,
};
use super::{Amount, Cell, Configuration, Load, Problem, Service, Template};

/// Maximum number of combinations. More would take days and are probably a mistake.
const MOST_CELLS: usize = 64;
const MOST_BODY_BYTES: u32 = 16 * 1024 * 1024;
const MOST_RATE: u32 = 100_000_000;
/// Placeholders that Forebay defines itself.
const TAKEN: [&str; 3] = ["port", "dir", "tmp"];

impl Reader<'_> {
    /// Returns all configurations once for each combination of the matrix's values. Without a
    /// matrix, returns the configurations unchanged.
    pub(super) fn expand(
        &self,
        matrix: Matrix,
        configurations: Vec<Configuration>,
    ) -> Result<Vec<Configuration>, Problem> {
        if matrix.is_empty() {
            return Ok(configurations);
        }
        let mut cells = vec![Cell::default()];
        for (key, values) in &matrix {
            if values.is_empty() || cells.len() * values.len() > MOST_CELLS {
                let help = format!("list one value or more, and {MOST_CELLS} combinations at most");
                return Err(self.at(key.span(), "not a list of values", help));
            }
            let of_value = |value| cells.iter().map(move |cell| self.with(cell, key, value));
            let combined: Result<Vec<Cell>, Problem> = values.iter().flat_map(of_value).collect();
            cells = combined?;
        }
        Ok(cells
            .iter()
            .enumerate()
            .flat_map(|(n, cell)| in_cell(&configurations, n, cell))
            .collect())
    }

    /// Returns the cell with one more value. A `key` that names no setting of the load is the name
    /// of a placeholder.
    fn with(
        &self,
        cell: &Cell,
        key: &Spanned<String>,
        value: &Spanned<Value>,
    ) -> Result<Cell, Problem> {
        let mut cell = cell.clone();
        let name = key.get_ref().as_str();
        let number = |range: RangeInclusive<u32>| self.number(value, range).map(Some);
        match name {
            "connections" => cell.connections = number(1..=MAX_CONNECTIONS)?,
            "streams" => cell.streams = number(1..=MAX_STREAMS)?,
            "rate" => cell.rate = number(0..=MOST_RATE)?,
            "body_bytes" => cell.body_bytes = number(0..=MOST_BODY_BYTES)?,
            "http2" => cell.http2 = Some(self.flag(value)?),
            "http3" => cell.http3 = Some(self.flag(value)?),
            "keepalive" => cell.keepalive = Some(self.flag(value)?),
            "path" => {
                let typed = value.get_ref().as_str().unwrap_or_default().to_owned();
                cell.path = Some(self.request_path(Some(Spanned::new(value.span(), typed)))?);
            }
            _ => {
                let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
                if name.is_empty() || !name.bytes().all(is_plain) || TAKEN.contains(&name) {
                    let help = "letters, digits, - and _ make the name of a placeholder; port, dir and \
                                tmp are taken";
                    return Err(self.at(key.span(), "not a placeholder's name", help));
                }
                cell.placeholders.push((name.to_owned(), self.words(value)?));
            }
        }
        let between = if cell.label.is_empty() { "" } else { ", " };
        cell.label += &format!("{between}{name} {}", self.words(value)?);
        Ok(cell)
    }

    fn number(&self, value: &Spanned<Value>, range: RangeInclusive<u32>) -> Result<u32, Problem> {
        let number = value.get_ref().as_integer().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let help = format!("give a number from {} to {}", range.start(), range.end());
            self.at(value.span(), "out of range", help)
        })
    }

    fn flag(&self, value: &Spanned<Value>) -> Result<bool, Problem> {
        let wrong = || self.at(value.span(), "neither true nor false", "list true, false or both");
        value.get_ref().as_bool().ok_or_else(wrong)
    }

    /// Converts a value to text for placeholders and names.
    fn words(&self, value: &Spanned<Value>) -> Result<String, Problem> {
        match value.get_ref() {
            Value::String(text) if !text.chars().any(char::is_control) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            Value::Float(number) => Ok(number.to_string()),
            Value::Boolean(flag) => Ok(flag.to_string()),
            _ => {
                let help = "list texts of one line, numbers, true or false";
                Err(self.at(value.span(), "not a value of a matrix", help))
            }
        }
    }
}

/// Returns a copy of all configurations for cell number `n`, one combination of the matrix's
/// values. In cell 0, the copy of the baseline is the baseline of the whole experiment. In each
/// later cell, the copy of the baseline is the reference of the cell's other configurations.
fn in_cell<'a>(
    configurations: &'a [Configuration],
    n: usize,
    cell: &'a Cell,
) -> impl Iterator<Item = Configuration> + 'a {
    let name = |configuration: &Configuration| format!("{} [{}]", configuration.name, cell.label);
    let baseline = configurations.iter().find(|configuration| configuration.baseline).map(name);
    configurations.iter().map(move |configuration| {
        let is_compared = n > 0 && !configuration.baseline;
        Configuration {
            name: name(configuration),
            baseline: configuration.baseline && n == 0,
            reference: baseline.clone().filter(|_| is_compared),
            cell: Some(cell.clone()),
            ..filled(configuration, &cell.placeholders)
        }
    })
}

/// Replaces the cell's placeholders in a configuration.
fn filled(configuration: &Configuration, placeholders: &[(String, String)]) -> Configuration {
    let fill = |text: &String| {
        let fill = |text: String, (name, value): &(String, String)| {
            text.replace(&format!("{{{name}}}"), value)
        };
        placeholders.iter().fold(text.clone(), fill)
    };
    let all = |words: &[String]| words.iter().map(fill).collect();
    let template =
        |template: &Template| Template { path: template.path.clone(), text: fill(&template.text) };
    Configuration {
        start: all(&configuration.start),
        before: all(&configuration.before),
        after: all(&configuration.after),
        url: fill(&configuration.url),
        path: configuration.path.as_ref().map(fill),
        env: configuration.env.iter().map(|(name, value)| (name.clone(), fill(value))).collect(),
        cwd: fill(&configuration.cwd),
        templates: configuration.templates.iter().map(template).collect(),
        ..configuration.clone()
    }
}

impl Cell {
    /// Sets the cell's values in `load`.
    pub fn change(&self, load: &mut Load) {
        load.connections = self.connections.unwrap_or(load.connections);
        load.threads = load.threads.min(load.connections);
        load.path = self.path.clone().unwrap_or_else(|| load.path.clone());
        load.streams = self.streams.unwrap_or(load.streams);
        load.http2 = self.http2.unwrap_or(load.http2);
        load.http3 = self.http3.unwrap_or(load.http3);
        load.keepalive = self.keepalive.unwrap_or(load.keepalive);
        if let Some(rate) = self.rate {
            load.rate = (rate > 0).then(|| f64::from(rate));
        }
        if let Some(length) = self.body_bytes {
            load.body = "x".repeat(length as usize);
        }
        for word in load.client.iter_mut().flat_map(|client| &mut client.command) {
            for (name, value) in &self.placeholders {
                *word = word.replace(&format!("{{{name}}}"), value);
            }
        }
    }
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

impl Reader<'_> {
    /// Validates the services: their names must be unique and usable in placeholders.
    pub(super) fn services(
        &self,
        typed: Vec<Spanned<file::Service>>,
    ) -> Result<Vec<Service>, Problem> {
        let mut services: Vec<Service> = Vec::new();
        for service in typed {
            let service = service.into_inner();
            let name = service.name.get_ref();
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if name.is_empty() || !name.bytes().all(is_plain) {
                let help = "letters, digits, - and _ make a name; {NAME.port} refers to it";
                return Err(self.at(service.name.span(), "not a service's name", help));
            }
            if services.iter().any(|other| other.name == *name) {
                let help = "give each its own name";
                return Err(self.at(service.name.span(), "a name used twice", help));
            }
            services.push(self.service(service)?);
        }
        Ok(services)
    }

    /// Checks one `[[service]]` and adds the defaults.
    fn service(&self, typed: file::Service) -> Result<Service, Problem> {
        if typed.start.get_ref().first().is_none_or(String::is_empty) {
            let help = "give its command as a list: [\"nginx\", \"-c\", \"...\"]";
            return Err(self.at(typed.start.span(), "an empty start command", help));
        }
        let listens = match typed.listens {
            Some(listens) if !listens.get_ref().contains(':') => {
                let help = "give HOST:PORT, such as \"127.0.0.1:{port}\", or \"unix:{tmp}/x.sock\"";
                return Err(self.at(listens.span(), "not an address", help));
            }
            Some(listens) => listens.into_inner(),
            None => "127.0.0.1:{port}".to_owned(),
        };
        Ok(Service {
            name: typed.name.into_inner(),
            start: typed.start.into_inner(),
            listens,
            requires: typed.requires,
            env: typed.env.into_iter().collect(),
            cwd: typed.cwd.unwrap_or_else(|| "{dir}".to_owned()),
            templates: self.templates(typed.templates)?,
            ready_timeout: self.duration(&typed.ready_timeout, DEFAULT_READY_TIMEOUT)?,
            stop_timeout: self.duration(&typed.stop_timeout, DEFAULT_STOP_TIMEOUT)?,
            cpus: self.cpus(typed.cpus)?,
        })
    }
}
