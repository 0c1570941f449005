//! Listening sockets, and the distribution of connections among threads.
//!
//! For each address, each thread has its own socket (SO_REUSEPORT). Such sockets share an address
//! with other processes silently. Therefore Forebay first binds a socket without the option, which
//! fails if the port is in use. A socket whose address leaves the configuration is closed when its
//! queue is empty.
//!
//! The kernel distributes connections among these sockets. A thread passes a new connection to the
//! least loaded thread, if that thread has at least two fewer connections. All threads share a
//! socket from the service manager.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, io};

use forebay_conf::{Listen, SocketAccess};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::mpsc::error::SendError;

use crate::address_limit::{AddressCounts, AddressLimit};
use crate::free_list::HeapWatch;
use crate::limit::Buffered;
use crate::pressure::Pressure;
use crate::privileges::{PrivilegeError, ids};
use crate::sys::datagrams::{Routing, attach_reuseport_filter};

/// Length of the accept queue: the kernel's maximum (net.core.somaxconn).
const BACKLOG: i32 = i32::MAX;

/// Maximum number of unsent bytes in the kernel per connection.
// By default the kernel buffers megabytes per connection. If the client's window is small,
// buffering so much takes 3 ms of kernel time (measured with slowhttptest -X).
const UNSENT: u32 = 128 * 1024;

