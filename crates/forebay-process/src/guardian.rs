//! The guardian: a small process that starts one program, and ends all processes of that program
//! when the guardian's parent ends for any reason.
//!
//! Forebay runs itself as guardian. When the guardian's standard input closes, the parent has
//! ended. The guardian has its own session, so that no signal of a terminal reaches it. The
//! guardian becomes the parent of orphans, so that even a daemon stays its descendant. If the
//! guardian is killed, the kernel ends the program.
//!
//! [`Guardian`] is the common part of guardians. The callers decide the reports and the order in
//! which processes end. The callers are [`guard_program`] for a program that
//! listens by itself, and the keeper of `forebay compare` for a measured server.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, setsid, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Launch;
use crate::cgroup::Cgroup;
use crate::descendants::{Stat, descendants};
use crate::helper::share_socket;

/// Time limit for processes to end after SIGKILL. A process that survives longer hangs inside the
/// kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two rounds of SIGKILL. Several rounds are needed, because a process may fork while
/// its siblings are killed.
const KILL_INTERVAL: Duration = Duration::from_millis(10);

/// This process as guardian, with orders of the kind `O`.
#[derive(Debug)]
pub struct Guardian<O> {
    sender: Sender<Wake<O>>,
    wakes: Receiver<Wake<O>>,
    program: Option<Pid>,
    program_is_alive: bool,
    any_is_alive: bool,
}

/// The reason why a guardian wakes up.
#[derive(Debug)]
pub enum Wake<O> {
    /// The guardian's parent has sent an order.
    Order(O),
    /// The guardian's parent has ended, or a signal asks the guardian to end.
    End,
    /// The program has ended.
    ProgramEnded(WaitStatus),
    /// An orphan has ended: a process whose parent had ended before.
    OrphanEnded(Pid, WaitStatus),
    /// The last process has ended.
    AllEnded,
}

impl<O: Send + 'static> Guardian<O> {
    /// Makes this process a guardian. Runs `read` on a separate thread, to read the parent's
    /// orders. `read` gets a function `pass`, and must call `pass` with each order. `read` must
    /// return when `pass` returns false, or when the parent has closed the connection.
    pub fn new(read: impl FnOnce(&dyn Fn(O) -> bool) + Send + 'static) -> io::Result<Self> {
        // A new session keeps the signals of a terminal away from this process. Ignore an error:
        // `setsid` fails only if this process already leads a process group. A terminal sends no
        // signals to this group, because the group is not in the foreground.
        let _ = setsid();
        set_child_subreaper(Some(getpid()))?;
        let (sender, wakes) = mpsc::channel();
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let on_signal = sender.clone();
        std::thread::Builder::new().spawn(move || {
            while signals.forever().next().is_some() && on_signal.send(Wake::End).is_ok() {}
        })?;
        let orders = sender.clone();
        std::thread::Builder::new().spawn(move || {
            read(&|order| orders.send(Wake::Order(order)).is_ok());
            let _ = orders.send(Wake::End);
        })?;
        Ok(Self { sender, wakes, program: None, program_is_alive: false, any_is_alive: false })
    }

    /// Starts the program in its own process group. Call this once. The kernel ends the program
    /// when this process ends. `configure` sets descriptors, environment and directory.
    pub fn start(
        &mut self,
        launch: Launch,
        configure: impl FnOnce(&mut Command),
    ) -> io::Result<Pid> {
        let launch = Launch { parent: Some(getpid().as_raw_pid()), ..launch };
        let mut command = launch.command();
        configure(&mut command);
        let program = Pid::from_child(&command.process_group(0).spawn()?);
        (self.program, self.program_is_alive, self.any_is_alive) = (Some(program), true, true);
        let sender = self.sender.clone();
        let reaper = std::thread::Builder::new().spawn(move || reap(program, &sender));
        if let Err(error) = reaper {
            let _ = kill_process_group(program, Signal::KILL);
            return Err(error);
        }
        Ok(program)
    }

    /// Returns the next event. Returns `None` if `until` has passed.
    pub fn wait(&mut self, until: Option<Instant>) -> Option<Wake<O>> {
        let wake = match until {
            None => self.wakes.recv().ok()?,
            Some(at) => {
                self.wakes.recv_timeout(at.saturating_duration_since(Instant::now())).ok()?
            }
        };
        match wake {
            Wake::ProgramEnded(_) => self.program_is_alive = false,
            Wake::AllEnded => self.any_is_alive = false,
            _ => {}
        }
        Some(wake)
    }

    /// Returns the program. Returns `None` if the program has ended or was not started.
    pub fn program(&self) -> Option<Pid> {
        self.program.filter(|_| self.program_is_alive)
    }

    /// Returns true if a process remains that the guardian has to end.
    pub fn any_is_alive(&self) -> bool {
        self.any_is_alive
    }

    /// Sends SIGTERM to all remaining processes that `which` selects.
    pub fn request_stop(&self, which: impl Fn(&Stat) -> bool) {
        for stat in self.left().into_iter().filter(which) {
            send(stat.pid, Signal::TERM);
        }
    }

    /// Sends SIGKILL to all descendants and to processes in `cgroup` until none is left, but at
    /// most for `KILL_PATIENCE`. Returns the processes that survive.
    pub fn end_by_force(&mut self, cgroup: Option<&Cgroup>) -> Vec<Stat> {
        let deadline = Instant::now() + KILL_PATIENCE;
        while self.any_is_alive && Instant::now() < deadline {
            let _ = cgroup.map(Cgroup::kill);
            if let Some(program) = self.program() {
                let _ = kill_process_group(program, Signal::KILL);
            }
            for stat in self.left() {
                send(stat.pid, Signal::KILL);
            }
            // The kind of event does not matter, because the loop checks the remaining processes.
            let _ = self.wait(Some(Instant::now() + KILL_INTERVAL));
        }
        if self.any_is_alive { self.left() } else { Vec::new() }
    }

    fn left(&self) -> Vec<Stat> {
        descendants(getpid().as_raw_pid())
    }
}

