//! The `forebay compare` subcommand.

use std::process::ExitCode;

/// Filled in with the subcommand.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> ExitCode {
    ExitCode::from(2)
}

/// Filled in with the subcommand.
#[derive(clap::Args)]
pub struct KeeperArgs {}

pub fn keep(_args: KeeperArgs) -> ExitCode {
    ExitCode::from(2)
}
