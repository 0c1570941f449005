//! Opens connections: tries all addresses of the server, pauses after failed attempts, and gives up
//! at last.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use crate::transport::{HandshakeProgress, Transport};
use crate::worker::ThreadState;
use crate::{Endpoint, Error, Protocol, SlowPeers, Spec, Url};

/// The failed attempts to connect since the last success: their number, and the time of the first.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: u32,
    since: Option<Instant>,
    /// Index of the server's address for the next attempt.
    attempt: usize,
}

/// The action that follows a failed attempt to connect.
pub(crate) enum Next {
    /// Connects to the server's next address at once. The attempt does not count as failed.
    Address,
    /// Connects again, but not before this instant.
    Attempt(Instant),
    /// Gives up: this connection makes no further attempt.
    Nothing,
}

/// Pause after the first failed attempt to connect. Each further failed attempt in a row doubles
/// the pause, up to `PAUSE_LIMIT`.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Pause before the next attempt while the backlog of a Unix socket is full.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// If no connection has ever reached the server, a connection gives up after this many failed
/// attempts in a row.
const FIRST_ATTEMPTS: u32 = 3;

/// Events which report that the server has closed the connection, or that the connection is broken.
pub(crate) const CLOSING: EventFlags =
    EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// Events that an established connection waits for.
pub(crate) const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl Refusals {
    /// Starts to connect, and registers the socket with epoll as connection `id`. The error `AGAIN`
    /// means that the backlog of a Unix socket is full.
    pub fn dial(&self, id: usize, state: &ThreadState) -> Result<Dialled, Errno> {
        let dialled = state.target.dial(self.attempt)?;
        // Watch for writability only until the connect has succeeded. Later, every read by the
        // server would make a Unix socket writable and so cause an event.
        let flags = if dialled.connected { WATCHED } else { WATCHED | EventFlags::OUT };
        let data = EventData::new_u64(id as u64);
        epoll::add(&state.epoll, &dialled.socket, data, flags)?;
        Ok(dialled)
    }

    /// Records a successful connect.
    pub fn accepted(&mut self, state: &ThreadState) {
        state.target.answered(self.attempt);
        *self = Self { attempt: self.attempt, ..Self::default() };
    }

    /// Records a failed attempt to connect. Returns the next action of the connection.
    pub fn refused(&mut self, error: &io::Error, now: Instant, state: &mut ThreadState) -> Next {
        if state.target.has_more(self.attempt) {
            self.attempt += 1;
            return Next::Address;
        }
        self.attempt = 0;
        self.count += 1;
        state.last_refusal = Some(copy_of(error));
        let since = *self.since.get_or_insert(now);
        let given_up = if state.target.reached() {
            // The server has answered before, so it may recover. A run with a time limit retries
            // until this limit. A run of n requests has no time limit, so it gives up after
            // `timeout`.
            state.budget.limited() && now - since >= state.timeout
        } else {
            // A failed handshake is final, because the server's certificate and protocols do not
            // change.
            let is_final =
                matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::InvalidData);
            is_final || self.count >= FIRST_ATTEMPTS
        };
        if given_up {
            state.gave_up = true;
            return Next::Nothing;
        }
        let doubled = PAUSE.saturating_mul(1 << (self.count - 1).min(16));
        Next::Attempt(now + doubled.min(PAUSE_LIMIT))
    }
}

/// Continues a connect and handshake after an event. Returns true if the connection can carry
/// requests, and false if it must wait for another event. Fails if the connect or the handshake
/// failed.
#[inline]
pub(crate) fn is_established<T: Transport>(
    transport: &mut T,
    id: usize,
    state: &mut ThreadState,
) -> io::Result<bool> {
    sockopt::socket_error(transport.socket())??;
    match transport.handshake()? {
        HandshakeProgress::Established(handshake) => {
            if let Some(handshake) = handshake {
                state.tally.shook_hands(&handshake);
            }
            Ok(true)
        }
        HandshakeProgress::Reads => Ok(false),
        HandshakeProgress::Writes => {
            // The new event mask re-arms the edge-triggered event. If the socket is writable by
            // now, the event comes at once.
            let data = EventData::new_u64(id as u64);
            epoll::modify(&state.epoll, transport.socket(), data, WATCHED | EventFlags::OUT)?;
            Ok(false)
        }
    }
}

/// Returns the error of a connection that was not ready for requests within `timeout`.
pub(crate) fn no_connection<T: Transport>(transport: Option<&T>, timeout: Duration) -> io::Error {
    if transport.is_some_and(T::is_handshaking) {
        let why = format!("the server accepted the connection and did not answer for {timeout:?}");
        return io::Error::new(io::ErrorKind::TimedOut, why);
    }
    Errno::TIMEDOUT.into()
}

fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

// Addresses of the server, and the sockets that connect to them.

