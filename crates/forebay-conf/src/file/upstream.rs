//! The keys of `[upstream.NAME]`, as the user types them.

use std::collections::BTreeMap;

use forebay_conf_derive::Table;
use serde_json::json;

use super::tls::BackendTls;
use crate::key::{At, OneOrMany, Placed, Size, TextOr, Time};
use crate::plan::{
    Activation, Balance, HostField, HttpVersion, Multiplex, Ping, ProxyHeader, Redirects, Secret,
    StatusRanges, StatusRetry, StatusesFrom,
};

/// A group of backends. All routes whose `to` is "@NAME" share its connections and the state of its
/// servers.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["to"] }))]
pub struct Upstream {
    /// The addresses of the servers, at most 64: "http://host:port", "https://host:port" or
    /// "h2c://host:port" for HTTP; "host:port" for other protocols; or "unix:path". Each may also
    /// be a table with `url`.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The method that selects the server of a request. Default: "round-robin".
    pub balance: Option<At<Balance>>,
    /// The text, with placeholders, that selects the server if `balance` is "hash". Default:
    /// "{client}".
    pub hash_key: Option<At<String>>,
    /// Sends a client to the same server each time, with a cookie. Only for HTTP servers and
    /// servlet containers (AJP). Default: no; for containers, the cookie JSESSIONID if each entry
    /// of `to` has a `route`.
    pub sticky: Option<At<Sticky>>,
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
    /// key, Forebay resends a request that the server cannot have processed. Only for HTTP servers.
    /// Default: replies are passed on.
    pub retry: Option<At<StatusRetry>>,
    /// Checks the health of each server at regular intervals. Only for HTTP servers, and
    /// for servers of a `[[stream]]`. Default: no checks.
    pub health: Option<At<Health>>,
    /// The largest number of idle connections per server and thread. Connections to SCGI and uwsgi
    /// servers are never kept. Default: the largest number in use at once during the last minute
    /// (for FastCGI, during the last 2 seconds).
    pub keepalive: Option<At<usize>>,
    /// The largest number of connections to each server, over all threads and all routes to it.
    /// Further requests wait for a connection, at most `connect_timeout`. With HTTP/2, each thread
    /// may open one connection even above the limit. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// Sends a PROXY header with the client's address at the start of each connection. Each
    /// connection then carries one request. Only for HTTP/1.1 servers and servers of a
    /// `[[stream]]`, both without TLS. Default: none.
    pub send_proxy: Option<At<ProxyHeader>>,
    /// The longest time to connect to a server. Default: `connect` of [server.timeouts].
    pub connect_timeout: Option<Time>,
    /// The version of HTTP for HTTP servers: "1.1", "2", or "auto". With "2", servers without TLS
    /// must accept HTTP/2 directly (prior knowledge), as with h2c://. With "auto", each https://
    /// server chooses. Several requests share one HTTP/2 connection. Default: "auto" for https://,
    /// else "1.1".
    pub http_version: Option<At<HttpVersion>>,
    /// With true, replies that break a rule of HTTP/1.1 are refused (502). With false, Forebay
    /// mends what leaves no doubt about the meaning and end of a reply, as nginx does: lines that
    /// end with LF, a blank before the colon, folded lines, control characters, blanks after a
    /// chunk size. Default: false.
    pub strict: Option<At<bool>>,
    /// Settings for TLS with https:// servers, or tls:// servers of a `[[stream]]`. Default:
    /// Forebay verifies servers with the authorities that this machine trusts.
    pub tls: Option<At<BackendTls>>,
}

/// A server of a group.
#[derive(Clone, Debug, Default, Table)]
#[table(extend = json!({ "required": ["url"] }))]
pub struct Backend {
    /// The address of the server: "http://host:port", "host:port" for other protocols, or
    /// "unix:path".
    pub url: Option<At<String>>,
    /// The server's share of requests relative to the others, from 1 to 256. Default: 1.
    pub weight: Option<At<u32>>,
    /// Uses the server only while all others are down. Default: false.
    pub backup: Option<bool>,
    /// The server's distance, from 0 to 1000000. Requests go to the nearest servers, and to others
    /// only while all nearer ones are down. Default: 0.
    pub distance: Option<At<u32>>,
    /// The `route` of another server of the group. Clients with a sticky session on this server use
    /// the other server while this one is down or stopped. The other may be "disabled" (a hot
    /// standby). Default: the server that `balance` selects.
    pub redirect: Option<At<String>>,
    /// The clients that may use the server. To retire a server, set "disabled" until its sessions
    /// have ended. Default: "active".
    pub activation: Option<Activation>,
    /// The name of the server in sticky cookies: Tomcat's jvmRoute. Default: a name made from the
    /// server's URL.
    pub route: Option<At<String>>,
}

