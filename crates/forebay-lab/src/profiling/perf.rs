//! `perf`, kept as servers are, so that nothing is left of it or of what it writes.
//!
//! Stacks are unwound by DWARF's frame information: programs of distributions are built without
//! frame pointers, of which nginx of Debian shows half of each stack. It costs 16 kB a sample.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::experiment::missing;
use crate::keeper::{ENDED_WELL, Keeper, Launch};
use crate::trial::{Halt, READY_INTERVAL, Runner, broken};
use crate::watch::Tree;

/// Bytes that perf may write.
pub const MOST_BYTES: u64 = 256 * 1024 * 1024;
/// Bytes that a sample takes, about: of the stack alone 16 kB are copied.
pub const BYTES_OF_SAMPLE: u64 = 17 * 1024;
/// Of text that is made of it, in blocks of 512 bytes, or of 1024 where sh counts so.
const MOST_BLOCKS: &str = "1048576";

/// Until perf takes samples, and until it has written the last: it looks at each process.
const ATTACH_PATIENCE: Duration = Duration::from_secs(20);
const END_PATIENCE: Duration = Duration::from_secs(30);
/// Until stacks are unwound and named: 1,500 samples take half a second.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(180);
/// A process may end between being listed and being attached to.
const ATTEMPTS: usize = 3;
const QUOTED_LINES: usize = 2;
/// Bytes; with less, a disk was too full for perf.
const LEAST_ROOM: u64 = 256 * 1024;

/// What perf runs in place of a program: a file that says that samples are taken from here on, and
/// one to wait for.
const UNTIL_STOPPED: &str = r#": >"$1/started"; until [ -e "$1/stop" ]; do sleep 0.02; done"#;
const SCRIPT: &str = r#"ulimit -f "$2"; exec perf script -i "$1/perf.data" --no-inline -F comm,tid,ip,sym,dso >"$1/stacks""#;

/// Why there is no profile.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// A signal asked for it.
    Interrupted,
    /// This system does not allow it, of any configuration.
    Refused(String),
    /// It went wrong this once.
    Other(String),
}

/// A perf that takes samples. Dropped, it ends, and all that it wrote is gone.
pub struct Attached {
    keeper: Keeper,
    dir: PathBuf,
}

/// Whether there is a perf.
pub fn is_installed() -> bool {
    missing(&["perf".to_owned()]).is_empty()
}

