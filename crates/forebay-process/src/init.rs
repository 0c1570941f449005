//! Process 1 of a container, which must reap the orphans of all other processes.
//!
//! The gateway waits only for processes that it has started: a process that reaps whatever ends would
//! take the exit statuses that others wait for. So as process 1, Forebay starts itself once more, passes
//! signals on to that process, reaps what ends, and ends with it.

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, WaitOptions, WaitStatus, getppid, kill_process, wait};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::myself;

const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// If this is process 1, runs this command line in a child, and returns the exit code when the child
/// has ended. Otherwise returns `None`. Call this before other threads start.
///
/// # Errors
/// Fails if the child cannot be started.
pub fn run_below_init() -> io::Result<Option<ExitCode>> {
    if std::process::id() != 1 {
        // A child of process 1 inherits the mask of `wait_below`.
        SigSet::all().thread_unblock()?;
        return Ok(None);
    }
    let mut signals: SigSet = FORWARDED.into_iter().collect();
    signals.add(Signal::SIGCHLD);
    // Blocked signals wait until there is somebody to pass them to.
    signals.thread_block()?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(myself());
    // `is_below_init` compares the command lines.
    arguments.next().map(|name| command.arg0(name));
    // In the group of process 1, the child would get Ctrl-C of a terminal twice.
    let child = command.args(arguments).process_group(0).spawn()?;
    wait_below(&signals, Pid::from_child(&child)).map(Some)
}

/// Returns true if the parent of this process is process 1 and runs [`run_below_init`].
pub fn is_below_init() -> bool {
    let line = |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
    let own = line("self");
    getppid().is_some_and(Pid::is_init) && own.is_some() && own == line("1")
}

fn wait_below(signals: &SigSet, child: Pid) -> io::Result<ExitCode> {
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                // One signal may stand for several processes.
                while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                    if pid == child
                        && let Some(code) = code(status)
                    {
                        return Ok(code);
                    }
                }
            }
            signal => {
                let signal = rustix::process::Signal::from_named_raw(signal as i32);
                // The child may end at this moment, which SIGCHLD tells.
                let _ = signal.map(|signal| kill_process(child, signal));
            }
        }
    }
}

/// Returns the exit code as a shell shows it. Returns `None` for a process that has not ended.
fn code(status: WaitStatus) -> Option<ExitCode> {
    let by_signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(by_signal)?;
    Some(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}
