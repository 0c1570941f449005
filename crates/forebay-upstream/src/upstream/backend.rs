//! Takes a connection to a backend from the thread's pool (`idle_connections`), waits for a
//! connection, or opens a new connection.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::Level;
use forebay_net::fault::{Fault, Retry};
use forebay_net::limit::Limit;
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use forebay_net::tls::{Alpn, ClientTls};
use forebay_server::reply::Reply;
use forebay_wire::http1::Http1Limits;
use forebay_workers::Life;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::ConnectionOrigin;
use super::idle_connections::{IdleConnections, IdleOptions, IdlePools};
use super::names::{Endpoint, Name};
use super::pending_connections::{PendingConnection, PendingConnections};
use super::permits::{ConnectionPermit, Permits};

/// Pause between two attempts to connect to a Unix socket whose queue is full.
const FULL_QUEUE: Duration = Duration::from_millis(5);

/// A backend, with one thread's connections to it.
pub struct Backend {
    thread: Rc<Thread>,
    endpoint: Endpoint,
    name: Rc<str>,
    idle: Rc<IdleConnections>,
    permits: Option<Arc<Permits>>,
    violates_keep_alive: bool,
    connect_timeout: Duration,
    strict: bool,
    reply_timeout: Duration,
    life: Option<Arc<Life>>,
    tls: Option<(Arc<ClientTls>, String)>,
    alpn: Alpn,
    farewell: &'static [u8],
    /// Value of [`Self::current_generation`] when the idle connections were opened.
    generation: Cell<u64>,
}

/// Options of a backend's connections.
#[derive(Clone, Default)]
pub struct BackendOptions {
    /// Name for messages. Backends share a pool in `pools` only if their names are equal.
    pub name: String,
    /// Maximum number of idle connections per thread. With `None`, a thread keeps as many as were
    /// in use at the same time during the last `idle_time`.
    pub keep: Option<usize>,
    /// Idle limit of a connection.
    pub idle_time: Duration,
    /// True if the backend is known to close connections without notice.
    pub violates_keep_alive: bool,
    /// Limit of connections over all threads.
    pub permits: Option<Arc<Permits>>,
    /// New connections of all threads that have not received a reply yet.
    pub pending: Option<Arc<PendingConnections>>,
    /// Time limit of connecting; `None` uses the server's setting.
    pub connect_timeout: Option<Duration>,
    /// Time limit between two reads of a reply; `None` uses the server's setting.
    pub reply_timeout: Option<Duration>,
    /// Idle connections that routes share. `None` if routes share none.
    pub pools: Option<Rc<IdlePools>>,
    /// Records signs of life of a backend that is a process of Forebay.
    pub life: Option<Arc<Life>>,
    /// TLS client configuration and server name; `None` for plaintext.
    pub tls: Option<(Arc<ClientTls>, String)>,
    /// HTTP versions to offer in TLS.
    pub alpn: Alpn,
    /// Bytes that are sent before a connection is closed, if the protocol needs any.
    pub farewell: &'static [u8],
    /// True if replies with oddities are refused, even if their meaning is certain.
    pub strict: bool,
}

impl BackendOptions {
    fn of_idle(&self) -> IdleOptions<'_> {
        IdleOptions {
            name: &self.name,
            keep: self.keep,
            idle_time: self.idle_time,
            violates_keep_alive: self.violates_keep_alive,
            permits: self.permits.as_ref(),
            pending: self.pending.as_ref(),
            pools: self.pools.as_deref(),
        }
    }
}

/// A connection to a backend.
pub struct BackendConnection {
    /// The socket.
    pub socket: Socket,
    /// True if the connection has carried a request before.
    pub is_reused: bool,
    /// True if TLS negotiated HTTP/2.
    pub is_http2: bool,
    /// Number of changes of the backend's addresses before the connection was opened.
    generation: u64,
    permit: Option<ConnectionPermit>,
    /// Measures the wait for the first byte of the reply. `None` after that byte.
    wait: Cell<Option<PendingConnection>>,
}

impl BackendConnection {
    /// Returns the origin of the connection: new, or kept after an earlier request.
    pub fn past(&self) -> ConnectionOrigin {
        if self.is_reused { ConnectionOrigin::Kept } else { ConnectionOrigin::New }
    }

    /// Records the first byte of the reply. Later calls do nothing.
    pub fn answered(&self) {
        if let Some(wait) = self.wait.take() {
            wait.end();
        }
    }

