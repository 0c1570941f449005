//! The plan is the configuration with all defaults filled in, all paths absolute and all names
//! resolved. A plan is plain data that does not change while Forebay serves requests. Every `Plan`
//! value is valid.
//!
//! A plan holds no sockets and no open files. A reload builds a second plan, which replaces the
//! first.

mod access;
mod action;
mod app;
mod log;
mod mirror;
mod networks;
mod pattern;
mod peer;
mod regex;
mod relay;
mod reply;
mod route;
mod secret;
mod sharing;
mod store;
mod template;
mod tls;
mod upstream;
mod when;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::source::SourceFile;

pub use access::{
    BandwidthLimit, Challenge, ConcurrencyLimit, Crawler, ForwardAuth, Jwt, JwtKeys, KeyUrl,
    RateLimit, RouteTimeouts, Satisfy, SignedUrl, TokenSource,
};
pub(crate) use access::{PUBLIC_ALGORITHMS, SECRET_ALGORITHMS};
pub use action::{
    Action, AppServer, Cgi, Fastcgi, Files, Listing, ListingPart, ListingTemplate, ListingValue,
    Moved, MovedEntries, MovedPages, Multiplex, Redirect, Respond, ScriptsBelow, ServerProtocol,
    Symlinks,
};
pub use app::{
    App, AppKind, AppProtocol, CgroupLimits, Listening, PerlMode, ProcessLimits, PythonMode,
    Workers,
};
pub use log::{
    AccessLog, Collector, ErrorFormat, Format, Level, Log, LogFile, LogSender, LogService,
    LogValue, Metrics, Rotation, TraceClients, Traces,
};
pub use mirror::Mirror;
pub use networks::{Geo, MAX_LIST_BYTES, NetworkList, NetworkSource, NetworkUrl};
pub use pattern::{
    HostPattern, MAX_HEADS, Match, Matcher, PathPattern, ends_in_any_case, looks_like_file_name,
};
pub use peer::{Address, Clients, Listen, Network, Scheme, SocketAccess};
pub use regex::Regex;
pub use relay::Relay;
pub(crate) use reply::{ALGORITHMS, MIN_SIZE, TYPES, has_script, is_plain};
pub use reply::{
    Algorithm, Cache, CacheDisk, Compress, ContentCoding, CookieName, Cors, ErrorPages, Filters,
    Maintenance, MediaPattern, OriginPattern, Page, PageKind, Replace, ReplaceEscape, ReplyField,
    RequestChange, RequestField, Rewrite, Ssi, Statuses,
};
pub use route::{
    Access, BasicAuth, DigestAuth, Expectation, ExpectedAnswer, Fingerprint, Inherited, OnAbort,
    PathParameters, Route,
};
pub use secret::Secret;
pub use store::{RedisServer, SharedStore, StorePlace};
pub(crate) use template::is_taken;
pub use template::{Placeholder, Scope, Template, TemplatePart, UnknownPlaceholder, ValueMap};
pub use tls::{
    Acme, AcmeChallenge, AskUrl, BackendTls, CertificateSource, Cipher, ClientAuth, Curve,
    ExternalAccount, OnDemand, Tls,
};
pub use upstream::{
    Activation, Ajp, AjpFront, Backend, Balance, Health, HostField, HttpVersion, Ping, Proxy,
    ProxyHeader, Redirects, StatusRanges, StatusRetry, Sticky, Upstream,
};
pub use when::{Places, ValuePattern, ValueTest, Variable, When};

/// The complete input of `forebay serve`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Settings of the whole process.
    pub server: Server,
    /// The access logs, and the settings of the error log.
    pub log: Log,
    /// The sites, in the order of the file. Only a plan with streams may have none.
    pub sites: Vec<Site>,
    /// The streams, in the order of the file.
    pub relays: Vec<Relay>,
    /// The applications by name. Every [`Action::App`] names one of these.
    pub apps: BTreeMap<String, App>,
    /// The names of groups [upstream.NAME] that no route passes requests to.
    pub unused_upstreams: Vec<String>,
    /// The file that the plan was made from.
    pub file: SourceFile,
}

