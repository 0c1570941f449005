//! Starts the new process of an upgrade, and reads the configuration's files for a reload.
//!
//! A server that has given up root cannot start its successor as root. Before it gives up root, it
//! therefore starts a small process that stays root (`forebay __upgrade`). This process starts
//! every successor with the program, arguments, environment and directory of the server's own
//! start. An attacker who controls the server can therefore only restart Forebay, and pass sockets
//! to it.
//!
//! For a reload, it starts `forebay __read` with the same arguments. That process reads the
//! configuration as the start did, and passes on the files that it has read. So the server gets only
//! files that the configuration on disk names.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{SigSet, Signal};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use forebay_process::{Connection, Keeps, RootCommand, RootProcess};

use super::VARIABLE;

/// First command-line argument of the process that stays root.
pub const VERB: &str = "__upgrade";
/// First command-line argument of the process that reads files for a reload.
pub const READ_VERB: &str = "__read";

/// Orders to the process that stays root: to start a successor, to end it, and to read the
/// configuration's files.
const START: u8 = b's';
const END: u8 = b'e';
const READ: u8 = b'r';

/// Maximum number of processes that read files at the same time. The administrator's requests for
/// differences may overlap with a reload.
const MAX_READERS: usize = 4;

/// Program and arguments of this process.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    /// Value of [`VARIABLE`] for a successor.
    note: OsString,
}

impl Program {
    /// Returns path and arguments of this process's program. A successor runs the file that has
    /// this path when the successor starts. The successor receives `note` (`Takeover::note`).
    pub fn of_this_process(note: &str) -> io::Result<Self> {
        let mut arguments = env::args_os();
        let name = arguments.next().unwrap_or_default();
        Ok(Self { path: find(&name)?, arguments: arguments.collect(), note: note.into() })
    }

    fn start(&self, socket: OwnedFd) -> io::Result<Child> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).env(VARIABLE, &self.note).stdin(Stdio::from(socket));
        command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        })
    }

    /// Starts a process that reads the files of the configuration, and writes them to `output`. It
    /// runs this version of the program, because it must read as its server does.
    fn read(&self, output: OwnedFd, readers: &Arc<AtomicUsize>) -> io::Result<()> {
        if readers.load(Ordering::Relaxed) >= MAX_READERS {
            return Err(io::Error::other("several reloads still read"));
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg(READ_VERB).args(&self.arguments).env_remove(VARIABLE);
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        let mut reader = command.spawn()?;
        readers.fetch_add(1, Ordering::Relaxed);
        let readers = readers.clone();
        std::thread::spawn(move || {
            let _ = reader.wait();
            readers.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(())
    }
}

/// Returns the path of the program with this name. Keeps symbolic links in the path, so that after
/// an upgrade, a link may lead to the new version of the program.
fn find(name: &OsStr) -> io::Result<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return std::path::absolute(path);
    }
    let places = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&places).map(|place| place.join(path));
    let found = candidates.find(|candidate| candidate.is_file());
    found.map_or_else(env::current_exe, std::path::absolute)
}

/// The process that stays root. It gets one order at a time.
type RootSocket = Arc<Mutex<RootProcess>>;

/// Reads the files of the configuration through the process that stays root.
#[derive(Debug)]
pub struct RootReader(RootSocket);

