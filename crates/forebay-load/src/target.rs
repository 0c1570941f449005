//! Addresses of the server, and the sockets that connect to them.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use crate::{Endpoint, Error, Protocol, SlowPeers, Spec, Url};

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