impl Plan {
    /// Returns the mode, owner and group of each Unix socket. By default, a socket belongs to the
    /// user and group that Forebay switches to.
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
        let of_streams = self.relays.iter().flat_map(|relay| &relay.listen);
        let of_streams = of_streams.filter_map(|listen| match listen.socket() {
            Listen::Unix(path) => Some((
                path.clone(),
                SocketAccess {
                    user: user.clone(),
                    group: group.clone(),
                    ..SocketAccess::default()
                },
            )),
            _ => None,
        });
        self.sites.iter().flat_map(of_site).chain(of_streams).collect()
    }
}

/// Settings of the whole process.
#[derive(Clone, Debug)]
pub struct Server {
    /// The number of threads that serve requests, at least 1. `None`: one for each processor that
    /// Forebay may use.
    pub threads: Option<usize>,
    /// Binds each thread to a processor. If the requests of a worker never wait, the worker runs on
    /// the processor of the thread that sends these requests. Default true.
    pub affinity: bool,
    /// The administrator's listener, [`Listen::Tcp`] or [`Listen::Unix`]. `None`: there is none.
    pub admin: Option<Listen>,
    /// Mode and owner of the Unix socket in `admin`. Default mode 0600.
    pub admin_access: SocketAccess,
    /// Host names that clients of `admin` may use, in lower case, besides IP addresses and
    /// `localhost`.
    pub admin_hosts: Vec<String>,
    /// The secret for changes through `admin` over TCP, at least 16 characters.
    pub admin_token: Option<String>,
    /// Measures the time of each step of a request. Default false.
    pub timing: bool,
    /// True if requests are counted by route, method and status. Default false.
    pub route_metrics: bool,
    /// Time limits for each step of a request.
    pub timeouts: Timeouts,
    /// Limits on sizes and numbers.
    pub limits: Limits,
    /// The user to switch to after sockets and logs are open. `None`: no switch.
    pub user: Option<String>,
    /// The group to switch to. `None`: the groups of `user`.
    pub group: Option<String>,
    /// The user of applications and scripts without their own. Their plans contain it already.
    pub app_user: Option<String>,
    /// The directory for large request bodies and for the unread parts of replies; an absolute
    /// path. `None`: the system's temporary directory.
    pub spool_dir: Option<PathBuf>,
    /// The DNS servers that resolve the names of backends. If empty, the DNS servers of the system.
    pub dns_servers: Vec<SocketAddr>,
    /// The memory for stored replies, in bytes. Default 64 MiB.
    pub cache_memory: u64,
    /// The place for stored replies on disk. `None`: replies are stored only in memory.
    pub cache_disk: Option<CacheDisk>,
    /// The store that several machines share. `None`: nothing is shared.
    pub store: Option<Box<SharedStore>>,
    /// The time that open requests get to finish after a signal to stop. Default 30 s.
    pub grace: Duration,
    /// The time from a signal to stop to the start of `grace`. Requests are served in this time.
    /// Default 0 s.
    pub drain_delay: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            threads: None,
            affinity: true,
            admin: None,
            admin_access: SocketAccess { mode: 0o600, ..SocketAccess::default() },
            admin_hosts: Vec::new(),
            admin_token: None,
            timing: false,
            route_metrics: false,
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            user: None,
            group: None,
            app_user: None,
            spool_dir: None,
            dns_servers: Vec::new(),
            cache_memory: 64 * 1024 * 1024,
            cache_disk: None,
            store: None,
            grace: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
        }
    }
}

