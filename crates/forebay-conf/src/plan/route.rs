//! A route: its conditions on requests, and the action that answers them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Ajp, BandwidthLimit, Cache, Clients, Compress, ContentCoding, Cors, ErrorPages, Filters,
    Fingerprint, ForwardAuth, Inherited, Jwt, Listing, LogFile, Maintenance, Matcher, Mirror,
    MovedPages, ProcessLimits, Proxy, RateLimit, ReplyField, RequestField, Rewrite, RouteTimeouts,
    Satisfy, SignedUrl, Template, Upstream,
};

/// A route: conditions on requests, and the action that answers matching requests.
#[derive(Clone, Debug)]
// More than 20 fields: one for each key or group of keys of the table.
pub struct Route {
    /// The name of the route; unique in its site.
    pub name: Option<String>,
    /// The conditions on requests.
    pub matcher: Matcher,
    /// The action that answers matching requests.
    pub action: Action,
    /// Writes the requests to the access log. Default true.
    pub log: bool,
    /// The access log of the route. `None`: the access log of the site.
    pub own_log: Option<LogFile>,
    /// The time that clients may cache the reply: `Expires` and `Cache-Control: max-age`.
    pub expires: Option<Duration>,
    /// The charset that is added to the `Content-Type` of texts without one. It is a token.
    pub charset: Option<String>,
    /// Changes to the fields of a request before the origin gets the request.
    pub request_headers: Vec<RequestField>,
    /// Reply headers to set or add. Headers that frame the message or belong to the connection are
    /// not allowed.
    pub reply_headers: Vec<ReplyField>,
    /// Reply headers to remove, in lower case.
    pub remove_headers: Vec<String>,
    /// The largest request body in bytes, from the route or its site. `None`: the server's limit.
    pub max_body: Option<u64>,
    /// Passes a request for a missing file or script on to the routes below. Default false.
    pub fallback: bool,
    /// The new path of a request for a missing file or script. The search for a route then starts
    /// again at the first route. If `fallback_to` is set, `fallback` is false.
    pub fallback_to: Option<Rewrite>,
    /// The new path of each request, before the action answers the request.
    pub rewrite: Option<Rewrite>,
    /// Stores the part of a reply that a slow client has not read. Default false for
    /// [`Action::Proxy`] and for ASGI applications. Default true for other backends and
    /// applications. Always false for replies that Forebay makes itself.
    pub buffer: bool,
    /// What happens to a request whose client has left. Default [`OnAbort::Cancel`] for
    /// [`Action::Proxy`] and for actions without an application, else [`OnAbort::Finish`].
    pub on_abort: OnAbort,
    /// Compression of replies. Default `None`.
    pub compress: Option<Compress>,
    /// Changes to the bodies of replies. Default: none.
    pub filters: Filters,
    /// Stored replies. Default `None`.
    pub cache: Option<Cache>,
    /// Receives the whole request body before the request is sent to a server. Default true for
    /// applications that speak HTTP/1.1 or AJP. Default false for [`Action::Proxy`],
    /// [`Action::Ajp`], and applications that speak HTTP/2 or ASGI. False if the value makes no
    /// difference.
    pub request_buffering: bool,
    /// The treatment of path parameters by rules: routes above this one that restrict access, or
    /// that answer with `respond` or `redirect`. Default [`PathParameters::Match`] for servers that
    /// may remove parameters: [`Action::Ajp`], [`Action::Proxy`], and programs that speak HTTP or
    /// AJP. Else [`PathParameters::Ignore`].
    pub path_parameters: PathParameters,
    /// The directory of files that a reply may name in `X-Accel-Redirect` or `X-Sendfile`. Forebay
    /// then sends the file. The path is absolute and was a directory when the configuration was
    /// loaded. `None`: those fields have no effect.
    pub sendfile_root: Option<PathBuf>,
    /// True if the origin may choose an internal route with `X-Accel-Redirect`.
    pub internal_redirects: bool,
    /// Pages for errors, from the route and its site.
    pub error_pages: ErrorPages,
    /// The page that is sent instead of all replies, from the route or its site. `None`: the route
    /// is open.
    pub maintenance: Option<Arc<Maintenance>>,
    /// Web pages of other origins that may use the route. `None`: Forebay leaves CORS to the
    /// application.
    pub cors: Option<Cors>,
    /// The clients and users that may use the route.
    pub access: Access,
    /// The limit on the speed of each reply. Default `None`.
    pub bandwidth_limit: Option<BandwidthLimit>,
    /// Time limits for slow clients. Default: the time limits of the server.
    pub timeouts: RouteTimeouts,
    /// The server that gets copies of the requests. Default `None`.
    pub mirror: Option<Mirror>,
    /// Number of the route's first line in the file of its site, from 1; 0 if the plan was not made
    /// from a file.
    pub line: usize,
    /// The keys of the route that come from defaults and sets.
    pub inherited: Vec<Inherited>,
    /// What was typed for the route, as a number. The default if the plan was not made from a file.
    pub fingerprint: Fingerprint,
}