/// Sends a client to the same server each time.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["cookie"] }))]
pub struct Sticky {
    /// The name of the cookie.
    pub cookie: Option<At<String>>,
    /// With true, the servers set the cookie themselves, and its value ends in "." and the server's
    /// `route`, as in Tomcat. With false, Forebay sets the cookie. Default: false.
    pub routes: Option<bool>,
}

/// Checks the health of each server at regular intervals.
#[derive(Debug, Default, Table)]
pub struct Health {
    /// The path that Forebay requests. HTTP servers need it. For servers of a `[[stream]]`, leave
    /// out `path`, `statuses` and `body`: Forebay only opens a connection.
    pub path: Option<At<String>>,
    /// The statuses of a healthy server: numbers such as 200, ranges such as "200-399" and classes
    /// such as "2xx". Default: ["200-399"].
    #[key(as = Placed<StatusesFrom<200>>)]
    pub statuses: Option<At<StatusRanges>>,
    /// The text that the reply of a healthy server contains in its first 64 KiB. Default: any
    /// reply.
    pub body: Option<At<String>>,
    /// The port for the checks. Default: the server's own port.
    pub port: Option<At<u16>>,
    /// The time from one check to the next. Default: "5s".
    pub interval: Option<Time>,
    /// The longest time that a server may take to answer. Default: "2s".
    pub timeout: Option<Time>,
    /// The number of good answers in a row after which a server is up again. Default: 2.
    pub rises: Option<At<u32>>,
    /// The number of bad answers in a row after which a server is down. Default: 3.
    pub falls: Option<At<u32>>,
}

/// Passes requests to servlet containers (Tomcat) with AJP 1.3.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["to"] }))]
pub struct Ajp {
    /// The addresses of the containers, at most 64: "host:port", "unix:path", or tables with `url`.
    /// Or "@NAME" for the group [upstream.NAME]; all keys about the servers then belong in that
    /// table.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The secret that the containers require: `secret` of Tomcat's connector. Default: none.
    pub secret: Option<Secret>,
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
    pub sticky: Option<At<Sticky>>,
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

/// Passes requests to a FastCGI application that runs independently of Forebay.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["to"], "anyOf": [
    { "required": ["root"] },
    { "required": ["mount"] },
] }))]
pub struct Fastcgi {
    /// The addresses of the application, at most 64: "host:port", "unix:path", or tables with
    /// `url`. Or "@NAME" for the group [upstream.NAME]; `max_connections` then belongs in that
    /// table.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The directory of the scripts, as the application sees it. With `mount`, `root` is only the
    /// value of DOCUMENT_ROOT.
    pub root: Option<At<String>>,
    /// The prefix that is removed from a path before the script is looked up below `root`, such as
    /// "/phpmyadmin" for a `root` of "/usr/share/phpmyadmin". The prefix stays in SCRIPT_NAME.
    /// Paths without the prefix get 404. Default: none.
    pub strip_prefix: Option<At<String>>,
    /// The prefix of the path that becomes SCRIPT_NAME, such as "/shop". The rest is PATH_INFO.
    /// With "", the whole path is PATH_INFO. Use this key, instead of `index` and `scripts`, for an
    /// application without script files, such as one of Plack, uWSGI or flup. Default: the path
    /// names a script below `root`.
    pub mount: Option<At<String>>,
    /// The script for a path that ends in a slash. Default: "index.php".
    pub index: Option<At<String>>,
    /// Endings of the files that may be run, such as [".php", ".phtml"], or "*" for any file.
    /// Default: [".php"] if `index` ends in ".php", else "*".
    pub scripts: Option<At<OneOrMany<String>>>,
    /// Answers 404 for a script that does not exist, if `root` is a directory of this machine. Write
    /// false for an application that finds its pages itself, such as fastcgi-mono-server4 with
    /// ServiceStack: its SCRIPT_NAME is then the whole path, as from nginx. Default: true.
    pub must_exist: Option<At<bool>>,
    /// Parameters added to those of the request.
    #[key(default)]
    pub params: BTreeMap<String, At<String>>,
    /// Uses each connection for more than one request. Default: true.
    pub keep_conn: Option<bool>,
    /// The largest size of one reply, including its head. A longer reply is cut off. Default: no
    /// limit.
    pub max_output: Option<Size>,
    /// The longest time between two reads of the application's reply, including the wait for its
    /// head. Default: `reply_idle` of [server.timeouts].
    pub reply_timeout: Option<Time>,
    /// The largest number of connections to each address, including idle ones, over all routes to
    /// it. For php-fpm, use at most the number of its processes. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// Sends several requests at once over one connection: "on", "off", or "auto" (if the
    /// application reports that it can do this). Each thread gets an equal part of
    /// `max_connections`, and needs at least one connection. Default: "off".
    pub multiplex: Option<Multiplex>,
    /// The largest number of requests at the same time on one connection, with `multiplex`. Further
    /// requests open another connection. Default: 64.
    pub max_streams: Option<At<usize>>,
    /// With `multiplex`, the memory for the part of one reply that a slow client has not read. When
    /// this memory is full, Forebay aborts the reply, because other requests use the connection,
    /// too. Default: "1M".
    pub max_buffered: Option<Size>,
}

