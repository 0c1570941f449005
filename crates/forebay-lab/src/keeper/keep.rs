//! The keeper's own life: start, watch, end, tidy up.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    set_child_subreaper, setsid, wait,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use super::protocol::{Event, Launch, Order};
use super::room::{OUTPUT_FILE, Room};
use crate::experiment::search_path;
use crate::watch::descendants;

/// How long SIGKILL may take; a process that outlives it hangs inside the kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Between two rounds of SIGKILL: a process may fork while its siblings are being killed.
const KILL_INTERVAL: Duration = Duration::from_millis(10);
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Runs a keeper on standard input and output until the server is gone.
pub fn keep() -> ExitCode {
    // Fails only for the leader of a process group, which has a terminal's signals to itself.
    let _ = setsid();
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        return refuse(&format!("cannot look after orphaned processes: {error}"));
    }
    let wakes = match listen() {
        Ok(wakes) => wakes,
        Err(error) => return refuse(&format!("cannot watch for signals: {error}")),
    };
    let room = match Room::open() {
        Ok(room) => room,
        Err(error) => return refuse(&format!("cannot make a temporary directory: {error}")),
    };
    let cgroup = room.cgroup.as_ref().map(|group| group.path().to_owned());
    tell(&Event::Open { tmp: room.path().to_owned(), cgroup });
    let keeping = Keeping {
        room,
        wakes,
        main: None,
        main_alive: false,
        some_alive: false,
        grace: DEFAULT_GRACE,
    };
    keeping.run()
}

/// Why the keeper wakes up.
enum Wake {
    Order(Order),
    InputEnded,
    ChildChanged,
    Terminated,
}

struct Keeping {
    room: Room,
    wakes: Receiver<Wake>,
    main: Option<Pid>,
    main_alive: bool,
    some_alive: bool,
    grace: Duration,
}

impl Keeping {
    fn run(mut self) -> ExitCode {
        while let Ok(wake) = self.wakes.recv() {
            match wake {
                Wake::Order(Order::Start(launch)) if self.main.is_none() => self.start(&launch),
                Wake::Order(Order::Start(_)) => {}
                Wake::ChildChanged => self.reap(true),
                Wake::Order(Order::Stop) | Wake::InputEnded | Wake::Terminated => break,
            }
        }
        self.end_politely();
        let mut left = self.end_by_force();
        left.extend(self.room.close());
        let clean = left.is_empty();
        tell(&Event::Stopped { left });
        ExitCode::from(u8::from(!clean))
    }

    fn start(&mut self, launch: &Launch) {
        self.grace = launch.grace;
        match self.spawn(launch) {
            Ok(pid) => {
                self.main = Some(pid);
                self.main_alive = true;
                self.some_alive = true;
                tell(&Event::Started { pid: pid.as_raw_pid() });
            }
            Err(reason) => tell(&Event::NotStarted { reason }),
        }
    }

