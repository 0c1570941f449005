//! Subcommand `forebay man`: manual pages from the text of `--help`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap_mangen::Man;

/// Write manual pages: forebay.1, and one for each subcommand
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay man                               print forebay(1)
  forebay man /usr/local/share/man/man1     write all pages into a directory")]
pub struct ManArgs {
    /// Directory for all pages. Without it, forebay(1) is printed to standard output
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the page of `command`, or writes all pages to the directory.
pub fn run(args: &ManArgs, command: clap::Command) -> ExitCode {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let written = match &args.dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .map_err(|error| format!("cannot write manual pages into {}: {error}", dir.display())),
        None => Man::new(command)
            .render(&mut io::stdout())
            .map_err(|error| format!("cannot print the manual page: {error}")),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {error}");
            ExitCode::from(super::CANNOT_WRITE)
        }
    }
}
