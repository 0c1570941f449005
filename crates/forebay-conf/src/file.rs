//! The configuration as the user types it: one type per table and one field per key.
//!
//! The doc comments of fields are the descriptions of the JSON Schema and of the manual's
//! reference. These comments address the person who writes the file. Each value keeps its position
//! in the file ([`At`]). The module `resolve` parses every text with inner structure, such as an
//! address or a duration.

mod access;
mod app;
mod defaults;
mod log;
mod mirror;
mod mod_perl;
mod places;
mod relay;
mod reply;
mod route;
mod tls;
mod upstream;
mod value_map;

use std::collections::BTreeMap;

use forebay_conf_derive::{Choice, Table};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Value, json};

pub use crate::key::{AllOrList, At, BoolOr, NumberOrText, OneOrMany, Size, TextOr, Time};
use crate::key::{Databases, Described, Form};
use crate::plan::{EncodedSlashes, ErrorFormat, Level, Limits, Rotation, Secret, Timeouts};

pub use access::{Challenge, Copied, ForwardAuth, Jwt};
pub use app::{App, Kind, Range, Workers};
pub(crate) use defaults::{ANSWERS, SITE_KEYS, SWITCHES};
pub use defaults::{Defaults, RouteKeys};
pub use log::{LogFile, Metrics, Traces};
pub use mirror::Mirror;
pub(crate) use places::places;
pub use relay::Relay;
pub use reply::{ErrorPage, ErrorPages, Maintenance, Replace, RequestField, RequestFields};
pub use route::{
    Cgi, Files, Htaccess, Listing, Precompressed, Redirect, Respond, Route, ScriptsBelow,
};
pub use tls::{Acme, BackendTls, ClientAuth, ExternalAccount, OnDemand, Tls, TlsVersion};
pub use upstream::{Ajp, Backend, Fastcgi, Health, Proxy, Scgi, Sticky, Upstream, Uwsgi};
use value_map::Maps;

/// Returns the JSON Schema of a configuration file, as indented text.
pub fn schema() -> String {
    serde_json::to_string_pretty(&root_schema()).expect("a schema is plain JSON")
}

fn root_schema() -> Schema {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(as_toml));
    let mut schema = settings.into_generator().into_root_schema_for::<Described<File>>();
    schema.insert("title".into(), "Forebay configuration".into());
    schema
}

/// The schema of a list that is not empty.
fn at_least_one<T: Form>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = Vec::<T>::schema(generator);
    schema.insert("minItems".into(), 1.into());
    schema
}

/// Removes null from a schema, because TOML has none. Adds `default` if the description states one.
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

/// Returns the default that a description states: the text after "Default: ", up to the end of the
/// sentence. Returns `None` if that text is not a TOML value but words, as in "Default: none."
fn documented_default(description: &str) -> Option<Value> {
    let (_, default) = description.split_once("Default: ")?;
    let end = default.find(". ").or_else(|| default.strip_suffix('.').map(str::len))?;
    let table: toml::Table = toml::from_str(&format!("value = {}", &default[..end])).ok()?;
    serde_json::to_value(table.get("value")?).ok()
}

