//! The `forebay check` subcommand.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use forebay_conf::Plan;

use crate::serve::cores;

/// Check a configuration file without starting anything
#[derive(clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(required_unless_present = "schema")]
    file: Option<PathBuf>,

    /// Print the JSON Schema of the configuration file
    #[arg(long, conflicts_with = "file")]
    schema: bool,
}

pub fn run(args: Args) -> ExitCode {
    let Some(file) = args.file else {
        return tell(&forebay_conf::schema());
    };
    let loaded = forebay_conf::load(&file).map_err(|error| error.to_string());
    let settled = loaded.and_then(|mut plan| {
        let threads = plan.server.threads.unwrap_or_else(cores);
        let shared = plan.share_connections(threads);
        shared.map(|_| plan).map_err(|why| format!("{}: {why}\n", file.display()))
    });
    match settled {
        Ok(plan) => tell(&format!("{}: ok, {}", file.display(), summary(&plan))),
        Err(error) => {
            let _ = write!(std::io::stderr(), "{error}");
            ExitCode::from(2)
        }
    }
}

/// Prints a line; a reader that has gone is not missed, a full disk is told.
fn tell(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "forebay check: standard output: {error}");
            ExitCode::from(3)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// `1 site, 3 routes, 0 apps`
fn summary(plan: &Plan) -> String {
    let count = |number: usize, noun: &str| {
        format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
    };
    let routes = plan.sites.iter().map(|site| site.routes.len()).sum();
    [count(plan.sites.len(), "site"), count(routes, "route"), count(plan.apps.len(), "app")]
        .join(", ")
}
