//! Keeps the processes that stay root when the gateway gives up root.
//!
//! A gateway of another user cannot start a root process again. So before it gives up root, it starts a
//! supervisor (`forebay __root`) that stays root, and lets this one start the others: the one that opens
//! logs, the launcher of new versions, and the helper that starts applications. If one of them ends,
//! the supervisor reaps it, starts it again, and sends the gateway a connection to the new process. The
//! gateway logs this. If the supervisor itself ends, or if a process ends again and again, the gateway
//! has lost its rights for good, and ends with an error, so that the service manager starts it anew.
//!
//! The supervisor takes orders only until the gateway seals it, while the gateway is still root. So an
//! attacker who controls the gateway later cannot start anything through it.
//!
//! Each process takes its connection as standard input, and ends when it closes. The
//! supervisor ends when its own connection has closed and all its processes have ended.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force},
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::myself;

/// First command-line argument of the supervisor.
pub const ROOT: &str = "__root";

/// Maximum size of an order in bytes. The paths of all logs are part of one.
const MAX_ORDER: usize = 1 << 20;

/// A process that ends sooner than this after its start counts as one that cannot run.
const MIN_LIFE: Duration = Duration::from_secs(1);
/// Number of such ends in a row after which no other process is started.
const MAX_QUICK_ENDS: u32 = 5;

/// Time that the end of the gateway waits for that of the root processes.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Kinds of events that the supervisor reports.
const STARTED: u8 = b's';
const RESTARTED: u8 = b'r';
const FAILED: u8 = b'f';

static SUPERVISOR: OnceLock<Supervisor> = OnceLock::new();

/// The gateway's side of the supervisor.
#[derive(Debug)]
struct Supervisor {
    socket: Arc<OwnedFd>,
    process: Mutex<Option<Child>>,
    /// The processes, in the order of their start.
    known: Mutex<Vec<RootProcess>>,
}

/// A process that stays root: its current connection. A new process replaces it after its end.
#[derive(Clone, Debug)]
pub struct RootProcess {
    purpose: &'static str,
    current: Arc<Mutex<Current>>,
}

#[derive(Debug)]
struct Current {
    pid: u32,
    socket: Option<Arc<OwnedFd>>,
}

/// What a root process needs to start.
#[derive(Debug)]
pub struct RootCommand {
    /// The subcommand, such as `__helper`.
    pub verb: &'static str,
    /// The arguments after it.
    pub arguments: Vec<OsString>,
    /// What stops working without the process, for the log.
    pub purpose: &'static str,
    /// The kind of its connection.
    pub connection: Connection,
    /// What the process keeps of the gateway's surroundings.
    pub keeps: Keeps,
    /// True if its error output goes to that of the gateway.
    pub has_stderr: bool,
}

/// The kind of a connection to a root process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A stream of bytes.
    Stream,
    /// Messages, of at most this size in bytes.
    Messages(usize),
}

/// What a root process keeps of the gateway's surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing: an empty environment, and the directory `/`.
    Nothing,
    /// Environment and directory of the start.
    Surroundings,
}

/// An event that the gateway logs.
#[derive(Debug)]
pub enum RootEvent {
    /// A process has ended, and another one runs in its place.
    Restarted(String),
    /// The supervisor has ended or given up. What the text says will not work again.
    Lost(String),
}

impl RootProcess {
    /// Starts a root process, and the supervisor before the first one. Call this as root.
    pub fn start(command: &RootCommand) -> io::Result<Self> {
        let supervisor = match SUPERVISOR.get() {
            Some(supervisor) => supervisor,
            None => {
                let started = Supervisor::start()?;
                SUPERVISOR.get_or_init(|| started)
            }
        };
        supervisor.order(command)
    }

    /// Returns a process that has this connection, and that nothing replaces. For tests.
    pub fn connected(socket: OwnedFd) -> Self {
        let current = Current { pid: 0, socket: Some(Arc::new(socket)) };
        Self { purpose: "a test", current: Arc::new(Mutex::new(current)) }
    }

    /// Returns the connection to the process that runs now, or an error if there is none any more.
    pub fn socket(&self) -> io::Result<Arc<OwnedFd>> {
        lock(&self.current).socket.clone().ok_or_else(|| {
            io::Error::other("the process that does this as root has ended; try again")
        })
    }

