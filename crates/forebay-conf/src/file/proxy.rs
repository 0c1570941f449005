//! A route to HTTP servers as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Table, TextOr, Time};
use super::tls::BackendTls;
use super::upstream::{Backend, Balance, Health, HttpVersion, ProxyHeader, Sticky};

/// Passes on to HTTP servers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct Proxy {
    /// Where they are: "http://host:port", "https://host:port", "h2c://host:port" (HTTP/2 without TLS) or
    /// "unix:path", or tables with `url`, at most 64; or "@NAME", the group [upstream.NAME], which has all keys then that concern the servers.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// Which of them takes a request. Default: "round-robin".
    pub balance: Option<At<Balance>>,
    /// Sends a client to the same server each time, by a cookie. Default: no.
    pub sticky: Option<At<Table<Sticky>>>,
    /// Failures within `fail_timeout` after which a server is left out, unless it is the only one;
    /// 0: never. No connection, no answer in time and answers that are no HTTP count. Default: 1.
    pub max_fails: Option<At<u32>>,
    /// How long failures are counted. Default: "10s".
    pub fail_timeout: Option<Time>,
    /// How long a server is left out for its failures; then one request tries it. Where all are left
    /// out, all are tried. Default: as `fail_timeout`.
    pub recover_time: Option<Time>,
    /// Asks each server regularly whether it is well. Default: nobody asks.
    pub health: Option<At<Table<Health>>>,
    /// The Host that servers are told: the client's or that of their URL. Default: "client".
    pub host: Option<HostField>,
    /// What is cut from the front of the path. Default: nothing.
    pub strip_prefix: Option<At<String>>,
    /// Whether redirections and cookies that a server makes for itself (`Location`,
    /// `Content-Location`, `Refresh`, the path and domain of `Set-Cookie`) are rewritten to how
    /// clients reach it: its own host, and what `strip_prefix` cuts. Default: "rewrite".
    pub redirect: Option<Redirects>,
    /// Idle connections kept per server and thread at the most. Default: as many as were in use at
    /// once during the last minute.
    pub keepalive: Option<At<usize>>,
    /// Connections to each server, over all threads and all routes to it; further requests wait for
    /// one as long as connecting may take. Connections that were upgraded count, those of `health`
    /// do not. By HTTP/2 a thread that has no connection opens one all the same. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// Begins each connection with a PROXY header that names the client. No connection is used for
    /// a second request then. Not for servers of HTTP/2. Default: none.
    pub send_proxy: Option<At<ProxyHeader>>,
    /// To connect to a server. Default: `connect` of [server.timeouts].
    pub connect_timeout: Option<Time>,
    /// Which version of HTTP is spoken: "1.1"; "2", which is by prior knowledge where there is no TLS (as
    /// h2c:// says, too); "auto", where https:// servers choose. Requests share connections of HTTP/2.
    /// Default: "auto" for https://, else "1.1".
    pub http_version: Option<At<HttpVersion>>,
    /// How https:// servers are believed. Default: as this machine believes others.
    pub tls: Option<At<Table<BackendTls>>>,
    /// Between two reads of a reply, the wait for its head included. Default: `reply_idle` of
    /// [server.timeouts].
    pub reply_timeout: Option<Time>,
}

/// What becomes of redirections that a server makes for itself.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Redirects {
    /// Clients are sent where the server would be reached by them.
    Rewrite,
    /// They pass as they are.
    Off,
}

/// The `Host` that servers are told.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostField {
    /// What the client sent.
    Client,
    /// Host and port of the server's URL.
    Backend,
}