    fn spawn(&self, launch: &Launch) -> Result<Pid, String> {
        if !launch.cwd.is_dir() {
            return Err(format!("there is no directory {} to start in", launch.cwd.display()));
        }
        let output = File::create(self.room.path().join(OUTPUT_FILE))
            .and_then(|file| Ok((file.try_clone()?, file)))
            .map_err(|error| format!("cannot record the server's output: {error}"))?;
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find the running program: {error}"))?;
        let mut command = Command::new(program);
        command.args(["__keeper", "--exec", "--keeper", &std::process::id().to_string()]);
        if let Some(cgroup) = &self.room.cgroup {
            command.arg("--cgroup").arg(cgroup.path());
        }
        for cpu in &launch.cpus {
            command.args(["--cpu", &cpu.to_string()]);
        }
        command.arg("--").args(&launch.argv);
        command.env("PATH", search_path());
        command.envs(launch.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(&launch.cwd).process_group(0);
        command.stdin(Stdio::null()).stdout(output.0).stderr(output.1);
        let child = command.spawn().map_err(|error| format!("cannot start a process: {error}"))?;
        Pid::from_raw(child.id() as i32).ok_or_else(|| "the process has no id".to_owned())
    }

    /// Waits for every child that has ended. Says so on the way, if `aloud`.
    fn reap(&mut self, aloud: bool) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.note_end(pid, status, aloud),
                Ok(None) => return,
                Err(Errno::INTR) => {}
                // No child means no descendant: orphans would have become children.
                Err(_) => {
                    if self.some_alive && aloud {
                        tell(&Event::AllEnded);
                    }
                    self.some_alive = false;
                    return;
                }
            }
        }
    }

    fn note_end(&mut self, pid: Pid, status: WaitStatus, aloud: bool) {
        let is_main = self.main == Some(pid);
        if is_main {
            self.main_alive = false;
        }
        if !aloud {
            return;
        }
        match status.terminating_signal() {
            _ if is_main => {
                let clean = status.exit_status() == Some(0);
                tell(&Event::MainEnded { how: describe(status), clean });
            }
            Some(signal) => tell(&Event::Died { pid: pid.as_raw_pid(), signal }),
            None => {}
        }
    }

    /// SIGTERM, then wait for the end or for the grace period.
    fn end_politely(&mut self) {
        self.reap(false);
        if let Some(main) = self.main.filter(|_| self.main_alive) {
            let _ = kill_process_group(main, Signal::TERM);
        } else {
            // The server went into the background: its masters are our children now.
            let own = std::process::id() as i32;
            for stat in descendants(own).iter().filter(|stat| stat.ppid == own) {
                send(stat.pid, Signal::TERM);
            }
        }
        let deadline = Instant::now() + self.grace;
        while self.some_alive {
            match self.wakes.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
                Ok(_) => self.reap(false),
            }
        }
    }

    /// SIGKILL to all descendants until there is none; names those that stay.
    fn end_by_force(&mut self) -> Vec<String> {
        let own = std::process::id() as i32;
        let deadline = Instant::now() + KILL_PATIENCE;
        while self.some_alive && Instant::now() < deadline {
            if let Some(cgroup) = &self.room.cgroup {
                let _ = cgroup.kill();
            }
            for stat in descendants(own) {
                send(stat.pid, Signal::KILL);
            }
            let _ = self.wakes.recv_timeout(KILL_INTERVAL);
            self.reap(false);
        }
        if !self.some_alive {
            return Vec::new();
        }
        descendants(own)
            .iter()
            .map(|stat| format!("process {} ({})", stat.pid, stat.comm))
            .collect()
    }
}

/// Orders and signals, as they come.
fn listen() -> io::Result<Receiver<Wake>> {
    let (sender, wakes) = mpsc::channel();
    let mut signals = signal_hook::iterator::Signals::new([SIGCHLD, SIGTERM, SIGINT, SIGHUP])?;
    let on_signal = sender.clone();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let wake = if signal == SIGCHLD { Wake::ChildChanged } else { Wake::Terminated };
            if on_signal.send(wake).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || read_orders(&sender));
    Ok(wakes)
}

fn read_orders(sender: &Sender<Wake>) {
    for line in io::stdin().lock().lines() {
        let order = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let Some(order) = order else { break };
        if sender.send(Wake::Order(order)).is_err() {
            return;
        }
    }
    let _ = sender.send(Wake::InputEnded);
}

/// Nobody may be listening any more, which is no reason to stop tidying up.
fn tell(event: &Event) {
    let mut out = io::stdout().lock();
    let _ = serde_json::to_writer(&mut out, event).map_err(io::Error::from);
    let _ = out.write_all(b"\n").and_then(|()| out.flush());
}

fn refuse(reason: &str) -> ExitCode {
    tell(&Event::NotOpened { reason: reason.to_owned() });
    ExitCode::FAILURE
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("it ended with exit status {code}"),
        (_, Some(signal)) => format!("it was ended by {}", super::signal_name(signal)),
        _ => "it ended".to_owned(),
    }
}
