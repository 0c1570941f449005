//! Connections to a backend: found in the thread's pool or made.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use forebay_conf::Address;
use forebay_engine::{Fault, Pool, Retry, Socket, Thread};

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

/// A backend as one thread knows it.
pub struct Backend {
    thread: Rc<Thread>,
    endpoint: Endpoint,
    name: String,
    pool: Pool,
}

/// A connection to a backend.
pub struct Connection {
    /// The connection.
    pub socket: Socket,
    /// Whether it has served a request before.
    pub is_reused: bool,
}

impl Backend {
    /// A backend called `name` in messages, with room for `keep` idle connections.
    pub fn new(
        thread: Rc<Thread>,
        endpoint: Endpoint,
        name: String,
        keep: usize,
        idle_time: Duration,
    ) -> Self {
        Self { thread, endpoint, name, pool: Pool::new(keep, idle_time) }
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection: an idle one unless `fresh`, else a new one.
    pub async fn connect(&self, fresh: bool) -> Result<Connection, Fault> {
        if !fresh && let Some(socket) = self.pool.take(&self.thread.deadlines) {
            return Ok(Connection { socket, is_reused: true });
        }
        let limit = self.thread.settings().timeouts.connect;
        match tokio::time::timeout(limit, self.open()).await {
            Ok(Ok(socket)) => {
                socket.limit_writes(self.thread.settings().timeouts.write);
                Ok(Connection { socket, is_reused: false })
            }
            Ok(Err(error)) => {
                let message = format!("cannot connect to {}: {error}", self.name);
                Err(Fault::backend(502, message).retry(Retry::Yes))
            }
            Err(_) => {
                let message = format!("cannot connect to {} within {limit:?}", self.name);
                Err(Fault::backend(504, message).retry(Retry::Yes))
            }
        }
    }

    async fn open(&self) -> io::Result<Socket> {
        let deadlines = &self.thread.deadlines;
        match &self.endpoint {
            Endpoint::Unix(path) => Socket::connect_unix(path, deadlines).await,
            Endpoint::Tcp(addresses) => {
                let mut last = None;
                for &address in addresses {
                    match Socket::connect_tcp(address, deadlines).await {
                        Ok(socket) => return Ok(socket),
                        Err(error) => last = Some(error),
                    }
                }
                Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
            }
        }
    }

    /// Keeps a connection whose reply has been read to its end.
    pub fn keep(&self, connection: Connection) {
        self.pool.put(connection.socket, &self.thread.deadlines);
    }

    /// Reads more of a reply into `inbox`; 0 at its end.
    pub async fn read(&self, socket: &Socket, inbox: &mut Vec<u8>) -> Result<usize, Fault> {
        let limit = self.thread.settings().timeouts.reply_idle;
        socket.limit_read(limit);
        socket.read(inbox).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                Fault::backend(504, format!("{} sent nothing for {limit:?}", self.name))
            }
            _ => self.lost(&error),
        })
    }

    /// The connection broke: a request on a reused one may be sent again.
    pub fn lost(&self, error: &io::Error) -> Fault {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                Fault::backend(504, format!("{} takes no more data", self.name))
            }
            _ => Fault::backend(502, format!("connection to {}: {error}", self.name))
                .retry(Retry::IfReused),
        }
    }

    /// The connection ended before the reply did.
    pub fn cut_off(&self, any_reply: bool) -> Fault {
        let retry = if any_reply { Retry::No } else { Retry::IfReused };
        Fault::backend(502, format!("{} closed the connection before its reply ended", self.name))
            .retry(retry)
    }
}
