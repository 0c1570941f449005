//! Takes over listening sockets from a service manager, and reports the state of the server to it.
//!
//! This module follows sd_listen_fds(3) and sd_notify(3) of systemd, which other managers have
//! adopted, and `SERVER_STARTER_PORT` of Server::Starter.

use std::env;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use forebay_conf::Listen;
use forebay_process::is_below_init;
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Socket, Type};

use crate::handover::{ListenerKind, SocketCopies};
use crate::listen::{
    FormerDatagrams, ListenError, Listener, Opened, Sockets, datagram_listeners, open, succeed_udp,
};
use crate::sys::inherit;

/// The variable of Server::Starter.
pub const STARTER_PORT: &str = "SERVER_STARTER_PORT";

/// Number of the first descriptor that a service manager passes.
const FIRST: i32 = 3;

/// Listening sockets that the service manager, or a former process of this server, opened.
#[derive(Default)]
pub struct Inherited {
    passed: Vec<Passed>,
    /// The admin listener of a former process, and the address of this listener.
    admin: Option<(Listen, Socket)>,
    formers: Vec<FormerDatagrams>,
    is_takeover: bool,
}

struct Passed {
    name: String,
    listen: Listen,
    kind: ListenerKind,
    sockets: Vec<Socket>,
}

impl Passed {
    fn new(name: &str, listen: Listen, socket: Socket) -> Self {
        Self { name: name.to_owned(), listen, kind: ListenerKind::Stream, sockets: vec![socket] }
    }

    /// Returns listeners for each of `threads` threads. Gives every passed socket to a thread, so
    /// that no connection stays in the queue of a socket without a thread.
    fn share(
        self,
        threads: usize,
        formers: &mut Vec<FormerDatagrams>,
    ) -> Result<Vec<Opened>, ListenError> {
        let Self { listen, kind, sockets, .. } = self;
        let outcome = match (kind, &listen) {
            (ListenerKind::Quic(routing), Listen::Http3(address)) => {
                succeed_udp(*address, threads, sockets, routing).map(|(listeners, former)| {
                    formers.push(former);
                    vec![listeners]
                })
            }
            _ => divide(&sockets, threads, &listen),
        };
        match outcome {
            Ok(groups) => Ok(groups.into_iter().map(|group| (listen.clone(), group)).collect()),
            Err(error) => Err(ListenError { listen, error }),
        }
    }
}

/// Divides sockets into groups with one socket per thread. If there are fewer sockets than threads,
/// threads share them.
fn divide(sockets: &[Socket], threads: usize, listen: &Listen) -> io::Result<Vec<Vec<Listener>>> {
    let group = |part: &[Socket]| {
        let copies = (0..threads).map(|thread| {
            let copy = part[thread % part.len()].try_clone()?;
            Ok(match listen.socket() {
                Listen::Unix(_) => Listener::Unix(copy.into()),
                Listen::Udp(_) => Listener::Datagrams(copy.into()),
                _ => Listener::Tcp(copy.into()),
            })
        });
        copies.collect()
    };
    sockets.chunks(threads.max(1)).map(group).collect()
}

/// Returns the listeners of sockets that another process has opened for this many threads.
pub fn adopt(copies: SocketCopies, listen: &Listen, threads: usize) -> io::Result<Opened> {
    let SocketCopies { kind, sockets, .. } = copies;
    let sockets: Vec<_> = sockets.into_iter().map(Socket::from).collect();
    let first = sockets.first().ok_or_else(|| io::Error::other("no socket came"))?;
    let address = listen.same_over(address_of(first, kind)?);
    let listeners = match kind {
        ListenerKind::Quic(routing) if sockets.len() == threads => {
            datagram_listeners(sockets, routing)?
        }
        ListenerKind::Quic(_) => return Err(io::Error::other("too few sockets came")),
        _ => divide(&sockets, threads, &address)?.swap_remove(0),
    };
    Ok((address, listeners))
}

/// Reason to refuse the sockets of the service manager.
#[derive(Debug)]
pub enum InheritError {
    /// `LISTEN_FDS` is not a valid number of descriptors.
    Count(String),
    /// A pair in `SERVER_STARTER_PORT` has no descriptor.
    Pair(String),
    /// A descriptor is not a listening stream socket.
    Socket {
        /// Number of the descriptor.
        number: i32,
        /// Name in `LISTEN_FDNAMES`.
        name: String,
        /// Reason of the refusal.
        error: io::Error,
    },
    /// No site listens on these sockets.
    Unused(Vec<String>),
}

