//! A route: its conditions and the action that answers its requests.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Ajp, Cache, Clients, Compress, ContentCoding, Cors, ErrorPages, ForwardAuth, Inherited,
    LogFile, Maintenance, Matcher, MovedPages, ProcessLimits, Proxy, RateLimit, ReplyField,
    RequestField, Rewrite, Satisfy, Template, Upstream,
};

/// The conditions on requests, and the action that answers them.
#[derive(Clone, Debug)]
// More than 20 fields: the resolved form has one for each key, or group of keys, of the table.
pub struct Route {
    /// The name of the route; unique in its site.
    pub name: Option<String>,
    /// The conditions on requests.
    pub matcher: Matcher,
    /// The action that answers them.
    pub action: Action,
    /// Writes the requests to the access log. Default true.
    pub log: bool,
    /// The access log. `None`: that of the site.
    pub own_log: Option<LogFile>,
    /// The time that clients may cache the reply: `Expires` and `Cache-Control: max-age`.
    pub expires: Option<Duration>,
    /// Changes to the fields of requests, before the origin gets them.
    pub request_headers: Vec<RequestField>,
    /// Reply headers to set or add. No header frames the message or belongs to the connection.
    pub reply_headers: Vec<ReplyField>,
    /// Reply headers to remove, in lower case.
    pub remove_headers: Vec<String>,
    /// The largest request body in bytes, from the route or its site. `None`: the server's limit.
    pub max_body: Option<u64>,
    /// Passes a request for a missing file or script on to the routes below. Default false.
    pub fallback: bool,
    /// The path that replaces that of a request for a missing file or script. Routing then starts
    /// again at the first route. `fallback` is false if this is set.
    pub fallback_to: Option<Rewrite>,
    /// The path that replaces that of each request, before the action answers it.
    pub rewrite: Option<Rewrite>,
    /// Stores the part of a reply that a slow client has not read. Default true for processes (CGI,
    /// FastCGI, SCGI, uwsgi, AJP, applications), false for [`Action::Proxy`]. Always false for
    /// replies that Forebay makes itself.
    pub buffer: bool,
    /// Compression of replies. Default `None`.
    pub compress: Option<Compress>,
    /// Stored replies. Default `None`.
    pub cache: Option<Cache>,
    /// Receives the whole request body before the request is sent to an HTTP server. Default true
    /// for applications that speak HTTP, false for [`Action::Proxy`] and [`Action::Ajp`]. False if
    /// it makes no difference.
    pub request_buffering: bool,
    /// The treatment of path parameters by the rules above this route. Default
    /// [`PathParameters::Match`] for servers that may remove parameters: [`Action::Ajp`],
    /// [`Action::Proxy`], and programs that speak HTTP or AJP. Else [`PathParameters::Ignore`].
    pub path_parameters: PathParameters,
    /// The directory of files that the origin may send with `X-Accel-Redirect` or `X-Sendfile`.
    /// Absolute; a directory at the time of loading. `None`: those fields have no effect.
    pub sendfile_root: Option<PathBuf>,
    /// Pages for errors, from the route and its site.
    pub error_pages: ErrorPages,
    /// The page that is sent instead of all replies, from the route or its site.
    pub maintenance: Option<Arc<Maintenance>>,
    /// Web pages of other origins that may use the route. `None`: browsers decide.
    pub cors: Option<Cors>,
    /// The clients and users that may use the route.
    pub access: Access,
    /// The first line of the route in the file of its site, from 1; 0 without a file.
    pub line: usize,
    /// The keys that defaults and sets gave.
    pub inherited: Vec<Inherited>,
}

impl Route {
    /// Returns the servers of the action, and those that decide about requests.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        let deciding = self.access.forward_auth.as_ref().map(|auth| &auth.proxy.upstream);
        self.action.upstream().into_iter().chain(deciding)
    }

    /// Returns true if another route answers a request for a missing file or script.
    pub fn passes_on(&self) -> bool {
        self.fallback || self.fallback_to.is_some()
    }
}

/// The treatment of path parameters (`;x` in a segment) by rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathParameters {
    /// A rule applies to the path with and without parameters.
    Match,
    /// A path with a parameter is refused.
    Refuse,
    /// A parameter is part of the path.
    #[default]
    Ignore,
}