/// Addresses of the server. A name such as `localhost` may have several addresses, while the server
/// listens on only one. If a connect fails, the connection tries the next address. After the first
/// successful connect, all connections use that address.
#[derive(Debug)]
pub(crate) struct ServerAddresses {
    /// URLs of the requests, for error messages.
    urls: Vec<String>,
    /// Number of scenarios; 0 without any.
    scenarios: usize,
    addresses: Vec<Address>,
    slow: SlowPeers,
    answering: AtomicUsize,
    reached: AtomicBool,
}

#[derive(Debug)]
enum Address {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(SocketAddrUnix),
}

/// Socket that is connected, or whose connect is in progress.
pub(crate) struct Dialled {
    pub socket: OwnedFd,
    pub connected: bool,
}

impl ServerAddresses {
    /// Resolves the host name of `spec`, once for the whole run.
    pub fn resolve(spec: &Spec) -> Result<Self, Error> {
        let url = &spec.url;
        let parts = spec.parts.iter().map(|part| part.url.to_string());
        let urls = if spec.parts.is_empty() { vec![url.to_string()] } else { parts.collect() };
        let addresses = match url.endpoint() {
            Endpoint::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_path())
                    .map_err(|_| Error::Invalid("the socket path is not usable".to_owned()))?;
                vec![Address::Unix(address)]
            }
            Endpoint::Tcp { .. } if url.protocol() == Protocol::Http3 => {
                resolve_tcp(url)?.into_iter().map(Address::Udp).collect()
            }
            Endpoint::Tcp { .. } => {
                resolve_tcp(url)?.into_iter().map(Address::Tcp).collect::<Vec<_>>()
            }
        };
        Ok(Self {
            urls,
            scenarios: spec.scenario.as_ref().map_or(0, |plan| plan.scenarios.len()),
            addresses,
            slow: spec.slow,
            answering: AtomicUsize::new(0),
            reached: AtomicBool::new(false),
        })
    }

    /// Returns the URL of the request with the index `request`.
    pub fn url(&self, request: usize) -> &str {
        &self.urls[request]
    }

    /// Returns the number of requests of a mixed load or of scenarios. Returns 0 if all requests
    /// are equal.
    pub fn parts(&self) -> usize {
        if self.urls.len() > 1 || self.scenarios > 0 { self.urls.len() } else { 0 }
    }

    pub fn scenarios(&self) -> usize {
        self.scenarios
    }

    /// Returns the pace of the connections.
    pub fn slow(&self) -> SlowPeers {
        self.slow
    }

    /// Returns true if at least one connect succeeded.
    pub fn reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Records that the address with the index `attempt` accepts connections.
    pub fn answered(&self, attempt: usize) {
        if !self.reached() {
            self.answering.store(attempt, Ordering::Relaxed);
            self.reached.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the caller can try another address: no address has answered yet, and the
    /// address with the index `attempt` is not the last one.
    pub fn has_more(&self, attempt: usize) -> bool {
        !self.reached() && attempt + 1 < self.addresses.len()
    }

    /// Starts to connect to the address that answers. If none has answered yet, uses the address
    /// with the index `attempt`.
    ///
    /// The error `AGAIN` means that the backlog of a Unix socket is full. No event reports when the
    /// backlog has space again.
    pub fn dial(&self, attempt: usize) -> Result<Dialled, Errno> {
        let index = if self.reached() { self.answering.load(Ordering::Relaxed) } else { attempt };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, begun) = match &self.addresses[index] {
            Address::Udp(address) => {
                let socket = socket_with(family_of(address), SocketType::DGRAM, flags, None)?;
                let begun = connect(&socket, address);
                (socket, begun)
            }
            Address::Tcp(address) => {
                let socket = socket_with(family_of(address), SocketType::STREAM, flags, None)?;
                sockopt::set_tcp_nodelay(&socket, true)?;
                if let Some(size) = self.slow.receive_buffer() {
                    sockopt::set_socket_recv_buffer_size(&socket, size)?;
                }
                let begun = connect(&socket, address);
                (socket, begun)
            }
            Address::Unix(address) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                let begun = connect(&socket, address);
                (socket, begun)
            }
        };
        match begun {
            Ok(()) => Ok(Dialled { socket, connected: true }),
            Err(Errno::INPROGRESS | Errno::INTR) => Ok(Dialled { socket, connected: false }),
            Err(errno) => Err(errno),
        }
    }
}

fn family_of(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Resolves the host name of an endpoint with a port. Returns no address for a Unix socket.
pub(crate) fn resolve_tcp(url: &Url) -> Result<Vec<SocketAddr>, Error> {
    let Endpoint::Tcp { host, port } = url.endpoint() else { return Ok(Vec::new()) };
    let fail = |source| Error::Resolve { endpoint: url.endpoint().to_string(), source };
    let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs().map_err(fail)?.collect();
    if addresses.is_empty() {
        return Err(fail(std::io::Error::other("it has no address")));
    }
    Ok(addresses)
}
