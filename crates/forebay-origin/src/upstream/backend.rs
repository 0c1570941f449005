//! Connections to a backend: found in the thread's pool (`idle_connections`), waited for or made.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::Address;
use forebay_engine::{Alpn, ClientTls, Fault, Limit, Retry, Socket, Thread};
use forebay_workers::Life;

use super::Past;
use super::idle_connections::{IdleConnections, IdlePools};
use super::permits::{ConnectionPermit, Permits};
use super::unanswered::{Unanswered, Wait};

/// Where a backend is, looked up.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// The addresses of its name, tried in turn.
    Tcp(Vec<SocketAddr>),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Looks up `address`.
    pub fn resolve(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(name) => {
                let addresses: Vec<_> = name.to_socket_addrs()?.collect();
                if addresses.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "no address"));
                }
                Ok(Self::Tcp(addresses))
            }
            Address::Unix(path) => Ok(Self::Unix(path.clone())),
        }
    }
}

/// Between two attempts at a Unix socket with a full queue.
const FULL_QUEUE: Duration = Duration::from_millis(5);

/// A backend as one thread knows it.
pub struct Backend {
    thread: Rc<Thread>,
    endpoint: Endpoint,
    name: String,
    idle: Rc<IdleConnections>,
    permits: Option<Arc<Permits>>,
    violates_keep_alive: bool,
    connect_timeout: Duration,
    reply_timeout: Duration,
    life: Option<Arc<Life>>,
    tls: Option<(Arc<ClientTls>, String)>,
    alpn: Alpn,
}

/// How a backend is to be used.
#[derive(Clone, Default)]
pub struct BackendOptions {
    /// What messages call it.
    pub name: String,
    /// Idle connections that each thread keeps at the most. `None`: as many as were in use at once
    /// during `idle_time`.
    pub keep: Option<usize>,
    /// How long a connection may be idle.
    pub idle_time: Duration,
    /// Whether it is known to close connections without a word.
    pub violates_keep_alive: bool,
    /// The limit on connections over all threads.
    pub permits: Option<Arc<Permits>>,
    /// Its new connections, over all threads.
    pub unanswered: Option<Arc<Unanswered>>,
    /// How long connecting may take; `None`: as the server's settings say.
    pub connect_timeout: Option<Duration>,
    /// Between two reads of a reply; `None`: as the server's settings say.
    pub reply_timeout: Option<Duration>,
    /// Where idle connections are shared with other routes to it. `None`: they are not.
    pub pools: Option<Rc<IdlePools>>,
    /// What records when it was heard of.
    pub life: Option<Arc<Life>>,
    /// How it is believed, where it is spoken to by TLS, and its host.
    pub tls: Option<(Arc<ClientTls>, String)>,
    /// The versions of HTTP that it is offered by TLS.
    pub alpn: Alpn,
}

/// A connection to a backend.
pub struct Connection {
    /// The connection.
    pub socket: Socket,
    /// Whether it has served a request before.
    pub is_reused: bool,
    /// Whether HTTP/2 was agreed on by TLS.
    pub is_http2: bool,
    permit: Option<ConnectionPermit>,
    /// Nothing has come on it yet for its request.
    wait: Cell<Option<Wait>>,
}

impl Connection {
    /// Whether it has a past.
    pub fn past(&self) -> Past {
        if self.is_reused { Past::Kept } else { Past::New }
    }

    /// Something has come for its request. To be called at the first byte; later calls do nothing.
    pub fn answered(&self) {
        if let Some(wait) = self.wait.take() {
            wait.end();
        }
    }

    /// Requests share it: when the first byte comes says nothing of how long one waits.
    pub fn forget_wait(&self) {
        self.wait.take();
    }

    /// What counts it, where it is counted.
    pub fn permit(&self) -> Option<&ConnectionPermit> {
        self.permit.as_ref()
    }

    /// The connection for what is not a request, and what it holds as long as it is open.
    pub fn into_parts(self) -> (Socket, Option<ConnectionPermit>) {
        (self.socket, self.permit)
    }
}