impl Route {
    /// Returns the servers of the action, of `forward_auth`, of `mirror` and of `jwt`.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        let deciding = self.access.forward_auth.as_ref().map(ForwardAuth::upstream);
        let mirror = self.mirror.as_ref().map(|mirror| &mirror.proxy.upstream);
        let keys = self.access.jwt.as_ref().and_then(|jwt| Some(&jwt.url()?.proxy.upstream));
        self.action.upstream().into_iter().chain(deciding).chain(mirror).chain(keys)
    }

    /// Returns true if another route answers a request for a missing file or script.
    pub fn passes_on(&self) -> bool {
        self.fallback || self.fallback_to.is_some()
    }
}

/// What happens to a request whose client has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAbort {
    /// It runs to its end, and its output is dropped.
    Finish,
    /// It ends, unless the client has only closed its sending side.
    #[default]
    Cancel,
    /// It ends. A client that closes its sending side counts as gone.
    Stop,
}

/// The treatment of path parameters (`;x` in a segment) by rules. A rule is a route above this one
/// that restricts access, or that answers with `respond` or `redirect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathParameters {
    /// A rule applies if it matches the path with parameters or without them.
    Match,
    /// A path with a parameter gets 404.
    Refuse,
    /// Rules treat a parameter as part of the path.
    #[default]
    Ignore,
}

/// The clients and users that may use a route. `satisfy` combines the conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Clients that may use the route. If empty (the default), all clients may.
    pub allow: Vec<Clients>,
    /// Clients that may not use the route, even if `allow` has them. Default: none.
    pub deny: Vec<Clients>,
    /// Users that may use the route. `None`, the default: no password is needed.
    pub basic_auth: Option<BasicAuth>,
    /// Users that may use the route, with the Digest scheme. `None`, the default: no password is
    /// needed.
    pub digest_auth: Option<DigestAuth>,
    /// A token that each request must have. `None`, the default: no token is needed.
    pub jwt: Option<Jwt>,
    /// A server that permits or refuses each request. `None`, the default: there is no such server.
    pub forward_auth: Option<ForwardAuth>,
    /// The way to combine the rules about addresses, users and `forward_auth`. Default: a request
    /// must meet all rules.
    pub satisfy: Satisfy,
    /// Limits on the number of requests. Default: none.
    pub rate_limits: Vec<RateLimit>,
    /// A signature that each URL must have. Default `None`.
    pub signed_url: Option<SignedUrl>,
    /// Methods that the route permits. If empty (the default), all methods.
    pub allow_methods: Vec<String>,
    /// Methods that need no permission: the rules about clients and users do not apply to them.
    /// Default: none.
    pub open_methods: Vec<String>,
    /// True if only internal redirects may lead to the route.
    pub internal: bool,
}

