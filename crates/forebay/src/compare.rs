//! Subcommand `forebay compare`.

mod against;
mod decision;
mod quick;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use forebay_lab::{
    Amount, Experiment, Halt, Interrupt, MaxFailed, Options, Plan, Progress, ProgressLines, Silent,
    report,
};

use crate::bench::number;
use against::{Saving, WorkDirectories};
use decision::Decisions;

/// Compare several ways to serve an application: report which is faster, by how much, and with what
/// certainty.
///
/// Forebay starts the servers and loads them in turns. Give an experiment file, URLs of servers
/// that already run (--url), or commands that start servers (--cmd).
///
/// Exit codes: 0 success; 1 a trial failed, more requests failed or had a wrong reply than
/// --max-failed allows, or a configuration is slower than --threshold allows; 2 wrong usage, and
/// nothing was started; 3 a server could not be started; 4 inconclusive: the measurement cannot
/// decide about --threshold, or no trial counts; 130 or 143 interrupted by Ctrl-C or SIGTERM.
#[derive(clap::Args)]
// More than 20 fields: one for each option of the command. clap makes `--help` and the man page
// from them.
pub struct CompareArgs {
    /// The experiment file (TOML)
    #[arg(required_unless_present_any = ["urls", "commands"])]
    file: Option<PathBuf>,
    /// URL of a server that already runs; may be repeated. The others are compared with the first
    #[arg(long = "url", value_name = "URL", conflicts_with = "file")]
    urls: Vec<String>,
    /// Command that starts a server on 127.0.0.1:{port}, which PORT also contains; may be repeated
    #[arg(long = "cmd", value_name = "COMMAND", conflicts_with = "file")]
    commands: Vec<String>,
    /// Path to request from the servers of --cmd
    #[arg(long, value_name = "PATH", requires = "commands", default_value = "/")]
    path: String,
    /// Time of measurement per server and round, such as 5s; overrides the file
    #[arg(long, value_name = "TIME", value_parser = number::parse)]
    duration: Option<Duration>,
    /// Run rounds until the ends of every interval are at most this far from its middle, such as
    /// '+-3%'. At most --rounds rounds are run, 40 by default
    #[arg(long, value_name = "PERCENT", value_parser = number::percent, allow_hyphen_values = true)]
    until: Option<f64>,
    /// Exit with 1 if a configuration is slower than the baseline by more than this. With
    /// --against, configurations are compared with their earlier form, and the default is 5%
    #[arg(long, value_name = "PERCENT", value_parser = number::percent)]
    threshold: Option<f64>,
    /// Requests of a configuration that may fail or have a wrong reply, such as 10 or 0.1%; overrides
    /// the file [default: 0]
    #[arg(long, value_name = "COUNT|PERCENT")]
    max_failed: Option<MaxFailed>,
    /// Save the results under this name, in the directory forebay-saved next to the experiment file
    #[arg(long, value_name = "NAME", value_parser = against::name)]
    save: Option<String>,
    /// Compare each configuration with an earlier form: saved results (--save), or a git revision.
    /// The revision is checked out below --out and built with [against] build. If a configuration
    /// starts differently now, its earlier form is measured again
    #[arg(long, value_name = "NAME|REVISION", conflicts_with = "aa")]
    against: Option<String>,
    /// Write the decision about each configuration as JUnit XML: failed, slower than --threshold,
    /// or undecided
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Trials per configuration; overrides the file
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Concurrent connections; overrides the file
    #[arg(long, value_parser = connections)]
    connections: Option<u32>,
    /// Close each connection after one reply; overrides the file
    #[arg(long)]
    no_keepalive: bool,
    /// Run only this configuration and the baseline; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "aa")]
    only: Vec<String>,
    /// Seed of an earlier run, whose order is repeated
    #[arg(long)]
    seed: Option<u64>,
    /// Continue an experiment that ended early, from report.json in --out. With larger --rounds, it
    /// runs more rounds
    #[arg(long, conflicts_with = "seed")]
    resume: bool,
    /// After the measurement, load each configuration again under perf. Flame graphs, and
    /// differences from the baseline, are added to the page. With --resume, they are added to a
    /// finished run
    #[arg(long)]
    profile: bool,
    /// Directory for report.html, report.md, report.csv, report.json and, with --profile,
    /// profile-NAME.folded
    #[arg(long, value_name = "DIR", default_value = "forebay-report")]
    out: PathBuf,
    /// Also write the JSON to this file. With `-` it goes to standard output, instead of the table
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Compare the baseline with itself, to measure the noise of this machine
    #[arg(long)]
    aa: bool,
    /// Print only errors
    #[arg(long)]
    quiet: bool,
}

