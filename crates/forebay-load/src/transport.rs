//! Transport of bytes between a connection and its server: a plain socket, or TLS over a socket.
//!
//! All connections of a run have the same transport, which is a type parameter. So the code for a
//! plain socket contains no branches for TLS.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fmt, io};

use forebay_client::SessionEnd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};

use crate::{Endpoint, Error, Protocol, SlowPeers, Spec, Url};

/// Open, non-blocking connection to the server.
pub(crate) trait Transport: Sized + Send + fmt::Debug {
    /// Configuration of the transport of one connection.
    type Config: Clone + Send + fmt::Debug;

    /// Creates the transport over a socket that is connected or connecting.
    ///
    /// # Errors
    /// Fails if `config` cannot create a TLS client.
    fn new(socket: OwnedFd, config: &Self::Config) -> io::Result<Self>;

    /// Returns the socket, which the caller registers with epoll.
    fn socket(&self) -> &OwnedFd;

    /// Continues the handshake as far as possible without blocking.
    ///
    /// # Errors
    /// Fails if the connection ended, or if the TLS handshake failed.
    fn handshake(&mut self) -> io::Result<HandshakeProgress>;

    /// Sends some of `bytes` and returns their number. After `AGAIN`, the caller must pass the same
    /// bytes again.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno>;

    /// Receives at most one buffer full, and returns the number of bytes. Returns 0 if the server
    /// has closed the connection, and the error `AGAIN` if no bytes have arrived.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Receives as [`recv`](Self::recv), but takes at most `most` bytes from the socket.
    fn recv_portion(&mut self, buffer: &mut [u8], most: usize) -> Result<usize, Errno> {
        self.recv(&mut buffer[..most])
    }

    /// Returns true if the connection has ended without the message that ends a TLS session. An
    /// attacker may then have cut off data, so the end of the connection does not complete a reply.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Returns true if the latest call of [`recv`](Self::recv) has certainly emptied the socket, so
    /// that a further call would return `AGAIN`. The latest call returned `received` bytes into a
    /// buffer of `buffer` bytes.
    fn is_emptied(&self, received: usize, buffer: usize) -> bool;

    /// True if each [`send`](Self::send) sends one datagram.
    const IS_DATAGRAM: bool = false;

    /// Returns the size of the datagrams of the latest [`recv`](Self::recv). Only the last datagram
    /// may be shorter.
    fn datagram_size(&self) -> usize {
        usize::MAX
    }

    /// Converts the end of a session to an error that explains why the session's own handshake
    /// failed. Only some sessions have such a handshake, for example those of QUIC.
    fn explain(end: &SessionEnd, _: &Self::Config) -> io::Error {
        io::Error::other(end.reason.clone())
    }

    /// Returns true if the session's own handshake resumed an earlier TLS session.
    fn is_resumed(_: &Self::Config) -> bool {
        false
    }

    /// Returns the error of a session whose handshake took longer than `timeout`.
    fn no_handshake(_: Duration) -> io::Error {
        Errno::TIMEDOUT.into()
    }

    /// Returns true if the connect has succeeded but the TLS handshake is not complete.
    fn is_handshaking(&self) -> bool {
        false
    }

    /// Returns true if a reset followed the end of the connection. The server had then closed the
    /// connection before our last bytes arrived. The server's kernel answered these bytes with the
    /// reset, so no program can have read them.
    ///
    /// A reset without an earlier end is reported by [`recv`](Self::recv) instead.
    fn has_refused_bytes(&self) -> bool {
        !matches!(sockopt::socket_error(self.socket()), Ok(Ok(())))
    }
}

/// Progress of a TLS handshake.
pub(crate) enum HandshakeProgress {
    /// Requests can be sent. Contains the result of the handshake, if TLS is used.
    Established(Option<Handshake>),
    /// The handshake waits for input from the server.
    Reads,
    /// The handshake waits until the socket is writable.
    Writes,
}

/// Result of a successful TLS handshake.
pub(crate) struct Handshake {
    pub is_resumed: bool,
    /// Time from the connected socket to the client's last message of the handshake.
    pub time: Duration,
}

/// Transport over a plain socket, without TLS.
#[derive(Debug)]
pub(crate) struct Plain(OwnedFd);

impl Transport for Plain {
    type Config = ();

    #[inline]
    fn new(socket: OwnedFd, (): &()) -> io::Result<Self> {
        Ok(Self(socket))
    }

    #[inline]
    fn socket(&self) -> &OwnedFd {
        &self.0
    }

    #[inline]
    fn handshake(&mut self) -> io::Result<HandshakeProgress> {
        Ok(HandshakeProgress::Established(None))
    }

    #[inline]
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        send(&self.0, bytes, SendFlags::NOSIGNAL)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        recv(&self.0, buffer, RecvFlags::empty()).map(|(_, n)| n)
    }

    #[inline]
    fn is_emptied(&self, received: usize, buffer: usize) -> bool {
        received < buffer
    }

    /// Over a plain socket, only the session of FastCGI multiplexing has a handshake.
    fn no_handshake(timeout: Duration) -> io::Error {
        let why = format!("it did not answer FCGI_GET_VALUES within {timeout:?}");
        io::Error::new(io::ErrorKind::TimedOut, why)
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Returns a transport that has sent a request. With `closes_first`, the server closes before
    /// the request arrives, otherwise after reading the request.
    fn ended(closes_first: bool) -> Plain {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut transport = Plain::new(client.into(), &()).unwrap();
        if closes_first {
            drop(server);
            assert_eq!(transport.send(b"request"), Ok(7));
        } else {
            assert_eq!(transport.send(b"request"), Ok(7));
            server.read_exact(&mut [0; 7]).unwrap();
            drop(server);
        }
        transport
    }

    #[test]
    fn bytes_that_arrive_after_the_end_of_the_connection_are_refused() {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut idle = ended(true);
        // A read reports the end of the connection, although a reset followed the end.
        assert_eq!(idle.recv(&mut [0; 9]), Ok(0));
        while !idle.has_refused_bytes() {
            assert!(Instant::now() < deadline, "no reset arrived");
            thread::yield_now();
        }
        let mut busy = ended(false);
        assert_eq!(busy.recv(&mut [0; 9]), Ok(0));
        assert!(!busy.has_refused_bytes(), "the server has read the request");
    }
}