impl Access {
    /// Returns true if a client that [`Self::admits`] accepts needs no password, no token and no
    /// permission of `forward_auth`.
    pub fn suffices_by_address(&self) -> bool {
        let has_rules = !self.allow.is_empty() || !self.deny.is_empty();
        self.satisfy == Satisfy::Any && has_rules
    }

    /// Returns true if the route permits the method.
    pub fn permits_method(&self, method: &[u8]) -> bool {
        self.allow_methods.is_empty() || has_method(&self.allow_methods, method)
    }

    /// Returns true if the rules about clients and users do not apply to the method.
    pub fn is_open_to(&self, method: &[u8]) -> bool {
        has_method(&self.open_methods, method)
    }

    /// Returns the value of `Allow` for a method that the route does not permit.
    pub fn allow_field(&self) -> String {
        let get = self.allow_methods.iter().any(|method| method == "GET");
        let head = get && !self.allow_methods.iter().any(|method| method == "HEAD");
        let names = self.allow_methods.iter().map(String::as_str);
        names.chain(head.then_some("HEAD")).collect::<Vec<_>>().join(", ")
    }

    /// Returns the names of request fields that a token or the server of `forward_auth` sets.
    pub fn set_fields(&self) -> impl Iterator<Item = &str> {
        let by_token = self.jwt.iter().flat_map(|jwt| jwt.copy.iter().map(|(name, _)| name));
        let by_server =
            self.forward_auth.iter().flat_map(|auth| auth.copy.iter().map(|(name, _)| name));
        by_token.chain(by_server).map(String::as_str)
    }

    /// Returns true if a request may have an authenticated user. Otherwise `{user}` is always
    /// empty.
    pub fn names_users(&self) -> bool {
        let of_jwt = self.jwt.as_ref().is_some_and(|jwt| jwt.user.is_some());
        let of_server = self.forward_auth.as_ref().is_some_and(|server| server.user.is_some());
        self.basic_auth.is_some() || self.digest_auth.is_some() || of_jwt || of_server
    }

    /// Returns true if a token or the server of `forward_auth` may name the user of a request.
    pub fn names_users_otherwise(&self) -> bool {
        self.jwt.is_some() || self.forward_auth.is_some()
    }

    /// Returns true if `allow` and `deny` admit this client. `None` is a client of a Unix socket,
    /// which has no address. If `deny` is not empty, such a client is admitted only by `unix` in
    /// `allow`.
    pub fn admits(&self, client: Option<IpAddr>) -> bool {
        let is_in = |rule: &[Clients]| rule.iter().any(|clients| clients.contains(client));
        if is_in(&self.deny) {
            return false;
        }
        // The address of a client of a Unix socket is unknown, and `deny` may contain this address.
        let may_be_denied = client.is_none() && !self.deny.is_empty();
        if may_be_denied {
            self.allow.contains(&Clients::Unix)
        } else {
            self.allow.is_empty() || is_in(&self.allow)
        }
    }

    /// Returns true if `allow` and `deny` refuse all clients of Unix sockets, although both lists
    /// contain only networks and so do not mention these clients.
    pub fn refuses_unix(&self) -> bool {
        !self.admits(None) && ![&self.allow, &self.deny].into_iter().flatten().any(Self::is_bare)
    }

    fn is_bare(clients: &Clients) -> bool {
        !matches!(clients, Clients::Network(_))
    }
}

/// Returns true if the list has the method. `GET` includes `HEAD`.
fn has_method(list: &[String], method: &[u8]) -> bool {
    list.iter().any(|one| one.as_bytes() == method || one == "GET" && method == b"HEAD")
}

/// Users and their passwords, for Basic authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    /// The password file. The path is absolute and was a file when the configuration was loaded.
    pub file: PathBuf,
    /// The users of the file that may use the route. If empty (the default), all users may.
    pub users: Vec<String>,
    /// The name that browsers show when they ask for the password. It has no control characters.
    /// Default `restricted`.
    pub realm: String,
}

