//! The configuration as typed: one type per table, one field per key, nothing resolved.
//!
//! The doc comments of fields are the descriptions of the JSON Schema and of the manual's
//! reference. They address the person who writes the file. Each value keeps its position in the
//! file ([`At`]). `resolve` parses every text that has a meaning of its own, such as an address or
//! a duration.

mod ajp;
mod app;
mod cache;
mod compress;
mod defaults;
mod fields;
mod forward_auth;
mod limit;
mod log;
mod pages;
mod places;
mod proxy;
mod route;
mod shape;
mod tls;
mod upstream;
mod when;

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::Value;

pub use ajp::{Ajp, Ping};
pub use app::{App, AppProtocol, Cgroup, Kind, Limits as AppLimits, Listening, Range, Workers};
pub use cache::Cache;
pub use compress::{Coding, Compress};
pub(crate) use defaults::{ANSWERS, SITE_KEYS};
pub use defaults::{Defaults, RouteKeys};
pub use fields::RequestField;
pub use forward_auth::{ForwardAuth, Satisfy};
pub use limit::RateLimit;
pub use log::LogFile;
pub use pages::{Cors, ErrorPages, Maintenance};
pub(crate) use places::places;
pub use proxy::{HostField, Proxy, Redirects};
pub use route::{
    BasicAuth, Cgi, Fastcgi, Files, Multiplex, PathParameters, Precompressed, Redirect, Respond,
    Route, Scgi, ScriptsBelow, Symlinks, Uwsgi,
};
pub use shape::{AllOrList, At, BoolOr, NumberOrText, OneOrMany, Size, Table, TextOr, Time};
pub use tls::{Acme, AcmeChallenge, BackendTls, ClientAuth, Tls};
pub use upstream::{
    Activation, Backend, Balance, Health, HttpVersion, ProxyHeader, Sticky, Upstream,
};
pub use when::{Scheme, Values, When};

/// Returns the JSON Schema of a configuration file, as indented text.
pub fn schema() -> String {
    serde_json::to_string_pretty(&root_schema()).expect("a schema is plain JSON")
}

fn root_schema() -> Schema {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(as_toml));
    let mut schema = settings.into_generator().into_root_schema_for::<File>();
    schema.insert("title".into(), "Forebay configuration".into());
    schema
}

/// Adapts a schema to TOML, which has no null, and joins the lines of its description.
fn as_toml(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(forms)) = schema.get_mut("anyOf") {
        forms.retain(|form| form["type"] != "null");
        if let [Value::Object(only)] = &forms[..] {
            let only = only.clone();
            schema.remove("anyOf");
            only.into_iter().for_each(|(key, value)| {
                schema.ensure_object().entry(key).or_insert(value);
            });
        }
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
        if let Some(value) = documented_default(text) {
            schema.insert("default".into(), value);
        }
    }
}

/// Returns the default that a description names: the text from "Default: " to the end of that
/// sentence, if it is a TOML value. A default in words remains only in the description.
fn documented_default(description: &str) -> Option<Value> {
    let (_, default) = description.split_once("Default: ")?;
    let end = default.find(". ").or_else(|| default.strip_suffix('.').map(str::len))?;
    let table: toml::Table = toml::from_str(&format!("value = {}", &default[..end])).ok()?;
    serde_json::to_value(table.get("value")?).ok()
}

/// A configuration file of Forebay. Paths in it are relative to the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["site"]))]
pub struct File {
    /// Files to read as parts of this one, such as "conf.d/*.toml": paths or patterns, relative to
    /// the file that names them. The files of a pattern are read in alphabetical order. Paths in an
    /// included file are relative to that file. Default: none.
    pub include: Option<At<OneOrMany<String>>>,
    /// Settings of the whole process.
    pub server: Table<Server>,
    /// The access log. Errors always go to standard error.
    pub log: Table<Log>,
    /// Keys for every route of every site, unless the route has the key itself. Tables are merged
    /// key by key; `false` leaves out a key. Options of an answer (such as `files`) apply to the
    /// routes that have the answer. Keys of sites, such as `listen` and `tls`, are for every site
    /// without the key.
    pub defaults: Table<Defaults>,
    /// Sets of route keys, each under a name that you choose. A route takes them with `use`.
    pub set: BTreeMap<String, At<Table<RouteKeys>>>,
    /// Sites: listeners, their host names, and the routes that answer each path.
    #[schemars(length(min = 1))]
    pub site: Option<Vec<At<Table<Site>>>>,
    /// Applications that Forebay starts and supervises. You choose the name of each.
    pub app: BTreeMap<String, At<Table<App>>>,
    /// Groups of backends, each under a name that you choose. A route refers to a group with to =
    /// "@NAME".
    pub upstream: BTreeMap<String, At<Table<Upstream>>>,
}

