//! Hands the sockets of a running server to its successor, another process of the same or a newer
//! version. Both processes have one end of a socket, over which they exchange messages:
//!
//! | sender | message | descriptors |
//! |---|---|---|
//! | old | `forebay-upgrade 1`, the soft limit on descriptors, and the keys of TLS tickets | none |
//! | old | number, kind and configured address of a listener | its sockets |
//! | old | `end` | none |
//! | new | `ready` and its process ID | none |
//! | old | `go` | none |
//!
//! The new process starts its applications before it sends `ready`, and accepts no connection
//! before it has received `go`. Until then the old process can continue as if nothing had happened.
//! After `go`, the old process only finishes its requests. When it ends, its end of the socket
//! closes, and the new process notices this.
//!
//! Both processes share all sockets except those for QUIC, so that no waiting connection is lost. A
//! QUIC connection belongs to one process, so the new process opens further QUIC sockets on the
//! same address.

use std::env;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use rustix::process::{PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use crate::listen::Listener;
use crate::sys::datagrams::Routing;

pub mod launcher;

/// Environment variable of a process that receives sockets on standard input. Its value describes
/// the old process ([`Takeover::note`]).
pub const VARIABLE: &str = "FOREBAY_UPGRADE";

/// First message. The number changes when an older version would not understand the messages.
const GREETING: &str = "forebay-upgrade 1";
const END: &str = "end";
const READY: &str = "ready";
const GO: &str = "go";

/// Maximum number of descriptors in a message. The kernel's limit is 253.
const DESCRIPTORS: usize = 128;
/// Maximum number of listeners that a process accepts from the former one.
const MOST_LISTENERS: usize = 10_000;
/// Maximum length of a message.
const LENGTH: usize = 8192;
/// Time limit for the old process's messages. The messages are short, and the old process has
/// nothing else to do.
const MESSAGE_LIMIT: Duration = Duration::from_secs(30);

/// Kind of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// A TCP or Unix socket that listens.
    Stream,
    /// UDP sockets of a stream.
    Datagrams,
    /// UDP sockets for QUIC.
    Quic(Routing),
    /// The admin listener.
    Admin,
}

impl ListenerKind {
    fn word(self) -> String {
        match self {
            Self::Stream => "stream".to_owned(),
            Self::Datagrams => "datagrams".to_owned(),
            Self::Admin => "admin".to_owned(),
            Self::Quic(Routing { sockets, count, shift, tag }) => {
                format!("quic,{sockets},{count},{shift},{tag}")
            }
        }
    }

    fn parse(word: &str) -> Option<Self> {
        let mut words = word.split(',');
        let kind = match words.next()? {
            "stream" => Self::Stream,
            "datagrams" => Self::Datagrams,
            "admin" => Self::Admin,
            "quic" => Self::Quic(Routing {
                sockets: words.next()?.parse().ok()?,
                count: words.next()?.parse().ok()?,
                shift: words.next()?.parse().ok()?,
                tag: words.next()?.parse().ok()?,
            }),
            _ => return None,
        };
        words.next().is_none().then_some(kind)
    }
}

/// Copies of a listener's sockets.
#[derive(Debug)]
pub struct SocketCopies {
    /// Kind of the listener.
    pub kind: ListenerKind,
    /// Address in the configuration, as text.
    pub configured: String,
    /// The sockets. Sockets for QUIC are in the order of their positions.
    pub sockets: Vec<OwnedFd>,
}

impl SocketCopies {
    /// Copies the sockets of all threads.
    pub fn of(configured: String, listeners: &[Listener]) -> io::Result<Self> {
        let mut kind = ListenerKind::Stream;
        let mut sockets: Vec<OwnedFd> = Vec::new();
        let mut known = Vec::new();
        for listener in listeners {
            let socket = match listener {
                Listener::Tcp(socket) => socket.as_fd(),
                Listener::Unix(socket) => socket.as_fd(),
                Listener::Udp(socket) => {
                    kind = ListenerKind::Quic(socket.routing);
                    socket.socket.as_fd()
                }
                Listener::Datagrams(socket) => {
                    kind = ListenerKind::Datagrams;
                    socket.as_fd()
                }
            };
            // If threads share a socket, copy it only once.
            let number = fstat(socket)?.st_ino;
            if !known.contains(&number) {
                known.push(number);
                sockets.push(socket.try_clone_to_owned()?);
            }
        }
        if let ListenerKind::Quic(routing) = kind {
            let shift = routing.shift % sockets.len().max(1);
            sockets.rotate_right(shift);
        }
        Ok(Self { kind, configured, sockets })
    }
}