/// Default of `--rounds` if `--until` is given.
const MOST_ROUNDS: u32 = 40;
/// Default of `--threshold` if `--against` is given.
const THRESHOLD: f64 = 0.05;
/// File in the directory of `--out` that contains all measurements.
const REPORT: &str = "report.json";
/// Exit code if a configuration failed or is slower than allowed.
const FAILED: u8 = 1;
/// Exit code if the measurement is inconclusive.
const INCONCLUSIVE: u8 = 4;
/// Exit code if nothing was started: wrong usage, an invalid experiment file, or an output
/// directory or file that cannot be written.
const REFUSED: u8 = 2;
/// Exit code if a server, or something that it needs, could not be started, or if the reports could
/// not be written after the measurement.
const NOT_STARTED: u8 = 3;

pub fn run(args: CompareArgs) -> ExitCode {
    match compare(&args) {
        Ok(code) => code,
        Err(message) => {
            print_stderr(message.trim_end());
            ExitCode::from(REFUSED)
        }
    }
}

/// Carries out the comparison. An error (`Err`) means that nothing was measured. If reports cannot
/// be written after the measurement, returns the exit code [`NOT_STARTED`].
fn compare(args: &CompareArgs) -> Result<ExitCode, String> {
    let mut plan = plan(args)?;
    let program = std::env::current_exe()
        .map_err(|error| format!("error: cannot find the running program: {error}"))?;
    let interrupt =
        Interrupt::watch().map_err(|error| format!("error: cannot watch signals: {error}"))?;
    check_outputs(args)?;
    let earlier = if args.resume { Some(earlier(&args.out)?) } else { None };
    let seed = match &earlier {
        Some(earlier) => earlier.seed,
        None => args.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ now()),
    };
    let saved = match &args.against {
        Some(label) => {
            let place =
                WorkDirectories { file: args.file.as_deref(), out: &args.out, quiet: args.quiet };
            against::prepare(&mut plan, label, &place)?
        }
        None => Vec::new(),
    };
    let options = Options {
        seed,
        against_itself: args.aa,
        until: args.until,
        earlier,
        saved,
        profile: args.profile,
    };
    let shown: Box<dyn Progress> = if args.quiet {
        Box::new(Silent)
    } else {
        print_stderr(format_args!("seed {seed} (to repeat this order: --seed {seed})"));
        Box::new(ProgressLines::new(&plan))
    };
    let mut progress = Saving::new(shown, args.out.join(REPORT));
    let ran = forebay_lab::run(plan, options, program, &interrupt, &mut progress);
    drop(progress);
    let experiment = ran.map_err(|difference| {
        let path = args.out.join(REPORT);
        format!(
            "error: --resume: this experiment differs from the one in {}: {difference}; start again \
             without --resume, or use another directory with --out",
            path.display()
        )
    })?;
    let threshold = args.threshold.or(args.against.as_ref().map(|_| THRESHOLD));
    let decisions = Decisions::of(&experiment, threshold);
    let written = write_reports(args, &experiment).and_then(|()| match &args.junit {
        Some(path) => against::replace(path, decisions.junit().as_bytes())
            .map_err(|error| cannot_write(path, &error)),
        None => Ok(()),
    });
    let written = written.and_then(|()| save(args, &experiment));
    if let Err(message) = written {
        print_stderr(message);
        let kept = args.out.join(REPORT);
        if experiment.measured_anything() && kept.is_file() {
            print_stderr(format_args!(
                "the measurements are in {}: free disk space and write the reports with --resume, which \
                 measures only what is missing",
                kept.display()
            ));
        }
        return Ok(ExitCode::from(NOT_STARTED));
    }
    decisions.print(&experiment);
    let has_not_started = matches!(experiment.halt, Some(Halt::CannotStart { .. }))
        || experiment.results.iter().any(|results| results.start_failure().is_some());
    if !args.commands.is_empty() && has_not_started {
        print_stderr("a command of --cmd must listen on 127.0.0.1:{port}, which is also in PORT");
    }
    Ok(exit_code(&experiment, &decisions, &interrupt))
}

