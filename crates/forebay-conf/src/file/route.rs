//! A route as typed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::ajp::Ajp;
use super::app::Limits;
use super::compress::Compress;
use super::proxy::Proxy;
use super::shape::{AllOrList, At, BoolOr, OneOrMany, Size, Table, TextOr, Time};
use super::upstream::Backend;

/// Which requests it takes, and exactly one of: files, cgi, fastcgi, scgi, uwsgi, ajp, proxy, app,
/// respond, redirect.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    { "required": ["files"] },
    { "required": ["cgi"] },
    { "required": ["fastcgi"] },
    { "required": ["scgi"] },
    { "required": ["uwsgi"] },
    { "required": ["ajp"] },
    { "required": ["proxy"] },
    { "required": ["app"] },
    { "required": ["respond"] },
    { "required": ["redirect"] },
]))]
pub struct Route {
    /// A path such as "/favicon.ico", or "/x/*" for all that begins with "/x/", which "/x" does not.
    pub path: Option<At<OneOrMany<String>>>,
    /// Paths, of which one must match.
    pub paths: Option<At<OneOrMany<String>>>,
    /// Ends of a path such as ".php", of which one must match.
    pub suffix: Option<At<OneOrMany<String>>>,
    /// Methods such as "GET" (which takes HEAD as well), of which one must match.
    pub methods: Option<At<OneOrMany<String>>>,

    /// Answers with files: a directory, or a table with `root`.
    pub files: Option<At<TextOr<Files>>>,
    /// Answers with CGI scripts: a directory, or a table with `dir`.
    pub cgi: Option<At<TextOr<Cgi>>>,
    /// Passes on to a FastCGI application.
    pub fastcgi: Option<At<Table<Fastcgi>>>,
    /// Passes on to an SCGI application.
    pub scgi: Option<At<Table<Scgi>>>,
    /// Passes on to a uwsgi application.
    pub uwsgi: Option<At<Table<Uwsgi>>>,
    /// Passes on to servlet containers (Tomcat) by AJP.
    pub ajp: Option<At<Table<Ajp>>>,
    /// Passes on to HTTP servers: a URL, or a table with `to`.
    pub proxy: Option<At<TextOr<Proxy>>>,
    /// Passes on to an application of this file, by name.
    pub app: Option<At<String>>,
    /// Answers with a fixed text, or a table with `status`, `body` and `content_type`.
    pub respond: Option<At<TextOr<Respond>>>,
    /// Answers with a redirection: where to, or a table with `to` and `status`.
    pub redirect: Option<At<TextOr<Redirect>>>,

    /// Addresses or networks ("10.0.0.0/8") of clients that may use it; all others get 403. "unix" for
    /// clients of a unix: socket, which have no address; "all". Default: all may.
    pub allow: Option<At<OneOrMany<String>>>,
    /// Addresses or networks of clients that may not use it, whatever `allow` says; "all" for everyone.
    /// Clients of a unix: socket are refused as well, unless `allow` has "unix". Default: none.
    pub deny: Option<At<OneOrMany<String>>>,
    /// Users that may use it, by the Basic scheme: a table with `file` and `realm`. Default: no one
    /// is asked.
    pub basic_auth: Option<At<Table<BasicAuth>>>,

    /// Whether its requests go to the access log. Default: true.
    pub log: Option<bool>,
    /// How long clients may keep the reply, such as "30d". Default: nothing is said.
    pub expires: Option<Time>,
    /// Reply headers to set.
    pub set_headers: BTreeMap<String, At<String>>,
    /// Reply headers to leave out.
    pub remove_headers: Vec<At<String>>,
    /// The largest request body, or "unlimited". Default: that of the site.
    pub max_body: Option<Size>,
    /// Whether a request for a file or script that is not there goes on to the routes below, as
    /// with nginx's try_files. For `files`, `cgi`, `fastcgi`, and `app` of kind perl-cgi,
    /// python-cgi or php. Default: false.
    pub fallback: Option<At<bool>>,
    /// The path that answers, as if it had been asked for, where there is no such file or script:
    /// "/index.php" for an application with one entrance, "/index.html" for one page. The
    /// application still sees the request's own method, REQUEST_URI, query and body. For the routes
    /// that may have `fallback`. Default: none.
    pub fallback_to: Option<At<String>>,
    /// Whether what a slow client does not take of a reply is kept for it, in memory and then in a
    /// file ([server.limits] `buffer_memory`, `buffer_file`, `buffer_total`), so that it holds up no
    /// process; not what has `X-Accel-Buffering: no` or is an event stream. Default: true for `cgi`,
    /// `fastcgi`, `scgi`, `uwsgi`, `ajp` and `app`, false for `proxy`.
    pub buffer: Option<At<bool>>,
    /// Whether replies are compressed as they are sent, for clients that accept it: true, or a table.
    /// Default: false.
    pub compress: Option<At<BoolOr<Compress>>>,
    /// Whether a request's body is taken in whole, in memory and then in a file, before a server is
    /// sent it. For `proxy`, `ajp` and `app` of kind command that speaks http, h2c or ajp; all else but
    /// files does so anyway. Default: true for `app`, unless it speaks h2c; false for `proxy` and `ajp`.
    pub request_buffering: Option<At<bool>>,
    /// The treatment of path parameters (`;x` in a segment), which Java servers drop, by the rules above
    /// this route. "match": a rule holds for the path with and without parameters; "refuse": such a path
    /// gets 404; "ignore": a parameter is part of the path. For `ajp`, `proxy` and `app` of kind command
    /// that speaks http, h2c or ajp. Default: "match".
    pub path_parameters: Option<At<PathParameters>>,
    /// The directory of files that the origin may have sent by X-Accel-Redirect or X-Sendfile. For
    /// `cgi`, `fastcgi`, `scgi`, `uwsgi`, `ajp`, `proxy` and `app`. Default: those headers mean nothing.
    pub sendfile_root: Option<At<String>>,
}

