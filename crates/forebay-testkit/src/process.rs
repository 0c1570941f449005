//! Child process of a test. When the test ends, the process and all its descendants end, too.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use tempfile::TempDir;

use crate::http::Client;
use crate::stream::{Address, TestStream};
use crate::{DEADLINE, POLL};

/// Number of lines at the end of the output that a panic shows.
const TAIL: usize = 40;

/// Child process in its own process group. Its standard output and error are recorded. Dropping it
/// kills the whole group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    group: Pid,
    exit: Option<ExitStatus>,
    output: TempDir,
}

/// Results of a process that has ended.
#[derive(Debug)]
pub struct Exit {
    /// Exit status of the process.
    pub status: ExitStatus,
    /// All text that the process printed to standard output and standard error, in the order of
    /// printing.
    pub output: String,
    /// Command lines of processes of the group that were still running, and that have been killed.
    pub survivors: Vec<String>,
}

impl Process {
    /// Starts a command with an empty standard input.
    ///
    /// # Panics
    /// Panics if the command cannot be started.
    pub fn start(command: Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        Self::try_start(command).unwrap_or_else(|error| panic!("{name} did not start: {error}"))
    }

    /// Works as [`Process::start`] does, but returns an error instead of a panic.
    pub fn try_start(mut command: Command) -> io::Result<Self> {
        let output = TempDir::with_prefix("fb-")?;
        // Standard output and standard error share the file, so use append mode: all writes then go
        // to the end of the file.
        let file =
            OpenOptions::new().create(true).append(true).open(output.path().join("output"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()?;
        Ok(Self {
            name: command.get_program().to_string_lossy().into_owned(),
            group: Pid::from_child(&child),
            child,
            exit: None,
            output,
        })
    }

    /// Waits until a connection to `address` succeeds.
    ///
    /// # Panics
    /// Panics if the process ends first or the deadline passes. The message contains the end of the
    /// output.
    pub fn wait_until_listening(&mut self, address: impl Into<Address>) {
        let address = address.into();
        let done = |_: &Self| TestStream::connect(&address, DEADLINE).is_ok();
        self.wait_until(&format!("listened on {address:?}"), done)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until a GET request for `path` has a reply with a status below 500.
    ///
    /// # Panics
    /// Panics as [`Process::wait_until_listening`] does.
    pub fn wait_until_ready(&mut self, address: impl Into<Address>, path: &str) {
        let address = address.into();
        let done = |_: &Self| {
            Client::try_connect(&address)
                .and_then(|mut client| client.try_get(path))
                .is_ok_and(|reply| reply.status < 500)
        };
        self.wait_until(&format!("answered {path} on {address:?}"), done)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until the output contains `text`.
    ///
    /// # Panics
    /// Panics as [`Process::wait_until_listening`] does.
    pub fn wait_for_output(&mut self, text: &str) {
        self.wait_until(&format!("printed {text:?}"), |process| process.output().contains(text))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until `done` returns true. The error contains `what`, such as "printed x", and the end
    /// of the output.
    ///
    /// # Errors
    /// Fails if the process ends first or the deadline passes.
    pub fn wait_until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), String> {
        let until = Instant::now() + DEADLINE;
        loop {
            // `has_ended` precedes `done`, so that `done` sees all output of a process that has
            // ended.
            let has_ended = self.has_ended();
            if done(self) {
                return Ok(());
            }
            if has_ended {
                return Err(format!("{} ended before it {what}{}", self.name, self.tail()));
            }
            if Instant::now() >= until {
                return Err(format!("{} never {what}{}", self.name, self.tail()));
            }
            thread::sleep(POLL);
        }
    }

    /// Sends a signal to the process, but not to its group. Does nothing if the process has ended.
    pub fn signal(&mut self, signal: Signal) {
        if !self.has_ended() {
            kill_process(self.group, signal).expect("our child is there until we wait for it");
        }
    }

    /// Sends SIGTERM and waits until the process has ended.
    ///
    /// # Panics
    /// Panics as [`Process::wait`] does.
    pub fn stop(mut self) -> Exit {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits until the process has ended, and then kills the other processes of its group. The
    /// result contains the command lines of these other processes.
    ///
    /// # Panics
    /// Panics if the deadline passes. The message contains the end of the output.
    pub fn wait(mut self) -> Exit {
        let until = Instant::now() + DEADLINE;
        while !self.has_ended() {
            assert!(Instant::now() < until, "{} did not end{}", self.name, self.tail());
            thread::sleep(POLL);
        }
        let survivors = self.others_of_group();
        let status = self.kill();
        Exit { status, output: self.output(), survivors }
    }

    /// Returns true if the process has ended. Other processes of its group may still run.
    pub fn has_ended(&mut self) -> bool {
        // With NOWAIT, the ended process stays in the process table. Its ID, which is also the ID
        // of the group, cannot be reused before `kill`.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.exit.is_some() || !matches!(waitid(WaitId::Pid(self.group), options), Ok(None))
    }

    /// Returns the process ID, which is also the ID of its group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns all text that the process has printed so far to both outputs.
    pub fn output(&self) -> String {
        let bytes = fs::read(self.output.path().join("output")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Kills the whole group, and reaps the process, which frees its ID.
    fn kill(&mut self) -> ExitStatus {
        if let Some(status) = self.exit {
            return status;
        }
        let _nobody_left = kill_process_group(self.group, Signal::KILL);
        let status = self.child.wait().expect("our child is there until we wait for it");
        self.exit = Some(status);
        status
    }

    /// Returns the command lines of the group's running processes, except the child itself.
    fn others_of_group(&self) -> Vec<String> {
        let folders = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        folders.filter_map(|folder| member_of(&folder.path(), self.id())).collect()
    }

    fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<_> = output.lines().collect();
        match lines.len() {
            0 => "; it printed nothing".to_owned(),
            count => format!(
                "; the end of what it printed:\n{}",
                lines[count.saturating_sub(TAIL)..].join("\n")
            ),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a command for a program, which is looked up as in [`find`].
pub fn command(program: &str) -> Command {
    let found = find(program);
    Command::new(found.as_deref().unwrap_or(Path::new(program)))
}

/// Returns the path of a program in `PATH`, or in Debian's directories of servers, `/usr/sbin` and
/// `/sbin`. Returns `None` if the program is in none of these directories.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Creates symbolic links in a folder to these programs, which every machine has.
///
/// # Panics
/// Panics if a program is missing or cannot be linked.
pub fn link_programs(programs: &[&str], folder: &Path) {
    for program in programs {
        let found = find(program).unwrap_or_else(|| panic!("{program} is missing"));
        std::os::unix::fs::symlink(found, folder.join(program)).unwrap();
    }
}

/// Returns the command line of the process with this directory in `/proc`. Returns `None` if the
/// process has ended, is the leader of `group`, or does not belong to `group`.
fn member_of(folder: &Path, group: u32) -> Option<String> {
    let id: u32 = folder.file_name()?.to_str()?.parse().ok()?;
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name of the process is in parentheses, and may itself contain spaces and parentheses. The
    // last `)` therefore ends the name.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_alive = !matches!(fields.next()?, "Z" | "X");
    let process_group: u32 = fields.nth(1)?.parse().ok()?;
    if id == group || process_group != group || !is_alive {
        return None;
    }
    let line = fs::read_to_string(folder.join("cmdline")).ok()?;
    Some(line.trim_end_matches('\0').replace('\0', " "))
}

/// Waits until a condition holds. Returns false if the deadline passes first.
pub fn eventually(mut what: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + DEADLINE;
    while !what() {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command)
    }

    fn is_alive(id: &str) -> bool {
        fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn output_of_both_kinds_is_kept_in_order() {
        let exit = shell("echo one; echo two >&2; echo three; exit 3").wait();
        assert_eq!(exit.output, "one\ntwo\nthree\n");
        assert_eq!(exit.status.code(), Some(3));
        assert!(exit.survivors.is_empty());
    }

    #[test]
    fn dropping_ends_the_whole_group() {
        let mut process = shell("sleep 1000 & echo $!; wait");
        process.wait_for_output("\n");
        let sleeper = process.output().trim().to_owned();
        assert!(is_alive(&sleeper));
        drop(process);
        assert!(eventually(|| !is_alive(&sleeper)));
    }

    #[test]
    fn stop_reports_what_was_left_behind() {
        let mut process = shell("sleep 1001 & echo up; trap 'exit 7' TERM; wait");
        process.wait_for_output("up");
        let exit = process.stop();
        assert_eq!(exit.status.code(), Some(7));
        assert_eq!(exit.survivors, ["sleep 1001"]);
    }

    #[test]
    #[should_panic(expected = "no such option")]
    fn a_process_that_ends_early_shows_its_output() {
        shell("echo no such option >&2; exit 2").wait_for_output("ready");
    }

    #[test]
    #[should_panic(expected = "/no/such/program did not start")]
    fn a_missing_program_is_named() {
        Process::start(Command::new("/no/such/program"));
    }
}