/// Time limits for each step of a request. Only `keep_alive` may be zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit from the first byte of a request head to its last byte. Default 60 s.
    pub head: Duration,
    /// Limit between two reads of a request body. Default 60 s.
    pub body_idle: Duration,
    /// Limit between two reads of a backend's reply, including the wait for its head. Default 60 s.
    pub reply_idle: Duration,
    /// The longest time that a write waits for a client that reads nothing. Default 60 s.
    pub write: Duration,
    /// Limit between two requests on one connection. Zero closes the connection after each reply.
    /// Default 75 s.
    pub keep_alive: Duration,
    /// Limit of the time for which the rest of an answered request is dropped. Default 30 s.
    pub linger: Duration,
    /// Limit of the time to connect to a backend. Default 10 s.
    pub connect: Duration,
    /// Limit of the time without data in either direction on an upgraded connection. Default 1 h.
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
            linger: Duration::from_secs(30),
            connect: Duration::from_secs(10),
            tunnel_idle: Duration::from_secs(3600),
        }
    }
}

/// Limits on sizes (in bytes) and on numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest size of a request head, including the request line. Default 32 KiB.
    pub head_size: usize,
    /// The largest number of header fields in a request. Default 100.
    pub fields: usize,
    /// The longest request target; always shorter than `head_size`. Default 8 KiB.
    pub target: usize,
    /// The largest request body; `u64::MAX` for `"unlimited"`. Default 16 MiB.
    pub max_body: u64,
    /// The largest rest of an answered request that is dropped. Default 256 MiB.
    pub linger_size: u64,
    /// The largest head of a reply from a backend or application. Default 64 KiB.
    pub reply_head_size: usize,
    /// The largest number of header fields in such a reply. Default 1000.
    pub reply_fields: usize,
    /// The lowest average rate of a request body in bytes per second. Default 0: no limit.
    pub body_rate: u64,
    /// The largest number of open client connections. Default 0: as many as the limit on open files
    /// allows.
    pub connections: usize,
    /// The largest number of open client connections from one address. 0: no limit. `None`: an
    /// eighth of `connections`, but at least 512 and at most 8192.
    pub connections_per_address: Option<usize>,
    /// Accepts GET and HEAD requests with a body. Default false.
    pub get_body: bool,
    /// The number of requests after which a client connection is closed. Default 0: no limit.
    pub keepalive_requests: u64,
    /// The memory for the unread part of one reply to a slow client. Default 64 KiB.
    pub buffer_memory: u64,
    /// The file space for the unread part of one reply to a slow client. Default 256 MiB.
    pub buffer_file: u64,
    /// The total memory and file space for the unread parts of all replies. Default 2 GiB.
    pub buffer_total: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_size: 32 * 1024,
            fields: 100,
            target: 8 * 1024,
            max_body: 16 * 1024 * 1024,
            linger_size: 256 * 1024 * 1024,
            reply_head_size: 64 * 1024,
            reply_fields: 1000,
            body_rate: 0,
            connections: 0,
            connections_per_address: None,
            get_body: false,
            keepalive_requests: 0,
            buffer_memory: 64 * 1024,
            buffer_file: 256 * 1024 * 1024,
            buffer_total: 2 * 1024 * 1024 * 1024,
        }
    }
}

impl Plan {
    /// Returns the index in [`Log::files`] of the log for the requests of a site, or of one of its
    /// routes. Returns `None` if these requests are not logged.
    pub fn log_of(&self, site: &Site, route: Option<&Route>) -> Option<usize> {
        if route.is_some_and(|route| !route.log) {
            return None;
        }
        let own = route.and_then(|route| route.own_log.as_ref()).or(site.log.as_ref());
        let Some(own) = own else { return Some(0) };
        self.log.files().position(|file| file == *own).filter(|_| own.access != AccessLog::Off)
    }

    /// Adds the logs of sites and routes to the list of logs, each log once.
    pub(crate) fn collect_logs(&mut self) {
        let of_site = |site: &Site| {
            let routes = site.routes.iter().filter_map(|route| route.own_log.clone());
            site.log.iter().cloned().chain(routes).collect::<Vec<_>>()
        };
        for own in self.sites.iter().flat_map(of_site) {
            let is_known = self.log.files().any(|file| file == own);
            if !is_known && own.access != AccessLog::Off {
                self.log.others.push(own);
            }
        }
    }
}

