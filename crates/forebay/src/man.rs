//! Subcommands `forebay man`: manual pages from the text of `--help`, and `forebay completions`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;
use clap_mangen::Man;
use jiff::Timestamp;

/// Longest line of a page's source, in bytes. `mandoc -Tlint` reports lines of more than 80.
const LINE: usize = 78;

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
            .and_then(|()| write_all(&command, dir))
            .map_err(|error| format!("cannot write manual pages into {}: {error}", dir.display())),
        None => page(&command)
            .and_then(|page| io::stdout().write_all(page.as_bytes()))
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

/// Writes the pages of `command` and of all its subcommands.
fn write_all(command: &clap::Command, dir: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_all(subcommand, dir)?;
    }
    std::fs::write(dir.join(format!("{}.1", title(command))), page(command)?)
}

fn title(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Returns the source of the page of `command`.
fn page(command: &clap::Command) -> io::Result<String> {
    let man = Man::new(command.clone())
        .title(title(command).to_uppercase())
        .date(date())
        .source(format!("Forebay {}", env!("CARGO_PKG_VERSION")))
        .manual("Forebay Manual");
    let mut source = Vec::new();
    man.render(&mut source)?;
    Ok(tidy(&String::from_utf8_lossy(&source)))
}

/// Returns the date of the pages: SOURCE_DATE_EPOCH if a reproducible build sets it, else today.
fn date() -> String {
    let fixed = std::env::var("SOURCE_DATE_EPOCH").ok();
    let fixed = fixed.and_then(|seconds| Timestamp::from_second(seconds.parse().ok()?).ok());
    fixed.unwrap_or_else(Timestamp::now).strftime("%Y-%m-%d").to_string()
}

/// Breaks long lines, keeps the columns of examples, and removes spaces at the ends of lines.
fn tidy(source: &str) -> String {
    // clap writes `.br`, an empty line and `.br`. The command `.sp` prints the same empty line.
    let source = source.replace("\n.br\n\n.br\n", "\n.sp\n");
    let source = source.replace("\n.SH EXTRA\nExamples:\n", "\n.SH EXAMPLES\n");
    let mut tidied = String::with_capacity(source.len() + source.len() / 8);
    let mut verbatim = false;
    for line in source.lines() {
        let is_example = line.starts_with("  ");
        if is_example != verbatim {
            tidied += if is_example { ".nf\n" } else { ".fi\n" };
            verbatim = is_example;
        }
        let line = line.trim_end();
        if verbatim || line.starts_with('.') {
            tidied += line;
            tidied.push('\n');
        } else {
            wrap(line, &mut tidied);
        }
    }
    if verbatim {
        tidied += ".fi\n";
    }
    tidied
}

/// Appends `text` in lines of at most [`LINE`] bytes. A longer word is not broken.
fn wrap(text: &str, wrapped: &mut String) {
    let mut length = 0;
    let mut previous = "";
    for word in text.split(' ') {
        // Do not break the line at a space after a backslash, because roff treats this space as
        // part of the word.
        if length + 1 + word.len() > LINE && length > 0 && !previous.ends_with('\\') {
            wrapped.push('\n');
            length = 0;
            // roff would read a line that begins with `.` or `'` as a command.
            if word.starts_with(['.', '\'']) {
                *wrapped += "\\&";
            }
        } else if length > 0 {
            wrapped.push(' ');
            length += 1;
        }
        *wrapped += word;
        length += word.len();
        previous = word;
    }
    wrapped.push('\n');
}

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
pub fn run_completions(args: &CompletionsArgs, mut command: clap::Command) -> ExitCode {
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

#[cfg(test)]
mod tests {
    use super::{LINE, tidy};

    #[test]
    fn long_lines_break_at_spaces_and_never_become_requests() {
        let text = format!("{} .hidden 'quoted' end", "word ".repeat(15).trim_end());
        let tidied = tidy(&text);
        assert!(tidied.lines().all(|line| line.len() <= LINE), "{tidied}");
        assert_eq!(tidied, format!("{}\n\\&.hidden 'quoted' end\n", "word ".repeat(15).trim_end()));
        let long = "x".repeat(200);
        assert_eq!(tidy(&format!("a {long} b")), format!("a\n{long}\nb\n"));
    }

    #[test]
    fn examples_keep_their_columns() {
        let tidied = tidy(".SH EXTRA\nExamples:\n  forebay man     print\nText \n");
        assert_eq!(tidied, ".SH EXTRA\nExamples:\n.nf\n  forebay man     print\n.fi\nText\n");
        let tidied = tidy("\n.SH EXTRA\nExamples:\n  forebay man\n");
        assert_eq!(tidied, "\n.SH EXAMPLES\n.nf\n  forebay man\n.fi\n");
    }

    #[test]
    fn breaks_without_effect_are_removed() {
        assert_eq!(tidy("a\n.br\n\n.br\nb\n"), "a\n.sp\nb\n");
    }
}