/// Users and the hashes of their passwords, for Digest authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestAuth {
    /// The file. The path is absolute and was a file when the configuration was loaded.
    pub file: PathBuf,
    /// The realm of the users. It has no control characters and no colon.
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
    /// Redirects of many old paths, from a file. Requests for other paths go on to the routes
    /// below.
    Moved(MovedPages),
    /// No answer: the search for a route starts again at the first route, with the path of
    /// [`Route::rewrite`].
    Rewrite,
}

impl Action {
    /// Returns the servers of the action, from the route itself or from a group. Returns `None` if
    /// the action has no servers.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Fastcgi(fastcgi) => Some(&fastcgi.upstream),
            Self::AppServer(server) => Some(&server.upstream),
            Self::Ajp(ajp) => Some(&ajp.upstream),
            Self::Proxy(proxy) => Some(&proxy.upstream),
            _ => None,
        }
    }

    /// As [`upstream`](Action::upstream), to change them.
    pub fn upstream_mut(&mut self) -> Option<&mut Arc<Upstream>> {
        match self {
            Self::Fastcgi(fastcgi) => Some(&mut fastcgi.upstream),
            Self::AppServer(server) => Some(&mut server.upstream),
            Self::Ajp(ajp) => Some(&mut ajp.upstream),
            Self::Proxy(proxy) => Some(&mut proxy.upstream),
            _ => None,
        }
    }
}

/// Files of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The directory. The path is absolute and was a directory when the configuration was loaded.
    pub root: PathBuf,
    /// Names of index files, tried in turn for a directory. Default `index.html`. The list may be
    /// empty.
    pub index: Vec<String>,
    /// The answer for a directory that has no index file. Default: no listing.
    pub listing: Listing,
    /// Sends files whose names begin with a dot. Files in `.well-known` are always sent. Default
    /// false.
    pub hidden: bool,
    /// The symbolic links that are followed. Default [`Symlinks::Owner`], like Apache's
    /// SymLinksIfOwnerMatch.
    pub follow_symlinks: Symlinks,
    /// Codings of compressed siblings that may replace a file. The preferred coding comes first.
    /// Default: none.
    pub precompressed: Vec<ContentCoding>,
    /// Tags of languages in lower case, which may end the names of files. The first one is the
    /// default language. Default: none.
    pub languages: Vec<String>,
    /// Media types by the end of a file's name in lower case. Longer ends come first.
    pub types: Vec<(String, String)>,
    /// The media type of other files without a known type. If empty, they have no `Content-Type`.
    /// Default `application/octet-stream`.
    pub default_type: String,
    /// The largest number of ranges in one request, at most 1000. Default 16. 0: ranges are
    /// ignored.
    pub max_ranges: usize,
    /// Selects the later script routes whose scripts run although this route matches first.
    pub scripts: ScriptsBelow,
}

/// Selects script routes after a files route. A selected route runs its scripts although the files
/// route matches first. The scripts of all other script routes get 404.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptsBelow {
    /// Only script routes whose requests all match the files route. They would otherwise never run.
    #[default]
    Covered,
    /// All later script routes.
    All,
    /// No script route.
    Nothing,
}

/// The symbolic links that Forebay follows below the directory `root`.
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

/// Scripts of a directory, or one program. Each request gets a new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgi {
    /// The directory. The path is absolute and was a directory when the configuration was loaded.
    pub dir: PathBuf,
    /// The program for all paths. It is in `dir`, and was a file when the configuration was loaded.
    /// `None`: the path names the script.
    pub program: Option<PathBuf>,
    /// The longest time from the start of the script to the last byte of the reply. Default 60 s.
    pub timeout: Duration,
    /// The largest number of processes at the same time, at least 1. Further requests wait. Default
    /// 64.
    pub max_processes: usize,
    /// The largest reply of a script in bytes, including its head. `u64::MAX`, the default: no
    /// limit.
    pub max_output: u64,
    /// Variables added to those of the request. They replace variables with the same name.
    pub env: BTreeMap<String, String>,
    /// The user that the scripts run as. `None`: the user of Forebay itself.
    pub user: Option<String>,
    /// The group that the scripts run as. `None`: the groups of `user`.
    pub group: Option<String>,
    /// Resource limits of each process.
    pub limits: ProcessLimits,
}

