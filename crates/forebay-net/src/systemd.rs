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
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Socket, Type};

use crate::listen::{ListenError, Listener, Opened, Sockets, open};
use crate::sys::inherit;

/// Number of the first descriptor that a service manager passes.
const FIRST: i32 = 3;

/// Listening sockets that the service manager opened.
#[derive(Default)]
pub struct Inherited(Vec<Passed>);

struct Passed {
    name: String,
    listen: Listen,
    socket: Socket,
}

impl Passed {
    fn share(self, threads: usize) -> io::Result<Opened> {
        let copies = (0..threads).map(|_| {
            let copy = self.socket.try_clone()?;
            Ok(match &self.listen {
                Listen::Unix(_) => Listener::Unix(copy.into()),
                _ => Listener::Tcp(copy.into()),
            })
        });
        Ok((self.listen.clone(), copies.collect::<io::Result<_>>()?))
    }
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
        // A parent may announce one socket in both ways, as Forebay does to its applications.
        let taken = i32::try_from(passed.0.len()).unwrap_or(i32::MAX);
        passed.0.extend(Self::of_server_starter(FIRST..FIRST + taken)?.0);
        Ok(passed)
    }

    /// Takes over the sockets of Server::Starter: pairs of an address and a descriptor, such as
    /// `127.0.0.1:80=3;/run/a.sock=4`.
    ///
    /// Leaves out the descriptors in `taken`.
    fn of_server_starter(taken: Range<i32>) -> Result<Self, InheritError> {
        let Ok(ports) = env::var("SERVER_STARTER_PORT") else { return Ok(Self::default()) };
        let mut passed = Vec::new();
        for pair in ports.split(';').filter(|pair| !pair.is_empty()) {
            let (name, number) = pair.rsplit_once('=').unwrap_or((pair, ""));
            let number: i32 = number.parse().map_err(|_| InheritError::Pair(pair.to_owned()))?;
            if taken.contains(&number) {
                continue;
            }
            match inherit(number).and_then(listening) {
                Ok((socket, listen)) => {
                    passed.push(Passed { name: name.to_owned(), listen, socket });
                }
                Err(error) => {
                    return Err(InheritError::Socket { number, name: name.to_owned(), error });
                }
            }
        }
        Ok(Self(passed))
    }

    /// Takes over the sockets of systemd, or none if `LISTEN_PID` names another process.
    fn of_systemd() -> Result<Self, InheritError> {
        let to_us = env::var("LISTEN_PID").is_ok_and(|id| id == std::process::id().to_string());
        let Some(count) = env::var_os("LISTEN_FDS").filter(|_| to_us) else {
            return Ok(Self::default());
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
                Ok((socket, listen)) => Ok(Passed { name, listen, socket }),
                Err(error) => Err(InheritError::Socket { number, name, error }),
            }
        });
        passed.collect::<Result<_, _>>().map(Self)
    }

    /// Opens `listen`, or returns the service manager's sockets for this address or name. Several
    /// sockets may have the same name.
    pub fn open_or_claim(
        &mut self,
        listen: &Listen,
        threads: usize,
        sockets: &Sockets,
    ) -> Result<Vec<Opened>, ListenError> {
        let claimed = self.claim(listen.socket(), threads);
        let claimed = claimed.map_err(|error| ListenError { listen: listen.clone(), error })?;
        if claimed.is_empty() {
            return Ok(vec![open(listen, threads, sockets)?]);
        }
        let same = |(address, sockets)| (listen.same_over(address), sockets);
        Ok(claimed.into_iter().map(same).collect())
    }

    /// Returns listeners on the manager's sockets with this address or name, for each of `threads`
    /// threads. All threads share each socket. Returns an empty list if the manager passed no such
    /// socket.
    fn claim(&mut self, listen: &Listen, threads: usize) -> io::Result<Vec<Opened>> {
        let is_meant = |passed: &mut Passed| match listen {
            Listen::Named(name) => passed.name == *name,
            address => passed.listen == *address,
        };
        self.0.extract_if(.., is_meant).map(|passed| passed.share(threads)).collect()
    }

    /// Fails if a socket was not claimed.
    pub fn finish(self) -> Result<(), InheritError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let show = |passed: Passed| format!("{} ({})", passed.listen, passed.name);
        Err(InheritError::Unused(self.0.into_iter().map(show).collect()))
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
    let address = socket.local_addr()?;
    let listen = match (socket.domain()?, address.as_socket()) {
        (_, Some(address)) => Listen::Tcp(address),
        (Domain::UNIX, _) => {
            let path = address.as_pathname().ok_or_else(|| refuse("it has no path"))?;
            Listen::Unix(path.to_owned())
        }
        _ => return Err(refuse("it is of an unknown family")),
    };
    socket.set_nonblocking(true)?;
    Ok((socket, listen))
}

/// Reports the state of the server to the service manager, if `NOTIFY_SOCKET` names the manager's
/// socket.
pub struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// Opens the socket that `NOTIFY_SOCKET` names: a path, or an abstract name after an `@`.
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
