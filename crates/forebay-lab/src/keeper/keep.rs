//! Main function of a keeper: starts the server, watches it, ends it and cleans up.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use forebay_process::{Guardian, MAY_BE_MEASURED, Wake, search_path};
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group};

use super::protocol::{KeeperMessage, Launch, Order};
use super::room::{OUTPUT_FILE, Room};

const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Runs a keeper until all processes of the server have ended and its temporary files are removed.
/// Orders come from standard input, and events go to standard output.
pub fn keep() -> ExitCode {
    let guardian = match Guardian::new(read_orders) {
        Ok(guardian) => guardian,
        Err(error) => return refuse(&format!("cannot supervise processes: {error}")),
    };
    let room = match Room::open() {
        Ok(room) => room,
        Err(error) => return refuse(&format!("cannot create a temporary directory: {error}")),
    };
    let cgroup = room.cgroup.as_ref().map(|group| group.path().to_owned());
    report(&KeeperMessage::Open { tmp: room.path().to_owned(), cgroup });
    Keeping { room, guardian, grace: DEFAULT_GRACE }.run()
}

/// A keeper: the process that runs the server of one trial and cleans up after it.
struct Keeping {
    room: Room,
    guardian: Guardian<Order>,
    grace: Duration,
}

impl Keeping {
    /// Carries out orders until the order to stop or the end of standard input. Then ends all
    /// processes and reports those that remained.
    fn run(mut self) -> ExitCode {
        let mut has_started = false;
        while let Some(wake) = self.guardian.wait(None) {
            match wake {
                Wake::Order(Order::Start(launch)) if !has_started => {
                    has_started = true;
                    self.start(&launch);
                }
                Wake::Order(Order::Start(_)) => {}
                Wake::ProgramEnded(status) => {
                    let clean = status.exit_status() == Some(0);
                    report(&KeeperMessage::MainEnded { how: describe(status), clean });
                }
                Wake::OrphanEnded(pid, status) => {
                    if let Some(signal) = status.terminating_signal() {
                        report(&KeeperMessage::Died { pid: pid.as_raw_pid(), signal });
                    }
                }
                Wake::AllEnded => report(&KeeperMessage::AllEnded),
                Wake::Order(Order::Stop) | Wake::End => break,
            }
        }
        self.end_politely();
        let left = self.guardian.end_by_force(self.room.cgroup.as_ref());
        let left = left.iter().map(|stat| format!("process {} ({})", stat.pid, stat.name));
        let mut left: Vec<String> = left.collect();
        left.extend(self.room.close());
        let clean = left.is_empty();
        report(&KeeperMessage::Stopped { left });
        ExitCode::from(u8::from(!clean))
    }

    fn start(&mut self, launch: &Launch) {
        self.grace = launch.grace;
        report(&match self.spawn(launch) {
            Ok(pid) => KeeperMessage::Started { pid: pid.as_raw_pid() },
            Err(reason) => KeeperMessage::NotStarted { reason },
        });
    }

    fn spawn(&mut self, launch: &Launch) -> Result<Pid, String> {
        if !launch.cwd.is_dir() {
            return Err(format!("there is no directory {} to start in", launch.cwd.display()));
        }
        let output = File::create(self.room.path().join(OUTPUT_FILE))
            .and_then(|file| Ok((file.try_clone()?, file)))
            .map_err(|error| format!("cannot record the server's output: {error}"))?;
        let program = forebay_process::Launch {
            cgroup: self.room.cgroup.as_ref().map(|group| group.path().to_owned()),
            // The control group is optional, because CPU time can be read from /proc instead.
            cgroup_is_optional: true,
            cpus: launch.cpus.clone(),
            argv: launch.argv.iter().map(Into::into).collect(),
            ..forebay_process::Launch::default()
        };
        let started = self.guardian.start(program, |command| {
            command.env("PATH", search_path()).env(MAY_BE_MEASURED, "1");
            command.envs(launch.env.iter().map(|(name, value)| (name, value)));
            command.current_dir(&launch.cwd);
            command.stdin(Stdio::null()).stdout(output.0).stderr(output.1);
        });
        started.map_err(|error| format!("cannot start a process: {error}"))
    }

    /// Sends SIGTERM, then waits until all processes have ended or the grace period is over.
    fn end_politely(&mut self) {
        match self.guardian.program() {
            Some(server) => drop(kill_process_group(server, Signal::TERM)),
            // The server put itself into the background, so its first process has ended. The
            // processes that the server left are now children of this keeper. Send SIGTERM to these
            // children only.
            None => {
                let own = std::process::id() as i32;
                self.guardian.request_stop(|stat| stat.parent == own);
            }
        }
        let deadline = Instant::now() + self.grace;
        while self.guardian.any_is_alive() && self.guardian.wait(Some(deadline)).is_some() {}
    }
}

fn read_orders(order: &dyn Fn(Order) -> bool) {
    for line in io::stdin().lock().lines() {
        let parsed = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        if !parsed.is_some_and(order) {
            return;
        }
    }
}

/// Sends an event to `forebay compare`. An error is ignored, because the keeper must clean up even
/// if `forebay compare` has ended.
fn report(event: &KeeperMessage) {
    let mut out = io::stdout().lock();
    let _ = serde_json::to_writer(&mut out, event).map_err(io::Error::from);
    let _ = out.write_all(b"\n").and_then(|()| out.flush());
}

fn refuse(reason: &str) -> ExitCode {
    report(&KeeperMessage::NotOpened { reason: reason.to_owned() });
    ExitCode::FAILURE
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("it ended with exit status {code}"),
        (_, Some(signal)) => format!("it was ended by {}", super::signal_name(signal)),
        _ => "it ended".to_owned(),
    }
}
