//! Description of the machine that ran an experiment, for the reports.

use std::path::Path;
use std::process::{Command, Stdio};

use procfs::{CpuInfo, Current, LoadAverage, Meminfo};
use serde::{Deserialize, Serialize};

/// Description of a machine at the start of an experiment. Unknown values are empty or zero.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Machine {
    /// Name of the operating system, from `os-release`.
    pub os: String,
    /// Kernel name, release and architecture.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Main memory in bytes.
    pub memory: u64,
    /// Load average over the minute before the experiment.
    pub load_average: f64,
    /// Time at which the experiment started (RFC 3339).
    pub date: String,
    /// Version of this program.
    pub forebay: String,
}

impl Machine {
    /// Reads the values of the machine that runs this program. A value that cannot be read is empty
    /// or 0.
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        let parts = [uname.sysname(), uname.release(), uname.machine()];
        let text = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
        Self {
            os: os_name(&text("/etc/os-release")).unwrap_or_default(),
            kernel: parts.map(|part| part.to_string_lossy().into_owned()).join(" "),
            cpu: CpuInfo::current()
                .ok()
                .and_then(|info| info.model_name(0).map(str::to_owned))
                .unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory: Meminfo::current().map_or(0, |info| info.mem_total),
            load_average: LoadAverage::current().map_or(0.0, |load| hundredths(load.one)),
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            forebay: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Returns the first non-empty line that a version command prints, from standard output or else
/// from standard error. The line is cut to 120 characters. Returns `None` if the command cannot be
/// started or prints nothing.
pub fn version_line(argv: &[String]) -> Option<String> {
    let (program, arguments) = argv.split_first()?;
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", forebay_process::search_path())
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let printed = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&printed);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().filter(|character| !character.is_control()).take(120).collect())
}

/// Rounds to two decimal digits, as the kernel prints load averages. A direct conversion to `f64`
/// would show fifteen digits.
fn hundredths(value: f32) -> f64 {
    (f64::from(value) * 100.0).round() / 100.0
}

fn os_name(release: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_names_itself() {
        let release =
            "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n";
        assert_eq!(os_name(release).as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        assert_eq!(os_name(""), None);
    }

    #[test]
    fn a_version_is_the_first_line_printed_on_either_stream() {
        let command = ["sh", "-c", "echo; echo one >&2; echo two >&2"].map(str::to_owned);
        assert_eq!(version_line(&command).as_deref(), Some("one"));
        assert_eq!(version_line(&["no-such-program".to_owned()]), None);
        assert_eq!(version_line(&[]), None);
    }
}