/// Reaps each process that ends, and sends an event about it to `sender`. Returns after the last
/// process has ended, or if nothing receives the events.
fn reap<O>(program: Pid, sender: &Sender<Wake<O>>) {
    loop {
        let wake = match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => Wake::ProgramEnded(status),
            Ok(Some((pid, status))) => Wake::OrphanEnded(pid, status),
            Ok(None) | Err(Errno::INTR) => continue,
            // If no child is left, no descendant is left: this process becomes the parent of
            // orphans.
            Err(_) => Wake::AllEnded,
        };
        let is_last = matches!(wake, Wake::AllEnded);
        if sender.send(wake).is_err() || is_last {
            return;
        }
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

// The guardian of a program that listens by itself (`forebay __guardian`). Its descriptors:
//
// - 0: a socket. Forebay sends orders of one byte: `t` asks the program to end (SIGTERM), and `k`
//   kills it immediately. `s` gives the program's socket to the group of the program's directory.
//   If Forebay closes descriptor 0, for example because Forebay ends, this means `t` and a moment
//   later `k`. The guardian sends reports as lines: `pid N` after the start of the program, `exit
//   N` or `signal N` after its end.
// - 1: the listening socket that the program inherits as its descriptor 0, or /dev/null.
// - 2: the log, for the program's standard output and error.
//
// If the helper is the guardian's parent, descriptor 4 has the program's environment.
//
// After the end of the program, the guardian asks the program's remaining processes to end, and
// kills them a moment later. Then it removes the program's private directory, and ends.

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
        let program = start_guarded(&mut guardian, launch)?;
        Ok((guardian, program))
    });
    let outcome = match started {
        Ok((guardian, program)) => {
            report_line(&format!("pid {}", program.as_raw_pid()));
            run_guard(guardian, &room)
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

fn start_guarded(guardian: &mut Guardian<u8>, launch: Launch) -> io::Result<Pid> {
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

fn run_guard(mut guardian: Guardian<u8>, room: &Path) -> ExitCode {
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
        (_, Some(signal)) => report_line(&format!("signal {signal}")),
        (code, None) => report_line(&format!("exit {}", code.unwrap_or(-1))),
    }
}

/// Sends a report. Ignores an error, because the cleanup continues even if Forebay has ended.
fn report_line(line: &str) {
    let text = format!("{line}\n");
    let _ = rustix::net::send(io::stdin(), text.as_bytes(), rustix::net::SendFlags::NOSIGNAL);
}
