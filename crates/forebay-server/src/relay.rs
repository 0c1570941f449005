//! Streams (`[[stream]]`): TCP connections and UDP datagrams that Forebay passes to backends, for
//! protocols other than HTTP.

pub(crate) mod datagrams;
pub(crate) mod serve;

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{Access, Clients, HostPattern, NetworkList};
use forebay_net::fault::Fault;
use forebay_net::socket::Socket;
use forebay_net::tls::ServerTls;
use forebay_wire::ClientAddress;
use tokio::net::UdpSocket;

/// A `[[stream]]`: rules for its clients, and the backends of their connections.
pub struct Relay {
    /// Server names of the clients. [`HostPattern::Any`] includes clients that send no name.
    pub names: Vec<HostPattern>,
    /// TLS settings, if Forebay decrypts the bytes.
    pub tls: Option<Arc<ServerTls>>,
    /// True if the server name selects the stream, or if clients begin with TLS.
    pub needs_hello: bool,
    /// True if connections begin with a PROXY header.
    pub proxy_protocol: bool,
    /// Peers that may send a PROXY header. If the list is empty, all peers may.
    pub trusted_proxies: Vec<Clients>,
    /// Lists of further such peers.
    pub proxy_lists: Vec<Arc<NetworkList>>,
    /// Rules about the addresses of clients.
    pub access: Access,
    /// Time limit without bytes in either direction. `None` uses the server's setting.
    pub idle: Option<Duration>,
    /// Opens connections to backends.
    pub backends: Box<dyn RelayBackends>,
}

/// The backends of a stream.
pub trait RelayBackends {
    /// Opens a connection to a backend for this client. Tries further backends if one fails.
    fn connect<'a>(&'a self, client: &'a RelayClient) -> Connecting<'a, RelayBackend>;

    /// Opens a UDP socket to a backend for this client.
    fn open_datagrams<'a>(&'a self, client: &'a RelayClient) -> Connecting<'a, DatagramBackend>;

    /// Records that a backend has sent a datagram.
    fn datagrams_answered(&self, backend: &DatagramBackend);

    /// Records that a backend has refused a datagram.
    fn datagrams_failed(&self, backend: &DatagramBackend, error: &io::Error);
}

/// Future of a connection to a backend.
pub type Connecting<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + 'a>>;

/// The client of a stream.
pub struct RelayClient {
    /// Address of the client.
    pub address: ClientAddress,
    /// Address that the client connected to.
    pub server: SocketAddr,
}

/// A new connection to a backend.
pub struct RelayBackend {
    /// The socket.
    pub socket: Socket,
    /// Name for the log.
    pub name: Rc<str>,
    /// Values that are dropped when the connection ends, such as permits.
    pub held: Box<dyn Any>,
}

/// A UDP socket that is connected to a backend.
pub struct DatagramBackend {
    /// The socket.
    pub socket: UdpSocket,
    /// Number of the backend.
    pub index: usize,
    /// Name for the log.
    pub name: Rc<str>,
    /// Values that are dropped when the session ends.
    pub held: Box<dyn Any>,
}