/// Settings of the whole process.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// The number of threads that serve requests. Default: one for each processor that Forebay may
    /// use, given its CPU affinity and the CPU quota of its control group.
    pub threads: Option<At<usize>>,
    /// Binds each thread to one processor. Workers whose requests only compute are bound to the
    /// processor of the thread that uses them. Takes effect only with more than one thread, and one
    /// thread for each processor that Forebay may use. Default: true.
    pub affinity: Option<At<bool>>,
    /// The address and port of /status, /metrics and /healthz. Default: they are not served.
    pub admin: Option<At<NumberOrText>>,
    /// Host names that clients of `admin` may use, besides addresses and "localhost". Requests with
    /// another host name get 421, so that a web page cannot read `admin` through a host name of its
    /// own. Default: none.
    pub admin_hosts: Option<At<OneOrMany<String>>>,
    /// The secret that a client sends to `admin` with POST /apps/NAME/restart, at least 16
    /// characters. Default: no application can be restarted there.
    pub admin_token: Option<At<String>>,
    /// The user that Forebay switches to after it has opened sockets and logs; needs root. Default:
    /// the user that starts Forebay.
    pub user: Option<At<String>>,
    /// The group that Forebay switches to; it drops all other groups. Default: the groups of
    /// `user`.
    pub group: Option<At<String>>,
    /// The directory for request bodies that are too large for memory. Their files have no name.
    /// Default: the value of TMPDIR, else /tmp.
    pub spool_dir: Option<At<String>>,
    /// The DNS servers that resolve the names of backends, such as "127.0.0.1:53". The port is 53 if
    /// it is left out. Forebay resolves a name again at its time to live. Default: the servers of
    /// the system.
    pub dns_servers: Option<At<OneOrMany<String>>>,
    /// The memory for stored replies of all routes with `cache`. Default: "64MiB".
    pub cache_memory: Option<Size>,
    /// The time that open requests get to finish after a signal to stop. Default: "30s".
    pub grace: Option<Time>,
    /// Measures the time of each step of a request. Replies get a Server-Timing field, which
    /// clients can read; /metrics and /status get a histogram for each step. Default: false.
    pub timing: Option<At<bool>>,
    /// Time limits for each step of a request.
    pub timeouts: Table<Timeouts>,
    /// Limits on sizes and numbers.
    pub limits: Table<Limits>,
}

/// Time limits for each step of a request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// The longest time from the first byte of a request head to its last. Default: "60s".
    pub head: Option<Time>,
    /// The longest time between two reads of a request body. Default: "60s".
    pub body_idle: Option<Time>,
    /// The longest time between two reads of a backend's reply, including the wait for its head.
    /// Default: "60s".
    pub reply_idle: Option<Time>,
    /// The longest time between two writes to a client that reads nothing. Default: "60s".
    pub write: Option<Time>,
    /// The longest time between two requests on one connection; "0s" closes it after each reply.
    /// Default: "75s".
    pub keep_alive: Option<Time>,
    /// The longest time to connect to a backend. Default: "10s".
    pub connect: Option<Time>,
    /// The longest time without data on an upgraded connection, such as a WebSocket. Default: "1h".
    pub tunnel_idle: Option<Time>,
}

/// Limits on sizes and numbers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The largest request head, including the request line. Default: "32KiB".
    pub head_size: Option<Size>,
    /// The largest number of header fields in a request. Default: 100.
    pub fields: Option<At<usize>>,
    /// The longest request target (path and query). Default: "8KiB".
    pub target: Option<Size>,
    /// The largest request body, or "unlimited". A site or route may set its own. Default: "16MiB".
    pub max_body: Option<Size>,
    /// The lowest average rate of a request body, in bytes per second. Forebay checks it once it
    /// has waited for `body_idle` of [server.timeouts] in total. 0: no limit. Default: 0.
    pub body_rate: Option<Size>,
    /// The largest number of open client connections; 0: as many as the limit on open files allows.
    /// Default: 0.
    pub connections: Option<At<usize>>,
    /// The largest number of open client connections from one address; 0: no limit. Default: 0.
    pub connections_per_address: Option<At<usize>>,
    /// Accepts GET and HEAD requests with a body, which clients of search engines send. Otherwise
    /// they get 400, because a backend that does not expect the body can take it for another
    /// request. Default: false.
    pub get_body: Option<At<bool>>,
    /// The number of requests on one client connection before it is closed; 0: no limit. Default:
    /// 0.
    pub keepalive_requests: Option<At<u64>>,
    /// The memory for one reply that its client has not read yet (`buffer` of a route). The rest
    /// goes to a file. Default: "64KiB".
    pub buffer_memory: Option<Size>,
    /// The file space for one reply that its client has not read yet, once `buffer_memory` is full.
    /// The file is in `spool_dir` and has no name. When it is full, Forebay stops reading from the
    /// origin until the client reads. 0: no file. Default: "256MiB".
    pub buffer_file: Option<Size>,
    /// The memory and file space for all replies that their clients have not read yet. Default:
    /// "2GiB".
    pub buffer_total: Option<Size>,
}

