//! A group of servers that requests are passed to, whatever they speak.

use std::time::Duration;

use super::{Address, BackendTls, Scheme};

/// Servers, and how requests are shared out among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Its name in the file. `None`: it is of one route alone.
    pub name: Option<String>,
    /// Where they are. At most [`Upstream::MOST`]; in a route never empty, and one at least is no
    /// backup.
    pub to: Vec<Backend>,
    /// Which of them takes a request. Default [`Balance::RoundRobin`].
    pub balance: Balance,
    /// The cookie that keeps a client with one server. For HTTP servers and servlet containers.
    pub sticky: Option<Sticky>,
    /// Failures within `fail_timeout` after which a server is left out. Default 1; 0: never.
    pub max_fails: u32,
    /// How long failures are counted. Default 10 s.
    pub fail_timeout: Duration,
    /// How long a server is left out for its failures. Default: as `fail_timeout`.
    pub recover_time: Duration,
    /// How each server is asked whether it is well. For HTTP servers.
    pub health: Option<Health>,
    /// Idle connections kept per server and thread at the most. `None`: as many as were in use at once
    /// lately.
    pub keepalive: Option<usize>,
    /// Connections to each server at once, idle ones included, over all threads and all routes to it;
    /// at least 1. Default: no limit.
    pub max_connections: Option<usize>,
    /// The PROXY header that connections begin with; none is used twice then. For HTTP servers. Default
    /// `None`.
    pub send_proxy: Option<ProxyHeader>,
    /// To connect to a server. `None`: as the server's [`super::Timeouts::connect`].
    pub connect_timeout: Option<Duration>,
    /// How those of them are believed that are spoken to by TLS.
    pub tls: BackendTls,
}

impl Upstream {
    /// The most servers that a group can have.
    pub const MOST: usize = 64;

    /// Some servers with every default.
    pub fn new(to: Vec<Backend>) -> Self {
        Self {
            name: None,
            to,
            balance: Balance::default(),
            sticky: None,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            recover_time: Duration::from_secs(10),
            health: None,
            keepalive: None,
            max_connections: None,
            send_proxy: None,
            connect_timeout: None,
            tls: BackendTls::default(),
        }
    }

    /// Where the servers are.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.to.iter().map(|backend| &backend.address)
    }
}

/// A server that requests are passed to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backend {
    /// How to speak to it.
    pub scheme: Scheme,
    /// Whether it is spoken to by TLS. For HTTP servers.
    pub https: bool,
    /// Which version of HTTP it is spoken to by. For HTTP servers.
    pub version: HttpVersion,
    /// Where it is.
    pub address: Address,
    /// The URL's authority as typed (`Host` where the client's is not passed on); `localhost`
    /// for a Unix socket of an HTTP server.
    pub authority: String,
    /// Its share beside the others, 1 to 256. Default 1.
    pub weight: u32,
    /// Whether it is asked only when all others are down. Default false.
    pub backup: bool,
    /// How far away it is: others are asked only when all nearer ones are down. Default 0.
    pub distance: u32,
    /// Which of the group takes its place while it is down or stopped; never itself.
    pub redirect: Option<usize>,
    /// Who may use it. Default [`Activation::Active`]; of a group one at least is that, and no backup.
    pub activation: Activation,
    /// What sticky cookies call it: letters, digits, `-` and `_`.
    pub route: Option<String>,
}

impl Backend {
    /// One with every default, spoken to without TLS.
    pub fn new(scheme: Scheme, address: Address, authority: String) -> Self {
        Self {
            scheme,
            https: false,
            version: HttpVersion::Http11,
            address,
            authority,
            weight: 1,
            backup: false,
            distance: 0,
            redirect: None,
            activation: Activation::default(),
            route: None,
        }
    }
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HttpVersion {
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2: by prior knowledge, or by ALPN where there is TLS.
    Http2,
    /// HTTP/2, or else HTTP/1.1, as the server chooses by ALPN. Where there is TLS.
    Negotiated,
}

/// Who may use a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// All.
    #[default]
    Active,
    /// Clients that stay with it, no others.
    Disabled,
    /// Nobody.
    Stopped,
}

/// Which of several servers takes a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Each in turn, by weight.
    #[default]
    RoundRobin,
    /// The one with the fewest requests under way for its weight.
    LeastConnections,
}

/// The cookie that keeps a client with one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// Its name, a token.
    pub cookie: String,
    /// Whether the servers make it and end it in `.` and their route; all of them have one then.
    pub routes: bool,
}

/// How each server is asked whether it is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Path and query asked for; begins with `/`.
    pub path: String,
    /// From one question to the next, more than zero. Default 5 s.
    pub interval: Duration,
    /// How long an answer may take, more than zero. Default 2 s.
    pub timeout: Duration,
    /// Good answers in a row after which a server is up again, at least 1. Default 2.
    pub rises: u32,
    /// Bad answers in a row after which a server is down, at least 1. Default 3.
    pub falls: u32,
}

/// The version of a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}
