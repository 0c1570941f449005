//! A guard: a small process between Forebay and one program that listens by itself. It sees to it
//! that nothing of the program remains, however Forebay ends.
//!
//! The guard is Forebay itself (`forebay __guard`). It has a session of its own, starts the
//! program as its only child, and is the reaper of all that the program starts. Its descriptors:
//!
//! - 0: a socket. Orders come in, a byte each: `t` asks the program to end (SIGTERM), `k` ends it
//!   at once. Its end, which comes with the end of Forebay, is both, a moment apart. Lines go out:
//!   `pid N` once the program is started, `exit N` or `signal N` when it has ended.
//! - 1: the listening socket that the program inherits as its descriptor 0, or /dev/null.
//! - 2: the log, for the program's standard output and error.
//!
//! When the program has ended what it has left is told to end, and a moment later killed. Then the
//! guard removes the program's private directory, and ends.

use crate::descendants::descendants;
use crate::launch::{Launch, myself};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    set_child_subreaper, setsid, wait,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How long what is left may take to end by itself.
const MOMENT: Duration = Duration::from_secs(2);
/// Between two rounds of SIGKILL: a process may fork while its siblings are being killed.
const KILL_INTERVAL: Duration = Duration::from_millis(10);
/// A process that outlives SIGKILL for so long hangs inside the kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// `forebay __guard DIRECTORY OPTIONS -- PROGRAM ARGUMENTS`, the options those of `__launch`.
/// `DIRECTORY` is removed at the end.
pub fn guard(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let room = arguments.next().map(PathBuf::from);
    let (Some(room), Some(launch)) = (room, Launch::parse(arguments)) else {
        eprintln!("__guard is for Forebay itself");
        return ExitCode::FAILURE;
    };
    // Fails only for the leader of a process group.
    let _ = setsid();
    let started = set_child_subreaper(Some(getpid()))
        .map_err(io::Error::from)
        .and_then(|()| start(launch))
        .and_then(|program| Ok((program, listen(program)?)));
    let outcome = match started {
        Ok((program, wakes)) => {
            tell(&format!("pid {}", program.as_raw_pid()));
            Guarding { wakes, program, is_alive: true, force_at: None }.run()
        }
        Err(error) => {
            eprintln!("cannot start a process: {error}");
            ExitCode::FAILURE
        }
    };
    // Forebay may have removed it already.
    let _ = std::fs::remove_dir_all(room);
    outcome
}

/// Why the guard wakes up.
enum Wake {
    Order(u8),
    InputEnded,
    Reaped(Pid, WaitStatus),
    /// No child means no descendant: orphans would have become children.
    AllEnded,
}

struct Guarding {
    wakes: Receiver<Wake>,
    program: Pid,
    is_alive: bool,
    /// When what is left is killed.
    force_at: Option<Instant>,
}

impl Guarding {
    fn run(mut self) -> ExitCode {
        loop {
            let wake = match self.force_at {
                None => self.wakes.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => self.wakes.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match wake {
                Ok(Wake::Order(b't')) => self.ask_to_end(),
                Ok(Wake::Order(b'k')) => self.force_at = Some(Instant::now()),
                Ok(Wake::Order(_)) => {}
                Ok(Wake::InputEnded) => {
                    self.ask_to_end();
                    self.allow(MOMENT);
                }
                Ok(Wake::Reaped(pid, status)) if pid == self.program => self.program_ended(status),
                Ok(Wake::Reaped(..)) => {}
                Ok(Wake::AllEnded) => return ExitCode::SUCCESS,
                Err(RecvTimeoutError::Timeout) => return self.end_by_force(),
                Err(RecvTimeoutError::Disconnected) => return self.end_by_force(),
            }
        }
    }

    fn ask_to_end(&self) {
        if self.is_alive {
            let _ = kill_process(self.program, Signal::TERM);
        }
    }

    fn allow(&mut self, time: Duration) {
        self.force_at.get_or_insert(Instant::now() + time);
    }

    fn program_ended(&mut self, status: WaitStatus) {
        self.is_alive = false;
        match (status.exit_status(), status.terminating_signal()) {
            (_, Some(signal)) => tell(&format!("signal {signal}")),
            (code, None) => tell(&format!("exit {}", code.unwrap_or(-1))),
        }
        for left in descendants(getpid().as_raw_pid()) {
            send(left.pid, Signal::TERM);
        }
        self.allow(MOMENT);
    }

    /// SIGKILL to all descendants until there is none.
    fn end_by_force(&self) -> ExitCode {
        if self.is_alive {
            let _ = kill_process_group(self.program, Signal::KILL);
        }
        let deadline = Instant::now() + KILL_PATIENCE;
        while Instant::now() < deadline {
            for left in descendants(getpid().as_raw_pid()) {
                send(left.pid, Signal::KILL);
            }
            if matches!(self.wakes.recv_timeout(KILL_INTERVAL), Ok(Wake::AllEnded)) {
                return ExitCode::SUCCESS;
            }
        }
        eprintln!("a process does not end although it was killed");
        ExitCode::FAILURE
    }
}

fn start(mut launch: Launch) -> io::Result<Pid> {
    launch.parent = Some(getpid().as_raw_pid());
    let socket = io::stdout().as_fd().try_clone_to_owned()?;
    let log = io::stderr().as_fd().try_clone_to_owned()?;
    let child = Command::new(myself())
        .arg("__launch")
        .args(launch.arguments())
        .stdin(Stdio::from(socket))
        .stdout(Stdio::from(log))
        .process_group(0)
        .spawn()?;
    // The listening socket is the program's alone: it is to close with it.
    rustix::stdio::dup2_stdout(
        File::options().read(true).write(true).open(Path::new("/dev/null"))?,
    )?;
    Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("the process has no id"))
}

/// Orders and ends of processes, as they come.
fn listen(program: Pid) -> io::Result<Receiver<Wake>> {
    let (sender, wakes) = mpsc::channel();
    let orders = sender.clone();
    let orders = std::thread::Builder::new().spawn(move || read_orders(&orders));
    let ends = std::thread::Builder::new().spawn(move || reap(&sender));
    if let Err(error) = orders.and(ends) {
        let _ = kill_process_group(program, Signal::KILL);
        return Err(error);
    }
    Ok(wakes)
}

fn read_orders(sender: &Sender<Wake>) {
    let mut order = [0];
    while matches!(io::stdin().read(&mut order), Ok(1)) {
        if sender.send(Wake::Order(order[0])).is_err() {
            return;
        }
    }
    let _ = sender.send(Wake::InputEnded);
}

fn reap(sender: &Sender<Wake>) {
    loop {
        let wake = match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => Wake::Reaped(pid, status),
            Ok(None) | Err(Errno::INTR) => continue,
            Err(_) => Wake::AllEnded,
        };
        let is_last = matches!(wake, Wake::AllEnded);
        if sender.send(wake).is_err() || is_last {
            return;
        }
    }
}

/// Forebay may be gone, which is no reason to stop tidying up.
fn tell(line: &str) {
    let socket = io::stdin();
    let text = format!("{line}\n");
    let _ = rustix::net::send(&socket, text.as_bytes(), rustix::net::SendFlags::NOSIGNAL);
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}