/// Reason why the server cannot listen on an address.
#[derive(Debug)]
pub struct ListenError {
    /// The address.
    pub listen: Listen,
    /// The system's error.
    pub error: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, error } = self;
        write!(f, "cannot listen on {listen}: ")?;
        match error.kind() {
            io::ErrorKind::AddrInUse if listen.is_http3() => write!(
                f,
                "another program uses this UDP port, or connections from before `http3` was off have not \
                 ended; stop the program, or try again later"
            ),
            io::ErrorKind::AddrInUse => write!(
                f,
                "another program uses it; stop that program, or choose another address (`listen` of a \
                 site, `admin` of [server])"
            ),
            io::ErrorKind::PermissionDenied
                if matches!(
                    listen.socket(),
                    Listen::Tcp(_) | Listen::Udp(_) | Listen::Http3(_)
                ) =>
            {
                write!(
                    f,
                    "permission denied; ports below 1024 need root or CAP_NET_BIND_SERVICE, \
                 so choose a higher port or grant it"
                )
            }
            io::ErrorKind::AddrNotAvailable => {
                write!(f, "this machine does not have that address")
            }
            _ => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ListenError {}

/// A listening socket of one thread.
pub enum Listener {
    Tcp(std::net::TcpListener),
    Unix(UnixListener),
    /// UDP socket for QUIC.
    Udp(DatagramSocket),
    /// A UDP socket of a stream.
    Datagrams(std::net::UdpSocket),
}

/// The UDP socket of one thread. The sockets of all threads have the same address.
pub struct DatagramSocket {
    pub socket: std::net::UdpSocket,
    /// The socket receives packets whose connection ID has `cid[0] % routing.count == place`.
    pub place: u8,
    pub routing: Routing,
    /// Keeps the sockets of all threads open while this thread expects packets.
    pub group: Arc<SocketGroup>,
}

/// All UDP sockets of an address.
// The sockets stay open while any thread has connections on the address. The kernel selects sockets
// by position, and moves the last socket to the position of a closed one.
pub struct SocketGroup {
    _sockets: Vec<Socket>,
}

/// An address that was opened, with a listener for each thread.
pub type Opened = (Listen, Vec<Listener>);

/// Mode and owner of each Unix socket, by path.
pub type Sockets = BTreeMap<PathBuf, SocketAccess>;

/// Opens `listen` for each of `threads` threads. Returns the address with the port that the kernel
/// chose for port 0.
///
/// The TCP sockets of an address share the address with SO_REUSEPORT. All sockets stay open while
/// the address is in use: closing one would drop the connections in its queue.
pub fn open(listen: &Listen, threads: usize, sockets: &Sockets) -> Result<Opened, ListenError> {
    let fail = |error| ListenError { listen: listen.clone(), error };
    match listen {
        Listen::Https(socket) | Listen::Ajp(socket) | Listen::Stream(socket) => {
            let opened = open(socket, threads, sockets);
            let (address, listeners) = opened.map_err(|ListenError { error, .. }| fail(error))?;
            Ok((listen.same_over(address), listeners))
        }
        Listen::Tcp(address) => {
            let (address, listeners) = open_tcp(*address, threads).map_err(fail)?;
            Ok((Listen::Tcp(address), listeners))
        }
        Listen::Unix(path) => {
            let access = sockets.get(path).cloned().unwrap_or_default();
            let listener = open_unix(path, &access).map_err(fail)?;
            let copies = (1..threads).map(|_| listener.try_clone().map(Listener::Unix));
            let mut listeners = copies.collect::<io::Result<Vec<_>>>().map_err(fail)?;
            listeners.push(Listener::Unix(listener));
            Ok((listen.clone(), listeners))
        }
        Listen::Udp(address) => {
            let (address, listeners) = open_datagrams(*address, threads).map_err(fail)?;
            Ok((Listen::Udp(address), listeners))
        }
        Listen::Http3(address) => {
            let (address, listeners) = open_udp(*address, threads).map_err(fail)?;
            Ok((Listen::Http3(address), listeners))
        }
        Listen::Named(_) => Err(fail(io::Error::other(
            "the service manager passed no socket with this name at Forebay's start; \
             set FileDescriptorName= in the socket unit",
        ))),
    }
}

fn open_tcp(address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Listener>)> {
    // With SO_REUSEPORT, `bind` succeeds even if another process uses the address with this option.
    // Therefore first bind a socket without the option, which fails if the address is in use.
    let probe = bind(address, false)?;
    let address = probe.local_addr()?.as_socket().unwrap_or(address);
    drop(probe);
    let mut listeners = Vec::new();
    for _ in 0..threads {
        let socket = bind(address, true)?;
        // Accepted sockets inherit TCP_NOTSENT_LOWAT. Ignore an error: without this option, the
        // kernel only buffers more unsent bytes.
        let _ = socket.set_tcp_notsent_lowat(UNSENT);
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        listeners.push(Listener::Tcp(socket.into()));
    }
    Ok((address, listeners))
}

/// Size in bytes of the kernel's receive and send buffers of a UDP socket. A buffer of this size
/// holds a burst of packets.
const RECEIVED: usize = 2 << 20;

/// Opens a UDP socket for each thread. The order of binding determines the positions of the sockets
/// for `attach_reuseport_filter`.
fn open_udp(address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Listener>)> {
    let probe = bind_udp(address, false)?;
    let address = probe.local_addr()?.as_socket().unwrap_or(address);
    drop(probe);
    let count = u8::try_from(threads).unwrap_or(u8::MAX);
    let routing = Routing { sockets: threads, count, shift: 0, tag: 0 };
    let sockets = bind_group(address, threads)?;
    if let Some(socket) = sockets.first() {
        // Ignore an error: without the filter, connections end if the client's address changes.
        let _ = attach_reuseport_filter(socket.as_fd(), routing, None);
    }
    Ok((address, datagram_listeners(sockets, routing)?))
}

fn bind_group(address: SocketAddr, threads: usize) -> io::Result<Vec<Socket>> {
    (0..threads).map(|_| bind_udp(address, true)).collect()
}

pub fn datagram_listeners(sockets: Vec<Socket>, routing: Routing) -> io::Result<Vec<Listener>> {
    let places = (0..).map(|place: usize| (place % usize::from(routing.count.max(1))) as u8);
    let copies = sockets.iter().map(Socket::try_clone).collect::<io::Result<Vec<_>>>()?;
    let group = Arc::new(SocketGroup { _sockets: copies });
    let listener = |(socket, place): (Socket, u8)| {
        let group = group.clone();
        Listener::Udp(DatagramSocket { socket: socket.into(), place, routing, group })
    };
    Ok(sockets.into_iter().zip(places).map(listener).collect())
}

/// The UDP sockets of a former process, which still serves its QUIC connections on these sockets.
/// The sockets of both processes share the address.
pub struct FormerDatagrams {
    /// The former process's sockets, in the order of their positions.
    sockets: Vec<Socket>,
    former: Routing,
    /// A socket of this process.
    own_socket: Socket,
    own: Routing,
}

impl FormerDatagrams {
    /// Lets this process receive the packets of new connections.
    pub fn begin(&self) -> io::Result<()> {
        let own = Routing { shift: 0, ..self.own };
        attach_reuseport_filter(self.own_socket.as_fd(), own, Some(self.former))
    }

    /// Lets this process receive all packets. Call this after the former process has ended.
    pub fn release(mut self) -> io::Result<()> {
        // For each closed socket, the kernel moves the last socket to its position. Example: in `F0
        // F1 N0 N1 N2`, closing `F1` and then `F0` gives `N1 N2 N0`. `succeed_udp` has set `shift`
        // to this rotation.
        while self.sockets.pop().is_some() {}
        attach_reuseport_filter(self.own_socket.as_fd(), self.own, None)
    }
}

/// Opens further UDP sockets on the address of a former process. The new sockets receive
/// no packets before [`FormerDatagrams::begin`]. `sockets` has the sockets of the former process,
/// in the order of their positions.
pub fn succeed_udp(
    address: SocketAddr,
    threads: usize,
    sockets: Vec<Socket>,
    former: Routing,
) -> io::Result<(Vec<Listener>, FormerDatagrams)> {
    let former = Routing { sockets: sockets.len(), ..former };
    let count = u8::try_from(threads).unwrap_or(u8::MAX);
    let tag = former.tag.wrapping_add(1);
    let own = Routing { sockets: threads, count, shift: sockets.len() % threads.max(1), tag };
    let bound = bind_group(address, threads)?;
    let own_socket = bound.first().ok_or(io::ErrorKind::InvalidInput)?.try_clone()?;
    let former = FormerDatagrams { sockets, former, own_socket, own };
    Ok((datagram_listeners(bound, own)?, former))
}

/// Opens the UDP listener of a `[[stream]]`: one socket for each thread. The kernel selects the
/// socket by the addresses of client and server.
fn open_datagrams(address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Listener>)> {
    let probe = bind_udp(address, false)?;
    let address = probe.local_addr()?.as_socket().unwrap_or(address);
    drop(probe);
    let listener = |_| bind_udp(address, true).map(|socket| Listener::Datagrams(socket.into()));
    Ok((address, (0..threads).map(listener).collect::<io::Result<_>>()?))
}

fn bind_udp(address: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // Ignore errors: with smaller buffers the kernel drops more packets, which are resent.
    let _ = socket.set_recv_buffer_size(RECEIVED);
    let _ = socket.set_send_buffer_size(RECEIVED);
    socket.set_reuse_port(share)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind(address: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(share)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Opens a Unix socket. Replaces the socket file of a process that has ended, but not that of a
/// running process.
fn open_unix(path: &Path, access: &SocketAccess) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|metadata| std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()));
    if is_socket {
        std::fs::remove_file(path)?;
    } else if path.exists() {
        return Err(io::Error::other(
            "a file with this name exists and is no socket; remove it, or choose another path",
        ));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Set owner and mode before `listen`. Before `listen`, no client can connect, so the initial
    // mode of the file does not matter.
    set_access(path, access).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sets owner and mode of the socket file. Does not follow a symbolic link that has replaced the
/// file.
fn set_access(path: &Path, access: &SocketAccess) -> io::Result<()> {
    let wrong = |what: &str, error: io::Error| {
        io::Error::other(format!("cannot set the {what} of the socket: {error}"))
    };
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_socket() {
        return Err(io::Error::other("another program has replaced the socket file"));
    }
    let (user, group) = owner(access).map_err(io::Error::other)?;
    if user.is_some() || group.is_some() {
        let outcome = rustix::fs::chownat(&file, "", user, group, AtFlags::EMPTY_PATH);
        outcome.map_err(|error| wrong("owner (`socket_user`, `socket_group`)", error.into()))?;
    }
    // `fchmod` does not accept an O_PATH descriptor, so change the mode through /proc.
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    let outcome = std::fs::set_permissions(by_descriptor, Permissions::from_mode(access.mode));
    outcome.map_err(|error| wrong("mode (`socket_mode`)", error))
}

/// Returns the ids of the configured owner and group. If only a user is configured, returns the
/// user's own group. An id is `None` if the socket file keeps its owner or group.
fn owner(access: &SocketAccess) -> Result<(Option<Uid>, Option<Gid>), PrivilegeError> {
    let (user, group) = ids(access.user.as_deref(), access.group.as_deref())?;
    Ok((user.map(Uid::from_raw), group.map(Gid::from_raw)))
}

/// A message from another thread.
pub enum Message {
    /// A connection.
    Connection(Handed),
    /// A new connection waits. The receiving thread must close its oldest idle connection.
    MakeRoom,
}

/// A connection that was passed to a thread with fewer connections. The connection is already
/// counted for that thread.
pub struct Handed {
    pub stream: std::net::TcpStream,
    pub peer: SocketAddr,
    pub listener: usize,
}

/// The loads of all threads: the number of connections of each thread, and a channel to pass
/// connections to the thread. Also has the limits on connections.
///
/// The kernel distributes connections among the threads by hash. With few long-lived connections,
/// one thread may get most of the connections, while another thread has nothing to do.
pub struct Loads {
    threads: Vec<ThreadLoad>,
    most: AtomicUsize,
    /// UDP sessions of streams on all threads.
    sessions: AtomicUsize,
    /// Connections by client address.
    pub addresses: AddressCounts,
    /// Reply bytes buffered for slow clients.
    pub buffered: Arc<Buffered>,
    /// State of the limit on connections.
    pub pressure: Pressure,
    /// Decides when to return memory to the system.
    pub heap: HeapWatch,
}

struct ThreadLoad {
    connections: AtomicUsize,
    hand: UnboundedSender<Message>,
}

impl Loads {
    /// Creates the state of one thread for each channel of `hands`. Limits connections to `most` in
    /// total, where 0 means no limit, and to `per_address` per client address.
    pub fn new(
        hands: Vec<UnboundedSender<Message>>,
        most: usize,
        per_address: AddressLimit,
    ) -> Self {
        let load = |hand| ThreadLoad { connections: AtomicUsize::new(0), hand };
        let pressure = Pressure::new(hands.len());
        Self {
            pressure,
            heap: HeapWatch::default(),
            threads: hands.into_iter().map(load).collect(),
            most: AtomicUsize::new(if most == 0 { usize::MAX } else { most }),
            sessions: AtomicUsize::new(0),
            addresses: AddressCounts::new(per_address),
            buffered: Arc::default(),
        }
    }

    /// Returns the number of serving threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Counts one more UDP session. Returns false if UDP sessions already use half of the limit on
    /// connections, so that forged UDP addresses cannot lock out the clients of TCP.
    pub fn enter_session(&self) -> bool {
        let most = (self.most() / 2).max(1);
        let before = self.sessions.fetch_add(1, Ordering::Relaxed);
        if before >= most {
            self.leave_session();
        }
        before < most
    }

    /// Removes a UDP session that [`Self::enter_session`] has counted.
    pub fn leave_session(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns true if one more connection may be accepted.
    pub fn has_room(&self) -> bool {
        let most = self.most();
        most == usize::MAX || self.all_connections() < most
    }

    /// Returns true if at least seven eighths of the limit are used, so that connections may soon
    /// have to be closed.
    pub fn is_crowded(&self) -> bool {
        let most = self.most();
        most != usize::MAX && self.all_connections() >= most - most / 8
    }

    /// Returns the limit on connections.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Returns the number of connections on all threads.
    pub fn all_connections(&self) -> usize {
        // Use `SeqCst`, so that a waiting connection always notices a closed one. A new connection
        // first increments the number of waiting connections (`Pressure::wait`), and then reads
        // these counts. `leave` first decrements a count, and then reads the number of waiting
        // connections.
        self.threads.iter().map(|load| load.connections.load(Ordering::SeqCst)).sum()
    }

    /// Returns the thread with the fewest connections, if it has at least two fewer than `own`.
    pub fn lighter_than(&self, own: usize) -> Option<usize> {
        if self.threads.len() == 1 {
            return None;
        }
        let least = (0..self.threads.len()).min_by_key(|&thread| self.connections(thread))?;
        (self.connections(least) + 2 <= self.connections(own)).then_some(least)
    }

    /// Passes a connection to a thread and counts it there. Returns the connection if the thread
    /// has ended.
    pub fn hand(&self, thread: usize, handed: Handed) -> Result<(), Handed> {
        self.enter(thread);
        let sent = self.threads[thread].hand.send(Message::Connection(handed));
        let Err(SendError(Message::Connection(handed))) = sent else { return Ok(()) };
        self.leave(thread);
        Err(handed)
    }

    /// Asks a thread to close the connection that has been idle longest.
    pub fn ask_for_room(&self, thread: usize) {
        let _ = self.threads[thread].hand.send(Message::MakeRoom);
    }

    pub fn connections(&self, thread: usize) -> usize {
        self.threads[thread].connections.load(Ordering::Relaxed)
    }

    /// Sets the limits. For `most`, 0 means no limit.
    pub fn limit(&self, most: usize, per_address: AddressLimit) {
        self.most.store(if most == 0 { usize::MAX } else { most }, Ordering::Relaxed);
        self.addresses.limit(per_address);
    }

    /// Counts a connection of `thread`.
    pub fn enter(&self, thread: usize) {
        self.threads[thread].connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a connection from the count of `thread`.
    pub fn leave(&self, thread: usize) {
        self.threads[thread].connections.fetch_sub(1, Ordering::SeqCst);
        self.pressure.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use super::*;

    fn receiving(listeners: Vec<Listener>) -> Vec<UdpSocket> {
        let socket = |listener| {
            let Listener::Udp(DatagramSocket { socket, .. }) = listener else { panic!("of UDP") };
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket
        };
        listeners.into_iter().map(socket).collect()
    }

    /// Sends packets with this connection ID from new addresses, and returns true if `socket`
    /// receives all of them. `first` has the first byte of each packet.
    fn arrive(first: &[u8], id: [u8; 2], address: SocketAddr, socket: &UdpSocket) -> bool {
        first.iter().all(|first| {
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let (short, long) = ([*first, id[0], id[1], 9], [*first, 0, 0, 0, 1, 8, id[0], id[1]]);
            let sent = if first & 0x80 == 0 { &short[..] } else { &long[..] };
            sender.send_to(sent, address).unwrap();
            let mut received = [0; 20];
            let count = socket.recv(&mut received).unwrap();
            received[..count] == *sent
        })
    }

    const SHORT: u8 = 0x40;
    const INITIAL: u8 = 0xc0;
    const HANDSHAKE: u8 = 0xe0;

    #[test]
    fn packets_find_their_process_and_thread_during_and_after_an_upgrade() {
        for numbers in [[1, 1, 1], [2, 2, 2], [4, 2, 3], [2, 5, 1], [3, 1, 4]] {
            let (address, listeners) =
                open_udp((Ipv4Addr::LOCALHOST, 0).into(), numbers[0]).unwrap();
            let mut routing =
                Routing { sockets: numbers[0], count: numbers[0] as u8, shift: 0, tag: 0 };
            let mut old = receiving(listeners);
            for threads in numbers.into_iter().skip(1) {
                let mut by_position: Vec<Socket> =
                    old.iter().map(|socket| socket.try_clone().unwrap().into()).collect();
                by_position.rotate_right(routing.shift);
                let (listeners, former) =
                    succeed_udp(address, threads, by_position, routing).unwrap();
                let own = former.own;
                let new = receiving(listeners);
                for id in 0..old.len() as u8 {
                    let socket = &old[usize::from(id)];
                    let first = [SHORT, HANDSHAKE, INITIAL];
                    assert!(arrive(&first, [id, routing.tag], address, socket), "not begun");
                }
                former.begin().unwrap();
                for (id, socket) in (0..).zip(&old) {
                    let first = [SHORT, HANDSHAKE];
                    assert!(arrive(&first, [id, routing.tag], address, socket), "{numbers:?}");
                }
                for (id, socket) in (0..).zip(&new) {
                    let first = [SHORT, HANDSHAKE, INITIAL];
                    assert!(arrive(&first, [id, own.tag], address, socket), "{numbers:?}");
                    assert!(arrive(&[INITIAL], [id, routing.tag], address, socket), "a client's");
                }
                drop(old);
                former.release().unwrap();
                for (id, socket) in (0..).zip(&new) {
                    let first = [SHORT, HANDSHAKE, INITIAL];
                    assert!(arrive(&first, [id, 7], address, socket), "{numbers:?}");
                }
                (old, routing) = (new, own);
            }
        }
    }

    #[test]
    fn datagrams_find_their_socket_when_that_of_another_thread_was_closed() {
        let (address, listeners) = open_udp((Ipv4Addr::LOCALHOST, 0).into(), 4).unwrap();
        let mut sockets: Vec<_> = listeners
            .into_iter()
            .map(|listener| {
                let Listener::Udp(DatagramSocket { socket, group, .. }) = listener else {
                    panic!("of UDP")
                };
                socket.set_nonblocking(false).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                (socket, group)
            })
            .collect();
        drop(sockets.remove(0));
        for id in (0..60u8).filter(|id| id % 4 > 0) {
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let datagram = [0x40, id, 9, 9, 9, 9, 9, 9];
            sender.send_to(&datagram, address).unwrap();
            let mut received = [0; 20];
            let socket = &sockets[usize::from(id % 4) - 1].0;
            let count = socket.recv(&mut received).unwrap();
            assert_eq!(received[..count], datagram);
        }
        drop(sockets);
        bind_udp(address, false).expect("the last thread has closed all");
    }
}
