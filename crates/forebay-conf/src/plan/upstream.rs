//! A group of backends, for every protocol.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use forebay_conf_derive::{Choice, Table};
use schemars::{Schema, SchemaGenerator};

use super::secret::Secret;
use super::{Address, BackendTls, Scheme, Template};
use crate::error::Problem;
use crate::key::{
    Cx, Form, FromText, Many, Method, Node, Resolution, StatusRange, Whole, not_empty,
};

/// A group of servers, and the distribution of requests among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The name of the group in the file. `None`: the group belongs to one route.
    pub name: Option<String>,
    /// The servers, at most [`Upstream::MOST`]. In a route, the list is never empty, and at least
    /// one server is no backup.
    pub to: Vec<Backend>,
    /// The method that selects the server of a request. Default [`Balance::RoundRobin`].
    pub balance: Balance,
    /// The text that selects the server. `Some` for [`Balance::Hash`].
    pub hash_key: Option<Template>,
    /// The cookie that binds a client to one server. Only for HTTP servers and servlet containers.
    pub sticky: Option<Sticky>,
    /// The number of failures within `fail_timeout` after which a server gets no requests for
    /// `recover_time`. Default 1. 0: failures have no effect.
    pub max_fails: u32,
    /// The period over which failures are counted. Default 10 s.
    pub fail_timeout: Duration,
    /// A failed server gets no requests for this time. Default: as `fail_timeout`.
    pub recover_time: Duration,
    /// The time until a server that has come back gets its full share of requests. `None`: it gets
    /// that share at once.
    pub slow_start: Option<Duration>,
    /// Retries that a reply's status causes. Only for HTTP servers. Default `None`.
    pub retry: Option<StatusRetry>,
    /// Health checks of each server. Only for HTTP servers without TLS, and for streams.
    pub health: Option<Health>,
    /// The largest number of idle connections per server and thread. `None`: the largest number
    /// that was recently in use at once.
    pub keepalive: Option<usize>,
    /// The largest number of connections to each server, including idle ones, over all threads and
    /// all routes to it; at least 1. `None`: no limit.
    pub max_connections: Option<usize>,
    /// The PROXY header at the start of each connection, which then carries one request. Only for
    /// HTTP/1.1 servers without TLS, and for streams. Default `None`.
    pub send_proxy: Option<ProxyHeader>,
    /// The longest time to connect to a server. `None`: the server's [`super::Timeouts::connect`].
    pub connect_timeout: Option<Duration>,
    /// True if odd replies are refused even if their meaning is certain. The key is only for HTTP
    /// servers, but each server that decides about access is read strictly. Default false.
    pub strict: bool,
    /// Settings for TLS with servers.
    pub tls: BackendTls,
}

impl Upstream {
    /// The largest number of servers in a group.
    pub const MOST: usize = 64;

    /// Returns a group of these servers, with the default of every setting.
    pub fn new(to: Vec<Backend>) -> Self {
        Self {
            name: None,
            to,
            balance: Balance::default(),
            hash_key: None,
            sticky: None,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            recover_time: Duration::from_secs(10),
            slow_start: None,
            retry: None,
            health: None,
            keepalive: None,
            max_connections: None,
            send_proxy: None,
            connect_timeout: None,
            strict: false,
            tls: BackendTls::default(),
        }
    }

    /// Returns the addresses of the servers.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.to.iter().map(|backend| &backend.address)
    }
}

/// A server of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backend {
    /// The protocol.
    pub scheme: Scheme,
    /// Uses TLS. Only for HTTP servers and servers of streams.
    pub https: bool,
    /// The version of HTTP. Only for HTTP servers.
    pub version: HttpVersion,
    /// The address.
    pub address: Address,
    /// The URL's authority as typed. The server gets it as `Host`, unless the client's own `Host`
    /// is passed on. `localhost` for a Unix socket of an HTTP server.
    pub authority: String,
    /// The number of requests relative to the other servers, 1 to 256. Default 1.
    pub weight: u32,
    /// Uses the server only while all others are down. Default false.
    pub backup: bool,
    /// The distance of the server. The server gets requests only while all servers with a smaller
    /// distance are down. Default 0.
    pub distance: u32,
    /// The index of the server that replaces this server while it is down or stopped. Never the
    /// index of this server itself.
    pub redirect: Option<usize>,
    /// The clients that may use the server. Default [`Activation::Active`]. At least one server of
    /// a group has that value and is no backup.
    pub activation: Activation,
    /// The name of the server in sticky cookies: letters, digits, `-` and `_`.
    pub route: Option<String>,
}

