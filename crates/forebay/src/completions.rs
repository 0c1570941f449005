//! Subcommand `forebay completions`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap_complete::Shell;

/// Print a script that completes Forebay's subcommands and options in a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay completions bash > /usr/share/bash-completion/completions/forebay
  forebay completions zsh > /usr/share/zsh/vendor-completions/_forebay
  forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub struct CompletionsArgs {
    /// Shell that runs the script
    shell: Shell,
}

/// Prints the script for `command`.
pub fn run(args: &CompletionsArgs, mut command: clap::Command) -> ExitCode {
    // Generate the script in memory, because `generate` panics if a write fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "forebay", &mut script);
    match io::stdout().write_all(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: cannot print the script: {error}");
            ExitCode::from(super::CANNOT_WRITE)
        }
    }
}
