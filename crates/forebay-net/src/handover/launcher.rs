//! Starts the new process of an upgrade. For a reload, reads files and opens sockets as root.
//!
//! A server that has given up root cannot start its successor as root. Before it gives up root, it
//! therefore starts a small process that stays root (`forebay __upgrade`). This process starts
//! every successor with the program, arguments, environment and directory of the server's own
//! start. An attacker who controls the server can therefore only restart Forebay, and pass sockets
//! to it.
//!
//! For a reload, it starts `forebay __read` with the same arguments. That process reads the
//! configuration as the start did, and passes on the files that it has read. In the same way,
//! `forebay __listen` opens an address, such as a port below 1024. So the server gets only files and
//! sockets that the configuration on disk names.

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

use forebay_conf::Listen;
use nix::sys::signal::{SigSet, Signal};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use forebay_process::{Connection, Keeps, RootCommand, RootProcess};

use super::{
    DESCRIPTORS, Handover, ListenerKind, MESSAGE_LIMIT, SocketCopies, VARIABLE, receive, send,
};
use crate::listen::{Opened, Sockets, open};
use crate::systemd::adopt;

/// First command-line argument of the process that stays root.
pub const VERB: &str = "__upgrade";
/// First command-line argument of the process that reads files for a reload.
pub const READ_VERB: &str = "__read";

/// First command-line argument of the process that opens sockets for a reload.
pub const LISTEN_VERB: &str = "__listen";

/// Orders to the process that stays root: to start a successor, to end it, to read the
/// configuration's files, and to open one of its addresses.
const START: u8 = b's';
const END: u8 = b'e';
const READ: u8 = b'r';
const LISTEN: u8 = b'l';

