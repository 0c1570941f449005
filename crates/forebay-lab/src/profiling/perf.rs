//! Runs `perf` under a keeper, like a server, so that none of its processes and files remain.
//!
//! `perf` unwinds stacks with DWARF frame information, because distributions build programs without
//! frame pointers. With frame pointers, only half of each stack of Debian's nginx is visible. DWARF
//! costs 16 kB per sample.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::experiment::missing;
use crate::keeper::{ENDED_WELL, Keeper, Launch};
use crate::trial::{Halt, READY_INTERVAL, Runner, broken};
use crate::watch::Tree;

/// Maximum size of perf's data file in bytes.
pub const MOST_BYTES: u64 = 256 * 1024 * 1024;
/// Approximate size of a sample in bytes. Its copy of the stack alone is 16 kB.
pub const BYTES_OF_SAMPLE: u64 = 17 * 1024;
/// Size limit of the text file, in blocks of 512 bytes (1,024 bytes in some shells).
const MOST_BLOCKS: &str = "1048576";

/// Time limits until perf takes samples, and until perf has written the last sample. perf needs
/// time for each process.
const ATTACH_PATIENCE: Duration = Duration::from_secs(20);
const END_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for unwinding stacks and looking up symbols: 1,500 samples take half a second.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(180);
/// Number of attempts to attach to processes. A process may end between the listing and the
/// attachment.
const ATTEMPTS: usize = 3;
const QUOTED_LINES: usize = 2;
/// Number of free bytes below which a full disk is the probable cause of perf's failure.
const LEAST_ROOM: u64 = 256 * 1024;

/// Shell command that perf runs and whose end stops the sampling. The command creates the file
/// `started` when sampling has started, and waits for the file `stop`.
const UNTIL_STOPPED: &str = r#": >"$1/started"; until [ -e "$1/stop" ]; do sleep 0.02; done"#;
const SCRIPT: &str = r#"ulimit -f "$2"; exec perf script -i "$1/perf.data" --no-inline -F comm,tid,ip,sym,dso >"$1/stacks""#;

/// Reason why a profile is missing.
#[derive(Debug, PartialEq)]
pub enum ProfileFailure {
    /// A signal interrupted the run.
    Interrupted,
    /// This system does not permit profiles of any configuration.
    Refused(String),
    /// Only this profile failed.
    Other(String),
}

/// Handle of a running perf process. Dropping it ends perf and removes its files.
pub struct Attached {
    keeper: Keeper,
    dir: PathBuf,
}

pub fn is_installed() -> bool {
    missing(&["perf".to_owned()]).is_empty()
}

impl Attached {
    /// Starts sampling the processes of `tree` and all processes that they start.
    pub fn begin(runner: &Runner, tree: &Tree, frequency: u32) -> Result<Self, ProfileFailure> {
        // First let perf sample the control group on all processors (`-a`). Then perf has one clock
        // per processor, and also sees processes shorter than a sampling period. If the system
        // refuses `-a`, attach perf to the processes.
        if let Some(group) = tree.cgroup().and_then(name_of_group) {
            match Self::attach(runner, &["-a", "-G", &group], frequency) {
                Err(ProfileFailure::Refused(_) | ProfileFailure::Other(_)) => {}
                attached => return attached,
            }
        }
        let mut attempt = 1;
        loop {
            let pids: Vec<String> = tree.pids().iter().map(i32::to_string).collect();
            if pids.is_empty() {
                return Err(ProfileFailure::Other("the server has no process".to_owned()));
            }
            match Self::attach(runner, &["-p", &pids.join(",")], frequency) {
                Err(ProfileFailure::Other(why))
                    if attempt < ATTEMPTS && why.contains("No such process") =>
                {
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Returns true if perf ended before [`end`](Self::end).
    pub fn ended_early(&mut self) -> bool {
        self.keeper.ended().is_some()
    }

    /// Stops sampling, and waits until all samples are written.
    pub fn end(&mut self, runner: &Runner) -> Result<(), ProfileFailure> {
        fs::write(self.dir.join("stop"), "")
            .map_err(|error| ProfileFailure::Other(format!("cannot stop perf: {error}")))?;
        wait(runner, "perf record", &mut self.keeper, END_PATIENCE)
    }

    /// Converts the samples to text with `perf script`. Returns the path of the text file.
    pub fn script(&self, runner: &Runner) -> Result<PathBuf, ProfileFailure> {
        let mut keeper = Keeper::open(&runner.program).map_err(broken)?;
        let dir = self.dir.to_string_lossy();
        keeper.start(launch(&["sh", "-c", SCRIPT, "sh", &dir, MOST_BLOCKS])).map_err(broken)?;
        wait(runner, "perf script", &mut keeper, SCRIPT_PATIENCE)?;
        Ok(self.dir.join("stacks"))
    }

    fn attach(runner: &Runner, watched: &[&str], frequency: u32) -> Result<Self, ProfileFailure> {
        let mut keeper = Keeper::open(&runner.program).map_err(broken)?;
        let dir = keeper.tmp().join("profile");
        // Samples contain parts of the server's memory, so only the owner may read them.
        let made = DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|error| {
            ProfileFailure::Other(format!("cannot create {}: {error}", dir.display()))
        })?;
        let (frequency, most) = (frequency.to_string(), MOST_BYTES.to_string());
        let most = format!("{most}B");
        let (text, data) = (dir.to_string_lossy(), dir.join("perf.data"));
        let record = ["perf", "record", "-N", "-B", "-e", "cpu-clock", "-F", &frequency];
        let stacks = ["--call-graph", "dwarf,16384", "--max-size", &most];
        let to = ["-o", &data.to_string_lossy(), "--"];
        let until = ["sh", "-c", UNTIL_STOPPED, "sh", &text];
        let argv = [&record[..], watched, &stacks, &to, &until].concat();
        keeper.start(launch(&argv)).map_err(broken)?;
        let began = Instant::now();
        while !dir.join("started").exists() {
            if runner.interrupt.is_set() {
                return Err(ProfileFailure::Interrupted);
            }
            let why = match keeper.ended() {
                Some(how) => format!("perf record: {how}"),
                None if began.elapsed() > ATTACH_PATIENCE => {
                    format!("perf record did not begin within {ATTACH_PATIENCE:?}")
                }
                None => {
                    std::thread::sleep(READY_INTERVAL);
                    continue;
                }
            };
            return Err(failure(&why, &keeper));
        }
        Ok(Self { keeper, dir })
    }
}

impl fmt::Display for ProfileFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => out.write_str("interrupted by a signal"),
            Self::Refused(why) | Self::Other(why) => out.write_str(why),
        }
    }
}

