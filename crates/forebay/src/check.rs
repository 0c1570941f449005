//! The `forebay check` subcommand.

use std::process::ExitCode;

/// Filled in with the subcommand.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> ExitCode {
    ExitCode::from(2)
}
