//! The keys of `[[stream]]`, as the user types them.

use forebay_conf_derive::Table;
use serde_json::json;

use super::tls::{BackendTls, Tls};
use super::upstream::{Backend, Health};
use crate::key::{At, Many, NumberOrText, OneOrMany, TextOr, Time};
use crate::plan::{Balance, Clients, ProxyHeader};

/// A stream: passes the bytes of TCP connections, or UDP datagrams, between clients and servers,
/// for protocols other than HTTP.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["listen", "to"] }))]
pub struct Relay {
    /// The addresses to listen on: "address:port", a port for all addresses, "udp://address:port"
    /// for UDP, "unix:path", or "fd:name" for sockets of a service manager. Several streams may
    /// share an address if their clients begin with TLS; `sni` then selects the stream.
    pub listen: Option<At<OneOrMany<NumberOrText>>>,
    /// The server names of the stream's clients (SNI), such as "db.example.org" or "*.example.org".
    /// Without `tls`, Forebay passes the TLS connection on unread. Default: all names that no other
    /// stream of the address has, and clients that send no name.
    pub sni: Option<At<OneOrMany<String>>>,
    /// The certificate for clients. Clients then begin with TLS, and the servers get the decrypted
    /// bytes. Default: Forebay passes all bytes on unread.
    pub tls: Option<At<Tls>>,
    /// The addresses of the servers, at most 64: "host:port", "tls://host:port" for a connection
    /// with TLS, or "unix:path". Each may also be a table with `url`. Or a group: "@NAME".
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// Settings for TLS with tls:// servers. Default: Forebay verifies servers with the authorities
    /// that this machine trusts.
    pub server_tls: Option<At<BackendTls>>,
    /// The method that selects the server of a connection. "hash" uses the client's address.
    /// Default: "round-robin".
    pub balance: Option<At<Balance>>,
    /// The number of failures within `fail_timeout` after which a server gets no connections for
    /// `recover_time`, unless it is the only server. 0: failures have no effect. A failure is a
    /// connection that cannot be opened. Default: 1.
    pub max_fails: Option<At<u32>>,
    /// The period over which failures are counted. Default: "10s".
    pub fail_timeout: Option<Time>,
    /// A failed server gets no connections for this time. After that, one connection tries the
    /// server again. If all servers have failed, Forebay tries all of them. Default: as
    /// `fail_timeout`.
    pub recover_time: Option<Time>,
    /// The time until a server that has come back gets its full share of connections. The share
    /// grows from zero. Default: the server gets its full share at once.
    pub slow_start: Option<Time>,
    /// Checks at regular intervals that each server accepts a connection. The keys `path`,
    /// `statuses` and `body` are not possible here. Default: no checks.
    pub health: Option<At<Health>>,
    /// The largest number of connections to each server, over all threads. Further clients wait for
    /// a connection, at most `connect_timeout`. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// Sends a PROXY header with the client's address at the start of each connection to a server.
    /// Default: none.
    pub send_proxy: Option<At<ProxyHeader>>,
    /// The longest time to connect to a server. Default: `connect` of [server.timeouts].
    pub connect_timeout: Option<Time>,
    /// The longest time without bytes in either direction. Default: `tunnel_idle` of
    /// [server.timeouts] for TCP, 30 seconds for UDP.
    pub idle_timeout: Option<Time>,
    /// Connections begin with a PROXY header that names the client. All streams of an address must
    /// have the same value. Default: false.
    pub proxy_protocol: Option<At<bool>>,
    /// Addresses or networks of the proxies that may send a PROXY header. Needs `proxy_protocol`.
    /// The streams of a listener must have the same value. Default: every client may send a PROXY
    /// header.
    pub trusted_proxies: Option<At<OneOrMany<String>>>,
    /// Addresses or networks of clients that may use the stream. "unix" allows clients of a unix:
    /// socket, which have no address. "all" allows every client. Default: all.
    #[key(default, as = Many<Clients>, check = Clients::some)]
    pub allow: Vec<Clients>,
    /// Addresses or networks of clients that may not use the stream, even if `allow` has them.
    /// Default: none.
    #[key(default, as = Many<Clients>, check = Clients::some)]
    pub deny: Vec<Clients>,
}