/// A configuration file of Forebay. Relative paths start at the directory of the file.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "anyOf": [{"required": ["site"]}, {"required": ["stream"]}] }))]
pub struct File {
    /// Files to read as parts of this file: paths, or patterns such as "conf.d/*.toml". Relative
    /// paths start at the directory of the file that contains them, also in included files. The
    /// files of a pattern are read in alphabetical order. Default: none.
    #[expect(dead_code, reason = "read from the tree")]
    pub include: Option<At<OneOrMany<String>>>,
    /// Settings of the whole process.
    #[key(default)]
    pub server: Server,
    /// Tables of values, each under a name that you choose. The placeholder {map.NAME} gives the
    /// value for a text of the request, like nginx's `map`.
    #[key(default, as = Maps)]
    #[expect(dead_code, reason = "texts find it in `Cx::names`")]
    pub map: (),
    /// The access log and the error log.
    #[key(default)]
    pub log: Log,
    /// Traces of requests, sent to an OpenTelemetry collector.
    #[key(default)]
    pub traces: Traces,
    /// The metrics of /metrics, sent to an OpenTelemetry collector.
    #[key(default)]
    pub metrics: Metrics,
    /// Keys that routes and sites get if they do not have these keys themselves. Tables are merged
    /// key by key. A route leaves a key out by setting it to `false`. A table of an answer, such as
    /// `files`, adds its keys only to routes with this answer. Keys of sites, such as `listen` and
    /// `tls`, are possible, too.
    #[key(default)]
    #[expect(dead_code, reason = "read from the tree")]
    pub defaults: Defaults,
    /// Sets of route keys. You choose the name of each. A route gets the keys of a set if its `use`
    /// names the set.
    #[key(default)]
    #[expect(dead_code, reason = "read from the tree")]
    pub set: BTreeMap<String, At<RouteKeys>>,
    /// The sites. Each site has listeners, host names, and routes that answer requests. At least one
    /// site or stream is required.
    #[key(schema = at_least_one::<Site>)]
    pub site: Option<Vec<At<Site>>>,
    /// Streams: TCP connections and UDP datagrams that Forebay passes to servers, for protocols other
    /// than HTTP.
    pub stream: Option<Vec<At<Relay>>>,
    /// Applications that Forebay starts and supervises. You choose the name of each.
    #[key(default)]
    pub app: BTreeMap<String, At<App>>,
    /// Groups of backends, each under a name that you choose. A route refers to a group with to =
    /// "@NAME".
    #[key(default)]
    pub upstream: BTreeMap<String, At<Upstream>>,
}

/// Settings of the whole process.
#[derive(Debug, Default, Table)]
// More than 20 fields: one for each key of the table `[server]`, because the schema
// is generated from the fields.
pub struct Server {
    /// The number of threads that serve requests. Default: one for each processor that Forebay may
    /// use, given its CPU affinity and the CPU quota of its control group.
    pub threads: Option<At<usize>>,
    /// Binds each thread to one processor. If the requests of a worker process never wait, the
    /// worker runs on the processor of the thread that sends these requests. Works only if there
    /// are several processors, and exactly one thread for each. Default: true.
    pub affinity: Option<At<bool>>,
    /// The address and port, or "unix:PATH", of the administrator's listener: /status, /metrics,
    /// /healthz, /readyz, and changes by `forebay ctl`. Everyone who may open the Unix socket may
    /// also change what is served. Default: no such listener.
    pub admin: Option<At<NumberOrText>>,
    /// The permission bits of the Unix socket in `admin`: "0600", or "0660" for a group. The socket
    /// belongs to the user that starts Forebay, not to `user`. Default: "0600".
    pub admin_mode: Option<At<String>>,
    /// The group of the Unix socket in `admin`, for mode "0660". Default: the group that Forebay
    /// has when it starts.
    pub admin_group: Option<At<String>>,
    /// Host names that clients of `admin` may use, besides IP addresses and "localhost". Requests
    /// with another host name get 421. A web page therefore cannot read `admin` through its own
    /// host name (DNS rebinding). Default: none.
    pub admin_hosts: Option<At<OneOrMany<String>>>,
    /// The secret that a client sends to change anything through `admin`, at least 16 characters. A
    /// client of a Unix socket needs no secret. Default: clients cannot change anything over TCP.
    pub admin_token: Option<At<String>>,
    /// The user that Forebay switches to after it has opened sockets and logs. Needs root. Default:
    /// the user that starts Forebay.
    pub user: Option<At<String>>,
    /// The group that Forebay switches to. Forebay then drops all other groups. Default: the groups
    /// of `user`.
    pub group: Option<At<String>>,
    /// The user that applications and `cgi` scripts without a `user` of their own run as, with the
    /// groups of that user. If it is another one than `user`, these programs reach no private key,
    /// no socket and no file of Forebay. Needs root. Default: `user`.
    pub app_user: Option<At<String>>,
    /// The directory for files that hold bodies too large for memory. These files have no names, so
    /// `ls` does not show them. Default: the value of TMPDIR, else /tmp.
    pub spool_dir: Option<At<String>>,
    /// The DNS servers that resolve the names of backends, such as "127.0.0.1:53". Without a port,
    /// Forebay uses port 53. Forebay resolves a name again when its time to live has passed.
    /// Default: the DNS servers of the system.
    pub dns_servers: Option<At<OneOrMany<String>>>,
    /// Databases of countries and autonomous systems in the MMDB format, such as
    /// "GeoLite2-Country.mmdb", for `country` and `asn` of `when` and the placeholders {country} and
    /// {asn}. Forebay reads them at the start and at a reload. Default: none.
    #[key(default, as = Databases)]
    #[expect(dead_code, reason = "texts find it in `Cx::names`")]
    pub geo: (),
    /// The memory for stored replies of all routes with `cache`. Default: "64MiB".
    pub cache_memory: Option<Size>,
    /// The directory for stored replies that are not in memory. Forebay creates it if necessary, and
    /// nothing else may use it. Stored replies then survive a restart. Default: replies are stored
    /// only in memory.
    pub cache_dir: Option<At<String>>,
    /// The space for stored replies in `cache_dir`. Default: "1GiB".
    pub cache_disk: Option<Size>,
    /// The store that several machines with the same sites share: certificates and challenges of
    /// `acme`, keys of TLS tickets, counts of rate limits, and purges of stored replies. The value
    /// is a directory on a shared file system, redis://USER:PASSWORD@HOST:PORT/DB, or rediss:// for
    /// Redis over TLS. Default: nothing is shared.
    pub store: Option<At<String>>,
    /// The secret that encrypts what Forebay writes to `store`, such as
    /// "{file./etc/forebay/store.key}". This secret has at least 32 characters, and is the same on
    /// all machines. Required for Redis, because the store contains private keys. Default: Forebay
    /// writes to a directory without encryption.
    pub store_key: Option<At<String>>,
    /// A PEM file with the certificates of the authorities that issue the certificate of a
    /// rediss:// server. Default: the authorities that this machine trusts.
    pub store_ca: Option<At<String>>,
    /// The time that open requests get to finish after a signal to stop. Default: "30s".
    pub grace: Option<Time>,
    /// The time that Forebay continues to serve after a signal to stop, while /readyz of `admin`
    /// fails. Load balancers that ask /readyz then send no more clients. `grace` begins afterwards.
    /// Default: "0s".
    pub drain_delay: Option<Time>,
    /// Measures the time of each step of a request. Replies get a Server-Timing field, which
    /// clients can read; /metrics and /status get a histogram for each step. Default: false.
    pub timing: Option<At<bool>>,
    /// Counts the requests of each route by method and status, with a histogram of their times, for
    /// /metrics and /status. Default: false.
    pub route_metrics: Option<At<bool>>,
    /// Time limits for each step of a request.
    #[key(default)]
    pub timeouts: Timeouts,
    /// Limits on sizes and numbers.
    #[key(default)]
    pub limits: Limits,
}