    /// Stops measuring the time to the first byte. Call this for a connection that several requests
    /// share, because its first byte may belong to the reply to any of these requests.
    pub fn forget_wait(&self) {
        self.wait.take();
    }

    /// Returns the permit, or `None` if connections are not limited.
    pub fn permit(&self) -> Option<&ConnectionPermit> {
        self.permit.as_ref()
    }

    /// Returns the socket for use as a tunnel. The caller must keep the permit while the socket is
    /// open.
    pub fn into_parts(self) -> (Socket, Option<ConnectionPermit>) {
        (self.socket, self.permit)
    }
}

/// The right to open a shared connection, with its permit if connections are limited.
pub struct ConnectionRight(Option<ConnectionPermit>);

impl Backend {
    /// Logs a message about the backend, at most once a second.
    pub fn warn(&self, message: &str) {
        self.thread.log_limited(Level::Warn, &format!("{}: {message}", self.name));
    }

    /// Creates a backend. Must be called within the thread's event loop.
    pub fn new(thread: Rc<Thread>, endpoint: Endpoint, how: BackendOptions) -> Self {
        let idle = IdleConnections::of(&thread, &how.of_idle());
        let timeouts = &thread.settings().timeouts;
        let connect_timeout = how.connect_timeout.unwrap_or(timeouts.connect);
        let reply_timeout = how.reply_timeout.unwrap_or(timeouts.reply_idle);
        let BackendOptions {
            name, permits, violates_keep_alive, life, tls, alpn, farewell, ..
        } = how;
        let name = name.into();
        Self {
            thread,
            endpoint,
            name,
            idle,
            permits,
            violates_keep_alive,
            connect_timeout,
            strict: how.strict,
            reply_timeout,
            life,
            tls,
            alpn,
            farewell,
            generation: Cell::new(0),
        }
    }

    /// Returns the number of times that the addresses of the backend's name have changed.
    fn current_generation(&self) -> u64 {
        match &self.endpoint {
            Endpoint::Name(name) => name.generation(),
            Endpoint::Tcp(_) | Endpoint::Unix(_) => 0,
        }
    }

    /// Returns true if the addresses of the backend's name have changed since the last call with
    /// this `seen`. `seen` stores the number of changes between the calls.
    pub fn has_moved(&self, seen: &Cell<u64>) -> bool {
        let now = self.current_generation();
        seen.replace(now) != now
    }

    /// Closes idle connections to former addresses.
    #[inline]
    fn leave_former_addresses(&self) {
        if let Endpoint::Name(_) = &self.endpoint
            && self.has_moved(&self.generation)
        {
            while self.idle.take().is_some() {}
        }
    }

    /// Returns true if the connection goes to a former address.
    #[inline]
    fn is_former(&self, connection: &BackendConnection) -> bool {
        match &self.endpoint {
            Endpoint::Name(name) => connection.generation != name.generation(),
            Endpoint::Tcp(_) | Endpoint::Unix(_) => false,
        }
    }

    /// Returns the recorder of signs of life, if the backend is a process that Forebay supervises.
    pub fn life(&self) -> Option<&Arc<Life>> {
        self.life.as_ref()
    }