    /// Returns the id of the process that runs now.
    pub fn pid(&self) -> u32 {
        lock(&self.current).pid
    }

    /// Closes the connection, after which the process ends. Another one replaces it.
    pub fn close(&self) {
        if let Some(socket) = lock(&self.current).socket.take() {
            // A program that starts at this moment may hold a copy of the socket.
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Lets the supervisor start no other kinds of processes, and reports its events to `report` from now
/// on. Call this before root is given up.
pub fn seal_root(report: impl Fn(RootEvent) + Send + 'static) -> io::Result<()> {
    let Some(supervisor) = SUPERVISOR.get() else { return Ok(()) };
    send(&supervisor.socket, b"", None)?;
    let thread = std::thread::Builder::new().name("root".into());
    thread.spawn(move || {
        while let Some(event) = supervisor.next_event() {
            report(event);
        }
    })?;
    Ok(())
}

/// Ends the supervisor and all root processes, and waits for their end.
pub fn end_root() {
    let Some(supervisor) = SUPERVISOR.get() else { return };
    let process = lock(&supervisor.process).take();
    // The supervisor must notice the end before that of its processes, which it would start again.
    let _ = rustix::net::shutdown(&*supervisor.socket, rustix::net::Shutdown::Both);
    lock(&supervisor.known).iter().for_each(RootProcess::close);
    let Some(mut process) = process else { return };
    let end = pidfd_open(Pid::from_child(&process), PidfdFlags::empty());
    let is_ending = end.is_ok_and(|end| {
        let mut ended = [PollFd::new(&end, PollFlags::IN)];
        // A process that hangs must not hold up the gateway. It ends later, as its connection has.
        poll(&mut ended, Some(&PATIENCE)).is_ok_and(|count| count > 0)
    });
    if is_ending {
        let _ = process.wait();
    }
}

impl Supervisor {
    fn start() -> io::Result<Self> {
        let (socket, theirs) = pair(Connection::Messages(MAX_ORDER))?;
        let process = Command::new(myself())
            .arg(ROOT)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let process = Mutex::new(Some(process));
        Ok(Self { socket: Arc::new(socket), process, known: Mutex::default() })
    }

    fn order(&self, command: &RootCommand) -> io::Result<RootProcess> {
        send(&self.socket, &command.encode(), None)?;
        let index = lock(&self.known).len();
        let process = RootProcess {
            purpose: command.purpose,
            current: Arc::new(Mutex::new(Current { pid: 0, socket: None })),
        };
        lock(&self.known).push(process.clone());
        loop {
            let (message, descriptor) = receive(&self.socket)?.ok_or(io::ErrorKind::BrokenPipe)?;
            let event = EventMessage::decode(&message).ok_or(io::ErrorKind::InvalidData)?;
            let is_own = event.index == index;
            self.apply(&event, descriptor);
            match event.kind {
                STARTED if is_own => return Ok(process),
                FAILED if is_own => return Err(io::Error::other(event.text)),
                _ => {}
            }
        }
    }

    fn apply(&self, event: &EventMessage, descriptor: Option<OwnedFd>) {
        if let Some(process) = lock(&self.known).get(event.index) {
            let current = Current { pid: event.pid, socket: descriptor.map(Arc::new) };
            *lock(&process.current) = current;
        }
    }

    /// Waits for an event, and uses its connection. Returns `None` at the end of the gateway.
    fn next_event(&self) -> Option<RootEvent> {
        let received = receive(&self.socket).ok().flatten();
        let event = received.as_ref().and_then(|(message, _)| EventMessage::decode(message));
        let (Some(event), Some((_, descriptor))) = (event, received) else {
            // `end_root` takes the process before it closes the connection.
            let mut process = lock(&self.process).take()?;
            let how = process.wait().map_or_else(|error| error.to_string(), |how| how.to_string());
            let all = std::mem::take(&mut *lock(&self.known));
            let purposes: Vec<_> = all.iter().map(|process| process.purpose).collect();
            return Some(RootEvent::Lost(format!(
                "the process that keeps root processes ({ROOT}) has ended: {how}; {} can no longer be \
                 relied on",
                purposes.join(", ")
            )));
        };
        let purpose = lock(&self.known).get(event.index).map_or("", |process| process.purpose);
        self.apply(&event, descriptor);
        let EventMessage { kind, pid, text, .. } = event;
        Some(match kind {
            RESTARTED => RootEvent::Restarted(format!(
                "the root process for {purpose} has ended ({text}); process {pid} replaces it"
            )),
            _ => RootEvent::Lost(format!("the root process for {purpose} cannot run: {text}")),
        })
    }
}

impl RootCommand {
    /// Flags, the size of messages, and the words of the command line.
    fn encode(&self) -> Vec<u8> {
        let size = match self.connection {
            Connection::Stream => 0,
            Connection::Messages(size) => u32::try_from(size).unwrap_or(u32::MAX),
        };
        let flags = u8::from(self.keeps == Keeps::Surroundings) | u8::from(self.has_stderr) << 1;
        let mut bytes = vec![flags];
        bytes.extend(size.to_ne_bytes());
        bytes.extend(self.verb.as_bytes());
        for argument in &self.arguments {
            bytes.push(0);
            bytes.extend(argument.as_bytes());
        }
        bytes
    }
}

/// An event: its kind, the index and id of the process, and a text.
struct EventMessage {
    kind: u8,
    index: usize,
    pid: u32,
    text: String,
}

impl EventMessage {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, u8::try_from(self.index).unwrap_or(u8::MAX)];
        bytes.extend(self.pid.to_ne_bytes());
        bytes.extend(self.text.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, index], bytes) = bytes.split_first_chunk()?;
        let (pid, text) = bytes.split_first_chunk()?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(Self { kind, index: index.into(), pid: u32::from_ne_bytes(*pid), text })
    }
}