/// The treatment of path parameters by rules.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PathParameters {
    /// A rule holds for the path with and without them.
    Match,
    /// A path that has one gets 404.
    Refuse,
    /// They are part of the path.
    Ignore,
}

/// Users and their passwords.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["file"]))]
pub struct BasicAuth {
    /// A file as `htpasswd` of Apache writes it, with bcrypt (-B), SHA-crypt (-2, -5) or apr1 (-m). It
    /// is read again when it has changed.
    pub file: Option<At<String>>,
    /// What browsers show when they ask for the password. Default: "restricted".
    pub realm: Option<At<String>>,
}

/// Answers with files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["root"]))]
pub struct Files {
    /// The directory.
    pub root: Option<At<String>>,
    /// Names tried in turn where a directory is asked for. Default: ["index.html"].
    pub index: Option<At<OneOrMany<String>>>,
    /// Whether a directory without an index is listed. Default: false.
    pub listing: Option<bool>,
    /// Whether files and directories whose names begin with a dot are sent; else they are not there,
    /// but for `.well-known`. Default: false.
    pub hidden: Option<bool>,
    /// Which symbolic links are followed. Default: "owner".
    pub follow_symlinks: Option<Symlinks>,
    /// Whether FILE.br, FILE.zst or FILE.gz is sent to clients that take it: true, or those to look
    /// for, the preferred first, such as ["br", "gz"]. Default: false.
    pub precompressed: Option<At<AllOrList<Precompressed>>>,
    /// The script routes below this one that may run what it takes first. "below": all of them;
    /// "refuse": none, a script gets 404. Default: those routes whose every request this route takes
    /// first, which would run nothing otherwise.
    pub scripts: Option<ScriptsBelow>,
    /// Ranges that one request may ask for, at most 1000; who asks for more gets all of the file.
    /// 0: none. Default: 16.
    pub max_ranges: Option<At<usize>>,
}

/// The script routes below a route of files that may run what it takes first.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScriptsBelow {
    /// All.
    Below,
    /// None.
    Refuse,
}

/// A compressed sibling of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precompressed {
    /// Brotli.
    Br,
    /// Zstandard.
    Zst,
    /// Gzip.
    Gz,
}

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Symlinks {
    /// All.
    Always,
    /// Those of root, and those whose owner also owns what they lead to.
    Owner,
    /// None.
    Never,
}

/// Answers with CGI scripts, a process for each request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("oneOf" = [{ "required": ["dir"] }, { "required": ["program"] }]))]
pub struct Cgi {
    /// The directory of the scripts.
    pub dir: Option<At<String>>,
    /// In place of `dir`: one program for all paths of the route, as with Apache's ScriptAlias. What
    /// the `*` of the route's path matched is its PATH_INFO.
    pub program: Option<At<String>>,
    /// From start to the last byte of the reply. Default: "60s".
    pub timeout: Option<Time>,
    /// Processes at once; further requests wait. Default: 64.
    pub max_processes: Option<At<usize>>,
    /// Bytes of one reply, its head included; more end it. Default: no limit.
    pub max_output: Option<Size>,
    /// Variables added to those of the request, in place of theirs of the same name.
    pub env: BTreeMap<String, At<String>>,
    /// The user the scripts run as, with its groups; needs root. Default: the one Forebay runs as.
    pub user: Option<At<String>>,
    /// The group the scripts run as, and the only one; needs root. Default: the groups of `user`.
    pub group: Option<At<String>>,
    /// What each process may use at the most. Default: what Forebay may.
    pub limits: Table<Limits>,
}