impl RootReader {
    /// Returns what `forebay __read` has written. Blocks until that process has ended.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let (mut ours, theirs) = UnixStream::pair()?;
        order(&self.0, READ, Some(theirs.into()))?;
        let mut bytes = Vec::new();
        ours.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Sends an order, with a descriptor if it has one, and returns the answer.
fn order(socket: &RootSocket, order: u8, descriptor: Option<OwnedFd>) -> io::Result<String> {
    let process = socket.lock().unwrap_or_else(PoisonError::into_inner);
    let mut socket = UnixStream::from(process.socket()?.try_clone()?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let pieces = [io::IoSlice::new(std::slice::from_ref(&order))];
    sendmsg(&socket, &pieces, &mut ancillary, SendFlags::NOSIGNAL)?;
    answer(&mut socket)
}

/// Starts successors of this server.
#[derive(Debug)]
pub enum Launcher {
    /// Starts successors as children of this process.
    Direct {
        /// Program and arguments.
        program: Program,
        /// The successor that was started last.
        child: Option<Child>,
    },
    /// Starts successors through the process that stays root.
    Root(RootSocket),
}

impl Launcher {
    /// Returns a launcher for a server that keeps its user.
    pub fn direct(program: Program) -> Self {
        Self::Direct { program, child: None }
    }

    /// Starts the process that stays root.
    pub fn root(program: &Program) -> io::Result<Self> {
        let words = [program.note.clone(), program.path.clone().into_os_string()];
        let process = RootProcess::start(&RootCommand {
            verb: VERB,
            arguments: words.into_iter().chain(program.arguments.iter().cloned()).collect(),
            purpose: "SIGUSR2, and reloads that read files of root",
            connection: Connection::Stream,
            keeps: Keeps::Surroundings,
            has_stderr: true,
        })?;
        Ok(Self::Root(Arc::new(Mutex::new(process))))
    }

    /// Starts a successor. `socket` becomes its standard input.
    pub fn start(&mut self, socket: OwnedFd) -> io::Result<()> {
        match self {
            Self::Direct { program, child } => {
                *child = Some(program.start(socket)?);
                Ok(())
            }
            Self::Root(connection) => order(connection, START, Some(socket)).map(drop),
        }
    }

    /// Ends the successor. Returns the reason of its end. The text is empty if there is no
    /// successor.
    pub fn end(&mut self) -> io::Result<String> {
        match self {
            Self::Direct { child, .. } => child.take().map_or(Ok(String::new()), end),
            Self::Root(process) => order(process, END, None),
        }
    }

    /// Returns the access to files that only root may read. `None` if this process keeps its user.
    pub fn reader(&self) -> Option<RootReader> {
        match self {
            Self::Direct { .. } => None,
            Self::Root(process) => Some(RootReader(process.clone())),
        }
    }
}

/// Receives an answer: `+` or `-`, the length of a text, and the text.
fn answer(socket: &mut UnixStream) -> io::Result<String> {
    let mut head = [0; 2];
    socket.read_exact(&mut head)?;
    let mut text = vec![0; usize::from(head[1])];
    socket.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if head[0] == b'+' { Ok(text) } else { Err(io::Error::other(text)) }
}

fn send_answer(socket: &mut UnixStream, outcome: io::Result<String>) -> io::Result<()> {
    let (sign, text) = match outcome {
        Ok(text) => (b'+', text),
        Err(error) => (b'-', error.to_string()),
    };
    let text = &text.as_bytes()[..text.len().min(usize::from(u8::MAX))];
    let mut bytes = vec![sign, u8::try_from(text.len()).unwrap_or(u8::MAX)];
    bytes.extend_from_slice(text);
    socket.write_all(&bytes)
}

fn end(mut child: Child) -> io::Result<String> {
    // The successor may close its socket a moment before it ends, so wait briefly for its end.
    for _ in 0..20 {
        if let Some(status) = child.try_wait()? {
            return Ok(status.to_string());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    Ok("ended by the running process".to_owned())
}

/// Runs the process that stays root. The arguments after [`VERB`] are the note for successors, the
/// program, and its arguments.
pub fn launch_successors(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // A control group or a terminal signals all its processes. Block the signals, because this
    // process must live as long as its server.
    let mut signals = SigSet::empty();
    let blocked =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];
    blocked.into_iter().for_each(|signal| signals.add(signal));
    let (Some(note), Some(path)) = (arguments.next(), arguments.next()) else {
        return ExitCode::FAILURE;
    };
    let program = Program { path: path.into(), arguments: arguments.collect(), note };
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    if signals.thread_block().is_err() {
        return ExitCode::FAILURE;
    }
    let mut socket = UnixStream::from(socket);
    let mut child = None;
    let readers = Arc::new(AtomicUsize::new(0));
    // The loop ends with the server. The last successor then continues without this process.
    while let Ok(Some((order, descriptor))) = receive_order(&socket) {
        let outcome = match (order, descriptor) {
            // An attacker who controls the server must not start many successors, so refuse another
            // one while the last successor runs.
            (START, Some(_)) if child.as_mut().is_some_and(is_running) => {
                Err(io::Error::other("the last successor still runs"))
            }
            (START, Some(descriptor)) => program.start(descriptor).map(|started| {
                child = Some(started);
                String::new()
            }),
            (END, None) => child.take().map_or(Ok(String::new()), end),
            (READ, Some(descriptor)) => program.read(descriptor, &readers).map(|()| String::new()),
            _ => return ExitCode::FAILURE,
        };
        if send_answer(&mut socket, outcome).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn is_running(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

/// Receives an order and a descriptor. Returns `None` after the server has ended.
fn receive_order(socket: &UnixStream) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut order = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [io::IoSliceMut::new(&mut order)];
    let received = recvmsg(socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes == 1).then_some((order[0], descriptor)))
}