/// Runs `forebay __root`, with its socket as standard input.
pub fn supervise_root() -> ExitCode {
    // Block signals that are sent to a whole control group or terminal, because this process must
    // end only after its gateway.
    let mut signals = SigSet::empty();
    for signal in
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2]
    {
        signals.add(signal);
    }
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    if signals.thread_block().is_err() {
        return ExitCode::FAILURE;
    }
    match (RootServer { socket, kept: Vec::new(), is_sealed: false }).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: the process that keeps root processes ends: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The supervisor's own state.
struct RootServer {
    socket: OwnedFd,
    kept: Vec<Kept>,
    is_sealed: bool,
}

/// A process, and how to start it again.
struct Kept {
    order: Vec<u8>,
    /// `None` after it has ended for good.
    running: Option<Running>,
    quick_ends: QuickEnds,
}

/// Number of ends in a row that came too soon after the start, of processes that replace each other.
#[derive(Debug, Default)]
pub(crate) struct QuickEnds(u32);

impl QuickEnds {
    /// Counts the end of a process that has started at `since`. Returns true if it makes no sense to
    /// start another one.
    pub(crate) fn is_hopeless_after(&mut self, since: Instant) -> bool {
        self.0 = if since.elapsed() < MIN_LIFE { self.0 + 1 } else { 0 };
        self.0 > MAX_QUICK_ENDS
    }
}

struct Running {
    process: Child,
    /// Becomes readable when the process ends.
    end: OwnedFd,
    since: Instant,
}

impl RootServer {
    fn run(mut self) -> io::Result<()> {
        let mut has_gateway = true;
        while has_gateway || self.kept.iter().any(|kept| kept.running.is_some()) {
            let (has_order, ended) = self.wait(has_gateway)?;
            for index in ended {
                self.replace(index, has_gateway)?;
            }
            if has_order {
                has_gateway = match receive(&self.socket) {
                    Ok(Some((order, _))) => {
                        self.obey(order)?;
                        true
                    }
                    Ok(None) | Err(_) => false,
                };
            }
        }
        Ok(())
    }

    /// Waits for an order, or for the end of processes.
    fn wait(&self, has_gateway: bool) -> io::Result<(bool, Vec<usize>)> {
        let running = || {
            let all = self.kept.iter().enumerate();
            all.filter_map(|(index, kept)| Some((index, kept.running.as_ref()?)))
        };
        let of_gateway = has_gateway.then(|| PollFd::new(&self.socket, PollFlags::IN));
        let ends = running().map(|(_, running)| PollFd::new(&running.end, PollFlags::IN));
        let mut sockets: Vec<_> = ends.chain(of_gateway).collect();
        match poll(&mut sockets, None::<&Timespec>) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |socket: &PollFd<'_>| !socket.revents().is_empty();
        let ended = running().zip(&sockets).filter(|(_, socket)| is_ready(socket));
        let ended = ended.map(|((index, _), _)| index).collect();
        Ok((has_gateway && sockets.last().is_some_and(is_ready), ended))
    }