impl Backend {
    /// Returns a server without TLS, with the default of every setting.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Choice)]
pub enum HttpVersion {
    /// HTTP/1.1.
    #[key("1.1")]
    #[default]
    Http11,
    /// HTTP/2.
    #[key("2")]
    Http2,
    /// HTTP/2 or HTTP/1.1, as the server chooses.
    #[key("auto")]
    Negotiated,
}

/// The clients that may use a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Choice)]
pub enum Activation {
    /// All clients.
    #[default]
    Active,
    /// Only clients with a sticky session on this server.
    Disabled,
    /// No clients.
    Stopped,
}

/// The method that selects one of several servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum Balance {
    /// Each server in turn, by weight.
    #[default]
    RoundRobin,
    /// The server with the fewest open requests relative to its weight.
    LeastConnections,
    /// All requests with the same `hash_key` go to the same server. A server of weight 2 gets twice
    /// as many keys. Adding or removing a server moves only the keys of this server.
    Hash,
    /// Of two random servers, the one with fewer open requests relative to its weight.
    RandomTwo,
    /// The server with the smallest product: time until the head of a reply, multiplied by open
    /// requests, divided by weight.
    LeastTime,
}

/// The cookie that binds a client to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// The name of the cookie; a token of RFC 9110.
    pub cookie: String,
    /// True if the servers set the cookie themselves, with a value that ends in `.` and the
    /// server's route. Each server then has a route.
    pub routes: bool,
}

/// Health checks of each server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The path and query to request; begins with `/`. Empty for a stream: its servers only have to
    /// accept a connection.
    pub path: String,
    /// The statuses of a healthy server. Default 200 to 399.
    pub statuses: StatusRanges,
    /// The text that the first 64 KiB of the body must contain; not empty.
    pub body: Option<String>,
    /// The port to connect to. `None`: the port or the Unix socket of the server.
    pub port: Option<u16>,
    /// The time from one check to the next, more than zero. Default 5 s.
    pub interval: Duration,
    /// The longest time that a server may take to answer, more than zero. Default 2 s.
    pub timeout: Duration,
    /// The number of good answers in a row after which a server is up again, at least 1. Default 2.
    pub rises: u32,
    /// The number of bad answers in a row after which a server is down, at least 1. Default 3.
    pub falls: u32,
}

/// The version of a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum ProxyHeader {
    /// A line of text.
    V1,
    /// A binary header.
    V2,
}

/// Servlet containers that speak AJP 1.3, and the distribution of requests among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ajp {
    /// The containers.
    pub upstream: Arc<Upstream>,
    /// The secret that the containers require. `None`: they require no secret.
    pub secret: Option<Secret>,
    /// The largest packet in bytes, including its header: 8192 (the default) to 65,536.
    pub packet_size: usize,
    /// The times at which a container gets a ping. Default [`Ping::Off`].
    pub ping: Ping,
    /// The longest time between two reads of a reply. `None`: [`super::Timeouts::reply_idle`]
    /// applies.
    pub reply_timeout: Option<Duration>,
}

/// The requirements of an `ajp://` listener for the web servers that connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AjpFront {
    /// The secret that each request must contain. `None`: no secret is required.
    pub secret: Option<Secret>,
    /// The largest packet in bytes, including its header: 8192 (the default) to 65,536.
    pub packet_size: usize,
}

/// The times at which a container gets a ping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum Ping {
    /// After each new connection.
    Connect,
    /// Before each request.
    Always,
    /// Never.
    #[default]
    Off,
}

