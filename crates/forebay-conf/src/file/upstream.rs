//! A group of servers as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Table, TextOr, Time};
use super::tls::BackendTls;

/// A group of servers. All routes whose `to` is "@NAME" share what is known of them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct Upstream {
    /// Where they are: "http://host:port", "https://host:port" or "h2c://host:port", or "host:port" where they do not
    /// speak HTTP, or "unix:path", or tables with `url`. At most 64.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// Which of them takes a request. Default: "round-robin".
    pub balance: Option<At<Balance>>,
    /// Sends a client to the same server each time, by a cookie. For HTTP servers, and for servlet
    /// containers (AJP), by JSESSIONID where each of `to` has a `route`. Default: no.
    pub sticky: Option<At<Table<Sticky>>>,
    /// Failures within `fail_timeout` after which a server is left out, unless it is the only one;
    /// 0: never. No connection, no answer in time and answers that are no HTTP count. Default: 1.
    pub max_fails: Option<At<u32>>,
    /// How long failures are counted. Default: "10s".
    pub fail_timeout: Option<Time>,
    /// How long a server is left out for its failures; then one request tries it. Where all are left
    /// out, all are tried. Default: as `fail_timeout`.
    pub recover_time: Option<Time>,
    /// Asks each server regularly whether it is well. For HTTP servers. Default: nobody asks.
    pub health: Option<At<Table<Health>>>,
    /// Idle connections kept per server and thread at the most; scgi and uwsgi keep none. Default: as
    /// many as were in use at once during the last minute, for FastCGI during the last 2 seconds.
    pub keepalive: Option<At<usize>>,
    /// Connections to each server, over all threads and all routes to it; further requests wait for
    /// one as long as connecting may take. Connections that were upgraded count, those of `health`
    /// do not. By HTTP/2 a thread that has no connection opens one all the same. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// Begins each connection with a PROXY header that names the client. No connection is used for
    /// a second request then. For servers of HTTP/1.1. Default: none.
    pub send_proxy: Option<At<ProxyHeader>>,
    /// To connect to a server. Default: `connect` of [server.timeouts].
    pub connect_timeout: Option<Time>,
    /// Which version of HTTP is spoken, for HTTP servers: "1.1"; "2", which is by prior knowledge where there is no TLS (as
    /// h2c:// says, too); "auto", where https:// servers choose. Requests share connections of HTTP/2.
    /// Default: "auto" for https://, else "1.1".
    pub http_version: Option<At<HttpVersion>>,
    /// How https:// servers are believed. Default: as this machine believes others.
    pub tls: Option<At<Table<BackendTls>>>,
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum HttpVersion {
    /// HTTP/1.1.
    #[serde(rename = "1.1")]
    Http11,
    /// HTTP/2.
    #[serde(rename = "2")]
    Http2,
    /// HTTP/2 or HTTP/1.1, as the server chooses.
    #[serde(rename = "auto")]
    Auto,
}

/// One server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["url"]))]
pub struct Backend {
    /// Where it is: "http://host:port", or "host:port" where it does not speak HTTP, or "unix:path".
    pub url: Option<At<String>>,
    /// Its share beside the others, from 1 to 256. Default: 1.
    pub weight: Option<At<u32>>,
    /// Whether it is asked only when all others are down. Default: false.
    pub backup: Option<bool>,
    /// How far away it is, from 0 to 1000000: those with the least are asked, others only when all
    /// nearer ones are down. Default: 0.
    pub distance: Option<At<u32>>,
    /// The `route` of the server that takes its place while it is down or stopped, for clients that
    /// stay with it, even if that one is "disabled" (a hot standby). The first of `to` that has one
    /// names who is asked when all others are down, too. Default: whose turn it is.
    pub redirect: Option<At<String>>,
    /// Who may use it: a server that is to go is "disabled" until its sessions have ended. Default:
    /// "active".
    pub activation: Option<Activation>,
    /// What sticky cookies call it: Tomcat's jvmRoute. Default: a name made from its URL.
    pub route: Option<At<String>>,
}

/// Who may use a server.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// All.
    Active,
    /// Clients that stay with it (`sticky`), no others.
    Disabled,
    /// Nobody.
    Stopped,
}

/// Which of several servers takes a request.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Each in turn, by weight.
    RoundRobin,
    /// The one with the fewest requests under way for its weight.
    LeastConnections,
}

/// Sends a client to the same server each time.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["cookie"]))]
pub struct Sticky {
    /// The name of the cookie.
    pub cookie: Option<At<String>>,
    /// Whether the servers make the cookie and end it in "." and their `route`, as Tomcat does.
    /// Default: false; Forebay makes it.
    pub routes: Option<bool>,
}

/// Asks each server regularly whether it is well.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["path"]))]
pub struct Health {
    /// What is asked for; a status from 200 to 399 says that the server is well.
    pub path: Option<At<String>>,
    /// From one question to the next. Default: "5s".
    pub interval: Option<Time>,
    /// How long an answer may take. Default: "2s".
    pub timeout: Option<Time>,
    /// Good answers in a row after which a server is up again. Default: 2.
    pub rises: Option<At<u32>>,
    /// Bad answers in a row after which a server is down. Default: 3.
    pub falls: Option<At<u32>>,
}

/// The version of a PROXY header.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyHeader {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}