/// Passes on to a FastCGI application that listens by itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to", "root"]))]
pub struct Fastcgi {
    /// Where it listens: "host:port" or "unix:path", or tables with `url`, at most 64; or "@NAME", the
    /// group [upstream.NAME], which has `max_connections` then.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The directory of the scripts, as the application sees it.
    pub root: Option<At<String>>,
    /// The script for a path that ends in a slash. Default: "index.php".
    pub index: Option<At<String>>,
    /// Ends of the names of files that may be run, such as [".php", ".phtml"], or "*" for any
    /// file. Default: [".php"] where `index` ends in ".php", else "*".
    pub scripts: Option<At<OneOrMany<String>>>,
    /// Parameters added to those of the request.
    pub params: BTreeMap<String, At<String>>,
    /// Whether a connection serves more than one request. Default: true.
    pub keep_conn: Option<bool>,
    /// Bytes of one reply, its head included; more end it. Default: no limit.
    pub max_output: Option<Size>,
    /// Connections to each address at once, idle ones included, over all routes to it: no more
    /// than php-fpm has processes. Default: no limit.
    pub max_connections: Option<At<usize>>,
    /// Whether requests share connections: "on", "off", or "auto" where the application says that
    /// it can. Each thread then has connections of its own, an equal share of `max_connections`
    /// for each route; where that is none, "auto" is "off" and "on" is refused. Default: "off".
    pub multiplex: Option<Multiplex>,
    /// Requests at once on a connection that they share (`multiplex`); more open another one.
    /// Default: 64.
    pub max_streams: Option<At<usize>>,
    /// Bytes of one reply that wait for a slow client on a connection that requests share; more
    /// abort it, as FastCGI cannot hold one back alone. Default: "1M".
    pub max_buffered: Option<Size>,
}

/// Whether requests share connections.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Multiplex {
    /// Never.
    Off,
    /// Always, but where the application refuses.
    On,
    /// Where the application says that it can.
    Auto,
}

/// Passes on to an SCGI application that listens by itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct Scgi {
    /// Where it listens: "host:port" or "unix:path", or tables with `url`, at most 64; or "@NAME", the
    /// group [upstream.NAME], which has `max_connections` then.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The directory that the application is told as DOCUMENT_ROOT. Default: none.
    pub root: Option<At<String>>,
    /// The beginning of the path that is the application's SCRIPT_NAME, such as "/shop"; what
    /// follows is its PATH_INFO. Default: none, the whole path is PATH_INFO.
    pub mount: Option<At<String>>,
    /// Variables added to those of the request, in place of theirs of the same name.
    pub params: BTreeMap<String, At<String>>,
    /// Bytes of one reply, its head included; more end it. Default: no limit.
    pub max_output: Option<Size>,
    /// Connections to each address at once, each for one request, over all routes to it. Default:
    /// no limit.
    pub max_connections: Option<At<usize>>,
}

/// Passes on to a uwsgi application that listens by itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct Uwsgi {
    /// Where it listens: "host:port" or "unix:path", or tables with `url`, at most 64; or "@NAME", the
    /// group [upstream.NAME], which has `max_connections` then.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The directory that the application is told as DOCUMENT_ROOT. Default: none.
    pub root: Option<At<String>>,
    /// The beginning of the path that is the application's SCRIPT_NAME, such as "/shop"; what
    /// follows is its PATH_INFO. Default: none, the whole path is PATH_INFO.
    pub mount: Option<At<String>>,
    /// Variables added to those of the request, in place of theirs of the same name.
    pub params: BTreeMap<String, At<String>>,
    /// The kind of application: 0 WSGI, 5 PSGI, 6 Lua, 7 Rack. Default: 0.
    pub modifier1: Option<At<usize>>,
    /// What it means depends on `modifier1`. Default: 0.
    pub modifier2: Option<At<usize>>,
    /// Bytes of one reply, its head included; more end it. Default: no limit.
    pub max_output: Option<Size>,
    /// Connections to each address at once, each for one request, over all routes to it. Default:
    /// no limit.
    pub max_connections: Option<At<usize>>,
}

/// Answers with a fixed text.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Respond {
    /// Default: 200.
    pub status: Option<At<u16>>,
    /// Default: empty.
    pub body: Option<At<String>>,
    /// Default: "text/plain; charset=utf-8".
    pub content_type: Option<At<String>>,
}

/// Answers with a redirection.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct Redirect {
    /// A URL, or a path that begins with a slash. {host} in it stands for the host that was asked,
    /// {path}, {query} and {uri} for its path, query and both, {rest} for what the `*` matched.
    pub to: Option<At<String>>,
    /// 301, 302, 303, 307 or 308. Default: 302.
    pub status: Option<At<u16>>,
}