/// The access log. Errors always go to standard error.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The file of the access log: a path, "stdout" or "off". Default: "off".
    pub access: Option<At<String>>,
    /// The format of the access log: "common", "combined", "json", or a pattern of Apache's %
    /// directives. Needs `access`. Default: "combined".
    pub format: Option<At<String>>,
    /// The last level of messages in the error log. "error": needs the administrator. "warn": faults
    /// of backends and applications, too. "info": also changes of state, and faults of clients.
    /// "debug": everything. Default: "info".
    pub level: Option<At<Level>>,
    /// The form of messages in the error log: "text", or "json" with an object for each line.
    /// Default: "text".
    pub error_format: Option<At<ErrorFormat>>,
}

/// A level of the error log.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A failure that needs the administrator.
    Error,
    /// A fault of a backend or application.
    Warn,
    /// A change of state, or a fault of a client.
    Info,
    /// A step that helps to find a mistake.
    Debug,
}

/// The form of messages in the error log.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ErrorFormat {
    /// A line of text with time and level.
    Text,
    /// An object for each line, with time, level and message.
    Json,
}

/// The request fields that trusted proxies write about clients.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ForwardedFields {
    /// Either kind of field, or both if they agree.
    Either,
    /// X-Forwarded-For and X-Forwarded-Proto.
    #[serde(rename = "x-forwarded")]
    XForwarded,
    /// Forwarded (RFC 7239).
    Forwarded,
}

/// The treatment of paths that contain %2F, a backslash or %5C.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodedSlashes {
    /// Such a path gets 404.
    Refuse,
    /// Such a path is passed on unchanged, unless another route would match it with slashes in
    /// their place.
    Pass,
}

/// A site in few keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SiteKind {
    /// PHP scripts, the files beside them, and /index.php for every other path.
    Php,
}

/// The treatment of the names with and without "www.".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Www {
    /// The other name redirects to the name in `hosts`.
    Redirect,
}

