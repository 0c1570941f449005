//! Ends process groups when this process is killed.
//!
//! The kernel ends workers with this process (`PR_SET_PDEATHSIG`), but not the programs that their
//! scripts have started. Therefore a shell reads the ids of the workers' process groups from a
//! pipe. When the pipe closes, this process has ended, and the shell kills the remaining groups.

use rustix::process::Pid;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

const SCRIPT: &str = "groups=
while read -r sign group; do
    case $sign in
    +) groups=\"$groups $group\" ;;
    -) rest=
       for g in $groups; do [ \"$g\" = \"$group\" ] || rest=\"$rest $g\"; done
       groups=$rest ;;
    esac
done
for g in $groups; do kill -KILL \"-$g\"; done";

/// The shell that kills process groups when this process ends, and the groups to kill.
#[derive(Debug)]
pub struct GroupReaper {
    shell: Shell,
    groups: Vec<Pid>,
}

/// A running shell that reads the groups to kill from its standard input.
#[derive(Debug)]
struct Shell {
    process: Child,
    /// `None` after the pipe was closed.
    pipe: Option<ChildStdin>,
}

impl GroupReaper {
    /// Starts the shell in its own process group, so that no signal to another group ends it.
    pub fn start() -> io::Result<GroupReaper> {
        Ok(GroupReaper { shell: Shell::start()?, groups: Vec::new() })
    }

    /// Adds the process group of `leader`. From now on, the shell kills the group when this process
    /// ends.
    pub fn watch(&mut self, leader: Pid) {
        self.groups.push(leader);
        self.send('+', leader);
    }

    /// Removes the group of a leader that has ended. The shell will not kill the rest of the group,
    /// because the id may soon be reused.
    pub fn forget(&mut self, leader: Pid) {
        self.groups.retain(|group| *group != leader);
        self.send('-', leader);
    }

    /// Sends a line to the shell. Replaces a shell that has ended or does not read.
    fn send(&mut self, sign: char, leader: Pid) {
        if self.shell.send(sign, leader).is_ok() {
            return;
        }
        let _ = self.shell.process.kill();
        // If no shell can be started now, the next call tries again.
        let Ok(mut shell) = Shell::start() else { return };
        if self.groups.iter().all(|group| shell.send('+', *group).is_ok()) {
            self.shell = shell;
        }
    }
}

impl Shell {
    fn start() -> io::Result<Shell> {
        let mut process = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take();
        // Do not let writes wait: a shell without processor time must not block requests.
        pipe.as_ref().map_or(Ok(()), |pipe| rustix::io::ioctl_fionbio(pipe, true))?;
        Ok(Shell { process, pipe })
    }

    /// Writes a line to the shell. A write that fails writes no part of the line. After a failure,
    /// the caller replaces the shell. Otherwise a shell that has not read the removal of a group
    /// could later kill a new group with the same id.
    fn send(&mut self, sign: char, leader: Pid) -> io::Result<()> {
        let pipe = self.pipe.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(format!("{sign} {}\n", leader.as_raw_nonzero()).as_bytes())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("100").process_group(0).spawn().unwrap()
    }

    #[test]
    fn watched_groups_end_with_the_reaper_and_forgotten_ones_do_not() {
        let mut reaper = GroupReaper::start().unwrap();
        let (mut watched, mut forgotten) = (sleeper(), sleeper());
        for child in [&watched, &forgotten] {
            reaper.watch(Pid::from_child(child));
        }
        reaper.forget(Pid::from_child(&forgotten));
        drop(reaper);
        // The shell has ended, so it has sent the signals.
        assert!(!watched.wait().unwrap().success());
        assert!(forgotten.try_wait().unwrap().is_none());
        forgotten.kill().unwrap();
        forgotten.wait().unwrap();
    }

    #[test]
    fn another_shell_takes_over_from_one_that_was_killed() {
        let mut reaper = GroupReaper::start().unwrap();
        let (mut first, mut second) = (sleeper(), sleeper());
        reaper.watch(Pid::from_child(&first));
        reaper.shell.process.kill().unwrap();
        reaper.shell.process.wait().unwrap();
        reaper.watch(Pid::from_child(&second));
        drop(reaper);
        assert!(!first.wait().unwrap().success() && !second.wait().unwrap().success());
    }
}