/// The access log and the error log.
#[derive(Debug, Default, Table)]
pub struct Log {
    /// The destination of the access log: the path of a file, "stdout", "syslog", "journald" or
    /// "off". "syslog" means /dev/log. Other forms are "syslog:unix:PATH", "syslog:udp://HOST:PORT"
    /// and "syslog:tcp://HOST:PORT". Default: "off".
    pub access: Option<At<String>>,
    /// The format of the access log: "common", "combined", "json", or a pattern of Apache's %
    /// directives. Needs `access`. Default: "combined".
    pub format: Option<At<String>>,
    /// Rotation of the file. If another program renames the file instead, that program must then
    /// send SIGUSR1, so that Forebay opens a new file. Default: none.
    pub rotate: Option<At<Rotation>>,
    /// The destination of the error log: "stderr", "syslog", "journald", or another form of
    /// "syslog" as in `access`. Default: "stderr".
    pub error: Option<At<String>>,
    /// The facility of messages to syslog, such as "daemon", "user" or "local0". Default: "daemon".
    pub syslog_facility: Option<At<String>>,
    /// The name of this server in messages to syslog and journald. Default: "forebay".
    pub syslog_tag: Option<At<String>>,
    /// The least severe messages in the error log. "error": failures that need the administrator.
    /// "warn": also faults of backends and applications. "info": also changes of state, and faults
    /// of clients. "debug": everything. Default: "info".
    pub level: Option<At<Level>>,
    /// The form of messages in the error log: lines of "text", or "json" with one object on each
    /// line. Default: "text".
    pub error_format: Option<At<ErrorFormat>>,
}

