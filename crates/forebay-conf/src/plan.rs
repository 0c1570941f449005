//! The plan: the configuration after every default is filled in, every path is absolute and every
//! name is looked up. Plain data that never changes; a `Plan` that exists is valid.
//!
//! It opens no socket and holds no file handle: a reload builds a second plan and swaps them.

mod ajp;
mod app;
mod compress;
mod pattern;
mod peer;
mod proxy;
mod route;
mod sharing;
mod tls;
mod upstream;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::source::SourceFile;

pub use ajp::{Ajp, AjpFront, Ping, Secret};
pub use app::{
    App, AppKind, AppProtocol, CgroupLimits, Listening, PerlMode, ProcessLimits, PythonMode,
    Workers,
};
pub(crate) use compress::{ALGORITHMS, MIN_SIZE, TYPES};
pub use compress::{Algorithm, Compress, ContentCoding, MediaPattern};
pub use pattern::{HostPattern, Match, Matcher, PathPattern};
pub use peer::{Address, Clients, Listen, Network, Scheme, SocketAccess};
pub use proxy::{HostField, Proxy, Redirects};
pub use route::{
    Access, Action, AppServer, BasicAuth, Cgi, Fastcgi, Files, Multiplex, PathParameters, Redirect,
    RedirectPart, Respond, Route, ScriptsBelow, ServerProtocol, Symlinks,
};
pub use tls::{Acme, AcmeChallenge, BackendTls, CertificateSource, ClientAuth, Tls};
pub use upstream::{
    Activation, Backend, Balance, Health, HttpVersion, ProxyHeader, Sticky, Upstream,
};

/// Everything `forebay serve` needs to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What holds for the whole process.
    pub server: Server,
    /// Where requests are logged.
    pub log: Log,
    /// The sites, in the order of the file. Never empty.
    pub sites: Vec<Site>,
    /// The applications by name. Every [`Action::App`] names one of these.
    pub apps: BTreeMap<String, App>,
    /// The names of groups of servers that no route passes requests to.
    pub unused_upstreams: Vec<String>,
    /// The file it was made of.
    pub file: SourceFile,
}

impl Plan {
    /// Returns who may connect to each Unix socket: by default the user that Forebay becomes, and its
    /// group.
    pub fn socket_accesses(&self) -> BTreeMap<PathBuf, SocketAccess> {
        let Server { user, group, .. } = &self.server;
        let of_site = |site: &Site| {
            let mut access = site.socket_access.clone();
            access.group = access.group.or_else(|| group.clone());
            access.user = access.user.or_else(|| user.clone());
            let paths = site.listen.iter().filter_map(|listen| match listen.socket() {
                Listen::Unix(path) => Some((path.clone(), access.clone())),
                _ => None,
            });
            paths.collect::<Vec<_>>()
        };
        self.sites.iter().flat_map(of_site).collect()
    }
}

/// What holds for the whole process.
#[derive(Clone, Debug)]
pub struct Server {
    /// Threads that serve requests, at least 1. `None`: one per core.
    pub threads: Option<usize>,
    /// Whether threads, and workers with them, keep to processors. Default true.
    pub affinity: bool,
    /// Where `/status`, `/metrics` and `/healthz` are served. `None`: nowhere.
    pub admin: Option<SocketAddr>,
    /// Names that `admin` is asked by, in lower case, beside addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// What `admin` has to be told to restart an application, 16 characters at least.
    pub admin_token: Option<String>,
    /// Whether the steps of each request are timed. Default false.
    pub timing: bool,
    /// How long each step of a request may take.
    pub timeouts: Timeouts,
    /// How large and how many.
    pub limits: Limits,
    /// The user to become once sockets and logs are open. `None`: none.
    pub user: Option<String>,
    /// The group to become. `None`: the groups of `user`.
    pub group: Option<String>,
    /// Where large request bodies are spooled, absolute. `None`: the system's directory for that.
    pub spool_dir: Option<PathBuf>,
    /// How long requests in flight may take to finish after a signal to stop. Default 30 s.
    pub grace: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            threads: None,
            affinity: true,
            admin: None,
            admin_hosts: Vec::new(),
            admin_token: None,
            timing: false,
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            user: None,
            group: None,
            spool_dir: None,
            grace: Duration::from_secs(30),
        }
    }
}

/// How long each step of a request may take. All are more than zero, but for `keep_alive`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of a request head to its last. Default 60 s.
    pub head: Duration,
    /// Between two reads of a request body. Default 60 s.
    pub body_idle: Duration,
    /// Between two reads of a backend's reply, the wait for its head included. Default 60 s.
    pub reply_idle: Duration,
    /// Between two writes to a client that takes nothing. Default 60 s.
    pub write: Duration,
    /// Between two requests on one connection; zero closes it after each reply. Default 75 s.
    pub keep_alive: Duration,
    /// To connect to a backend. Default 10 s.
    pub connect: Duration,
    /// On an upgraded connection that carries nothing in either direction. Default 1 h.
    pub tunnel_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(60),
            body_idle: Duration::from_secs(60),
            reply_idle: Duration::from_secs(60),
            write: Duration::from_secs(60),
            keep_alive: Duration::from_secs(75),
            connect: Duration::from_secs(10),
            tunnel_idle: Duration::from_secs(3600),
        }
    }
}

