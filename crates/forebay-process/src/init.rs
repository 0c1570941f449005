//! Forebay as the first process of a container.
//!
//! The kernel gives the first process all orphans: what a script has left running becomes its child, and
//! stays a zombie until it is reaped. A server cannot tell such children from its own, whose ends it must
//! not miss. So the first process only starts the server, passes signals on to it, reaps everything else,
//! and ends with it.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, WaitOptions, WaitStatus, kill_process, wait};

use crate::myself;

/// Set for the server below such a first process.
const VARIABLE: &str = "FOREBAY_INIT";

/// Signals that the first process passes on.
const PASSED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Returns true if this process is the first one of a container, or was started by such a process
/// to serve. Its end is that of the container.
pub fn ends_with_container() -> bool {
    std::process::id() == 1 || env::var_os(VARIABLE).is_some()
}

/// Runs the server as a child if this process is the first one of a container. Returns the server's
/// exit code after its end, or `None` for any other process. A process that a manager has passed
/// sockets to serves itself, because they are for its id.
pub fn serve_below_init() -> Option<ExitCode> {
    if std::process::id() != 1 || env::var_os("LISTEN_PID").is_some() {
        return None;
    }
    // If no child can be started, this process serves itself, as it would without orphans.
    let status = run().ok()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Some(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn run() -> io::Result<ExitStatus> {
    let mut signals = SigSet::empty();
    PASSED.into_iter().chain([Signal::SIGCHLD]).for_each(|signal| signals.add(signal));
    // The child begins with no blocked signals.
    signals.thread_block()?;
    let mut command = Command::new(myself());
    // In a group of its own, the server gets the signals of a terminal once, from this process.
    command.args(env::args_os().skip(1)).env(VARIABLE, "1").process_group(0);
    let server = match command.spawn() {
        Ok(server) => Pid::from_child(&server),
        Err(error) => {
            signals.thread_unblock()?;
            return Err(error);
        }
    };
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(status) = reap(server) {
                    return Ok(ExitStatus::from_raw(status.as_raw()));
                }
            }
            signal => {
                if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
                    let _ = kill_process(server, signal);
                }
            }
        }
    }
}

/// Reaps all children that have ended. Returns the status of the server if it is one of them.
fn reap(server: Pid) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == server {
            found = Some(status);
        }
    }
    found
}
