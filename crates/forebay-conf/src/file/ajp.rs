//! The keys of `ajp`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size, Table, TextOr, Time};
use super::upstream::{Backend, Balance, Sticky};

/// Passes requests to servlet containers (Tomcat) with AJP 1.3.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct Ajp {
    /// The addresses of the containers, at most 64: "host:port", "unix:path", or tables with `url`.
    /// Or "@NAME" for the group [upstream.NAME]; all keys about the servers then belong in that
    /// table.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The secret that the containers require: `secret` of Tomcat's connector. Default: none.
    pub secret: Option<At<String>>,
    /// The largest packet, from 8192 to 65536 bytes. `packetSize` of Tomcat's connector must not be
    /// smaller. Default: 8192.
    pub packet_size: Option<Size>,
    /// Tests with a ping (CPING) if a container answers, before Forebay sends the container a
    /// request. Default: "off".
    pub ping: Option<Ping>,
    /// The method that selects the container of a request. Default: "round-robin".
    pub balance: Option<At<Balance>>,
    /// The text, with placeholders, that selects the container if `balance` is "hash". Default:
    /// "{client}".
    pub hash_key: Option<At<String>>,
    /// Sends a client to the same container each time, with a cookie. Default: the cookie
    /// JSESSIONID if each entry of `to` has a `route` (Tomcat's jvmRoute), else no cookie.
    pub sticky: Option<At<Table<Sticky>>>,
    /// The number of failures within `fail_timeout` after which a container gets no requests for
    /// `recover_time`, unless it is the only container. 0: failures have no effect. Default: 1.
    pub max_fails: Option<At<u32>>,
    /// The period over which failures are counted. Default: "10s".
    pub fail_timeout: Option<Time>,
    /// A failed container gets no requests for this time. After that, one request tries the
    /// container again. If all containers have failed, Forebay tries all of them. Default: as
    /// `fail_timeout`.
    pub recover_time: Option<Time>,
    /// The largest number of idle connections per container and thread. Default: the largest number
    /// in use at once during the last minute.
    pub keepalive: Option<At<usize>>,
    /// The largest number of connections to each container, over all threads and all routes to it.
    /// Further requests wait for a connection, at most `connect_timeout`. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// The longest time to connect to a container, and the longest wait for its answer to a ping.
    /// Default: `connect` of [server.timeouts].
    pub connect_timeout: Option<Time>,
    /// The longest time between two reads of a reply, including the wait for its head. Default:
    /// `reply_idle` of [server.timeouts].
    pub reply_timeout: Option<Time>,
}

/// The times at which a container gets a ping.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ping {
    /// After each new connection.
    Connect,
    /// Before each request.
    Always,
    /// Never.
    Off,
}