    fn obey(&mut self, order: Vec<u8>) -> io::Result<()> {
        if order.is_empty() {
            self.is_sealed = true;
            return Ok(());
        }
        if self.is_sealed {
            return Err(io::Error::other("a gateway that has given up root wants another process"));
        }
        self.kept.push(Kept { order, running: None, quick_ends: QuickEnds::default() });
        self.start(self.kept.len() - 1, STARTED, String::new())
    }

    /// Starts a process, and tells the gateway.
    fn start(&mut self, index: usize, kind: u8, text: String) -> io::Result<()> {
        let kept = &mut self.kept[index];
        let (pid, socket, event) = match Running::start(&kept.order) {
            Ok((running, socket)) => {
                let pid = running.process.id();
                kept.running = Some(running);
                (pid, Some(socket), (kind, text))
            }
            Err(error) => (0, None, (FAILED, error.to_string())),
        };
        let message = EventMessage { kind: event.0, index, pid, text: event.1 }.encode();
        match send(&self.socket, &message, socket.as_ref()) {
            // The gateway has ended. Its end is noticed where orders are received.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome,
        }
    }

    /// Reaps a process that has ended, and starts it again while there is a gateway.
    fn replace(&mut self, index: usize, has_gateway: bool) -> io::Result<()> {
        let kept = &mut self.kept[index];
        let Some(Running { mut process, since, .. }) = kept.running.take() else { return Ok(()) };
        let status = process.wait()?;
        if !has_gateway {
            return Ok(());
        }
        if kept.quick_ends.is_hopeless_after(since) {
            return Err(io::Error::other(format!("a process ends again and again: {status}")));
        }
        self.start(index, RESTARTED, format!("process {}, {status}", process.id()))
    }
}

impl Running {
    /// Starts the process of an order. Returns the gateway's end of its connection, too.
    fn start(order: &[u8]) -> io::Result<(Self, OwnedFd)> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (flags, order) = order.split_first().ok_or_else(invalid)?;
        let (size, words) = order.split_first_chunk().ok_or_else(invalid)?;
        let connection = match u32::from_ne_bytes(*size) {
            0 => Connection::Stream,
            size => Connection::Messages(size as usize),
        };
        let (ours, theirs) = pair(connection)?;
        let words = words.split(|byte| *byte == 0);
        let words = words.map(|word| OsStr::from_bytes(word).to_owned());
        let mut command = Command::new(myself());
        command.args(words).stdin(theirs).stdout(Stdio::null()).process_group(0);
        if flags & 1 == 0 {
            command.env_clear().current_dir("/");
        }
        if flags & 2 == 0 {
            command.stderr(Stdio::null());
        }
        let process = command.spawn()?;
        let end = pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?;
        Ok((Self { process, end, since: Instant::now() }, ours))
    }
}

fn pair(connection: Connection) -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, size) = match connection {
        Connection::Stream => (SocketType::STREAM, None),
        Connection::Messages(size) => (SocketType::SEQPACKET, Some(size)),
    };
    let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    if let Some(size) = size {
        // A message may be larger than the default buffer. Beyond the system's limit, this needs
        // CAP_NET_ADMIN, which a unit may withhold.
        set_socket_send_buffer_size_force(&one, 2 * size)
            .or_else(|_| set_socket_send_buffer_size(&one, 2 * size))?;
    }
    Ok((one, other))
}

/// Sends a message, with a descriptor if there is one.
fn send(socket: &OwnedFd, message: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    // An empty message would look like the end of the connection, so each one begins with a byte.
    let pieces = [IoSlice::new(b"m"), IoSlice::new(message)];
    sendmsg(socket, &pieces, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message and its descriptor. Returns `None` if the other side has closed.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut message = vec![0; MAX_ORDER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut message)];
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = ancillary.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    message.truncate(received.bytes);
    if message.is_empty() {
        return Ok(None);
    }
    message.remove(0);
    Ok(Some((message, descriptor)))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
