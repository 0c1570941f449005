//! The keys of FastCGI, SCGI and uwsgi, of routes and of `forward_auth`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size, TextOr, Time};
use super::upstream::Backend;

/// Passes requests to a FastCGI application that runs independently of Forebay.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"], "anyOf" = [
    { "required": ["root"] },
    { "required": ["mount"] },
]))]
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

/// Sends several requests at once over one connection.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Multiplex {
    /// Never.
    Off,
    /// Always, unless the application refuses.
    On,
    /// If the application reports that it can do this.
    Auto,
}

/// Passes requests to an SCGI application that runs independently of Forebay.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
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
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
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