/// The clients and users that may use a route. A request must meet all conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Clients that may use it; empty, the default: all.
    pub allow: Vec<Clients>,
    /// Clients that may not use it, even if `allow` has them. Default: none.
    pub deny: Vec<Clients>,
    /// Users that may use it. `None`, the default: no password is needed.
    pub basic_auth: Option<BasicAuth>,
    /// A server that decides. `None`, the default: there is none.
    pub forward_auth: Option<ForwardAuth>,
    /// The combination of the rules about clients, users and the server. Default: all must hold.
    pub satisfy: Satisfy,
    /// Limits on the number of requests. Default: none.
    pub rate_limits: Vec<RateLimit>,
}

impl Access {
    /// Returns true if an address that [`Self::admits`] accepts is enough.
    pub fn suffices_by_address(&self) -> bool {
        let has_rules = !self.allow.is_empty() || !self.deny.is_empty();
        self.satisfy == Satisfy::Any && has_rules
    }

    /// Returns true if a client at this address may use the route. `None` is a client of a Unix
    /// socket, which has no address. Rules about addresses refuse it, unless `allow` names such
    /// clients.
    pub fn admits(&self, client: Option<IpAddr>) -> bool {
        let is_in = |rule: &[Clients]| rule.iter().any(|clients| clients.contains(client));
        if is_in(&self.deny) {
            return false;
        }
        // A client without an address could have any, including one that `deny` names.
        let may_be_denied = client.is_none() && !self.deny.is_empty();
        if may_be_denied {
            self.allow.contains(&Clients::Unix)
        } else {
            self.allow.is_empty() || is_in(&self.allow)
        }
    }

    /// Returns true if the route has a rule about addresses that refuses all clients of Unix
    /// sockets.
    pub fn refuses_unix(&self) -> bool {
        !self.admits(None) && ![&self.allow, &self.deny].into_iter().flatten().any(Self::is_bare)
    }

    fn is_bare(clients: &Clients) -> bool {
        !matches!(clients, Clients::Network(_))
    }
}

/// Users and their passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    /// Absolute; a file at the time of loading.
    pub file: PathBuf,
    /// The name that browsers show; without control characters. Default `restricted`.
    pub realm: String,
}

/// The action that answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Files of a directory.
    Files(Files),
    /// Scripts of a directory, with one process for each request.
    Cgi(Cgi),
    /// A FastCGI application that runs independently of Forebay.
    Fastcgi(Fastcgi),
    /// An SCGI or uwsgi application that runs independently of Forebay.
    AppServer(AppServer),
    /// Servlet containers.
    Ajp(Ajp),
    /// HTTP servers.
    Proxy(Proxy),
    /// An application of [`super::Plan::apps`], by name.
    App(String),
    /// A fixed reply.
    Respond(Respond),
    /// A redirect.
    Redirect(Redirect),
    /// Redirects of many old addresses. Other paths are left to the routes below.
    Moved(MovedPages),
    /// None: routing starts again at the first route, with the path of [`Route::rewrite`].
    Rewrite,
}

impl Action {
    /// Returns the servers of the action, from the route itself or from a group.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Fastcgi(fastcgi) => Some(&fastcgi.upstream),
            Self::AppServer(server) => Some(&server.upstream),
            Self::Ajp(ajp) => Some(&ajp.upstream),
            Self::Proxy(proxy) => Some(&proxy.upstream),
            _ => None,
        }
    }
}

/// Files of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Absolute; a directory at the time of loading.
    pub root: PathBuf,
    /// Names of index files, tried in turn for a directory. Default `index.html`; may be empty.
    pub index: Vec<String>,
    /// Sends a listing of a directory that has no index file. Default false.
    pub listing: bool,
    /// Sends names that begin with a dot; `.well-known` is always sent. Default false.
    pub hidden: bool,
    /// The symbolic links that are followed. Default [`Symlinks::Owner`], like Apache's
    /// SymLinksIfOwnerMatch.
    pub follow_symlinks: Symlinks,
    /// Compressed siblings that may replace a file, the preferred one first. Default none.
    pub precompressed: Vec<ContentCoding>,
    /// The number of ranges in one request, at most 1000. Default 16; 0: ranges are ignored.
    pub max_ranges: usize,
    /// The script routes below that still run their scripts if this route matches first.
    pub scripts: ScriptsBelow,
}

/// The script routes below a files route that still run their scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptsBelow {
    /// Each script route whose every request this route matches first: it would never run
    /// otherwise.
    #[default]
    Covered,
    /// All of them.
    All,
    /// None of them.
    Nothing,
}

