//! The keys of `proxy`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Table, TextOr, Time};
use super::tls::BackendTls;
use super::upstream::{Backend, Balance, Health, HttpVersion, ProxyHeader, StatusRetry, Sticky};

/// Passes requests to HTTP servers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
// More than 20 fields: one for each key of the table, because the schema is
// generated from the fields. Inner structs with `serde(flatten)` would lose the positions of
// errors.
pub struct Proxy {
    /// The addresses of the servers, at most 64: "http://host:port", "https://host:port",
    /// "h2c://host:port" (HTTP/2 without TLS), "unix:path", or tables with `url`. Or "@NAME" for
    /// the group [upstream.NAME]; all keys about the servers then belong in that table.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The method that selects the server of a request. Default: "round-robin".
    pub balance: Option<At<Balance>>,
    /// The text, with placeholders, that selects the server if `balance` is "hash". Default:
    /// "{client}".
    pub hash_key: Option<At<String>>,
    /// Sends a client to the same server each time, with a cookie. Default: no.
    pub sticky: Option<At<Table<Sticky>>>,
    /// The number of failures within `fail_timeout` after which a server gets no requests for
    /// `recover_time`, unless it is the only server. 0: failures have no effect. Failures are: no
    /// connection, no timely answer, and an answer that is not HTTP. Default: 1.
    pub max_fails: Option<At<u32>>,
    /// The period over which failures are counted. Default: "10s".
    pub fail_timeout: Option<Time>,
    /// A failed server gets no requests for this time. After that, one request tries the server
    /// again. If all servers have failed, Forebay tries all of them. Default: as `fail_timeout`.
    pub recover_time: Option<Time>,
    /// The time until a server that has come back gets its full share of requests. The share grows
    /// from zero. Default: the server gets its full share at once.
    pub slow_start: Option<Time>,
    /// Resends a request to another server if the reply has one of `statuses`. Even without this
    /// key, Forebay resends a request that the server cannot have processed. Default: replies are
    /// passed on.
    pub retry: Option<At<Table<StatusRetry>>>,
    /// Checks the health of each server at regular intervals. Default: no
    /// checks.
    pub health: Option<At<Table<Health>>>,
    /// The Host field that servers get: "client" for the client's own, "backend" for the host and
    /// port of the server's URL. Default: "client".
    pub host: Option<HostField>,
    /// The prefix that is removed from the path. Default: nothing.
    pub strip_prefix: Option<At<String>>,
    /// Replaces the server's own address in redirects and cookies by the host and prefix that the
    /// client used. Default: "rewrite".
    pub redirect: Option<Redirects>,
    /// The largest number of idle connections per server and thread. Default: the largest number in
    /// use at once during the last minute.
    pub keepalive: Option<At<usize>>,
    /// The largest number of connections to each server, over all threads and all routes to it.
    /// Further requests wait for a connection, at most `connect_timeout`. With HTTP/2, each thread
    /// may open one connection even above the limit. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// Sends a PROXY header with the client's address at the start of each connection. Each
    /// connection then carries one request. Not for https:// servers, and not with HTTP/2. Default:
    /// none.
    pub send_proxy: Option<At<ProxyHeader>>,
    /// The longest time to connect to a server. Default: `connect` of [server.timeouts].
    pub connect_timeout: Option<Time>,
    /// The version of HTTP: "1.1", "2", or "auto". With "2", servers without TLS must accept HTTP/2
    /// directly (prior knowledge), as with h2c://. With "auto", each https:// server chooses.
    /// Several requests share one HTTP/2 connection. Default: "auto" for https://, else "1.1".
    pub http_version: Option<At<HttpVersion>>,
    /// With true, replies that break a rule of HTTP/1.1 are refused (502). With false, Forebay
    /// mends what leaves no doubt about the meaning and end of a reply, as nginx does: lines that
    /// end with LF, a blank before the colon, folded lines, control characters, blanks after a
    /// chunk size. Default: false.
    pub strict: Option<At<bool>>,
    /// Settings for TLS with https:// servers. Default: Forebay verifies servers with the
    /// authorities that this machine trusts.
    pub tls: Option<At<Table<BackendTls>>>,
    /// The longest time between two reads of a reply, including the wait for its head. Default:
    /// `reply_idle` of [server.timeouts].
    pub reply_timeout: Option<Time>,
    /// The longest time without data on an upgraded connection, such as a WebSocket. Default:
    /// `tunnel_idle` of [server.timeouts].
    pub tunnel_idle: Option<Time>,
}

/// The treatment of redirects that contain the server's own address.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Redirects {
    /// Redirects are rewritten to the address that clients use.
    Rewrite,
    /// Redirects are passed on unchanged.
    Off,
}

/// The `Host` field that servers get.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostField {
    /// The client's Host.
    Client,
    /// The host and port of the server's URL.
    Backend,
}