/// Saves the results for `--against` if `--save` is given and the experiment is complete.
fn save(args: &CompareArgs, experiment: &Experiment) -> Result<(), String> {
    let Some(name) = args.save.as_ref().filter(|_| experiment.halt.is_none()) else {
        return Ok(());
    };
    let path = against::save(experiment, name)?;
    if !args.quiet {
        print_stderr(format_args!("saved: {} (compare with it: --against {name})", path.display()));
    }
    Ok(())
}

/// Reads the results of an earlier run from the directory `out`.
fn earlier(out: &Path) -> Result<Experiment, String> {
    let path = out.join(REPORT);
    let wrong = |why: String| {
        format!(
            "error: --resume: cannot continue from {}: {why}; start again without --resume, or give \
             the directory of the earlier run with --out",
            path.display()
        )
    };
    let text = fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
    let mut experiment = report::read(&text).map_err(wrong)?;
    report::read_folded(&mut experiment, out);
    Ok(experiment)
}

/// Creates the output directory. Checks that results can probably be written there and to the file
/// of `--json`. Call this before the experiment starts, so that no results are lost at its end.
fn check_outputs(args: &CompareArgs) -> Result<(), String> {
    fs::create_dir_all(&args.out).map_err(|error| cannot_write(&args.out, &error))?;
    tempfile::tempfile_in(&args.out).map_err(|error| cannot_write(&args.out, &error))?;
    let Some(path) = args.json.as_deref().filter(|path| *path != Path::new("-")) else {
        return Ok(());
    };
    let problem = |why: &str| format!("error: --json {}: {why}", path.display());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        _ if path.is_dir() => Err(problem("it is a directory")),
        Some(parent) if !parent.is_dir() => Err(problem("its directory does not exist")),
        _ => Ok(()),
    }
}

/// Parses a number of connections, such as 500 or 1k.
fn connections(text: &str) -> Result<u32, String> {
    const MOST: u32 = 60_000;
    match number::count(text)? {
        count @ 1..=MOST => Ok(count),
        _ => Err(format!("write a number from 1 to {MOST}")),
    }
}

/// Reads the plan and applies the options of the command line.
fn plan(args: &CompareArgs) -> Result<Plan, String> {
    let mut plan = match &args.file {
        Some(file) => Plan::read(file).map_err(|problem| problem.to_string())?,
        None => quick::plan(&args.urls, &args.commands, &args.path, args.aa)?,
    };
    let rounds = if args.until.is_some() { MOST_ROUNDS } else { plan.rounds };
    plan.rounds = args.rounds.unwrap_or(rounds);
    if let Some(duration) = args.duration {
        if duration.is_zero() {
            return Err("error: --duration: give a time greater than zero".to_owned());
        }
        plan.load.amount = Amount::Duration(duration);
    }
    if let Some(connections) = args.connections {
        plan.load.connections = connections;
        plan.load.threads = plan.load.threads.min(connections);
    }
    if args.no_keepalive && plan.load.client.is_some() {
        let why = "the client is a command, which decides itself about keep-alive";
        return Err(format!("error: --no-keepalive: {why}"));
    }
    plan.load.keepalive &= !args.no_keepalive;
    plan.check.max_failed = args.max_failed.or(plan.check.max_failed);
    if args.aa {
        plan.against_itself();
    }
    if !args.only.is_empty() {
        plan.keep_only(&args.only).map_err(|name| {
            let names: Vec<&str> = plan
                .configurations
                .iter()
                .map(|configuration| configuration.name.as_str())
                .collect();
            format!(
                "error: --only {name:?}: no such configuration; there are: {}",
                names.join(", ")
            )
        })?;
    }
    Ok(plan)
}

