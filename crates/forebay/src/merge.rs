//! Subcommand `forebay merge`: adds up the results of several bench machines.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use forebay_load::{Goal, Merged, Outcome, Url, merge};
use serde_json::Value;

use crate::CANNOT_WRITE;
use crate::bench::conditions::{self, Conditions};
use crate::bench::{export, report};

/// Add up the results of several bench machines
///
/// Each FILE is the JSON of one `forebay bench --json` run. All runs must have loaded the same
/// server at the same time, usually with --shard and --start-at. Counts, latency histograms and the
/// counts of each second are added up exactly. The report names each machine that was saturated,
/// late or missing.
///
/// Exit codes: 0 success; 1 requests failed, replies had a status of 4xx or 5xx (unless
/// --allow-failures is given), no request was completed, a condition of --fail-if holds, or a machine
/// was saturated, late or missing, or missed its rate; 2 wrong usage, or a file that is no result of
/// this load; 3 a result file cannot be written; 4 inconclusive (--fail-if).
#[derive(clap::Args)]
pub struct MergeArgs {
    /// Results of `forebay bench --json`
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write the sum as JSON, with each machine in `shards`. With - it goes to standard output, and
    /// the report to standard error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the sum as CSV, with one row of values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the latencies as an HdrHistogram interval log, in microseconds
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Write a page with charts: rate and latency over time, distribution and errors. The page
    /// loads nothing from elsewhere
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Exit with 1 if one of these conditions holds, such as 'p99>50ms,rate<500'. Exit with 4 if
    /// there are too few requests to decide
    #[arg(long, value_name = "CONDITIONS", value_delimiter = ',')]
    fail_if: Vec<Goal>,
    /// Exit with 0 even if requests failed
    #[arg(long)]
    allow_failures: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

/// Maximum size of a file with results. A run of a day has about 100 MB.
const LARGEST: u64 = 1 << 30;

pub fn run(args: &MergeArgs) -> ExitCode {
    let outputs = export::Outputs {
        json: args.json.as_deref(),
        csv: args.csv.as_deref(),
        hlog: args.hlog.as_deref(),
        html: args.html.as_deref(),
    };
    let merged = outputs.check().and_then(|()| read_all(&args.files)).and_then(merge);
    let merged = match merged {
        Ok(merged) => merged,
        Err(why) => return fail(2, &why),
    };
    if !args.quiet {
        let text = report::text(&merged.outcome) + &report::shards(&merged);
        // If the report cannot be printed because the pipe is closed, still write the result files.
        let _ = if outputs.uses_stdout() {
            io::stderr().write_all(text.as_bytes())
        } else {
            io::stdout().write_all(text.as_bytes())
        };
    }
    if let Err(why) = outputs.write_json(&merged.outcome, &merged.to_json()) {
        return fail(CANNOT_WRITE, &why);
    }
    exit_code(args, &merged)
}

fn exit_code(args: &MergeArgs, merged: &Merged) -> ExitCode {
    let outcome = &merged.outcome;
    let conditions = conditions::check(&args.fail_if, outcome, print_stderr);
    let has_failures = outcome.requests.failed > 0 || outcome.error_replies() > 0;
    let is_bad = has_failures && !args.allow_failures || !merged.problems().is_empty();
    ExitCode::from(match conditions {
        Conditions::Hold => 1,
        _ if is_bad || outcome.is_interrupted => 1,
        Conditions::Unknown => conditions::INCONCLUSIVE,
        Conditions::Fine if outcome.rate_doubt().is_some() => conditions::INCONCLUSIVE,
        Conditions::Fine => 0,
    })
}

/// Reads all files. The path of each file is also the name of its result. A file that is given
/// twice is an error.
fn read_all(files: &[PathBuf]) -> Result<Vec<(String, Outcome)>, String> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut results = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let path = file.canonicalize().map_err(|error| format!("{name}: {error}"))?;
        if seen.contains(&path) {
            return Err(format!("{name}: it is given twice"));
        }
        seen.push(path);
        results.push((name.clone(), read(file).map_err(|why| format!("{name}: {why}"))?));
    }
    Ok(results)
}

/// Reads the results of one run.
pub fn read(path: &Path) -> Result<Outcome, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LARGEST {
        return Err("it is larger than 1 GiB".to_owned());
    }
    let json: Value =
        serde_json::from_slice(&bytes).map_err(|error| format!("no JSON: {error}"))?;
    match json["schema"].as_str() {
        Some("forebay.bench/1") => {}
        Some(other) => return Err(format!("it has the schema {other:?}, not forebay.bench/1")),
        None => return Err("it is no result of `forebay bench --json`".to_owned()),
    }
    let damaged = |field: String| format!("damaged or missing field: {field}");
    let mut outcome = Outcome::from_json(&json).map_err(damaged)?;
    Url::parse(&outcome.url).map_err(|_| damaged("url".to_owned()))?;
    // A terminal must not obey control characters in a file.
    let clean = |text: &mut String| *text = text.replace(char::is_control, " ");
    outcome.first_failure.iter_mut().for_each(clean);
    outcome.parts.iter_mut().for_each(|part| clean(&mut part.url));
    outcome.servers.iter_mut().for_each(|server| clean(&mut server.server));
    clean(&mut outcome.method);
    Ok(outcome)
}

fn fail(code: u8, why: &str) -> ExitCode {
    print_stderr(why);
    ExitCode::from(code)
}

fn print_stderr(line: &str) {
    let _ = writeln!(io::stderr(), "forebay merge: {line}");
}