    /// Returns true if the backend uses TLS.
    pub fn is_https(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name for the log.
    pub(crate) fn shared_name(&self) -> Rc<str> {
        self.name.clone()
    }

    /// Returns the time limit of connecting.
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Returns the time limit between two reads of a reply.
    pub fn reply_timeout(&self) -> Duration {
        self.reply_timeout
    }

    /// Returns the time limit between two reads of `reply`. An event stream or a gRPC call may be
    /// silent for as long as a tunnel.
    pub fn silence_of(&self, reply: &Reply) -> Duration {
        if !reply.is_live() {
            return self.reply_timeout;
        }
        self.reply_timeout.max(self.thread.settings().timeouts.tunnel_idle)
    }

    /// Returns true if replies with oddities are refused.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns the limits of the heads of replies.
    pub fn reply_limits(&self) -> Http1Limits {
        self.thread.settings().reply_limits()
    }

    /// Returns an idle connection. Opens a new connection if no connection is idle, or if `fresh`
    /// is true.
    pub async fn connect(&self, fresh: bool) -> Result<BackendConnection, Fault> {
        self.leave_former_addresses();
        // Most requests find an idle connection here. So they need no future that opens a
        // connection.
        if !fresh && let Some((socket, permit, _)) = self.idle.take() {
            return Ok(self.reused(socket, permit));
        }
        self.connect_by(fresh, self.alpn).await
    }

    /// Opens an HTTP/1.1 connection, even if the backend also supports HTTP/2.
    pub async fn connect_http1(&self) -> Result<BackendConnection, Fault> {
        self.leave_former_addresses();
        self.connect_by(true, Alpn::Http11).await
    }

    /// Opens a connection that offers the HTTP versions in `alpn`. If connections are limited,
    /// first waits for a permit. A connection that becomes idle during this wait is returned
    /// instead of a new connection, unless `fresh` is true.
    async fn connect_by(&self, fresh: bool, alpn: Alpn) -> Result<BackendConnection, Fault> {
        let Some(permits) = &self.permits else { return self.open_by(None, alpn).await };
        let (socket, permit) = self.wait_for(permits).await?;
        let permit = Some(permit);
        match socket.filter(|_| !fresh) {
            Some(socket) => {
                socket.limit_writes(self.thread.settings().timeouts.write);
                Ok(self.reused(socket, permit))
            }
            None => self.open_by(permit, alpn).await,
        }
    }

    fn reused(&self, socket: Socket, permit: Option<ConnectionPermit>) -> BackendConnection {
        let wait = Cell::default();
        let generation = self.generation.get();
        BackendConnection { socket, is_reused: true, is_http2: false, generation, permit, wait }
    }

    /// Acquires the right to open a shared connection. Fails after the connect timeout. The first
    /// connection of a thread is always allowed, even without a permit.
    pub async fn acquire_shared_permit(&self, is_first: bool) -> Result<ConnectionRight, Fault> {
        let Some(permits) = &self.permits else { return Ok(ConnectionRight(None)) };
        // Without a first connection, the thread could not reach the backend. So `max_connections`
        // does not apply to this connection.
        if is_first {
            return Ok(ConnectionRight(permits.try_acquire()));
        }
        let (_, permit) = self.wait_for(permits).await?;
        Ok(ConnectionRight(Some(permit)))
    }

    /// Opens a connection that several requests can share.
    pub async fn connect_with_permit(
        &self,
        right: ConnectionRight,
    ) -> Result<BackendConnection, Fault> {
        let connection = self.open(right.0).await?;
        connection.forget_wait();
        Ok(connection)
    }

    /// Returns true if the connection has no permit although `max_connections` is set. Such a
    /// connection is the first of its thread, and must be shared.
    pub fn is_beyond_limit(&self, connection: &BackendConnection) -> bool {
        self.permits.is_some() && connection.permit.is_none()
    }

    /// Returns a connection as [`Backend::connect`] does, for a request that must not be sent
    /// twice. A backend may close a kept connection at the moment of the request. So an idle
    /// connection is used only if it has been idle for a while, or if the backend is known to keep
    /// connections open.
    pub async fn connect_non_idempotent(&self) -> Result<BackendConnection, Fault> {
        self.leave_former_addresses();
        let is_patient = self.idle.keeps_alive();
        // If connections are limited, each connection may occupy a process of the backend. So do
        // not open a connection while another connection is idle. The code below uses the idle
        // connection, or closes it first.
        if !is_patient && self.permits.is_none() && !self.violates_keep_alive {
            return self.connect_settled().await;
        }
        while let Some((socket, permit, is_settled)) = self.idle.take() {
            if !is_settled && !is_patient {
                drop(socket);
                return self.open(permit).await;
            }
            if socket.peek().is_none() {
                return Ok(self.reused(socket, permit));
            }
            self.record_violation();
        }
        self.connect(!is_patient).await
    }

    /// Returns a connection that has been idle for a while, or a new connection. Other idle
    /// connections stay in the pool. If they remain open for a while, they prove that the backend
    /// keeps connections open.
    async fn connect_settled(&self) -> Result<BackendConnection, Fault> {
        while let Some((socket, permit)) = self.idle.take_settled() {
            if socket.peek().is_none() {
                return Ok(self.reused(socket, permit));
            }
            self.record_violation();
        }
        self.open(None).await
    }

    /// Records that the backend closed a connection without notice.
    pub fn record_violation(&self) {
        self.idle.record_violation();
    }

    /// Opens a connection with its permit.
    async fn open(&self, permit: Option<ConnectionPermit>) -> Result<BackendConnection, Fault> {
        self.open_by(permit, self.alpn).await
    }

    /// Opens a connection within the connect timeout. After a failure, the fault allows another
    /// attempt, because nothing was sent. Exception: if this machine or process has no memory or
    /// descriptors left, the fault allows no other attempt.
    async fn open_by(
        &self,
        permit: Option<ConnectionPermit>,
        alpn: Alpn,
    ) -> Result<BackendConnection, Fault> {
        let (limit, generation) = (self.connect_timeout, self.current_generation());
        let wait = Cell::new(self.idle.open());
        match tokio::time::timeout(limit, self.open_secured(alpn)).await {
            Ok(Ok((socket, is_http2))) => {
                socket.limit_writes(self.thread.settings().timeouts.write);
                socket.set_farewell(self.farewell);
                Ok(BackendConnection {
                    socket,
                    is_reused: false,
                    is_http2,
                    generation,
                    permit,
                    wait,
                })
            }
            Ok(Err(error)) => {
                let name = &self.name;
                let refused = || {
                    let message = format!("cannot connect to {name}: {error}");
                    Fault::backend(502, message).retry(Retry::Yes)
                };
                Err(Fault::exhausted(format_args!("connect to {name}"), &error)
                    .unwrap_or_else(refused))
            }
            Err(_) => {
                let message = format!("cannot connect to {} within {limit:?}", self.name);
                let fault = Fault::backend(504, message).retry(Retry::Yes);
                Err(fault.limited_by(Limit::Connect))
            }
        }
    }

    /// Waits for an idle connection, or for a permit to open a connection. In the second case, the
    /// returned socket is `None`. Fails after the connect timeout.
    async fn wait_for(
        &self,
        permits: &Arc<Permits>,
    ) -> Result<(Option<Socket>, ConnectionPermit), Fault> {
        let granted = self.idle.wait(permits, self.connect_timeout).await;
        granted.ok_or_else(|| self.busy())
    }

    /// Returns the fault of a request that got no connection in time.
    pub fn busy(&self) -> Fault {
        Fault::backend(503, format!("all connections to {} are busy", self.name))
            .limited_by(Limit::MaxConnections)
    }

    /// Opens a connection. Returns the connection, and true if TLS negotiated HTTP/2.
    async fn open_secured(&self, alpn: Alpn) -> io::Result<(Socket, bool)> {
        let socket = self.open_socket().await?;
        let is_http2 = match &self.tls {
            Some((tls, host)) => socket.secure(tls, host, alpn).await?,
            None => false,
        };
        Ok((socket, is_http2))
    }

    async fn open_socket(&self) -> io::Result<Socket> {
        match &self.endpoint {
            Endpoint::Unix(path) => loop {
                match self.thread.connect_unix(path).await {
                    // The backend's queue of connections is full. For TCP, the kernel retries. For
                    // Unix sockets, Forebay must retry.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::time::sleep(FULL_QUEUE).await;
                    }
                    outcome => return outcome,
                }
            },
            Endpoint::Tcp(address) => self.thread.connect_tcp(*address).await,
            Endpoint::Name(name) => self.connect_to_name(name).await,
        }
    }