/// A site: its listeners, its host names, and the routes that answer its requests.
#[derive(Clone, Debug)]
pub struct Site {
    /// The listeners. Never empty.
    pub listen: Vec<Listen>,
    /// The access log of the site. `None`: the log of `[log]`.
    pub log: Option<LogFile>,
    /// The host names of the site. Never empty; [`HostPattern::Any`] matches any host.
    pub hosts: Vec<HostPattern>,
    /// Peers whose `X-Forwarded-For`, `Forwarded` and `PROXY` header are trusted.
    pub trusted_proxies: Vec<Clients>,
    /// Lists of further trusted proxies.
    pub proxy_lists: Vec<Arc<NetworkList>>,
    /// The fields that trusted proxies write. Default [`ForwardedFields::Either`].
    pub forwarded: ForwardedFields,
    /// True if connections begin with a PROXY header. All sites of a listener have the same value.
    pub proxy_protocol: bool,
    /// Requirements of the `ajp://` listeners; `Some` if the site has such a listener. All sites of
    /// a listener have the same requirements.
    pub ajp: Option<AjpFront>,
    /// Mode and owner of the site's Unix sockets. All sites of a listener have the same values.
    pub socket_access: SocketAccess,
    /// The treatment of paths with `%2F`, a backslash or `%5C`. Default [`EncodedSlashes::Auto`].
    pub encoded_slashes: EncodedSlashes,
    /// Merges repeated slashes in paths. Default true.
    pub merge_slashes: bool,
    /// Passes request fields whose names contain marks other than hyphens. Default false.
    pub underscores_in_headers: bool,
    /// Redirects requests without TLS to an `https://` URL with this port. `None`: no such
    /// redirects.
    pub redirect_to_https: Option<u16>,
    /// Certificate and settings of the `https://` listeners; `Some` if the site has such a
    /// listener.
    pub tls: Option<Tls>,
    /// Pages for errors before a route is found. Each route has its own list of pages, which
    /// includes these pages.
    pub error_pages: ErrorPages,
    /// The routes. The first route that matches answers the request. Never empty.
    pub routes: Vec<Route>,
    /// Number of the site's first line in its file, from 1; 0 if the plan was not made from a file.
    pub line: usize,
    /// The included file that contains the site; `None` for the configuration file itself.
    pub file: Option<String>,
    /// Tests of the site's routes, for `forebay check`.
    pub expect: Vec<Expectation>,
    /// The keys of the site that come from `[defaults]`.
    pub inherited: Vec<Inherited>,
}

/// The request fields that trusted proxies write about clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForwardedFields {
    /// Either kind of field, or both kinds if they agree.
    #[default]
    Either,
    /// `X-Forwarded-For` and `X-Forwarded-Proto`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// The field of this name, in lower case, with the client's address, and `X-Forwarded-Proto`.
    Named(String),
}

/// The treatment of paths with `%2F`, a backslash or `%5C`, which a backend may read as a slash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedSlashes {
    /// As [`Self::Pass`], but such a path gets 404 where a server of `forward_auth` decides about
    /// it.
    #[default]
    Auto,
    /// Such a path gets 404.
    Refuse,
    /// Such a path is passed on unchanged. But if another route would match the path with real
    /// slashes, the path gets 404.
    Pass,
}

impl Site {
    /// Returns true if the site trusts 127.0.0.1, but does not list `"unix"`. The site then also
    /// trusts proxies on Unix sockets, but its configuration should name them with `"unix"`.
    pub fn trusts_unix_by_address(&self) -> bool {
        let local = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.trusted_proxies.iter().any(|proxy| proxy.contains(local))
            && !self.trusted_proxies.contains(&Clients::Unix)
    }

    /// Returns the first route that matches the request, and the part that its pattern matched.
    /// Returns `None` if no route matches.
    ///
    /// `path` is decoded and normalized, and has no query.
    pub fn route<'s, 'p>(
        &'s self,
        method: &[u8],
        path: &'p [u8],
    ) -> Option<(&'s Route, Match<'p>)> {
        self.routes.iter().find_map(|route| Some((route, route.matcher.matches(method, path)?)))
    }
}
