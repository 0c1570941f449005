//! The guardian: a small process that starts one program, and ends all processes of that program
//! when the guardian's parent ends for any reason.
//!
//! Forebay runs itself as guardian. When the guardian's standard input closes, the parent has
//! ended. The guardian has its own session, so that no signal of a terminal reaches it. The
//! guardian becomes the parent of orphans, so that even a daemon stays its descendant. If the
//! guardian is killed, the kernel ends the program.
//!
//! This module holds the common part of guardians. The callers decide the reports and the order in
//! which processes end. The callers are [`guard_program`](crate::guard_program) for a program that
//! listens by itself, and the keeper of `forebay compare` for a measured server.

use crate::Launch;
use crate::cgroup::Cgroup;
use crate::descendants::{Stat, descendants};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    set_child_subreaper, setsid, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

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