impl fmt::Display for InheritError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(text) => write!(f, "LISTEN_FDS={text} is not a number of sockets"),
            Self::Pair(pair) => {
                write!(f, "SERVER_STARTER_PORT has {pair}, which is not ADDRESS=DESCRIPTOR")
            }
            Self::Socket { number, name, error } => write!(
                f,
                "descriptor {number} ({name}) of the service manager is not a listening socket: \
                 {error}; check the socket unit, or --port and --path of start_server"
            ),
            Self::Unused(sockets) => write!(
                f,
                "no site listens on what the service manager opened: {}; add it to `listen`, or \
                 take it out of the socket unit",
                sockets.join(", ")
            ),
        }
    }
}

impl std::error::Error for InheritError {}

impl Inherited {
    /// Takes over the `LISTEN_FDS` descriptors, if `LISTEN_PID` is this process, and those that
    /// `SERVER_STARTER_PORT` names. Call this once, before this process opens other descriptors.
    pub fn take() -> Result<Self, InheritError> {
        let mut passed = Self::of_systemd()?;
        // A parent may name a socket in both variables, as Forebay does for its applications. So
        // skip the descriptors of systemd.
        let taken = i32::try_from(passed.len()).unwrap_or(i32::MAX);
        passed.extend(Self::of_server_starter(FIRST..FIRST + taken)?);
        Ok(Self { passed, ..Self::default() })
    }

    /// Takes over the sockets of a former process of this server.
    pub fn from_former(copies: Vec<SocketCopies>) -> io::Result<Self> {
        let mut inherited = Self { is_takeover: true, ..Self::default() };
        for SocketCopies { kind, configured: name, sockets } in copies {
            let mut sockets: Vec<_> = sockets.into_iter().map(Socket::from).collect();
            if kind == ListenerKind::Admin {
                let Some(socket) = sockets.pop() else { continue };
                inherited.admin = Some((address_of(&socket, kind)?, socket));
                continue;
            }
            let Some(first) = sockets.first() else { continue };
            let listen = address_of(first, kind)?;
            inherited.passed.push(Passed { name, listen, kind, sockets });
        }
        Ok(inherited)
    }

    /// Returns the admin listener that the former process has passed, if its address is `wanted`.
    /// Every TCP address fits if `wanted` is a TCP address with port 0. Otherwise returns `None`.
    pub fn claim_admin(&mut self, wanted: &Listen) -> Option<Listener> {
        let has_address = |(address, _): &mut (Listen, Socket)| match (&*address, wanted) {
            (Listen::Tcp(_), Listen::Tcp(wanted)) if wanted.port() == 0 => true,
            (address, wanted) => address == wanted,
        };
        let (address, socket) = self.admin.take_if(has_address)?;
        Some(match address {
            Listen::Unix(_) => Listener::Unix(socket.into()),
            _ => Listener::Tcp(socket.into()),
        })
    }

    /// Returns the UDP sockets of a former process, which still serves its connections on these
    /// sockets.
    pub fn take_formers(&mut self) -> Vec<FormerDatagrams> {
        std::mem::take(&mut self.formers)
    }

    /// Takes over the sockets of Server::Starter: pairs of an address and a descriptor, such as
    /// `127.0.0.1:80=3;/run/a.sock=4`.
    ///
    /// Leaves out the descriptors in `taken`.
    fn of_server_starter(taken: Range<i32>) -> Result<Vec<Passed>, InheritError> {
        let Ok(ports) = env::var(STARTER_PORT) else { return Ok(Vec::new()) };
        let mut passed = Vec::new();
        for pair in ports.split(';').filter(|pair| !pair.is_empty()) {
            let (name, number) = pair.rsplit_once('=').unwrap_or((pair, ""));
            let number: i32 = number.parse().map_err(|_| InheritError::Pair(pair.to_owned()))?;
            if taken.contains(&number) {
                continue;
            }
            match inherit(number).and_then(listening) {
                Ok((socket, listen)) => {
                    passed.push(Passed::new(name, listen, socket));
                }
                Err(error) => {
                    return Err(InheritError::Socket { number, name: name.to_owned(), error });
                }
            }
        }
        Ok(passed)
    }

    /// Takes over the sockets of systemd, or none if `LISTEN_PID` names another process.
    fn of_systemd() -> Result<Vec<Passed>, InheritError> {
        let to_us = env::var("LISTEN_PID")
            .is_ok_and(|id| id == std::process::id().to_string() || id == "1" && is_below_init());
        let Some(count) = env::var_os("LISTEN_FDS").filter(|_| to_us) else {
            return Ok(Vec::new());
        };
        let count = count.to_string_lossy();
        let count: i32 = count
            .parse()
            .ok()
            .filter(|count| (0..=MOST).contains(count))
            .ok_or_else(|| InheritError::Count(count.into_owned()))?;
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let passed = (FIRST..FIRST + count).map(|number| {
            let name = names.next().filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
            match inherit(number).and_then(listening) {
                Ok((socket, listen)) => Ok(Passed::new(&name, listen, socket)),
                Err(error) => Err(InheritError::Socket { number, name, error }),
            }
        });
        passed.collect()
    }