impl Attached {
    /// Has perf take samples of the processes of `tree`, and of all that they start.
    pub fn begin(runner: &Runner, tree: &Tree, frequency: u32) -> Result<Self, Failure> {
        // One clock for each processor also samples processes that live for less than a period. Where
        // that is refused: by process.
        if let Some(group) = tree.cgroup().and_then(name_of_group) {
            match Self::attach(runner, &["-a", "-G", &group], frequency) {
                Err(Failure::Refused(_) | Failure::Other(_)) => {}
                attached => return attached,
            }
        }
        let mut attempt = 1;
        loop {
            let pids: Vec<String> = tree.pids().iter().map(i32::to_string).collect();
            if pids.is_empty() {
                return Err(Failure::Other("the server has no process".to_owned()));
            }
            match Self::attach(runner, &["-p", &pids.join(",")], frequency) {
                Err(Failure::Other(why))
                    if attempt < ATTEMPTS && why.contains("No such process") =>
                {
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Whether it has ended before it was told to.
    pub fn ended_early(&mut self) -> bool {
        self.keeper.ended().is_some()
    }

    /// Ends taking samples, and waits until all are written.
    pub fn end(&mut self, runner: &Runner) -> Result<(), Failure> {
        fs::write(self.dir.join("stop"), "")
            .map_err(|error| Failure::Other(format!("cannot stop perf: {error}")))?;
        wait(runner, "perf record", &mut self.keeper, END_PATIENCE)
    }

    /// The file of stacks as `perf script` prints them.
    pub fn script(&self, runner: &Runner) -> Result<PathBuf, Failure> {
        let mut keeper = Keeper::open(&runner.program).map_err(broken)?;
        let dir = self.dir.to_string_lossy();
        keeper.start(launch(&["sh", "-c", SCRIPT, "sh", &dir, MOST_BLOCKS])).map_err(broken)?;
        wait(runner, "perf script", &mut keeper, SCRIPT_PATIENCE)?;
        Ok(self.dir.join("stacks"))
    }

    fn attach(runner: &Runner, watched: &[&str], frequency: u32) -> Result<Self, Failure> {
        let mut keeper = Keeper::open(&runner.program).map_err(broken)?;
        let dir = keeper.tmp().join("profile");
        // Samples hold parts of the server's memory.
        let made = DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|error| Failure::Other(format!("cannot make {}: {error}", dir.display())))?;
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
                return Err(Failure::Interrupted);
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

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => out.write_str("interrupted by a signal"),
            Self::Refused(why) | Self::Other(why) => out.write_str(why),
        }
    }
}

impl From<Halt> for Failure {
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
        // Nobody's own settings change what is recorded and printed.
        env: [("PERF_CONFIG", "/dev/null"), ("LC_ALL", "C"), ("DEBUGINFOD_URLS", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        cwd: PathBuf::from("/"),
        cpus: Vec::new(),
        grace: Duration::from_secs(1),
    }
}

/// A control group as perf calls it: below where version 2 is mounted.
fn name_of_group(path: &Path) -> Option<String> {
    let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let name = mounts.iter().find_map(|mount| path.strip_prefix(mount).ok())?;
    name.to_str().map(str::to_owned)
}

/// Waits until `what`, which `keeper` keeps, has ended well.
fn wait(
    runner: &Runner,
    what: &str,
    keeper: &mut Keeper,
    patience: Duration,
) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        if runner.interrupt.is_set() {
            return Err(Failure::Interrupted);
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

/// What went wrong, and what to do where the system refuses.
fn failure(why: &str, keeper: &Keeper) -> Failure {
    let output = keeper.last_output();
    // What perf says about a full disk has no room there itself.
    if let Ok(place) = rustix::fs::statvfs(keeper.tmp())
        && place.f_bavail * place.f_frsize < LEAST_ROOM
    {
        let disk = keeper.tmp().parent().unwrap_or(keeper.tmp()).display();
        return Failure::Other(format!("{why}: no room in {disk}; make some, or set TMPDIR"));
    }
    describe(why, &output, &paranoid())
}

/// What the kernel lets unprivileged processes see: kernel.perf_event_paranoid.
fn paranoid() -> String {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    level.trim().to_owned()
}

/// Whether unprivileged processes may not see what the kernel does for them.
pub fn hides_kernel() -> bool {
    paranoid().parse::<i32>().is_ok_and(|level| level > 1)
}

fn describe(why: &str, output: &[String], paranoid: &str) -> Failure {
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
        return Failure::Refused(format!(
            "perf may not watch the server: run forebay as root, or as root `sysctl \
             kernel.perf_event_paranoid=1`{level}; a container needs the capability PERFMON and a \
             seccomp profile that allows perf_event_open"
        ));
    }
    let words = |line: &&String| !line.trim().is_empty();
    let lines: Vec<&str> = output.iter().filter(words).map(|line| line.trim()).collect();
    let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
    Failure::Other(match last {
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
        let Failure::Refused(why) = describe("x", &lines(output), "3") else {
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
        let Failure::Other(why) = describe("perf record failed", &output, "2") else {
            panic!("it is no refusal");
        };
        let expected = "perf record failed; the end of what it printed: failed to write perf data / \
                        No space left on device";
        assert_eq!(why, expected);
        assert_eq!(describe("why", &[], "2"), Failure::Other("why".to_owned()));
    }
}