/// Listeners, their host names, and the routes that answer each path.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
// More than 20 fields: one for each key of the table. The schema is generated from them, and serde
// reports the position of an error only for keys that it does not flatten.
pub struct Site {
    /// The addresses that the site listens on: "address:port", ":port" or a bare port for all
    /// addresses, "unix:path" or "fd:name". "fd:name" names sockets that a service manager
    /// passes on under that name. Prefix "https://": with TLS. Prefix "ajp://": for web servers
    /// that speak AJP 1.3 (mod_jk, mod_proxy_ajp).
    pub listen: Option<At<OneOrMany<NumberOrText>>>,
    /// An access log of the site: its file, or a table. Default: that of `[log]`.
    pub log: Option<At<TextOr<LogFile>>>,
    /// The host names of the site, such as "example.org" or "*.example.org". Default: any.
    pub hosts: Option<At<OneOrMany<String>>>,
    /// A site in few keys. "php": PHP scripts below `root`, files beside them, and /index.php for
    /// every other path; scripts in `uploads` never run. The routes of the site come first. Default:
    /// the routes alone.
    pub kind: Option<At<SiteKind>>,
    /// The directory of a site with `kind`.
    pub root: Option<At<String>>,
    /// The application [app.NAME] that runs the scripts of a site with `kind`. Default: a PHP
    /// application of up to 8 processes, for this site alone.
    pub app: Option<At<String>>,
    /// The FastCGI server that runs the scripts of a site with `kind`, instead of `app`: its
    /// address, or a table as in a route. Default: none.
    pub fastcgi: Option<At<TextOr<Fastcgi>>>,
    /// Directories with files of visitors, as paths that end in "/*". Their scripts get 404 on a
    /// site with `kind`. Default: those of well-known applications, such as "/wp-content/uploads/*"
    /// and "/files/*".
    pub uploads: Option<At<OneOrMany<String>>>,
    /// Redirects www.example.org to example.org if `hosts` has "example.org", or the other way
    /// round. A certificate of ACME then has both names. Default: no redirect.
    pub www: Option<At<Www>>,
    /// Tests of the rules, run by `forebay check`: `[METHOD] PATH-OR-URL -> ANSWER`. The answer is a
    /// status, a status with a Location, the kind of route ("proxy", "app blog"), or "route NAME".
    /// Default: none.
    pub expect: Option<At<OneOrMany<String>>>,
    /// Keys for every route of this site, unless the route has the key itself. They precede those of
    /// the file's [defaults].
    pub defaults: Option<At<Table<RouteKeys>>>,
    /// Addresses or networks ("10.0.0.0/8") of proxies. Forebay believes their X-Forwarded-For,
    /// X-Forwarded-Proto and Forwarded. Use "unix" for proxies that connect to a unix: socket.
    /// Default: none.
    pub trusted_proxies: Option<At<OneOrMany<String>>>,
    /// The fields that trusted proxies write. Forebay ignores the other fields, which a client may
    /// have sent. Default: "either", which refuses a request whose fields contradict each other.
    pub forwarded: Option<At<ForwardedFields>>,
    /// Expects a PROXY header (version 1 or 2) at the start of each connection, and closes
    /// connections without one. If `trusted_proxies` is set, only these peers may connect. Default:
    /// false.
    pub proxy_protocol: Option<At<bool>>,
    /// The secret that web servers send with each request to an ajp:// listener: `secret` of
    /// mod_jk's workers and of ProxyPass. Required unless all ajp:// listeners are on loopback
    /// addresses or Unix sockets. Default: none.
    pub ajp_secret: Option<At<String>>,
    /// The largest packet on ajp:// listeners, from 8192 to 65536 bytes: max_packet_size of mod_jk,
    /// ProxyIOBufferSize of mod_proxy_ajp. Default: 8192.
    pub ajp_packet_size: Option<Size>,
    /// The permission bits of unix: sockets, such as "0666" for all users of this machine. A user
    /// needs write permission to connect. Default: "0660".
    pub socket_mode: Option<At<String>>,
    /// The owner of unix: sockets; needs root. Default: `user` of `[server]`.
    pub socket_user: Option<At<String>>,
    /// The group of unix: sockets, such as the group of the proxy that connects. Needs root, or a
    /// group of the user that starts Forebay. Default: `group` of `[server]`, or that of the owner.
    pub socket_group: Option<At<String>>,
    /// The treatment of paths that contain %2F, a backslash or %5C, which a backend may read as a
    /// slash. "refuse" answers 404. "pass" passes them on if no other route would match them with
    /// slashes. Default: "refuse".
    pub encoded_slashes: Option<EncodedSlashes>,
    /// Merges repeated slashes in paths. With false, backends get them as the client sent them, for
    /// paths that contain a URL. A path that another route would match with merged slashes then
    /// gets 404. Default: true.
    pub merge_slashes: Option<bool>,
    /// The largest request body, or "unlimited". Default: that of [server.limits].
    pub max_body: Option<Size>,
    /// Pages for errors: files by status ("404") or class ("5xx"). Placeholders such as {status},
    /// {reason}, {host} and {path} are filled in and escaped for .html and .json. A route's own pages
    /// come first. Default: short pages that name the status.
    pub error_pages: ErrorPages,
    /// Replaces errors that applications and servers reply with by `error_pages`, too. Default:
    /// false.
    pub intercept: Option<At<bool>>,
    /// Closes the site: all requests get this page with status 503. A route with `maintenance =
    /// false` stays open. Default: the site is open.
    pub maintenance: Option<At<BoolOr<Maintenance>>>,
    /// Redirects requests without TLS to the same URL with https://. Default: false.
    pub redirect_to_https: Option<At<bool>>,
    /// Serves HTTP/3 as well, over UDP on the address and port of each https:// listener. Replies
    /// over HTTP/1.1 and HTTP/2 then announce it in an Alt-Svc field, unless they have one.
    /// Default: false.
    pub http3: Option<At<bool>>,
    /// The certificate and TLS settings of https:// listeners.
    pub tls: Option<At<Table<Tls>>>,
    /// The routes. The first one that matches answers the request. Required without `kind`.
    #[schemars(length(min = 1))]
    pub route: Option<Vec<At<Table<Route>>>>,
}