/// The kind of a site that needs only a few keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum SiteKind {
    /// PHP scripts, the files beside them, and /index.php for every other path.
    Php,
}

/// The treatment of host names with and without "www.".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum Www {
    /// The name that is not in `hosts` redirects to the name in `hosts`.
    Redirect,
}

/// A site: its listeners, its host names, and the routes that answer its requests.
#[derive(Debug, Default, Table)]
// More than 20 fields: one for each key of the table, because the schema is
// generated from the fields. Inner structs with `serde(flatten)` would lose the positions of
// errors.
pub struct Site {
    /// The addresses that the site listens on: "address:port", ":port" or a bare port for all
    /// addresses, "unix:path" or "fd:name". "fd:name" names sockets that a service manager passes
    /// on under that name. With the prefix "https://", the listener uses TLS. With the prefix
    /// "ajp://", it serves web servers that speak AJP 1.3 (mod_jk, mod_proxy_ajp).
    pub listen: Option<At<OneOrMany<NumberOrText>>>,
    /// The access log of the site: a file, or a table. Default: that of `[log]`.
    pub log: Option<At<TextOr<LogFile>>>,
    /// The host names of the site, such as "example.org" or "*.example.org". Default: any host
    /// name.
    pub hosts: Option<At<OneOrMany<String>>>,
    /// A site for each directory that this pattern matches, such as "/srv/*/htdocs". The name in
    /// place of `*` is the host of the site, and replaces {host} in all of its texts, also in paths:
    /// files = "/srv/{host}/htdocs". {owner} is the user that owns the directory. Sites come and go
    /// with their directories, without a reload. Default: none.
    pub hosts_from: Option<At<String>>,
    /// Adds the usual routes of a kind of site, after the site's own routes. "php" serves PHP
    /// scripts below `root`, other files there, and /index.php for every other path. Default: only
    /// the site's own routes.
    #[expect(dead_code, reason = "read from the tree")]
    pub kind: Option<At<SiteKind>>,
    /// The directory of a site with `kind`.
    #[expect(dead_code, reason = "read from the tree")]
    pub root: Option<At<String>>,
    /// The application [app.NAME] that runs the scripts of a site with `kind`. Default: a PHP
    /// application of up to 8 processes, for this site alone.
    #[expect(dead_code, reason = "read from the tree")]
    pub app: Option<At<String>>,
    /// The FastCGI server that runs the scripts of a site with `kind`, instead of `app`: its
    /// address, or a table as in a route. Default: none.
    #[expect(dead_code, reason = "read from the tree")]
    pub fastcgi: Option<At<TextOr<Fastcgi>>>,
    /// Directories with files that visitors upload, as URL paths that end in "/*". On a site with
    /// `kind`, requests for scripts in them get 404. Default: the directories of well-known
    /// applications, such as "/wp-content/uploads/*" and "/files/*".
    #[expect(dead_code, reason = "read from the tree")]
    pub uploads: Option<At<OneOrMany<String>>>,
    /// Redirects www.example.org to example.org if `hosts` has "example.org", and the other way
    /// round if `hosts` has "www.example.org". A certificate from ACME then contains both names.
    /// Default: no redirect.
    pub www: Option<At<Www>>,
    /// Tests of the site's routes, which `forebay check` runs: `[METHOD] PATH-OR-URL -> ANSWER`.
    /// The answer is a status, a status with a Location, the kind of route ("proxy", "app blog"),
    /// or "route NAME". Default: none.
    pub expect: Option<At<OneOrMany<String>>>,
    /// Keys that every route of this site gets, unless the route has the key itself. They have
    /// precedence over the keys in [defaults].
    #[expect(dead_code, reason = "read from the tree")]
    pub defaults: Option<At<RouteKeys>>,
    /// Addresses or networks ("10.0.0.0/8") of proxies. Forebay believes their X-Forwarded-For,
    /// X-Forwarded-Proto and Forwarded. Use "unix" for proxies that connect to a unix: socket. A path
    /// such as "/etc/forebay/proxies.txt", an https:// or http:// URL, or the name of a CDN such as
    /// "cloudflare" stands for a list of networks, which is read again while the server runs. Default:
    /// none.
    pub trusted_proxies: Option<At<OneOrMany<String>>>,
    /// The fields that trusted proxies write: "x-forwarded", "forwarded" (RFC 7239), or the name of the
    /// field with the client's address, such as "CF-Connecting-IP" or "X-Real-IP". Forebay ignores the
    /// others of X-Forwarded-For, X-Forwarded-Proto and Forwarded, because the client may have sent
    /// them; X-Forwarded-Proto counts beside a field that you name. Default: "either", which refuses a
    /// request whose fields contradict each other.
    pub forwarded: Option<At<String>>,
    /// Expects a PROXY header (version 1 or 2) at the start of each connection, and closes
    /// connections without one. If `trusted_proxies` is set, only those proxies may connect.
    /// Default: false.
    pub proxy_protocol: Option<At<bool>>,
    /// The secret that web servers send with each request to an ajp:// listener: `secret` of
    /// mod_jk's workers and of ProxyPass. Required unless all ajp:// listeners are on loopback
    /// addresses or Unix sockets. Default: none.
    pub ajp_secret: Option<At<Secret>>,
    /// The largest packet on ajp:// listeners, from 8192 to 65536 bytes. Web servers set it with
    /// max_packet_size (mod_jk) or ProxyIOBufferSize (mod_proxy_ajp). Default: 8192.
    pub ajp_packet_size: Option<Size>,
    /// The permission bits of unix: sockets, such as "0666" for all users of this machine. A user
    /// needs write permission to connect. Default: "0660".
    pub socket_mode: Option<At<String>>,
    /// The owner of unix: sockets; needs root. Default: `user` of `[server]`.
    pub socket_user: Option<At<String>>,
    /// The group of unix: sockets, such as the group of the proxy that connects. Needs root, unless
    /// the user that starts Forebay is in that group. Default: `group` of `[server]`, else the
    /// group of the owner.
    pub socket_group: Option<At<String>>,
    /// The treatment of paths that contain %2F, a backslash or %5C, which a backend may read as a
    /// slash. Such a path is passed on unchanged, as in nginx, unless a rule could be avoided: if
    /// another route would match the path with real slashes, the answer is 404. Default: "auto".
    pub encoded_slashes: Option<EncodedSlashes>,
    /// Merges repeated slashes in paths. With false, backends get repeated slashes, for example a
    /// path that contains a URL. A path then gets 404 if another route would match it with merged
    /// slashes. Default: true.
    pub merge_slashes: Option<bool>,
    /// Passes request headers whose names contain an underscore, a dot or another mark than a
    /// hyphen. With false, Forebay removes them, because many applications read "X_User" as
    /// "X-User". With true, requests with such a header bypass `cache`. Default: false.
    pub underscores_in_headers: Option<bool>,
    /// The largest request body, or "unlimited". Default: that of [server.limits].
    pub max_body: Option<Size>,
    /// Pages for errors: files by status ("404") or class ("5xx"), or tables with `file` and
    /// `status`. Forebay replaces placeholders such as {status}, {reason}, {host} and {path}, and
    /// escapes their values in .html and .json files. A route's own pages have precedence. Default:
    /// short pages that name the status.
    #[key(default)]
    pub error_pages: ErrorPages,
    /// Also replaces the error replies of applications and servers with `error_pages`. Default:
    /// false.
    pub intercept: Option<At<bool>>,
    /// Closes the site: all requests get the file `page` of this table, with status 503. A route
    /// with `maintenance = false` stays open. Default: the site is open.
    pub maintenance: Option<At<BoolOr<Maintenance>>>,
    /// Redirects requests without TLS to the same URL with https://. Default: false.
    pub redirect_to_https: Option<At<bool>>,
    /// Serves HTTP/3 as well, over UDP on the address and port of each https:// listener. An
    /// Alt-Svc field in replies over HTTP/1.1 and HTTP/2 announces HTTP/3. Default: false.
    pub http3: Option<At<bool>>,
    /// The certificate and TLS settings of https:// listeners.
    pub tls: Option<At<Tls>>,
    /// The routes. The first route that matches answers the request. Required without `kind`.
    #[key(schema = at_least_one::<Route>)]
    pub route: Option<Vec<At<Route>>>,
}
