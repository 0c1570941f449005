//! The guardian of a program that listens by itself (`forebay __guardian`). Its descriptors:
//!
//! - 0: a socket. Forebay sends orders of one byte: `t` asks the program to end (SIGTERM), and `k`
//!   kills it immediately. `s` gives the program's socket to the group of the program's directory.
//!   If Forebay closes descriptor 0, for example because Forebay ends, this means `t` and a moment
//!   later `k`. The guardian sends reports as lines: `pid N` after the start of the program, `exit
//!   N` or `signal N` after its end.
//! - 1: the listening socket that the program inherits as its descriptor 0, or /dev/null.
//! - 2: the log, for the program's standard output and error.
//!
//! If the helper is the guardian's parent, descriptor 4 has the program's environment.
//!
//! After the end of the program, the guardian asks the program's remaining processes to end, and
//! kills them a moment later. Then it removes the program's private directory, and ends.

use crate::helper::share_socket;
use crate::{Guardian, Launch, Wake};
use rustix::process::{Pid, Signal, WaitStatus, getppid, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the remaining processes to end by themselves.
const MOMENT: Duration = Duration::from_secs(2);

/// Runs `forebay __guardian DIRECTORY OPTIONS -- PROGRAM ARGUMENTS`, with the options of
/// `__launch`. Removes `DIRECTORY` at the end.
pub fn guard_program(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let room = arguments.next().map(PathBuf::from);
    let (Some(room), Some(launch)) = (room, Launch::parse(arguments)) else {
        eprintln!("__guardian is for Forebay itself");
        return ExitCode::FAILURE;
    };
    let helper = launch.takes_environment.then(getppid).flatten();
    if helper.is_some() {
        // Unblock signals, because the helper blocks signals that a guardian needs.
        let _ = nix::sys::signal::SigSet::all().thread_unblock();
    }
    let started = Guardian::new(read_orders).and_then(|mut guardian| {
        let program = start(&mut guardian, launch)?;
        Ok((guardian, program))
    });
    let outcome = match started {
        Ok((guardian, program)) => {
            report(&format!("pid {}", program.as_raw_pid()));
            run(guardian, &room)
        }
        Err(error) => {
            eprintln!("cannot start a process: {error}");
            ExitCode::FAILURE
        }
    };
    // Ignore an error, because Forebay may have removed the directory already.
    let _ = std::fs::remove_dir_all(&room);
    if helper.is_some()
        && helper != getppid()
        && let Some(rooms) = room.parent()
    {
        // The helper was killed, so the last guardian must remove the directory of all rooms.
        let _ = std::fs::remove_dir(rooms);
    }
    outcome
}

fn start(guardian: &mut Guardian<u8>, launch: Launch) -> io::Result<Pid> {
    let socket = io::stdout().as_fd().try_clone_to_owned()?;
    let log = io::stderr().as_fd().try_clone_to_owned()?;
    let program = guardian.start(launch, |command| {
        command.stdin(Stdio::from(socket)).stdout(Stdio::from(log));
    })?;
    // Only Forebay and the program may hold the listening socket. Forebay keeps it or closes it when
    // the program ends.
    rustix::stdio::dup2_stdout(File::options().read(true).write(true).open("/dev/null")?)?;
    Ok(program)
}

fn run(mut guardian: Guardian<u8>, room: &Path) -> ExitCode {
    // The time at which the remaining processes are killed.
    let mut force_at = None;
    while let Some(wake) = guardian.wait(force_at) {
        match wake {
            Wake::Order(b't') => request_stop(&guardian),
            Wake::Order(b'k') => break,
            Wake::Order(b's') => drop(share_socket(room)),
            Wake::Order(_) | Wake::OrphanEnded(..) => {}
            Wake::End => {
                request_stop(&guardian);
                force_at.get_or_insert(Instant::now() + MOMENT);
            }
            Wake::ProgramEnded(status) => {
                report_end(status);
                guardian.request_stop(|_| true);
                force_at.get_or_insert(Instant::now() + MOMENT);
            }
            Wake::AllEnded => return ExitCode::SUCCESS,
        }
    }
    if guardian.end_by_force(None).is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("a process does not end although it was killed");
    ExitCode::FAILURE
}

fn request_stop(guardian: &Guardian<u8>) {
    let _ = guardian.program().map(|program| kill_process(program, Signal::TERM));
}

fn read_orders(order: &dyn Fn(u8) -> bool) {
    let mut byte = [0];
    while matches!(io::stdin().read(&mut byte), Ok(1)) && order(byte[0]) {}
}

fn report_end(status: WaitStatus) {
    match (status.exit_status(), status.terminating_signal()) {
        (_, Some(signal)) => report(&format!("signal {signal}")),
        (code, None) => report(&format!("exit {}", code.unwrap_or(-1))),
    }
}

/// Sends a report. Ignores an error, because the cleanup continues even if Forebay has ended.
fn report(line: &str) {
    let text = format!("{line}\n");
    let _ = rustix::net::send(io::stdin(), text.as_bytes(), rustix::net::SendFlags::NOSIGNAL);
}