/// HTTP servers, and changes to the requests and replies that they exchange with clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The servers.
    pub upstream: Arc<Upstream>,
    /// The `Host` that servers get. Default [`HostField::Client`].
    pub host: HostField,
    /// The prefix that is removed from the path. It begins with `/`.
    pub strip_prefix: Option<String>,
    /// True if the path that servers get is decoded and encoded again.
    pub decodes_path: bool,
    /// The treatment of redirects and cookies that contain the server's own address. Default
    /// [`Redirects::Rewrite`].
    pub redirect: Redirects,
    /// The longest time between two reads of a reply. `None`: [`super::Timeouts::reply_idle`]
    /// applies.
    pub reply_timeout: Option<Duration>,
    /// The longest time without data on an upgraded connection. `None`:
    /// [`super::Timeouts::tunnel_idle`] applies.
    pub tunnel_idle: Option<Duration>,
}

impl Proxy {
    /// Returns a route to these servers, with the default of every setting.
    pub fn new(to: Vec<Backend>) -> Self {
        Self {
            upstream: Arc::new(Upstream::new(to)),
            host: HostField::default(),
            strip_prefix: None,
            decodes_path: false,
            redirect: Redirects::default(),
            reply_timeout: None,
            tunnel_idle: None,
        }
    }
}

/// The treatment of redirects that contain the server's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum Redirects {
    /// Redirects are rewritten to the address that clients use.
    #[default]
    Rewrite,
    /// Redirects are passed on unchanged.
    Off,
}

/// The `Host` field that servers get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum HostField {
    /// The client's Host.
    #[default]
    Client,
    /// The host and port of the server's URL.
    Backend,
}

/// Resends a request to another server if the reply has one of `statuses`.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
pub struct StatusRetry {
    /// The statuses, from 400 to 599: numbers such as 503, ranges such as "500-504" and classes such
    /// as "5xx".
    #[key(as = StatusesFrom<400>, default = [502, 503, 504])]
    pub statuses: StatusRanges,
    /// The methods of requests that are resent. Forebay must still have the whole body.
    #[key(as = Many<Method>, default = ["GET", "HEAD", "OPTIONS", "QUERY"])]
    pub methods: Vec<String>,
    /// The largest number of servers that get a request, from 2 to 64. The client gets the last
    /// server's reply.
    #[key(as = Whole<2, { Upstream::MOST as u64 }>, default = 3)]
    pub attempts: u32,
    /// The largest number of these retries in 10 seconds, as a share of the group's requests in the
    /// same time, over all threads. 10 retries are always allowed.
    #[key(as = Percent, default = "10%")]
    pub budget: u32,
}

/// A set of statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRanges(pub Vec<RangeInclusive<u16>>);

/// Statuses from `LEAST` to 599: one, a range or a class, or a list of them.
pub(crate) struct StatusesFrom<const LEAST: u16>;

impl<const LEAST: u16> Form<StatusRanges> for StatusesFrom<LEAST> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        Many::<StatusRange<LEAST>>::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<StatusRanges> {
        let ranges: Vec<_> = Many::<StatusRange<LEAST>>::read(node, cx)?;
        not_empty(
            &ranges,
            &node.span(),
            "",
            "give at least one status, or leave it out for the default",
        )?;
        Ok(StatusRanges(ranges))
    }
}

/// A whole percentage from 1 to 100, such as "10%".
pub(crate) struct Percent;

impl FromText<u32> for Percent {
    fn from_text(typed: &str, span: &Range<usize>) -> Resolution<u32> {
        let number = typed.strip_suffix('%').and_then(|number| number.parse().ok());
        number.filter(|number| (1..=100).contains(number)).ok_or_else(|| {
            Problem::new(span, format!("\"{typed}\" is not a percentage"))
                .help("write a whole number from 1 to 100 and a percent sign, such as \"10%\"")
        })
    }
}

impl StatusRanges {
    /// Returns true if `status` is in the set.
    pub fn contain(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}