fn write_reports(args: &CompareArgs, experiment: &Experiment) -> Result<(), String> {
    let json = format!("{:#}\n", report::json(experiment));
    let page = report::html(experiment)
        .map_err(|error| format!("error: cannot draw the page: {error}"))?;
    let files = [
        ("report.html", page),
        ("report.md", report::markdown(experiment)),
        ("report.csv", report::csv(experiment)),
    ];
    // The JSON report comes first, because all other files can be created from it.
    for (name, text) in [(REPORT, json.clone())].into_iter().chain(files) {
        let path = args.out.join(name);
        against::replace(&path, text.as_bytes()).map_err(|error| cannot_write(&path, &error))?;
    }
    against::write_stacks(experiment, &args.out)?;
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    match &args.json {
        Some(_) if to_stdout => print(&json),
        Some(path) => fs::write(path, &json).map_err(|error| cannot_write(path, &error))?,
        None => {}
    }
    if !to_stdout && !args.quiet && experiment.measured_anything() {
        print(&report::table(experiment));
        print(&format!("\nreport: {}\n", args.out.join("report.html").display()));
    }
    Ok(())
}

/// Returns the exit code. If the comparison ended early, prints the reason.
fn exit_code(experiment: &Experiment, decisions: &Decisions, interrupt: &Interrupt) -> ExitCode {
    match &experiment.halt {
        Some(Halt::Interrupted) => {
            print_stderr(
                "error: interrupted; everything that was started has been ended. Continue with --resume",
            );
            ExitCode::from(interrupt.exit_code())
        }
        Some(halt) => {
            print_stderr(format_args!("error: {halt}"));
            if let Halt::CannotStart { output, .. } = halt {
                quote(output);
            }
            ExitCode::from(NOT_STARTED)
        }
        None if experiment.results.iter().all(|results| !results.missing.is_empty()) => {
            print_stderr("error: nothing to compare: every configuration lacks a requirement");
            for results in &experiment.results {
                let name = &results.configuration.name;
                print_stderr(format_args!("  {name}: not found: {}", results.missing.join(", ")));
            }
            ExitCode::from(NOT_STARTED)
        }
        None if print_start_failures(experiment) => ExitCode::from(NOT_STARTED),
        None if decisions.has_problem() => ExitCode::from(FAILED),
        None if decisions.is_undecided() => ExitCode::from(INCONCLUSIVE),
        None => ExitCode::SUCCESS,
    }
}

/// Prints the reason and the output of each configuration that did not start. Returns true if at
/// least one configuration did not start.
fn print_start_failures(experiment: &Experiment) -> bool {
    let failed = experiment.results.iter();
    let failed = failed.filter_map(|results| Some((results, results.start_failure()?)));
    let mut is_any = false;
    for (results, failure) in failed {
        let name = &results.configuration.name;
        print_stderr(format_args!("error: \"{name}\" could not be started: {}", failure.reason));
        quote(&failure.output);
        is_any = true;
    }
    is_any
}

fn quote(output: &[String]) {
    if output.is_empty() {
        print_stderr("  it printed nothing");
        return;
    }
    print_stderr("  the end of what it printed:");
    for line in output {
        print_stderr(format_args!("  | {line}"));
    }
}

/// Prints to standard output. Ignores errors, because a closed pipe (for example one to `head`) is
/// no failure.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints a line to standard error. Ignores errors as [`print()`] does.
fn print_stderr(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn cannot_write(path: &Path, error: &std::io::Error) -> String {
    format!(
        "error: cannot write {}: {error}; choose another directory with --out or --json",
        path.display()
    )
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
