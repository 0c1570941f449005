//! Keeper: a process that starts and ends the server of one trial (one measurement of one server),
//! and removes the server's temporary directory. The keeper contains a
//! [guardian](forebay_process::Guardian), which follows all descendants of the server.
//!
//! `forebay compare` starts a keeper (the same program, as `forebay __keeper`) for every trial, and
//! holds a pipe to the keeper's standard input. The keeper
//!
//! - creates the server's temporary directory and, if permitted, its control group;
//! - ends the server when `forebay compare` orders it, after a signal, and at the end of standard
//!   input. This input ends even if `forebay compare` is killed. The keeper first sends SIGTERM to
//!   the server's process group. After a grace period, it sends SIGKILL to all remaining processes
//!   until the kernel reports no descendants;
//! - then removes the directory and the group, and exits.
//!
//! Orders and events are lines of JSON on the keeper's standard input and output. `keep` is the main
//! function of the keeper; the rest of this module is the part in `forebay compare`.

mod keep;

pub use forebay_process::cpu_set;
pub use keep::{OUTPUT_FILE, keep};

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use forebay_process::cgroup::Cgroup;
use forebay_process::descendants::descendants;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};

use crate::watch::Tree;
use keep::remove_soon;

/// Returns a signal's name, or its number if it has none.
fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}

// Messages between `forebay compare` and a keeper: one JSON object per line.

/// Message from `forebay compare` to the keeper. The end of the keeper's standard input means
/// [`Order::Stop`].
#[derive(Debug, Deserialize, Serialize)]
enum Order {
    /// Orders the start of the server; sent at most once.
    Start(Launch),
    /// Orders the end of the server and of the keeper.
    Stop,
}

/// Command of a server, and the environment to run it in.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Launch {
    /// Program and arguments. A program name without a slash is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Variables in addition to the environment of `forebay compare`.
    pub env: Vec<(String, String)>,
    /// Working directory of the server.
    pub cwd: PathBuf,
    /// Cores on which the server runs; empty for all cores of `forebay compare`.
    pub cpus: Vec<usize>,
    /// Time that the server has to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
}

/// Message from the keeper to `forebay compare`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
enum KeeperMessage {
    /// First message: the temporary directory of the server exists, and its control group, if any.
    Open { tmp: PathBuf, cgroup: Option<PathBuf> },
    /// The keeper cannot supervise processes, or cannot create the server's temporary directory.
    NotOpened { reason: String },
    /// The server's process exists. Its program may still turn out to be missing.
    Started { pid: i32 },
    /// The server could not be started.
    NotStarted { reason: String },
    /// The first process of the server ended by itself.
    MainEnded { how: String, clean: bool },
    /// A signal ended another process of the server, after its parent had ended.
    Died { pid: i32, signal: i32 },
    /// The last process of the server ended by itself.
    AllEnded,
    /// Last message: all processes and files are gone, except for the items in `left`.
    Stopped { left: Vec<String> },
}

/// Time limit for the start of a keeper. A keeper reports at once, but a busy machine may delay the
/// report.
const OPENING_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for the end of a keeper, in addition to the grace period. The limit is longer than
/// the time that the keeper waits after SIGKILL.
const STOPPING_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of lines of the server's output that an error quotes. `QUOTED_BYTES` limits their
/// size.
const QUOTED_LINES: usize = 12;
const QUOTED_BYTES: u64 = 8 * 1024;

/// Value of `Keeper::ended` if the program ended with exit status 0, and all processes that it had
/// started have ended as well.
pub(crate) const ENDED_WELL: &str = "it ended with exit status 0";

/// Handle of a keeper: a child process of `forebay compare` that runs the server of one trial and
/// cleans up after it. Dropping the handle stops the server as [`stop`](Self::stop) does.
pub struct Keeper {
    child: Child,
    orders: Option<ChildStdin>,
    events: Receiver<KeeperMessage>,
    tmp: PathBuf,
    cgroup: Option<Cgroup>,
    grace: Duration,
    ended: Option<String>,
    notes: Vec<String>,
}

/// Failure of the keeper process itself.
#[derive(Debug)]
pub struct KeeperError(String);

