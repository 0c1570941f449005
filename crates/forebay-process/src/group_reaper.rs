//! Ends process groups when this process is killed.
//!
//! The kernel ends workers with this process (`PR_SET_PDEATHSIG`), but not the programs that their
//! scripts have started. Therefore a shell reads the ids of the workers' process groups from a
//! pipe. When the pipe closes, this process has ended, and the shell kills the remaining groups.
//! A shell that ends before is replaced at once.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use crate::root::{QuickEnds, lock};

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

/// The shell that kills process groups when this process ends, and the groups to kill. A thread waits
/// for the end of the shell.
#[derive(Debug)]
pub struct GroupReaper(Arc<Mutex<PolledGroupReaper>>);

/// As [`GroupReaper`], for a process that waits for the end of the shell itself.
#[derive(Debug)]
pub struct PolledGroupReaper {
    shell: Shell,
    groups: Vec<Pid>,
    quick_ends: QuickEnds,
}

/// A running shell that reads the groups to kill from its standard input.
#[derive(Debug)]
struct Shell {
    process: Child,
    /// Becomes readable when the process ends.
    end: Arc<OwnedFd>,
    since: Instant,
    /// `None` after the pipe was closed.
    pipe: Option<ChildStdin>,
}

impl GroupReaper {
    /// Starts the shell and the thread.
    pub fn start() -> io::Result<GroupReaper> {
        let reaper = Arc::new(Mutex::new(PolledGroupReaper::start()?));
        let (end, weak) = (lock(&reaper).shell.end.clone(), Arc::downgrade(&reaper));
        std::thread::Builder::new()
            .name("groups".into())
            .spawn(move || replace_ended(end, &weak))?;
        Ok(GroupReaper(reaper))
    }

    /// Adds the process group of `leader`. From now on, the shell kills the group when this process
    /// ends.
    pub fn watch(&self, leader: Pid) {
        lock(&self.0).watch(leader);
    }

    /// Removes the group of a leader that has ended, because the id may soon be reused.
    pub fn forget(&self, leader: Pid) {
        lock(&self.0).forget(leader);
    }
}

/// Replaces shells that end, until the reaper has been dropped.
fn replace_ended(mut end: Arc<OwnedFd>, reaper: &Weak<Mutex<PolledGroupReaper>>) {
    loop {
        let mut ended = [PollFd::new(&end, PollFlags::IN)];
        let waited = retry_on_intr(|| poll(&mut ended, None));
        let Some(reaper) = reaper.upgrade().filter(|_| waited.is_ok()) else { return };
        let mut reaper = lock(&reaper);
        // Another thread may have replaced it already.
        if Arc::ptr_eq(&end, &reaper.shell.end) && !reaper.replace_ended() {
            return;
        }
        end = reaper.shell.end.clone();
    }
}

impl PolledGroupReaper {
    /// Starts the shell in its own process group, so that no signal to another group ends it.
    pub fn start() -> io::Result<PolledGroupReaper> {
        Ok(PolledGroupReaper {
            shell: Shell::start()?,
            groups: Vec::new(),
            quick_ends: QuickEnds::default(),
        })
    }

    /// Returns a descriptor that becomes readable when the shell has ended. Then call
    /// [`replace_ended`](Self::replace_ended).
    pub fn end(&self) -> BorrowedFd<'_> {
        self.shell.end.as_fd()
    }

    /// Replaces a shell that has ended, and logs this. Returns false if no shell can be started now:
    /// the next call of another method tries again.
    pub fn replace_ended(&mut self) -> bool {
        let Shell { process, since, .. } = &mut self.shell;
        let how = process.wait().map_or_else(|error| error.to_string(), |how| how.to_string());
        let id = process.id();
        let is_replaced = !self.quick_ends.is_hopeless_after(*since) && self.replace();
        let outcome = if is_replaced {
            "another one replaces it"
        } else {
            "no other can run, so programs that scripts have started may outlive Forebay"
        };
        eprintln!("forebay: process {id}, which ends process groups, has ended ({how}); {outcome}");
        is_replaced
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
        if self.shell.send(sign, leader).is_err() {
            let _ = self.shell.process.kill();
            self.replace();
        }
    }

    fn replace(&mut self) -> bool {
        let Ok(mut shell) = Shell::start() else { return false };
        let is_ready = self.groups.iter().all(|group| shell.send('+', *group).is_ok());
        if is_ready {
            self.shell = shell;
        }
        is_ready
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
        let end = Arc::new(pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?);
        Ok(Shell { process, end, since: Instant::now(), pipe })
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
        let reaper = GroupReaper::start().unwrap();
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
        let reaper = GroupReaper::start().unwrap();
        let (mut first, mut second) = (sleeper(), sleeper());
        reaper.watch(Pid::from_child(&first));
        let killed = lock(&reaper.0).shell.process.id();
        lock(&reaper.0).shell.process.kill().unwrap();
        while lock(&reaper.0).shell.process.id() == killed {
            std::thread::yield_now();
        }
        reaper.watch(Pid::from_child(&second));
        drop(reaper);
        assert!(!first.wait().unwrap().success() && !second.wait().unwrap().success());
    }
}
