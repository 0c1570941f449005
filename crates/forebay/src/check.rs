//! Subcommand `forebay check`.

mod requests;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use forebay_conf::{ConfError, Plan};
use forebay_gateway::expect::{self, Outcome, Tested};
use forebay_gateway::{AppStart, check_spool, check_store, start_helper, try_starts};
use forebay_net::privileges::{PrivilegeError, drop_privileges, hide_memory};
use forebay_process::{Severity, end_root, record_descriptors};

use crate::serve::cores;

/// Check a configuration file without serving it
#[derive(clap::Args)]
#[command(after_help = "\
The file is read, and its paths, programs, users and groups are looked up on this machine, as
`forebay serve` does before it starts. Python must be recent enough and have the module of a
WSGI application. Code of the application runs only with --start.

The tests of `expect` are run without starting anything: rules and files decide the answers. A
status that an application or a backend chooses is compared only with --start, which serves the
configuration over private sockets and sends the requests. A test that fails gives exit code 2.

These facts are not checked:
that ports are free, that names of backends have addresses, and that the user who starts Forebay
may switch to another user (root may). The checks assume the current user. A normal user is
therefore not warned that `serve` as root refuses PHP without a `user`, and Python is not checked
for an application with a `user`.")]
pub struct CheckArgs {
    /// The configuration file
    #[arg(required_unless_present = "schema")]
    file: Option<PathBuf>,

    /// Start each application as `forebay serve` does, report failures, and end the applications.
    /// Send the requests of `expect`, too
    #[arg(long, conflicts_with = "schema")]
    start: bool,

    /// Also print what a reload would change for a running server: its address (unix:PATH or
    /// ADDRESS:PORT of `admin`), or its configuration file
    #[arg(long, value_name = "RUNNING", conflicts_with = "schema")]
    diff: Option<String>,

    /// Print the JSON Schema of the configuration file
    #[arg(long, conflicts_with = "file")]
    schema: bool,
}

