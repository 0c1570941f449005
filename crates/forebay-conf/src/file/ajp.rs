//! A route to servlet containers as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size, Table, TextOr, Time};
use super::upstream::{Backend, Balance, Sticky};

/// Passes on to servlet containers (Tomcat) by AJP 1.3.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct Ajp {
    /// Where they are: "host:port" or "unix:path", or tables with `url`, at most 64; or "@NAME", the
    /// group [upstream.NAME], which has all keys then that concern the servers.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// What the containers ask of whoever passes requests on: `secret` of Tomcat's connector.
    /// Default: none.
    pub secret: Option<At<String>>,
    /// The largest packet, from 8192 bytes to 65536: `packetSize` of Tomcat's connector, which may not
    /// be smaller. Default: 8192.
    pub packet_size: Option<Size>,
    /// When a container is asked whether it answers before it is sent a request (CPING). Default:
    /// "off".
    pub ping: Option<Ping>,
    /// Which of them takes a request. Default: "round-robin".
    pub balance: Option<At<Balance>>,
    /// Sends a client to the same container each time, by a cookie. Default: by JSESSIONID where each
    /// of `to` has a `route`, as its jvmRoute says; else no.
    pub sticky: Option<At<Table<Sticky>>>,
    /// Failures within `fail_timeout` after which a container is left out, unless it is the only one;
    /// 0: never. Default: 1.
    pub max_fails: Option<At<u32>>,
    /// How long failures are counted. Default: "10s".
    pub fail_timeout: Option<Time>,
    /// How long a container is left out for its failures; then one request tries it. Where all are
    /// left out, all are tried. Default: as `fail_timeout`.
    pub recover_time: Option<Time>,
    /// Idle connections kept per container and thread at the most. Default: as many as were in use at
    /// once during the last minute.
    pub keepalive: Option<At<usize>>,
    /// Connections to each container, over all threads and all routes to it; further requests wait
    /// for one as long as connecting may take. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// To connect to a container, and for its answer to a ping. Default: `connect` of
    /// [server.timeouts].
    pub connect_timeout: Option<Time>,
    /// Between two reads of a reply, the wait for its head included. Default: `reply_idle` of
    /// [server.timeouts].
    pub reply_timeout: Option<Time>,
}

/// When a container is asked whether it answers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ping {
    /// Over each new connection.
    Connect,
    /// Before each request.
    Always,
    /// Never.
    Off,
}
