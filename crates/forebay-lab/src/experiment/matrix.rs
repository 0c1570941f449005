//! Parses the table `[matrix]`. Every configuration is measured with each combination of the values
//! in this table.

use std::ops::RangeInclusive;

use toml::{Spanned, Value};

use super::file::Matrix;
use super::parse::{MAX_CONNECTIONS, MAX_STREAMS, Reader};
use super::{Cell, Configuration, Load, Problem, Template};

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