/// Reason why the new process did not take over.
#[derive(Debug)]
pub enum HandoverError {
    /// The new process has ended before it was ready.
    Ended,
    /// The new process was not ready in time.
    Late(Duration),
    /// Messages could not be exchanged.
    System(io::Error),
}

impl fmt::Display for HandoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => write!(f, "the new process ended before it was ready"),
            Self::Late(limit) => write!(f, "the new process was not ready within {limit:?}"),
            Self::System(error) => write!(f, "cannot hand over to the new process: {error}"),
        }
    }
}

impl std::error::Error for HandoverError {}

impl From<io::Error> for HandoverError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof => Self::Ended,
            _ => Self::System(error),
        }
    }
}

/// Settings and keys that a process passes to its successor.
#[derive(Clone, Default)]
pub struct Heritage {
    /// The soft limit on descriptors that this process found at its start. `None` means the hard
    /// limit.
    pub descriptors: Option<u64>,
    /// Keys of TLS tickets and of QUIC, as text without spaces. May be empty.
    pub keys: String,
}

/// The old process's end of the socket between both processes. [`Takeover::wait_for_end`] in the
/// new process waits until the old process drops this value.
#[derive(Debug)]
pub struct Handover(OwnedFd);

impl Handover {
    /// Creates both ends of the socket. The second one becomes the new process's standard input.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), theirs))
    }

    /// Returns another handle to this end, so that another thread can call [`Self::stop`].
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Ends the communication with the new process. Other methods of this value that wait for the
    /// new process then fail.
    pub fn stop(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Sends the sockets, and waits until the new process is ready. Returns its process ID.
    ///
    /// # Errors
    /// Fails if the new process ends, or is not ready after `limit`.
    pub fn offer<'a>(
        &self,
        listeners: impl Iterator<Item = &'a SocketCopies>,
        Heritage { descriptors, keys }: &Heritage,
        limit: Duration,
    ) -> Result<u32, HandoverError> {
        set_socket_timeout(&self.0, Timeout::Send, Some(MESSAGE_LIMIT))
            .and_then(|()| set_socket_timeout(&self.0, Timeout::Recv, Some(limit)))
            .map_err(io::Error::from)?;
        let soft = descriptors.map_or_else(|| "-".to_owned(), |soft| soft.to_string());
        send(&self.0, format!("{GREETING} {soft} {keys}").trim_end(), &[])?;
        for (number, SocketCopies { kind, configured, sockets }) in listeners.enumerate() {
            let head = format!("{number} {} {configured}", kind.word());
            for part in sockets.chunks(DESCRIPTORS) {
                let borrowed: Vec<_> = part.iter().map(AsFd::as_fd).collect();
                send(&self.0, &head, &borrowed)?;
            }
        }
        send(&self.0, END, &[])?;
        let (text, _) = receive(&self.0).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => HandoverError::Late(limit),
            _ => error.into(),
        })?;
        let id = text.strip_prefix(READY).and_then(|id| id.trim().parse().ok());
        id.ok_or_else(|| HandoverError::System(io::Error::other("an unknown message came")))
    }

    /// Lets the new process accept connections. After this, the caller must accept no more.
    pub fn go(&self) -> Result<(), HandoverError> {
        Ok(send(&self.0, GO, &[])?)
    }
}