pub fn run(args: CheckArgs) -> ExitCode {
    let Some(file) = args.file else {
        return print_line(&forebay_conf::schema());
    };
    match checked(&file) {
        Ok((plan, warnings)) => {
            let _ = write!(std::io::stderr(), "{warnings}");
            if let Some(running) = &args.diff {
                match requests::with(running, &plan) {
                    Ok(text) => drop(write!(std::io::stdout(), "{text}")),
                    Err((code, why)) => {
                        let _ = writeln!(std::io::stderr(), "forebay check: {}", why.trim_end());
                        return ExitCode::from(code);
                    }
                }
            }
            let mut tests = expect::expectations(&plan);
            // Send the requests before this process drops root: `send` starts a server, which may
            // need root to change its user.
            let replies =
                if args.start { requests::send(&file, &plan, &mut tests) } else { Ok(()) };
            if args.start && !starts(&plan) {
                return ExitCode::from(3);
            }
            if let Err(error) = replies {
                let _ = writeln!(std::io::stderr(), "forebay: cannot serve for the tests: {error}");
                return ExitCode::from(3);
            }
            if let Some(error) = failed(&plan, &tests) {
                let _ = write!(std::io::stderr(), "{error}");
                print_line(&format!("{}: {}", file.display(), tested(&tests)));
                return ExitCode::from(2);
            }
            if let Err(error) = spools(&plan, args.start) {
                let _ = write!(std::io::stderr(), "{error}");
                return ExitCode::from(2);
            }
            let tested =
                if tests.is_empty() { String::new() } else { format!("; {}", tested(&tests)) };
            print_line(&format!("{}: ok, {}{tested}", file.display(), summary(&plan)))
        }
        Err(error) => {
            let _ = write!(std::io::stderr(), "{error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the failed tests as one error that shows their lines in the file. Returns `None` if no
/// test failed.
fn failed(plan: &Plan, tests: &[Tested]) -> Option<ConfError> {
    let findings = tests.iter().filter_map(|test| match &test.outcome {
        Outcome::Fails(why) => Some(test.finding(plan, why)),
        Outcome::Holds | Outcome::Undecided => None,
    });
    let findings: Vec<_> = findings.collect();
    (!findings.is_empty()).then(|| plan.refuse(&findings))
}

/// Summarizes the tests in text such as `3 tests hold, 1 fails, 2 need --start`.
fn tested(tests: &[Tested]) -> String {
    let count = |is_meant: fn(&Outcome) -> bool| {
        tests.iter().filter(|test| is_meant(&test.outcome)).count()
    };
    let hold = count(|outcome| *outcome == Outcome::Holds);
    let fail = count(|outcome| matches!(outcome, Outcome::Fails(_)));
    let open = count(|outcome| *outcome == Outcome::Undecided);
    let mut text = match hold {
        1 => "1 test holds".to_owned(),
        hold => format!("{hold} tests hold"),
    };
    for (number, one, many) in [(fail, "fails", "fail"), (open, "needs --start", "need --start")] {
        if number > 0 {
            text += &format!(", {number} {}", if number == 1 { one } else { many });
        }
    }
    text
}

/// Checks that the user of `[server]` can write large bodies to the spool directory. First changes
/// this process to that user, unless the process already runs as that user (`is_user`).
fn spools(plan: &Plan, is_user: bool) -> Result<(), String> {
    let server = &plan.server;
    if server.spool_dir.is_some() && !is_user {
        match drop_privileges(server.user.as_deref(), server.group.as_deref()) {
            Ok(()) | Err(PrivilegeError::NotRoot) => {}
            Err(error) => return Err(format!("forebay: {error}\n")),
        }
    }
    check_spool(plan).map_err(|error| error.to_string())
}

/// Starts and ends each application as the user of `[server]`. Returns true if all of them started.
fn starts(plan: &Plan) -> bool {
    let server = &plan.server;
    if let Err(error) = start_helper(plan) {
        let _ = writeln!(std::io::stderr(), "forebay: cannot start a helper: {error}");
        return false;
    }
    if let Err(error) = drop_privileges(server.user.as_deref(), server.group.as_deref()) {
        let _ = writeln!(std::io::stderr(), "forebay: {error}");
        return false;
    }
    hide_memory();
    record_descriptors();
    let log = |_: Severity, line: &str| drop(writeln!(std::io::stderr(), "{line}"));
    let mut all = true;
    for AppStart { name, outcome } in try_starts(plan, log) {
        let _ = match outcome {
            Ok(()) => writeln!(std::io::stderr(), "app {name}: starts"),
            Err(error) => {
                all = false;
                writeln!(std::io::stderr(), "forebay: cannot start {error}")
            }
        };
    }
    end_root();
    all
}

/// Returns the plan of a configuration file, and its warnings as text.
fn checked(file: &Path) -> Result<(Plan, String), String> {
    let (mut plan, warnings) = looked_up(file).map_err(|error| error.to_string())?;
    let threads = plan.server.threads.unwrap_or_else(cores);
    let notes = plan.share_connections(threads).map_err(|why| format!("forebay: {why}\n"))?;
    let warnings = warnings.iter().map(ConfError::to_string);
    let store = check_store(&plan).map(|why| {
        format!("WARNING: {why}; `serve` starts without it, and shares nothing until it is there")
    });
    let notes = notes.iter().chain(&store).map(|note| format!("forebay: {note}\n"));
    let lines = warnings.chain(notes).collect();
    Ok((plan, lines))
}

fn looked_up(file: &Path) -> Result<(Plan, Option<ConfError>), ConfError> {
    let (plan, warnings) = forebay_gateway::usable(forebay_conf::load(file)?, |_| {})?;
    forebay_gateway::probe_interpreters(&plan)?;
    Ok((plan, warnings))
}

/// Prints a line. Ignores a closed pipe, but reports a full disk with the exit code 3.
fn print_line(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "forebay check: standard output: {error}");
            ExitCode::from(3)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Summarizes the plan in text such as `1 site, 3 routes, 0 apps`.
fn summary(plan: &Plan) -> String {
    let count = |number: usize, noun: &str| {
        format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
    };
    let routes = plan.sites.iter().map(|site| site.routes.len()).sum();
    let mut counts = vec![
        count(plan.sites.len(), "site"),
        count(routes, "route"),
        count(plan.apps.len(), "app"),
    ];
    if !plan.relays.is_empty() {
        counts.push(count(plan.relays.len(), "stream"));
    }
    counts.join(", ")
}