    /// Opens a UDP socket that sends to the backend and receives from it.
    pub(super) async fn open_datagrams(&self) -> Result<UdpSocket, Fault> {
        let exhausted = |error: &io::Error| {
            Fault::exhausted(format_args!("open a UDP socket to {}", self.name), error)
        };
        let address = self.datagram_address().map_err(|error| self.refused_datagrams(&error))?;
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // The backend is not at fault for an error such as "too many open files" or "no free port".
        let socket = UdpSocket::bind((any, 0)).await.map_err(|error| {
            exhausted(&error)
                .unwrap_or_else(|| Fault::us(503, format!("cannot open a UDP socket: {error}")))
        })?;
        socket
            .connect(address)
            .await
            .map_err(|error| exhausted(&error).unwrap_or_else(|| self.refused_datagrams(&error)))?;
        Ok(socket)
    }

    /// Returns the fault of a backend that takes no datagrams.
    pub(super) fn refused_datagrams(&self, error: &io::Error) -> Fault {
        Fault::backend(502, format!("{} takes no datagrams: {error}", self.name))
    }

    fn datagram_address(&self) -> io::Result<SocketAddr> {
        match &self.endpoint {
            Endpoint::Tcp(address) => Ok(*address),
            Endpoint::Name(name) => {
                Ok(name.in_turn()?.first().copied().ok_or(io::ErrorKind::NotFound)?)
            }
            Endpoint::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Tries to connect to the addresses of a name, one after another. Each attempt gets an equal
    /// part of the remaining time. Fails if no attempt succeeds.
    async fn connect_to_name(&self, name: &Name) -> io::Result<Socket> {
        let (addresses, deadline) = (name.in_turn()?, Instant::now() + self.connect_timeout);
        let mut last = None;
        for (index, &address) in addresses.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            match tokio::time::timeout(share, self.thread.connect_tcp(address)).await {
                Ok(Ok(socket)) => return Ok(socket),
                // Without a descriptor or memory for a socket, the attempts at other addresses
                // would also fail.
                Ok(Err(error)) if Fault::exhausted("connect", &error).is_some() => {
                    return Err(error);
                }
                Ok(Err(error)) => last = Some(error),
                Err(_) => last = Some(io::ErrorKind::TimedOut.into()),
            }
            name.record_failure(address);
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// Keeps a connection for another request, after the whole reply was read. Closes the
    /// connection if it goes to a former address of the backend. Also closes it if a new connection
    /// waits too long for a process of the backend (`pending_connections`).
    pub fn keep(&self, connection: BackendConnection) {
        connection.answered();
        if connection.is_reused {
            self.idle.record_keeping();
        }
        if self.idle.pop_overdue() || self.is_former(&connection) {
            return;
        }
        self.idle.put(connection.socket, connection.permit);
    }

    /// Waits until the first bytes of a reply can be read. The caller needs no buffer until then.
    pub async fn readable(&self, socket: &Socket) -> Result<(), Fault> {
        socket.limit_read(self.reply_timeout);
        let _waiting = Waiting(socket);
        // After a timeout, this call succeeds, and the next read reports the timeout.
        socket.readable().await.map_err(|error| self.not_read(&error))
    }

    /// Reads more of a reply into `inbox`. Returns 0 at the end of the connection.
    pub async fn read(&self, socket: &Socket, inbox: &mut Vec<u8>) -> Result<usize, Fault> {
        self.read_within(socket, inbox, self.reply_timeout).await
    }

    /// Reads as [`Self::read`] does, but with this time limit.
    pub async fn read_within(
        &self,
        socket: &Socket,
        inbox: &mut Vec<u8>,
        limit: Duration,
    ) -> Result<usize, Fault> {
        socket.limit_read(limit);
        let _waiting = Waiting(socket);
        // The first bytes are there after `readable`, so only the rest is waited for.
        let read = socket.read_rest(inbox).await;
        if let (Ok(_), Some(life)) = (&read, &self.life) {
            life.record();
        }
        read.map_err(|error| self.not_read(&error))
    }

    fn not_read(&self, error: &io::Error) -> Fault {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                let limit = self.reply_timeout;
                Fault::backend(504, format!("{} sent nothing for {limit:?}", self.name))
                    .limited_by(Limit::ReplyIdle)
            }
            _ => self.lost(error),
        }
    }

    /// Returns the fault of a broken connection. A request on a reused connection may be resent.
    pub fn lost(&self, error: &io::Error) -> Fault {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                Fault::backend(504, format!("{} takes no more data", self.name))
                    .limited_by(Limit::Write)
            }
            _ => Fault::backend(502, format!("connection to {}: {error}", self.name))
                .retry(Retry::IfReused),
        }
    }

    /// Returns `fault`. Exception: if the backend is a process that Forebay supervises, and this
    /// process has crashed, returns a fault without a retry. The request might also crash the next
    /// process.
    pub async fn classify_failure(&self, fault: Fault) -> Fault {
        let Some(life) = self.life.as_ref().filter(|_| fault.retry == Retry::IfReused) else {
            return fault;
        };
        if !life.has_crashed().await {
            return fault;
        }
        let message = format!("{} crashed with the request, which is not resent", self.name);
        Fault::backend(502, message)
    }

    /// Returns the fault of a connection that ended before the end of its reply.
    pub fn cut_off(&self, any_reply: bool) -> Fault {
        let retry = if any_reply { Retry::No } else { Retry::IfReused };
        Fault::backend(502, format!("{} closed the connection before its reply ended", self.name))
            .retry(retry)
    }
}

/// Ends a read's time limit when dropped, so that the limit does not apply while Forebay waits for
/// the client.
struct Waiting<'a>(&'a Socket);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.unlimit_read();
    }
}