/// The new process's end of the socket.
#[derive(Debug)]
pub struct Takeover {
    socket: OwnedFd,
    /// Becomes readable when the old process has ended. `None` if the system provides no such
    /// descriptor.
    process: Option<OwnedFd>,
    /// The sockets of each listener of the old process.
    pub listeners: Vec<SocketCopies>,
    /// Keys of TLS tickets and of QUIC. Empty if the old process has sent none.
    pub keys: String,
    /// Description of the old process, from its [`launcher::Program`]. Versions that do not
    /// describe themselves send `1`.
    pub note: String,
}

/// Reason why a new process cannot take over.
#[derive(Debug)]
pub struct TakeoverError(io::Error);

impl fmt::Display for TakeoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot take over from the running Forebay: {}", self.0)
    }
}

impl std::error::Error for TakeoverError {}

impl Takeover {
    /// Receives the old process's sockets. Returns `None` if no process hands over to this one.
    /// Call this once, before this process starts threads.
    pub fn from_environment() -> Result<Option<Self>, TakeoverError> {
        // The variable alone is no sign of a handover. Each program that a new process starts
        // inherits the variable, but not the socket.
        let Some(note) = env::var_os(VARIABLE) else { return Ok(None) };
        if !socket_type(io::stdin()).is_ok_and(|kind| kind == SocketType::SEQPACKET) {
            return Ok(None);
        }
        let take = || {
            // Unblock all signals. The process that stays root (`launcher`) blocks signals, and its
            // children inherit this.
            SigSet::empty().thread_set_mask()?;
            let socket = io::stdin().as_fd().try_clone_to_owned()?;
            rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(MESSAGE_LIMIT))?;
            let (listeners, keys) = receive_listeners(&socket)?;
            // The credentials of this end name the process that called `socketpair`, which is the
            // old process.
            let peer = socket_peercred(&socket).ok();
            let process = peer.and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()).ok());
            let note = note.to_string_lossy().into_owned();
            Ok(Self { socket, process, listeners, keys, note })
        };
        take().map(Some).map_err(TakeoverError)
    }

    /// Reports that this process is ready, and waits until the old process accepts no more
    /// connections.
    ///
    /// # Errors
    /// Fails if the old process has given up. This process must then end.
    pub fn confirm(&self) -> Result<(), TakeoverError> {
        let confirm = || {
            send(&self.socket, &format!("{READY} {}", std::process::id()), &[])?;
            match &*receive(&self.socket)?.0 {
                GO => Ok(()),
                _ => Err(io::Error::other("an unknown message came")),
            }
        };
        confirm().map_err(TakeoverError)
    }

    /// Waits until the old process has ended.
    pub fn wait_for_end(self) {
        // First wait for the end of the old process itself. A killed process may close this socket
        // before its UDP sockets. The close of its UDP sockets changes the positions of the UDP
        // sockets of this process (`FormerDatagrams::release`).
        if let Some(process) = &self.process {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            while poll(&mut ended, None) == Err(rustix::io::Errno::INTR) {}
        }
        if set_socket_timeout(&self.socket, Timeout::Recv, None).is_ok() {
            while receive(&self.socket).is_ok() {}
        }
    }
}

/// Receives the sockets of all listeners, and the keys.
fn receive_listeners(socket: &OwnedFd) -> io::Result<(Vec<SocketCopies>, String)> {
    let unknown = || io::Error::other("its version does not fit this one; restart Forebay instead");
    let (text, _) = receive(socket)?;
    let mut words = text.strip_prefix(GREETING).ok_or_else(unknown)?.split_whitespace();
    let soft = words.next().and_then(|soft| soft.parse().ok());
    let keys = words.next().unwrap_or_default().to_owned();
    let mut listeners: Vec<SocketCopies> = Vec::new();
    let mut last = String::new();
    loop {
        let (head, sockets) = receive(socket)?;
        if head == END {
            // Restore the limit only after the last socket, because the sockets may need the
            // higher, inherited limit.
            restore_limit(soft);
            return Ok((listeners, keys));
        }
        if listeners.len() > MOST_LISTENERS {
            return Err(io::Error::other("too many listeners came"));
        }
        if let Some(listener) = listeners.last_mut().filter(|_| head == last) {
            listener.sockets.extend(sockets);
            continue;
        }
        let mut words = head.splitn(3, ' ').skip(1);
        let kind = words.next().and_then(ListenerKind::parse).ok_or_else(unknown)?;
        let configured = words.next().ok_or_else(unknown)?.to_owned();
        listeners.push(SocketCopies { kind, configured, sockets });
        last = head;
    }
}