/// Passes requests to an SCGI application that runs independently of Forebay.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["to"] }))]
pub struct Scgi {
    /// The addresses of the application, at most 64: "host:port", "unix:path", or tables with
    /// `url`. Or "@NAME" for the group [upstream.NAME]; `max_connections` then belongs in that
    /// table.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The directory that the application gets as DOCUMENT_ROOT. Default: none.
    pub root: Option<At<String>>,
    /// The prefix of the path that becomes SCRIPT_NAME, such as "/shop". The rest is PATH_INFO.
    /// Default: "", the whole path is PATH_INFO.
    pub mount: Option<At<String>>,
    /// Variables added to those of the request. They replace variables of the request with the same
    /// name.
    #[key(default)]
    pub params: BTreeMap<String, At<String>>,
    /// The largest size of one reply, including its head. A longer reply is cut off. Default: no
    /// limit.
    pub max_output: Option<Size>,
    /// The longest time between two reads of the application's reply, including the wait for its
    /// head. Default: `reply_idle` of [server.timeouts].
    pub reply_timeout: Option<Time>,
    /// The largest number of connections to each address, over all routes to it. Each connection
    /// carries one request. Default: no limit.
    pub max_connections: Option<At<usize>>,
}

/// Passes requests to a uwsgi application that runs independently of Forebay.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["to"] }))]
pub struct Uwsgi {
    /// The addresses of the application, at most 64: "host:port", "unix:path", or tables with
    /// `url`. Or "@NAME" for the group [upstream.NAME]; `max_connections` then belongs in that
    /// table.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The directory that the application gets as DOCUMENT_ROOT. Default: none.
    pub root: Option<At<String>>,
    /// The prefix of the path that becomes SCRIPT_NAME, such as "/shop". The rest is PATH_INFO.
    /// Default: "", the whole path is PATH_INFO.
    pub mount: Option<At<String>>,
    /// Variables added to those of the request. They replace variables of the request with the same
    /// name.
    #[key(default)]
    pub params: BTreeMap<String, At<String>>,
    /// The kind of application: 0 WSGI, 5 PSGI, 6 Lua, 7 Rack. Default: 0.
    pub modifier1: Option<At<usize>>,
    /// A number whose meaning depends on `modifier1`. Default: 0.
    pub modifier2: Option<At<usize>>,
    /// The largest size of one reply, including its head. A longer reply is cut off. Default: no
    /// limit.
    pub max_output: Option<Size>,
    /// The longest time between two reads of the application's reply, including the wait for its
    /// head. Default: `reply_idle` of [server.timeouts].
    pub reply_timeout: Option<Time>,
    /// The largest number of connections to each address, over all routes to it. Each connection
    /// carries one request. Default: no limit.
    pub max_connections: Option<At<usize>>,
}

/// Passes requests to HTTP servers.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["to"] }))]
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
    pub sticky: Option<At<Sticky>>,
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
    pub retry: Option<At<StatusRetry>>,
    /// Checks the health of each server at regular intervals. Default: no
    /// checks.
    pub health: Option<At<Health>>,
    /// The Host field that servers get: "client" for the client's own, "backend" for the host and
    /// port of the server's URL. Default: "client".
    pub host: Option<HostField>,
    /// The prefix that is removed from the path. Default: nothing.
    pub strip_prefix: Option<At<String>>,
    /// True to decode the path that servers get, to merge its slashes, and to encode it again, as
    /// nginx does if `proxy_pass` has a path: `/a%2Fb%41` becomes `/a/bA`. Default: false, the path
    /// keeps its escapes.
    pub decode_path: Option<bool>,
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
    pub tls: Option<At<BackendTls>>,
    /// The longest time between two reads of a reply, including the wait for its head. Default:
    /// `reply_idle` of [server.timeouts].
    pub reply_timeout: Option<Time>,
    /// The longest time without data on an upgraded connection, such as a WebSocket. Default:
    /// `tunnel_idle` of [server.timeouts].
    pub tunnel_idle: Option<Time>,
}
