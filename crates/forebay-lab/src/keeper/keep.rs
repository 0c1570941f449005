//! Main function of a keeper: starts the server, watches it, ends it and cleans up.

use std::fs::{File, Permissions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use forebay_process::cgroup::Cgroup;
use forebay_process::{Guardian, MAY_BE_MEASURED, Wake, search_path};
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group};
use tempfile::TempDir;

use super::{KeeperMessage, Launch, Order};

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

// Temporary directory and control group of a measured server.

/// Name of the file in the server's temporary directory for its standard output and error.
pub const OUTPUT_FILE: &str = "server-output.log";

/// Prefix of the names of directories and control groups. The keeper's process ID follows the
/// prefix.
const PREFIX: &str = "forebay-compare-";

/// Temporary directory and, if permitted, control group of a measured server. Only the owner can
/// write to the directory, but a server that dropped its privileges can read it. Dropping this
/// value removes the directory and the group.
pub struct Room {
    directory: Option<TempDir>,
    pub cgroup: Option<Cgroup>,
}

impl Room {
    /// Creates the directory and the control group. First cleans up after keepers that were killed.
    pub fn open() -> std::io::Result<Self> {
        sweep();
        let keeper = std::process::id();
        let directory = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{keeper}-"))
            .permissions(Permissions::from_mode(0o755))
            .tempdir()?;
        let cgroup = Cgroup::create(&format!("{PREFIX}{keeper}"));
        Ok(Self { directory: Some(directory), cgroup })
    }

    pub fn path(&self) -> &Path {
        self.directory.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// Removes the directory and the group. Returns the items that could not be removed.
    pub fn close(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(directory) = self.directory.take() {
            let path: PathBuf = directory.path().to_owned();
            if let Err(error) = directory.close() {
                left.push(format!("directory {}: {error}", path.display()));
            }
        }
        if let Some(Err(error)) = self.cgroup.take().as_ref().map(remove_soon) {
            left.push(format!("control group: {error}"));
        }
        left
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends processes of servers that earlier keepers have left, and removes their directories. If a
/// keeper is killed, the kernel ends the server, but not processes that the server has put into the
/// background. If `forebay compare` was killed, too, only the control group still lists these
/// processes.
fn sweep() {
    for (name, cgroup) in Cgroup::siblings() {
        let Some(keeper) = name.strip_prefix(PREFIX).filter(|pid| pid.parse::<u32>().is_ok())
        else {
            continue;
        };
        if is_alive(keeper) {
            continue;
        }
        let _ = cgroup.kill();
        if remove_soon(&cgroup).is_ok() {
            remove_directories(&format!("{PREFIX}{keeper}-"));
        }
    }
}

/// Returns true if a keeper with this process ID is running. Zombies, and other programs that got
/// the same ID, do not count.
fn is_alive(keeper: &str) -> bool {
    let command = Path::new("/proc").join(keeper).join("cmdline");
    std::fs::read(command).is_ok_and(|line| line.split(|&byte| byte == 0).any(|a| a == b"__keeper"))
}

fn remove_directories(prefix: &str) {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes a control group. The kernel needs a moment after the last process has ended, so the
/// removal is retried.
pub fn remove_soon(cgroup: &Cgroup) -> std::io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match cgroup.remove() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}