/// Maximum number of processes that help a reload at the same time. The administrator's requests for
/// differences may overlap with it.
const MAX_ASSISTANTS: usize = 4;
/// Maximum number of threads for which a process opens sockets.
const MAX_THREADS: usize = 4096;

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

    /// Starts a process with the duty `verb`, which talks to the server over `socket`. It runs this
    /// version of the program, because it must read the configuration as its server does.
    fn assist(&self, verb: &str, socket: OwnedFd, assistants: &Arc<AtomicUsize>) -> io::Result<()> {
        if assistants.load(Ordering::Relaxed) >= MAX_ASSISTANTS {
            return Err(io::Error::other("several reloads still run"));
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg(verb).args(&self.arguments).env_remove(VARIABLE);
        command.stdin(Stdio::null()).stdout(socket).stderr(Stdio::null());
        let mut assistant = command.spawn()?;
        assistants.fetch_add(1, Ordering::Relaxed);
        let assistants = assistants.clone();
        std::thread::spawn(move || {
            let _ = assistant.wait();
            assistants.fetch_sub(1, Ordering::Relaxed);
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

/// What a reload may do through the process that stays root.
#[derive(Debug)]
pub struct RootAccess(RootSocket);

impl RootAccess {
    /// Returns what `forebay __read` has written. Blocks until that process has ended.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let (mut ours, theirs) = UnixStream::pair()?;
        order(&self.0, READ, Some(theirs.into()))?;
        let mut bytes = Vec::new();
        ours.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Opens `listen`, which the configuration on disk must name, for each of `threads` threads.
    /// Blocks until `forebay __listen` has read the configuration. The error is that process's.
    pub fn open(&self, listen: &Listen, threads: usize) -> io::Result<Opened> {
        let (ours, theirs) = Handover::new()?;
        order(&self.0, LISTEN, Some(theirs))?;
        let Handover(ours) = ours;
        set_socket_timeout(&ours, Timeout::Recv, Some(MESSAGE_LIMIT))?;
        send(&ours, &format!("{threads} {listen}"), &[])?;
        let mut sockets = Vec::new();
        loop {
            let (text, descriptors) = receive(&ours)?;
            sockets.extend(descriptors);
            match text.split_once(' ').unwrap_or((&text, "")) {
                (PART, _) => {}
                (END_OF_SOCKETS, word) => {
                    let kind = ListenerKind::parse(word)
                        .ok_or_else(|| io::Error::other("an unknown message came"))?;
                    let configured = listen.to_string();
                    return adopt(SocketCopies { kind, configured, sockets }, listen, threads);
                }
                (_, error) => return Err(io::Error::other(error.to_owned())),
            }
        }
    }
}

/// Messages of `forebay __listen`: some sockets, or the kind of all that came, or an error.
const PART: &str = "part";
const END_OF_SOCKETS: &str = "end";
const FAILED: &str = "failed";

/// Runs `forebay __listen`: opens the address that the server asks for over the socket, if it is one
/// of `listens`.
pub fn open_for_server(
    server: &OwnedFd,
    listens: Result<(Vec<Listen>, Sockets), String>,
) -> io::Result<()> {
    set_socket_timeout(server, Timeout::Recv, Some(MESSAGE_LIMIT))?;
    let (text, _) = receive(server)?;
    let (threads, wanted) = text.split_once(' ').unwrap_or_default();
    let opened = listens.and_then(|(listens, sockets)| {
        let listen = listens.iter().find(|listen| listen.to_string() == wanted);
        let listen = listen.ok_or_else(|| format!("the configuration does not name {wanted}"))?;
        let threads = threads.parse().ok().filter(|threads| (1..=MAX_THREADS).contains(threads));
        let threads = threads.ok_or("an unknown number of threads")?;
        let (_, listeners) = open(listen, threads, &sockets).map_err(|error| error.to_string())?;
        SocketCopies::of(wanted.to_owned(), &listeners).map_err(|error| error.to_string())
    });
    let SocketCopies { kind, sockets, .. } = match opened {
        Ok(copies) => copies,
        Err(error) => return send(server, &format!("{FAILED} {error}"), &[]),
    };
    for part in sockets.chunks(DESCRIPTORS) {
        let borrowed: Vec<_> = part.iter().map(AsFd::as_fd).collect();
        send(server, PART, &borrowed)?;
    }
    send(server, &format!("{END_OF_SOCKETS} {}", kind.word()), &[])
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
            purpose: "SIGUSR2, and reloads that read files or open ports as root",
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

    /// Returns the access to what only root may read and open. `None` if this process keeps its
    /// user.
    pub fn access(&self) -> Option<RootAccess> {
        match self {
            Self::Direct { .. } => None,
            Self::Root(process) => Some(RootAccess(process.clone())),
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
    let assistants = Arc::new(AtomicUsize::new(0));
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
            (READ, Some(socket)) => {
                program.assist(READ_VERB, socket, &assistants).map(|()| String::new())
            }
            (LISTEN, Some(socket)) => {
                program.assist(LISTEN_VERB, socket, &assistants).map(|()| String::new())
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of `forebay __listen` for a configuration with one address.
    fn ask(question: &str) -> (String, usize) {
        let (ours, theirs) = Handover::new().unwrap();
        send(&ours.0, question, &[]).unwrap();
        let listens = vec!["127.0.0.1:0".parse().unwrap()];
        open_for_server(&theirs, Ok((listens, Sockets::default()))).unwrap();
        let (mut text, mut sockets) = receive(&ours.0).unwrap();
        if text == PART {
            text = receive(&ours.0).map(|(text, _)| text).unwrap();
        }
        sockets.truncate(9);
        (text, sockets.len())
    }

    #[test]
    fn only_addresses_of_the_configuration_are_opened() {
        assert_eq!(ask("2 127.0.0.1:0"), ("end stream".into(), 2));
        for question in
            ["1 127.0.0.1:25", "1 unix:/run/x", "1 ", "x", "0 127.0.0.1:0", "-1 127.0.0.1:0"]
        {
            let (text, sockets) = ask(question);
            assert!(text.starts_with(FAILED) && sockets == 0, "{question}: {text}");
        }
    }
}