    /// Opens `listen`, or returns the service manager's sockets for this address or name. Several
    /// sockets may have the same name.
    pub fn open_or_claim(
        &mut self,
        listen: &Listen,
        threads: usize,
        sockets: &Sockets,
    ) -> Result<Vec<Opened>, ListenError> {
        let mut opened = Vec::new();
        for passed in self.claim(listen) {
            opened.extend(passed.share(threads, &mut self.formers)?);
        }
        if opened.is_empty() {
            return Ok(vec![open(listen, threads, sockets)?]);
        }
        let same = |(address, sockets)| (listen.same_over(address), sockets);
        Ok(opened.into_iter().map(same).collect())
    }

    /// Removes the sockets with this address or name. Returns an empty list if none was passed.
    fn claim(&mut self, listen: &Listen) -> Vec<Passed> {
        let socket = listen.socket();
        // A former process reports each configured address as a name. Compare these names first,
        // because a configured port may be 0.
        let configured = listen.to_string();
        let is_takeover = self.is_takeover;
        let is_meant = |passed: &mut Passed| match socket {
            _ if is_takeover && passed.name == configured => true,
            Listen::Named(name) => passed.name == *name,
            address => passed.listen == *address,
        };
        self.passed.extract_if(.., is_meant).collect()
    }

    /// Fails if a socket of the service manager was not claimed. But unclaimed sockets of a former
    /// process close without an error.
    pub fn finish(self) -> Result<(), InheritError> {
        // A new configuration may have fewer listeners than that of a former process.
        if self.passed.is_empty() || self.is_takeover {
            return Ok(());
        }
        let show = |passed: Passed| format!("{} ({})", passed.listen, passed.name);
        Err(InheritError::Unused(self.passed.into_iter().map(show).collect()))
    }
}

/// Maximum plausible number of sockets.
const MOST: i32 = 1000;

/// Returns the socket and its address. Fails if the descriptor is not a listening stream socket.
fn listening(fd: OwnedFd) -> io::Result<(Socket, Listen)> {
    let refuse = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
    let socket = Socket::from(fd);
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Err(refuse("it is not a stream socket that listens"));
    }
    let listen = address_of(&socket, ListenerKind::Stream)?;
    socket.set_nonblocking(true)?;
    Ok((socket, listen))
}

fn address_of(socket: &Socket, kind: ListenerKind) -> io::Result<Listen> {
    let refuse = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
    let address = socket.local_addr()?;
    Ok(match (socket.domain()?, address.as_socket()) {
        (_, Some(address)) if kind == ListenerKind::Datagrams => Listen::Udp(address),
        (_, Some(address)) if matches!(kind, ListenerKind::Quic(_)) => Listen::Http3(address),
        (_, Some(address)) => Listen::Tcp(address),
        (Domain::UNIX, _) => {
            let path = address.as_pathname().ok_or_else(|| refuse("it has no path"))?;
            Listen::Unix(path.to_owned())
        }
        _ => return Err(refuse("it is of an unknown family")),
    })
}

/// Reports the state of the server to the service manager, if `NOTIFY_SOCKET` names the manager's
/// socket.
pub struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// Opens the socket that `NOTIFY_SOCKET` names: a path, or an abstract name after an `@`.
    /// Without a usable name, all reports are dropped.
    pub fn from_environment() -> Self {
        let name = env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(&name),
            _ => return Self(None),
        };
        Self(address.and_then(|address| Ok((UnixDatagram::unbound()?, address))).ok())
    }

    /// Reports that the server answers requests.
    pub fn ready(&self, status: &str) {
        self.notify(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that a reload has begun. [`Notify::ready`] reports its end.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading"));
    }

    /// Reports that process `id` serves from now on. The service manager then supervises this
    /// process.
    pub fn succeeded_by(&self, id: u32) {
        self.notify(&format!("MAINPID={id}\nREADY=1\nSTATUS=serving"));
    }

    /// Reports what the server does.
    pub fn status(&self, status: &str) {
        self.notify(&format!("STATUS={status}"));
    }

    /// Reports that the server stops.
    pub fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=finishing the requests under way");
    }

    fn notify(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // Ignore errors: the state is only informational.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}