/// How large and how many. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A whole request head, request line included. Default 32 KiB.
    pub head_size: usize,
    /// Header fields in a request. Default 100.
    pub fields: usize,
    /// The request target, always less than `head_size`. Default 8 KiB.
    pub target: usize,
    /// A request body; `u64::MAX` where the file says `"unlimited"`. Default 16 MiB.
    pub max_body: u64,
    /// Bytes per second that a request body has to come in at. Default 0: no limit.
    pub body_rate: u64,
    /// Client connections at once. Default 0: what the limit on open files allows.
    pub connections: usize,
    /// Client connections at once from one address. Default 0: no limit.
    pub connections_per_address: usize,
    /// Whether GET and HEAD may have a body. Default false.
    pub get_body: bool,
    /// Requests on one client connection before it is closed. Default 0: no limit.
    pub keepalive_requests: u64,
    /// What is kept in memory of one reply for a slow client. Default 64 KiB.
    pub buffer_memory: u64,
    /// What is kept in a file of one reply for a slow client. Default 256 MiB.
    pub buffer_file: u64,
    /// What is kept of all replies together. Default 2 GiB.
    pub buffer_total: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_size: 32 * 1024,
            fields: 100,
            target: 8 * 1024,
            max_body: 16 * 1024 * 1024,
            body_rate: 0,
            connections: 0,
            connections_per_address: 0,
            get_body: false,
            keepalive_requests: 0,
            buffer_memory: 64 * 1024,
            buffer_file: 256 * 1024 * 1024,
            buffer_total: 2 * 1024 * 1024 * 1024,
        }
    }
}

/// Where requests are logged. Errors always go to standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Where a line per request goes.
    pub access: AccessLog,
    /// What the line looks like.
    pub format: Format,
}

/// Where a line per request goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere. The default.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// A file, appended to; its directory exists.
    Path(PathBuf),
}

/// What a line of the access log looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// NCSA common log format.
    Common,
    /// Common with referrer and user agent. The default.
    #[default]
    Combined,
    /// One JSON object per line.
    Json,
    /// Apache's `%` directives; holds at least one `%` and no line break.
    Pattern(String),
}

/// Listeners, the host names they answer for, and what to do with each path.
#[derive(Clone, Debug)]
pub struct Site {
    /// Where it listens. Never empty.
    pub listen: Vec<Listen>,
    /// The host names it answers for. Never empty; any host is [`HostPattern::Any`].
    pub hosts: Vec<HostPattern>,
    /// Peers whose `X-Forwarded-For`, `Forwarded` and `PROXY` line are believed.
    pub trusted_proxies: Vec<Clients>,
    /// Which fields they write. Default [`ForwardedFields::Either`].
    pub forwarded: ForwardedFields,
    /// Whether connections begin with a PROXY header. The same for all sites of a listener.
    pub proxy_protocol: bool,
    /// What its `ajp://` listeners ask for; some where it has such a listener. The same for all sites
    /// of a listener.
    pub ajp: Option<AjpFront>,
    /// Mode and owner of its Unix sockets. All sites of a listener have the same.
    pub socket_access: SocketAccess,
    /// What becomes of paths with `%2F` or a backslash. Default [`EncodedSlashes::Refuse`].
    pub encoded_slashes: EncodedSlashes,
    /// The port of `https://` that requests without TLS are sent to.
    pub redirect_to_https: Option<u16>,
    /// What its `https://` listeners show their clients; some where it has such a listener.
    pub tls: Option<Tls>,
    /// What to do with a request: the first that matches. Never empty.
    pub routes: Vec<Route>,
    /// The line of the file that the site begins on, from 1; 0 where there is no file.
    pub line: usize,
}

/// Which fields trusted proxies write about clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedFields {
    /// One of the two sorts, or both with the same in them.
    #[default]
    Either,
    /// `X-Forwarded-For` and `X-Forwarded-Proto`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// What becomes of paths with slashes in disguise: `%2F`, a backslash or `%5C`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedSlashes {
    /// They are answered with 404.
    #[default]
    Refuse,
    /// They are passed on as they came, where the route is the same as if they were slashes.
    Pass,
}

impl Site {
    /// Returns true if it trusts proxies on a Unix socket because it trusts 127.0.0.1, which was their
    /// address before `"unix"` named them.
    pub fn trusts_unix_by_address(&self) -> bool {
        let local = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.trusted_proxies.iter().any(|proxy| proxy.contains(local))
            && !self.trusted_proxies.contains(&Clients::Unix)
    }

    /// The first route that takes the request, and what its pattern matched.
    ///
    /// `path` is decoded, normalised and without its query.
    pub fn route<'s, 'p>(
        &'s self,
        method: &[u8],
        path: &'p [u8],
    ) -> Option<(&'s Route, Match<'p>)> {
        self.routes.iter().find_map(|route| Some((route, route.matcher.matches(method, path)?)))
    }
}