/// A FastCGI application that runs independently of Forebay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fastcgi {
    /// The addresses of the application.
    pub upstream: Arc<Upstream>,
    /// The directory of the scripts, as the application sees it; an absolute path. If the user
    /// typed a relative path, the directory exists on this machine. An absolute path may be on
    /// another machine or in a container. `None`: the application has no script files, and `mount`
    /// is set.
    pub root: Option<PathBuf>,
    /// The prefix that is removed from a path before the script is looked up: whole segments,
    /// without a final slash.
    pub strip_prefix: Option<String>,
    /// The prefix of paths that becomes SCRIPT_NAME. The application then answers every path.
    /// `None`: the path names a script below `root`.
    pub mount: Option<String>,
    /// The script for a path that ends in `/`. Default `index.php`.
    pub index: String,
    /// Endings of the files that may be run. If empty, any file may be run. Default `.php` if
    /// `index` ends in `.php`, else empty.
    pub scripts: Vec<String>,
    /// Parameters added to those of the request.
    pub params: BTreeMap<String, String>,
    /// Uses a connection for more than one request. Default true.
    pub keep_conn: bool,
    /// The largest size of one reply in bytes, including its head. `u64::MAX`, the default: no
    /// limit.
    pub max_output: u64,
    /// The longest time between two reads of a reply. `None`: the time limit of the server.
    pub reply_timeout: Option<Duration>,
    /// Sends several requests at once over one connection.
    pub multiplex: Multiplex,
    /// The largest number of requests at the same time on a shared connection, at least 1. Default
    /// 64.
    pub max_streams: usize,
    /// The largest number of shared connections from each thread to each address.
    /// [`Plan::share_connections`](super::Plan::share_connections) sets this number. Until then
    /// there is no limit.
    pub max_shared: usize,
    /// The number of bytes of one reply that may wait for its client on a shared connection.
    /// Default 1 MiB.
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
    /// If the application reports that it can do this.
    Auto,
}

/// An application that runs independently of Forebay and takes one request for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppServer {
    /// The protocol of the application.
    pub protocol: ServerProtocol,
    /// The addresses of the application.
    pub upstream: Arc<Upstream>,
    /// The directory that the application gets as DOCUMENT_ROOT; an absolute path. If the user
    /// typed a relative path, the directory exists on this machine.
    pub root: Option<PathBuf>,
    /// The prefix of paths that becomes SCRIPT_NAME. It begins with a slash and does not end in
    /// one. If empty (the default of a route), the whole path is PATH_INFO. `None`, only for an
    /// application that Forebay starts: the part of the route's path before its `/*`.
    pub mount: Option<String>,
    /// The longest time between two reads of a reply. `None`: the time limit of the server.
    pub reply_timeout: Option<Duration>,
    /// Variables added to those of the request. They replace variables with the same name.
    pub params: BTreeMap<String, String>,
    /// The largest size of one reply in bytes, including its head. `u64::MAX`, the default: no
    /// limit.
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
    /// The status, 200 to 599. Default 200.
    pub status: u16,
    /// The body. It is empty if the status allows no body.
    pub body: String,
    /// The media type of the body. Default `text/plain; charset=utf-8`.
    pub content_type: String,
}

/// A redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The `Location`: a URL, or a path that begins with `/`. Its text is printable ASCII. The host
    /// never depends on the requested path.
    pub to: Template,
    /// True if the client's query is appended.
    pub keep_query: bool,
    /// The status: 301, 302, 303, 307 or 308. Default 302.
    pub status: u16,
}
