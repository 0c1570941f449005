//! Subcommand `forebay doctor`: looks at the machine, and names what would limit Forebay.

mod machine;
mod site;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use machine::Machine;
use machine::{Finding, Level};
use serde_json::json;

/// Look at this machine, and name what would limit or break Forebay
#[derive(clap::Args)]
#[command(after_help = "\
Each finding is ok, a warning or an error. A warning limits Forebay, such as a low limit on open
files. With an error, Forebay does not start or clients are refused, as with an expired
certificate. The line after a warning or an error has a command that mends it.

The limits on open files and processes, and the permission for ports below 1024, are those of the
user who runs this command. Run it as the user who starts Forebay: `sudo forebay doctor FILE`.

Exit codes: 0 nothing found; 1 warnings; 2 errors, or a configuration that `serve` refuses.")]
pub struct DoctorArgs {
    /// A configuration file. Its certificates, directories, ports and names are examined, too
    file: Option<PathBuf>,

    /// Print the findings as JSON
    #[arg(long)]
    json: bool,

    /// Used by tests: read the files of /proc, /sys and /etc below this directory.
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

pub fn run(args: &DoctorArgs) -> ExitCode {
    let machine = Machine::new(args.root.clone());
    let mut findings = machine.findings();
    if let Some(file) = &args.file {
        findings.extend(site::findings(file, &machine));
    }
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    let text = if args.json { as_json(&findings, worst) } else { as_text(&findings) };
    if std::io::stdout().write_all(text.as_bytes()).is_err() {
        return ExitCode::from(crate::CANNOT_WRITE);
    }
    ExitCode::from(worst as u8)
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { level, topic, message, mend } in findings {
        text += &format!("{:<8} {topic}: {message}\n", level.word());
        if let Some(mend) = mend {
            text += &format!("         mend: {mend}\n");
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (warnings, errors) = (count(Level::Warning), count(Level::Error));
    text + &format!("\n{} ok, {warnings} warnings, {errors} errors\n", count(Level::Ok))
}

fn as_json(findings: &[Finding], worst: Level) -> String {
    let rows: Vec<_> = findings
        .iter()
        .map(|Finding { level, topic, message, mend }| {
            json!({ "level": level.word(), "topic": topic, "message": message, "mend": mend })
        })
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    let all = json!({ "schema": "forebay.doctor/1", "version": version, "worst": worst.word(), "findings": rows });
    format!("{all:#}\n")
}