/// The right to open a connection that requests share, with what counts it where it is counted.
pub struct ConnectionRight(Option<ConnectionPermit>);

impl Backend {
    /// A backend that is used so. Must be called within the thread's event loop.
    pub fn new(thread: Rc<Thread>, endpoint: Endpoint, how: BackendOptions) -> Self {
        let idle = IdleConnections::of(&thread, &how);
        let timeouts = &thread.settings().timeouts;
        let connect_timeout = how.connect_timeout.unwrap_or(timeouts.connect);
        let reply_timeout = how.reply_timeout.unwrap_or(timeouts.reply_idle);
        let BackendOptions { name, permits, violates_keep_alive, life, tls, alpn, .. } = how;
        Self {
            thread,
            endpoint,
            name,
            idle,
            permits,
            violates_keep_alive,
            connect_timeout,
            reply_timeout,
            life,
            tls,
            alpn,
        }
    }

    /// Who is told when it says something.
    pub fn life(&self) -> Option<&Arc<Life>> {
        self.life.as_ref()
    }

    /// Whether it is spoken to by TLS.
    pub fn is_https(&self) -> bool {
        self.tls.is_some()
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long connecting may take.
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// How long a reply may pause.
    pub fn reply_timeout(&self) -> Duration {
        self.reply_timeout
    }

    /// A connection: an idle one unless `fresh`, else a new one.
    pub async fn connect(&self, fresh: bool) -> Result<Connection, Fault> {
        self.connect_by(fresh, self.alpn).await
    }

    /// A new connection of HTTP/1.1, whatever else the backend can speak.
    pub async fn connect_http1(&self) -> Result<Connection, Fault> {
        self.connect_by(true, Alpn::Http11).await
    }

    async fn connect_by(&self, fresh: bool, alpn: Alpn) -> Result<Connection, Fault> {
        if !fresh && let Some((socket, permit, _)) = self.idle.take() {
            return Ok(self.reused(socket, permit));
        }
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

    fn reused(&self, socket: Socket, permit: Option<ConnectionPermit>) -> Connection {
        let wait = Cell::new(self.idle.reuse());
        Connection { socket, is_reused: true, is_http2: false, permit, wait }
    }

    /// The right to open a connection that requests share, as long as connecting may take. A thread's
    /// first one is open to it whatever `max_connections` says: it has no other way to the backend.
    pub async fn right_to_share(&self, is_first: bool) -> Result<ConnectionRight, Fault> {
        let Some(permits) = &self.permits else { return Ok(ConnectionRight(None)) };
        if is_first {
            return Ok(ConnectionRight(permits.try_acquire()));
        }
        let (_, permit) = self.wait_for(permits).await?;
        Ok(ConnectionRight(Some(permit)))
    }

    /// A new connection that requests share, if the backend takes that.
    pub async fn connect_by_right(&self, right: ConnectionRight) -> Result<Connection, Fault> {
        let connection = self.open(right.0).await?;
        connection.forget_wait();
        Ok(connection)
    }

    /// Whether it was opened beyond `max_connections`, which only a shared one may be.
    pub fn is_beyond_limit(&self, connection: &Connection) -> bool {
        self.permits.is_some() && connection.permit.is_none()
    }

    /// As [`Backend::connect`], for a request that must not be sent twice. A backend may close a
    /// kept connection just when that request has gone out over it, so it is looked at once more,
    /// and unless the backend has been seen to keep them, only what has been idle for a while is
    /// used.
    pub async fn connect_for_once(&self) -> Result<Connection, Fault> {
        let is_patient = self.idle.keeps_alive();
        // Where each connection holds a process of the backend, none is left aside.
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

    /// A connection that has been idle for a while, or a new one. Those in between stay: they will
    /// show whether the backend keeps them.
    async fn connect_settled(&self) -> Result<Connection, Fault> {
        while let Some((socket, permit)) = self.idle.take_settled() {
            if socket.peek().is_none() {
                return Ok(self.reused(socket, permit));
            }
            self.record_violation();
        }
        self.open(None).await
    }

    /// The backend closed a connection without having said that it would.
    pub fn record_violation(&self) {
        self.idle.record_violation();
    }

    /// A new connection, for which there is room.
    async fn open(&self, permit: Option<ConnectionPermit>) -> Result<Connection, Fault> {
        self.open_by(permit, self.alpn).await
    }

    async fn open_by(
        &self,
        permit: Option<ConnectionPermit>,
        alpn: Alpn,
    ) -> Result<Connection, Fault> {
        let limit = self.connect_timeout;
        let wait = Cell::new(self.idle.open());
        match tokio::time::timeout(limit, self.open_secured(alpn)).await {
            Ok(Ok((socket, is_http2))) => {
                socket.limit_writes(self.thread.settings().timeouts.write);
                Ok(Connection { socket, is_reused: false, is_http2, permit, wait })
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

    /// Waits for an open connection, or the right to open one, as long as connecting may take.
    async fn wait_for(
        &self,
        permits: &Arc<Permits>,
    ) -> Result<(Option<Socket>, ConnectionPermit), Fault> {
        let granted = self.idle.wait(permits, self.connect_timeout).await;
        granted.ok_or_else(|| self.busy())
    }

    /// No connection became free in time.
    pub fn busy(&self) -> Fault {
        Fault::backend(503, format!("all connections to {} are busy", self.name))
            .limited_by(Limit::MaxConnections)
    }

    /// A connection, and whether HTTP/2 was agreed on.
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
                    // The queue of a Unix socket is full. Unlike TCP nothing tries again for us.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::time::sleep(FULL_QUEUE).await;
                    }
                    outcome => return outcome,
                }
            },
            Endpoint::Tcp(addresses) => {
                let mut last = None;
                for &address in addresses {
                    match self.thread.connect_tcp(address).await {
                        Ok(socket) => return Ok(socket),
                        Err(error) => last = Some(error),
                    }
                }
                Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
            }
        }
    }

    /// Keeps a connection whose reply has been read to its end, unless it is to be closed for a new one
    /// that is overdue.
    pub fn keep(&self, connection: Connection) {
        connection.answered();
        if connection.is_reused {
            self.idle.record_keeping();
        }
        if self.idle.pop_overdue() {
            return;
        }
        self.idle.put(connection.socket, connection.permit);
    }

    /// Waits until something of a reply has come, so that only then a buffer is taken for it.
    pub async fn readable(&self, socket: &Socket) -> Result<(), Fault> {
        socket.limit_read(self.reply_timeout);
        let _waiting = Waiting(socket);
        // Where the time has run out, reading says so.
        socket.readable().await.map_err(|error| self.not_read(&error))
    }

    /// Reads more of a reply into `inbox`; 0 at its end.
    pub async fn read(&self, socket: &Socket, inbox: &mut Vec<u8>) -> Result<usize, Fault> {
        socket.limit_read(self.reply_timeout);
        let _waiting = Waiting(socket);
        let read = socket.read(inbox).await;
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

    /// The connection broke: a request on a reused one may be sent again.
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

    /// What `fault` means where the backend is a process of ours. A request that crashed its process
    /// would crash the next one, so it is not sent again.
    pub async fn judge(&self, fault: Fault) -> Fault {
        let Some(life) = self.life.as_ref().filter(|_| fault.retry == Retry::IfReused) else {
            return fault;
        };
        if !life.has_crashed().await {
            return fault;
        }
        let message = format!("{} crashed with the request, which is not sent again", self.name);
        Fault::backend(502, message)
    }

    /// The connection ended before the reply did.
    pub fn cut_off(&self, any_reply: bool) -> Fault {
        let retry = if any_reply { Retry::No } else { Retry::IfReused };
        Fault::backend(502, format!("{} closed the connection before its reply ended", self.name))
            .retry(retry)
    }
}

/// A read that is limited as long as it waits, and not when the client is waited for after it.
struct Waiting<'a>(&'a Socket);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.unlimit_read();
    }
}