impl From<Halt> for ProfileFailure {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Interrupted => Self::Interrupted,
            halt => Self::Other(halt.to_string()),
        }
    }
}

fn launch(argv: &[&str]) -> Launch {
    Launch {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        // The user's own settings must not change the recording or the output.
        env: [("PERF_CONFIG", "/dev/null"), ("LC_ALL", "C"), ("DEBUGINFOD_URLS", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        cwd: PathBuf::from("/"),
        cpus: Vec::new(),
        grace: Duration::from_secs(1),
    }
}

/// Returns the name of the control group at `path` for the option `-G` of perf: the path relative
/// to the mount point of cgroup v2. Returns `None` if the group is not below a usual mount point.
fn name_of_group(path: &Path) -> Option<String> {
    let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let name = mounts.iter().find_map(|mount| path.strip_prefix(mount).ok())?;
    name.to_str().map(str::to_owned)
}

/// Waits until the program that `keeper` runs has ended with success. `what` is the program's name.
/// A failure of the program, a wait longer than `patience` and an interruption are errors.
fn wait(
    runner: &Runner,
    what: &str,
    keeper: &mut Keeper,
    patience: Duration,
) -> Result<(), ProfileFailure> {
    let began = Instant::now();
    loop {
        if runner.interrupt.is_set() {
            return Err(ProfileFailure::Interrupted);
        }
        let why = match keeper.ended() {
            Some(ENDED_WELL) => return Ok(()),
            Some(how) => format!("{what} failed: {how}"),
            None if began.elapsed() > patience => format!("{what} did not end within {patience:?}"),
            None => {
                std::thread::sleep(READY_INTERVAL);
                continue;
            }
        };
        return Err(failure(&why, keeper));
    }
}

/// Returns the failure. Adds advice if the disk is full, or if the system does not let perf watch
/// the server.
fn failure(why: &str, keeper: &Keeper) -> ProfileFailure {
    let output = keeper.last_output();
    // Check the free space, because perf may be unable to report that the disk is full.
    if let Ok(place) = rustix::fs::statvfs(keeper.tmp())
        && place.f_bavail * place.f_frsize < LEAST_ROOM
    {
        let disk = keeper.tmp().parent().unwrap_or(keeper.tmp()).display();
        return ProfileFailure::Other(format!(
            "{why}: no space in {disk}; free some, or set TMPDIR"
        ));
    }
    describe(why, &output, &paranoid())
}

/// Returns the value of kernel.perf_event_paranoid, which limits what unprivileged processes may
/// sample.
fn paranoid() -> String {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    level.trim().to_owned()
}

/// Returns true if unprivileged processes may not sample the kernel.
pub fn hides_kernel() -> bool {
    paranoid().parse::<i32>().is_ok_and(|level| level > 1)
}

/// Explains why perf failed, from its output. If the kernel does not let perf watch the server,
/// names the setting to change.
fn describe(why: &str, output: &[String], paranoid: &str) -> ProfileFailure {
    const SIGNS: [&str; 5] = [
        "perf_event_paranoid",
        "perf_event_open",
        "Operation not permitted",
        "Permission denied",
        "Access to performance",
    ];
    let is_sign = |line: &String| SIGNS.iter().any(|sign| line.contains(sign));
    if output.iter().any(is_sign) {
        let level = match paranoid {
            "" => String::new(),
            level => format!(" (it is {level})"),
        };
        return ProfileFailure::Refused(format!(
            "perf may not watch the server: run forebay as root, or as root `sysctl \
             kernel.perf_event_paranoid=1`{level}; a container needs the capability PERFMON and a \
             seccomp profile that allows perf_event_open"
        ));
    }
    let words = |line: &&String| !line.trim().is_empty();
    let lines: Vec<&str> = output.iter().filter(words).map(|line| line.trim()).collect();
    let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
    ProfileFailure::Other(match last {
        [] => why.to_owned(),
        last => format!("{why}; the end of what it printed: {}", last.join(" / ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_refusal_says_what_to_set() {
        let output =
            "Error:\nAccess to performance monitoring and observability operations is limited.\n";
        let ProfileFailure::Refused(why) = describe("x", &lines(output), "3") else {
            panic!("it is a refusal");
        };
        assert!(
            why.contains("perf_event_paranoid=1` (it is 3)") && why.contains("PERFMON"),
            "{why}"
        );
    }

    #[test]
    fn any_other_failure_is_quoted() {
        let output = lines("one\n\nfailed to write perf data\nNo space left on device\n \n");
        let ProfileFailure::Other(why) = describe("perf record failed", &output, "2") else {
            panic!("it is no refusal");
        };
        let expected = "perf record failed; the end of what it printed: failed to write perf data / \
                        No space left on device";
        assert_eq!(why, expected);
        assert_eq!(describe("why", &[], "2"), ProfileFailure::Other("why".to_owned()));
    }
}