/// Restores the soft limit on descriptors to `soft`, the limit before the old process raised it.
/// Applications would otherwise inherit the higher limit. If `soft` is `None`, sets the soft limit
/// to the hard limit.
fn restore_limit(soft: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: soft.or(maximum), maximum });
}

fn send(socket: &OwnedFd, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut bytes = vec![0; LENGTH];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => break outcome?,
        }
    };
    if received.bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other process has ended"));
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other(
            "the limit on open files is too low for all sockets; raise it (LimitNOFILE of systemd)",
        ));
    }
    bytes.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok((String::from_utf8_lossy(&bytes).into_owned(), descriptors))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn copies(count: usize) -> SocketCopies {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sockets = (0..count).map(|_| listener.try_clone().unwrap().into()).collect();
        SocketCopies { kind: ListenerKind::Stream, configured: "unix:/a path".to_owned(), sockets }
    }

    fn soft_limit() -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    fn heritage() -> Heritage {
        Heritage { descriptors: soft_limit(), keys: "00ff;x".repeat(500) }
    }

    #[test]
    fn sockets_of_all_listeners_arrive() {
        let (old, socket) = Handover::new().unwrap();
        let routing = Routing { sockets: 3, count: 3, shift: 1, tag: 255 };
        let quic = SocketCopies { kind: ListenerKind::Quic(routing), ..copies(3) };
        let all = [copies(300), copies(2), quic];
        let offering = std::thread::spawn(move || {
            let id = old.offer(all.iter(), &heritage(), LIMIT).unwrap();
            old.go().unwrap();
            id
        });
        let (listeners, keys) = receive_listeners(&socket).unwrap();
        assert_eq!(keys, heritage().keys);
        let found: Vec<_> =
            listeners.iter().map(|listener| (listener.kind, listener.sockets.len())).collect();
        let stream = ListenerKind::Stream;
        assert_eq!(found, [(stream, 300), (stream, 2), (ListenerKind::Quic(routing), 3)]);
        assert_eq!(listeners[0].configured, "unix:/a path");
        let note = String::new();
        Takeover { socket, process: None, listeners, keys, note }.confirm().unwrap();
        assert_eq!(offering.join().unwrap(), std::process::id());
    }

    #[test]
    fn a_process_that_ends_or_is_late_is_reported() {
        let (old, socket) = Handover::new().unwrap();
        drop(socket);
        let offered = old.offer([].iter(), &heritage(), LIMIT);
        assert!(matches!(offered, Err(HandoverError::Ended)), "{offered:?}");
        let (old, socket) = Handover::new().unwrap();
        let offered = old.offer([].iter(), &heritage(), Duration::from_millis(10));
        assert!(matches!(offered, Err(HandoverError::Late(_))), "{offered:?}");
        // The new process must not serve after the old one has given up.
        drop(old);
        let (listeners, keys, note) = (Vec::new(), String::new(), String::new());
        let takeover = Takeover { socket, process: None, listeners, keys, note };
        assert!(takeover.confirm().is_err());
    }

    #[test]
    fn unknown_messages_are_refused() {
        let soft = soft_limit().map_or_else(|| "-".to_owned(), |soft| soft.to_string());
        let greeting = format!("{GREETING} {soft}");
        for messages in [
            ["forebay-upgrade 2 1024", END],
            ["", END],
            [&greeting, "0 unknown x"],
            [&greeting, "0 quic,1,1 x"],
            [&greeting, "0"],
            [&greeting, "\u{0}\u{fffd}"],
        ] {
            let (Handover(old), socket) = Handover::new().unwrap();
            for message in messages {
                send(&old, message, &[]).unwrap();
            }
            drop(old);
            assert!(receive_listeners(&socket).is_err(), "{messages:?}");
        }
    }
}