impl Keeper {
    /// Starts a keeper process, and waits until it has created the temporary directory for the
    /// server. `program` is the path of the running `forebay`.
    pub fn open(program: &Path) -> Result<Self, KeeperError> {
        let mut child = Command::new(program)
            .arg("__keeper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| KeeperError(format!("cannot start {}: {error}", program.display())))?;
        let orders = child.stdin.take();
        let events = follow(child.stdout.take());
        let mut keeper = Self {
            child,
            orders,
            events,
            tmp: PathBuf::new(),
            cgroup: None,
            grace: Duration::ZERO,
            ended: None,
            notes: Vec::new(),
        };
        match keeper.events.recv_timeout(OPENING_PATIENCE) {
            Ok(KeeperMessage::Open { tmp, cgroup }) => {
                keeper.tmp = tmp;
                keeper.cgroup = cgroup.map(Cgroup::existing);
                Ok(keeper)
            }
            Ok(KeeperMessage::NotOpened { reason }) => Err(KeeperError(reason)),
            other => Err(KeeperError(format!("the keeper did not begin its work ({other:?})"))),
        }
    }

    /// Orders the keeper to start the server.
    pub fn start(&mut self, launch: Launch) -> Result<(), KeeperError> {
        self.grace = launch.grace;
        self.order(&Order::Start(launch)).map_err(KeeperError::from)
    }

    /// Returns the temporary directory of the server.
    pub fn tmp(&self) -> &Path {
        &self.tmp
    }

    /// Returns the server's processes.
    pub fn tree(&self) -> Tree {
        Tree::new(self.child.id() as i32, self.cgroup.clone())
    }

    /// Returns the reason if the server ended by itself, was not started, or lost its keeper. A
    /// server that put itself into the background has not ended.
    pub fn ended(&mut self) -> Option<&str> {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.take(event),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.ended.get_or_insert("its keeper was killed".to_owned());
                    break;
                }
            }
        }
        self.ended.as_deref()
    }

    /// Returns the last lines of the server's output, or no lines if the output cannot be read.
    pub fn last_output(&self) -> Vec<String> {
        last_lines(&self.tmp.join(OUTPUT_FILE)).unwrap_or_default()
    }

    /// Ends the server, waits until all processes are gone, and returns notes for the report.
    pub fn stop(mut self) -> Vec<String> {
        let _ = self.ended();
        self.end();
        std::mem::take(&mut self.notes)
    }

    fn order(&mut self, order: &Order) -> io::Result<()> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut line = serde_json::to_vec(order).map_err(io::Error::from)?;
        line.push(b'\n');
        orders.write_all(&line)
    }

    /// Records a message of the keeper: why the server ended, or a note for the report.
    fn take(&mut self, event: KeeperMessage) {
        match event {
            KeeperMessage::NotStarted { reason } => self.ended = Some(reason),
            KeeperMessage::MainEnded { how, clean: false } => self.ended = Some(how),
            KeeperMessage::MainEnded { .. } => {}
            KeeperMessage::AllEnded => {
                self.ended.get_or_insert(ENDED_WELL.to_owned());
            }
            KeeperMessage::Died { pid, signal } => {
                self.notes.push(format!("process {pid} died of {}", signal_name(signal)));
            }
            KeeperMessage::Stopped { left } => {
                self.notes.extend(left.into_iter().map(|what| format!("could not remove {what}")));
            }
            KeeperMessage::Open { .. }
            | KeeperMessage::NotOpened { .. }
            | KeeperMessage::Started { .. } => {}
        }
    }

    /// Orders the keeper to stop the server, and waits for its answer. Kills the keeper if no
    /// answer arrives in time.
    fn end(&mut self) {
        let _ = self.order(&Order::Stop);
        self.orders = None;
        let deadline = Instant::now() + self.grace + STOPPING_PATIENCE;
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event @ KeeperMessage::Stopped { .. }) => {
                    self.take(event);
                    break;
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    break;
                }
            }
        }
        let _ = self.child.wait();
        self.tidy_up();
    }

    /// Cleans up if the keeper was killed. This process is a child subreaper, so it has become the
    /// parent of the keeper's processes. Kills these processes, and removes the temporary
    /// directory. Other keepers and their processes are not affected.
    fn tidy_up(&mut self) {
        if self.tmp.as_os_str().is_empty() || !self.tmp.exists() {
            return;
        }
        let deadline = Instant::now() + STOPPING_PATIENCE;
        while Instant::now() < deadline {
            let left = orphans();
            for pid in left.iter().filter_map(|&pid| Pid::from_raw(pid)) {
                let _ = kill_process(pid, Signal::KILL);
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = std::fs::remove_dir_all(&self.tmp);
        let _ = self.cgroup.as_ref().map(remove_soon);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.orders.is_some() {
            self.end();
        }
    }
}

impl fmt::Display for KeeperError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for KeeperError {}

impl From<io::Error> for KeeperError {
    fn from(error: io::Error) -> Self {
        Self(format!("the keeper does not accept orders: {error}"))
    }
}

/// Returns the children of this process that are not keepers, with all their descendants.
fn orphans() -> Vec<i32> {
    let own = std::process::id() as i32;
    let is_keeper = |pid: i32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|&byte| byte == 0).any(|argument| argument == b"__keeper")
    };
    let mut orphans: Vec<i32> = descendants(own)
        .iter()
        .filter(|stat| stat.parent == own && !is_keeper(stat.pid))
        .map(|stat| stat.pid)
        .collect();
    for child in orphans.clone() {
        orphans.extend(descendants(child).iter().map(|stat| stat.pid));
    }
    orphans
}

/// Reads the keeper's events on a separate thread. The channel closes when the keeper's output ends
/// or contains a line that is no event.
fn follow(stdout: Option<std::process::ChildStdout>) -> Receiver<KeeperMessage> {
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        let Some(stdout) = stdout else { return };
        for line in BufReader::new(stdout).lines() {
            let event = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let Some(event) = event else { return };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    events
}

fn last_lines(path: &Path) -> io::Result<Vec<String>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(QUOTED_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(QUOTED_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let printable = |line: &str| line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
    let lines: Vec<String> = text.lines().map(printable).collect();
    Ok(lines[lines.len().saturating_sub(QUOTED_LINES)..].to_vec())
}
