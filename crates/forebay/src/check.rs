//! The `forebay check` subcommand.

use std::path::PathBuf;
use std::process::ExitCode;

use forebay_conf::Plan;

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
        println!("{}", forebay_conf::schema());
        return ExitCode::SUCCESS;
    };
    match forebay_conf::load(&file) {
        Ok(plan) => {
            println!("{}: ok, {}", file.display(), summary(&plan));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint!("{error}");
            ExitCode::from(2)
        }
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
