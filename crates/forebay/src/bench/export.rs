//! Results as files: JSON, CSV, an HdrHistogram interval log and an HTML page.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use forebay_lab::report::bench_page;
use forebay_load::Outcome;
use serde_json::Value;

/// Files for the results. `-` means standard output.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    pub json: Option<&'a Path>,
    pub csv: Option<&'a Path>,
    pub hlog: Option<&'a Path>,
    pub html: Option<&'a Path>,
}

/// Columns of the CSV file: the name, and a JSON pointer to the value in the JSON.
const COLUMNS: &[(&str, &str)] = &[
    ("url", "/url"),
    ("protocol", "/protocol"),
    ("connections", "/connections"),
    ("threads", "/threads"),
    ("duration_s", "/duration_s"),
    ("sent", "/requests/sent"),
    ("completed", "/requests/completed"),
    ("failed", "/requests/failed"),
    ("failed_connect", "/requests/failures/connect"),
    ("failed_read", "/requests/failures/read"),
    ("failed_write", "/requests/failures/write"),
    ("failed_timeout", "/requests/failures/timeout"),
    ("failed_protocol", "/requests/failures/protocol"),
    ("failed_check", "/requests/failures/check"),
    ("rate_per_s", "/rate_per_s"),
    ("bytes_read", "/bytes/read"),
    ("bytes_body", "/bytes/body"),
    ("latency_mean_us", "/latency_us/mean"),
    ("latency_sd_us", "/latency_us/sd"),
    ("latency_min_us", "/latency_us/min"),
    ("latency_max_us", "/latency_us/max"),
    ("latency_p50_us", "/latency_us/p50"),
    ("latency_p75_us", "/latency_us/p75"),
    ("latency_p90_us", "/latency_us/p90"),
    ("latency_p95_us", "/latency_us/p95"),
    ("latency_p99_us", "/latency_us/p99"),
    ("latency_p99_9_us", "/latency_us/p99_9"),
    ("client_cpu_user_s", "/client/cpu_user_s"),
    ("client_cpu_system_s", "/client/cpu_system_s"),
    ("client_cpu_us_per_request", "/client/cpu_us_per_request"),
    ("client_saturated", "/client/saturated"),
    ("streams", "/streams"),
    ("resent", "/requests/resent"),
    ("unsent", "/requests/unsent"),
    ("in_flight", "/requests/in_flight"),
    ("interrupted", "/interrupted"),
    ("method", "/method"),
    ("requested_rate_per_s", "/requested_rate"),
    ("started_at", "/started_at"),
    ("version", "/version"),
];

/// Checks that the file of the option `flag` can probably be written.
pub fn check_file(flag: &str, path: &Path) -> Result<(), String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if path.is_dir() {
        return Err(format!("{flag} {}: it is a directory", path.display()));
    }
    if parent.is_some_and(|parent| !parent.is_dir()) {
        return Err(format!("{flag} {}: its directory does not exist", path.display()));
    }
    Ok(())
}

impl Outputs<'_> {
    /// Checks before the run that the files can probably be written after the run. Fails if two
    /// results go to standard output.
    pub fn check(self) -> Result<(), String> {
        if self.files().filter(|(_, path)| is_stdout(path)).count() > 1 {
            return Err("only one result can go to standard output".to_owned());
        }
        let mut files = self.files().filter(|(_, path)| !is_stdout(path));
        files.try_for_each(|(flag, path)| check_file(flag, path))
    }

    /// Returns true if a result goes to standard output.
    pub fn uses_stdout(self) -> bool {
        self.files().any(|(_, path)| is_stdout(path))
    }

    /// Writes all results, even after an error, and returns the first error. `more` is the name and
    /// the value of a further field for the JSON.
    pub fn write(self, outcome: &Outcome, more: Option<(&str, Value)>) -> Result<(), String> {
        let mut json = outcome.to_json();
        if let Some((name, value)) = more {
            json[name] = value;
        }
        self.write_json(outcome, &json)
    }

    /// Writes all results of `outcome`, even after an error, and returns the first error. `json` is
    /// the JSON of `outcome`.
    pub fn write_json(self, outcome: &Outcome, json: &Value) -> Result<(), String> {
        let results = self.files().map(|(flag, path)| {
            let bytes = match flag {
                "--json" => format!("{json:#}\n").into_bytes(),
                "--csv" => csv(json).into_bytes(),
                "--html" => html(outcome, json)?,
                _ => outcome.latency.interval_log(outcome.started_at, outcome.duration),
            };
            let written = if is_stdout(path) {
                io::stdout().write_all(&bytes)
            } else {
                fs::write(path, bytes)
            };
            written.map_err(|error| format!("{flag} {}: {error}", path.display()))
        });
        results.fold(Ok(()), Result::and)
    }

    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [("--json", self.json), ("--csv", self.csv), ("--hlog", self.hlog)];
        files
            .into_iter()
            .chain([("--html", self.html)])
            .filter_map(|(flag, path)| path.map(|path| (flag, path)))
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the HTML page. The list of problems is from `json`, which has the problems of all
/// machines of a merged result.
fn html(outcome: &Outcome, json: &Value) -> Result<Vec<u8>, String> {
    let problems = json["problems"].as_array().into_iter().flatten();
    let problems: Vec<String> = problems.filter_map(Value::as_str).map(str::to_owned).collect();
    let page = bench_page(outcome, &problems).map_err(|error| format!("--html: {error}"))?;
    Ok(page.into_bytes())
}

/// Returns the CSV file: a heading and one row (RFC 4180).
fn csv(json: &Value) -> String {
    let names: Vec<_> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let values: Vec<_> = COLUMNS
        .iter()
        .map(|(_, place)| match json.pointer(place) {
            Some(Value::String(text)) => format!("\"{}\"", text.replace('"', "\"\"")),
            Some(Value::Null) | None => String::new(),
            Some(value) => value.to_string(),
        })
        .collect();
    format!("{}\r\n{}\r\n", names.join(","), values.join(","))
}