/// The symbolic links below a root that are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Symlinks {
    /// All links.
    Always,
    /// Links that root owns, and links whose owner also owns their target.
    #[default]
    Owner,
    /// No links.
    Never,
}

/// Scripts of a directory, or one program, with one process for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgi {
    /// Absolute; a directory at the time of loading.
    pub dir: PathBuf,
    /// The program for all paths, in `dir`; a file at the time of loading. `None`: the path names
    /// the script.
    pub program: Option<PathBuf>,
    /// The longest time from the start to the last byte of the reply. Default 60 s.
    pub timeout: Duration,
    /// The number of processes at once, at least 1; further requests wait. Default 64.
    pub max_processes: usize,
    /// Bytes that a script may print, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
    /// Variables added to those of the request. They replace variables with the same name.
    pub env: BTreeMap<String, String>,
    /// The user that the scripts run as. `None`: Forebay's own.
    pub user: Option<String>,
    /// The group that they run as. `None`: the groups of `user`.
    pub group: Option<String>,
    /// Resource limits of each process.
    pub limits: ProcessLimits,
}

/// A FastCGI application that runs independently of Forebay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fastcgi {
    /// Its addresses.
    pub upstream: Arc<Upstream>,
    /// The directory of the scripts, as the application sees it; absolute. A relative path was
    /// typed for a local directory, which exists. An absolute one may be on another machine or in a
    /// container. `None`: the application has no script files, and `mount` is set.
    pub root: Option<PathBuf>,
    /// The start of paths that is removed before the script is looked up: whole segments, without a
    /// final slash.
    pub strip_prefix: Option<String>,
    /// The application takes every path: the start of paths that becomes SCRIPT_NAME. `None`: the
    /// path names a script below `root`.
    pub mount: Option<String>,
    /// The script for a path that ends in `/`. Default `index.php`.
    pub index: String,
    /// Endings of the files that may be run. Empty: any file. Default `.php` if `index` ends in it.
    pub scripts: Vec<String>,
    /// Parameters added to those of the request.
    pub params: BTreeMap<String, String>,
    /// Uses a connection for more than one request. Default true.
    pub keep_conn: bool,
    /// Bytes of one reply, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
    /// Sends several requests at once over one connection.
    pub multiplex: Multiplex,
    /// The number of requests at once on a shared connection, at least 1. Default 64.
    pub max_streams: usize,
    /// The number of shared connections to each address for each thread.
    /// [`Plan::share_connections`](super::Plan::share_connections) sets it; until then there is no
    /// limit.
    pub max_shared: usize,
    /// Bytes of one reply that may wait for its client on a shared connection. Default 1 MiB.
    pub max_buffered: usize,
}

/// Sends several requests at once over one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multiplex {
    /// Never. The default.
    #[default]
    Off,
    /// Always, unless the application refuses.
    On,
    /// If the application says that it supports this.
    Auto,
}

/// An independent application that takes one request for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppServer {
    /// Its protocol.
    pub protocol: ServerProtocol,
    /// Its addresses.
    pub upstream: Arc<Upstream>,
    /// The directory that the application gets as DOCUMENT_ROOT; absolute. A relative path was
    /// typed for a local directory, which exists.
    pub root: Option<PathBuf>,
    /// The start of paths that becomes SCRIPT_NAME: "/" and more, without a final slash. Empty, the
    /// default of a route: the whole path is PATH_INFO. `None`, for an application of Forebay: the
    /// part of the route's path before its `/*`.
    pub mount: Option<String>,
    /// Variables added to those of the request. They replace variables with the same name.
    pub params: BTreeMap<String, String>,
    /// Bytes of one reply, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
}

/// The protocol of an application that takes one request for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerProtocol {
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi {
        /// The kind of application. Default 0, which is WSGI.
        modifier1: u8,
        /// A number whose meaning depends on the kind. Default 0.
        modifier2: u8,
    },
}

/// A fixed reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    /// 200 to 599. Default 200.
    pub status: u16,
    /// Empty if the status allows no body.
    pub body: String,
    /// Default `text/plain; charset=utf-8`.
    pub content_type: String,
}

/// A redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The `Location`: a URL, or a path that begins with `/`. Its text is printable ASCII. The host
    /// never depends on the requested path.
    pub to: Template,
    /// The client's query is appended.
    pub keep_query: bool,
    /// 301, 302, 303, 307 or 308. Default 302.
    pub status: u16,
}
