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
mod rate;
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

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf_derive::{Choice, Table};

use crate::error::Problem;
use crate::key::{AboveZero, Bytes, Given, Resolution, Unlimited, Whole};
use crate::left_out::LeftOut;
use crate::source::SourceFile;

pub use access::{
    BandwidthLimit, Challenge, ConcurrencyLimit, Crawler, ForwardAuth, Jwt, JwtKeys, KeyUrl,
    RateLimit, RouteTimeouts, Satisfy, SignatureAlgorithm, SignedUrl, TokenSource,
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
pub use rate::Rate;
pub use regex::Regex;
pub use relay::Relay;
pub use reply::{
    Algorithm, Cache, CacheDisk, Compress, ContentCoding, CookieAttributes, CookieName, Cors,
    ErrorPages, Expires, Filters, Levels, Maintenance, MediaPattern, OriginPattern, Page, PageKind,
    Replace, ReplaceEscape, ReplyChange, ReplyField, RequestChange, RequestField, Rewrite,
    SameSite, Ssi, Statuses,
};
pub(crate) use reply::{has_script, is_plain};
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
pub(crate) use upstream::StatusesFrom;
pub use upstream::{
    Activation, Ajp, AjpFront, Backend, Balance, Health, HostField, HttpVersion, Ping, Proxy,
    ProxyHeader, Redirects, StatusRanges, StatusRetry, Sticky, Upstream,
};
pub(crate) use when::matches_some;
pub use when::{ValuePattern, ValueTest, Variable, When};

/// The complete input of `forebay serve`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Settings of the whole process.
    pub server: Server,
    /// The access logs, and the settings of the error log.
    pub log: Log,
    /// The sites, in the order of the file. Only a plan with streams may have none. Plans that differ
    /// in few sites, as after a change by the administrator, share all others in memory.
    pub sites: Vec<Arc<Site>>,
    /// The streams, in the order of the file.
    pub relays: Vec<Relay>,
    /// The applications by name. Every [`Action::App`] names one of these.
    pub apps: BTreeMap<String, App>,
    /// The names of groups [upstream.NAME] that no route passes requests to.
    pub unused_upstreams: Vec<String>,
    /// The file that the plan was made from.
    pub file: SourceFile,
    /// The directories of `hosts_from` and `users_from` that have a problem.
    pub left_out: LeftOut,
    /// The applications that belong to one directory of `hosts_from` or `users_from`. What is wrong
    /// with them concerns only this directory.
    pub own_apps: BTreeSet<String>,
    /// The patterns of directories whose owners may run applications: what precedes and what follows
    /// the name of the directory.
    pub owner_patterns: Vec<(PathBuf, PathBuf)>,
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
        self.sites.iter().flat_map(|site| of_site(site)).chain(of_streams).collect()
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

/// Time limits for each step of a request.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(default)]
pub struct Timeouts {
    /// The longest time from the first byte of a request head to its last.
    #[key(as = AboveZero, default = "60s")]
    pub head: Duration,
    /// The longest time between two reads of a request body.
    #[key(as = AboveZero, default = "60s")]
    pub body_idle: Duration,
    /// The longest time between two reads of a backend's reply, including the wait for its head.
    #[key(as = AboveZero, default = "60s")]
    pub reply_idle: Duration,
    /// The longest time that a write waits because the client reads nothing.
    #[key(as = AboveZero, default = "60s")]
    pub write: Duration,
    /// The longest time between two requests on one connection. "0s" closes the connection after
    /// each reply.
    #[key(default = "75s")]
    pub keep_alive: Duration,
    /// The longest time for which Forebay reads and drops the rest of a request that it has already
    /// answered, so that the client can read the reply. A client that is silent for 2 s is not
    /// waited for.
    #[key(as = AboveZero, default = "30s")]
    pub linger: Duration,
    /// The longest time to connect to a backend.
    #[key(as = AboveZero, default = "10s")]
    pub connect: Duration,
    /// The longest time without data on an upgraded connection, such as a WebSocket, and in an event
    /// stream or a gRPC call, unless their `reply_idle` is longer.
    #[key(as = AboveZero, default = "1h")]
    pub tunnel_idle: Duration,
}

/// Limits on sizes and numbers.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(default, check = fits)]
pub struct Limits {
    /// The largest request head, including the request line.
    #[key(as = Bytes<1024, { 1024 * 1024 }>, default = "32KiB")]
    pub head_size: usize,
    /// The largest number of header fields in a request. Over HTTP/2 and HTTP/3, all `cookie` fields
    /// count as one, and pseudo-fields such as `:path` do not count.
    #[key(as = Whole<1, 10_000>, default = 100)]
    pub fields: usize,
    /// The longest request target (path and query).
    #[key(as = Bytes<64, { 1024 * 1024 }>, default = "8KiB")]
    pub target: usize,
    /// The largest request body, or "unlimited". A site or route may set its own.
    #[key(as = Unlimited, default = "16MiB")]
    pub max_body: u64,
    /// The largest rest of a request that Forebay reads and drops after the reply (see `linger` of
    /// [server.timeouts]).
    #[key(as = Bytes, default = "256MiB")]
    pub linger_size: u64,
    /// The largest head of a reply from a backend, application or script.
    #[key(as = Bytes<1024, { 16 * 1024 * 1024 }>, default = "64KiB")]
    pub reply_head_size: usize,
    /// The largest number of header fields in a reply from a backend, application or script.
    #[key(as = Whole<1, 100_000>, default = 1000)]
    pub reply_fields: usize,
    /// The lowest average rate of a request body, in bytes per second. With 1000, a body of 60000
    /// bytes may take 60 seconds plus `body_idle` of [server.timeouts]. 0: no limit.
    #[key(as = Bytes, default = 0)]
    pub body_rate: u64,
    /// The largest number of open client connections. 0: as many as the limit on open files allows.
    #[key(default = 0)]
    pub connections: usize,
    /// The largest number of open client connections from one address, or one IPv6 network (/64).
    /// Trusted proxies may have any number. 0: no limit. Default: an eighth of `connections`, but
    /// at least 512 and at most 8192. The default limit does not apply to loopback and private
    /// addresses.
    pub connections_per_address: Option<usize>,
    /// Accepts GET and HEAD requests with a body, such as those to Elasticsearch. With false they
    /// get 400.
    #[key(default = false)]
    pub get_body: bool,
    /// The number of requests after which Forebay closes a client connection. 0: no limit.
    #[key(default = 0)]
    pub keepalive_requests: u64,
    /// The memory for the part of one reply that the client has not read yet (see `buffer` of a
    /// route). The rest goes to a file.
    #[key(as = Bytes, default = "64KiB")]
    pub buffer_memory: u64,
    /// The space in `spool_dir` for the unread part of one reply, after `buffer_memory` is full. At
    /// this limit, Forebay stops reading from the application or server. 0: no file.
    #[key(as = Bytes, default = "256MiB")]
    pub buffer_file: u64,
    /// The memory and file space, in total, for the unread parts of all replies, and the memory for
    /// request bodies that have not arrived completely. At this limit, replies wait for their
    /// clients, and such requests get 503.
    #[key(as = Bytes, default = "2GiB")]
    pub buffer_total: u64,
}

/// The largest request target must fit into the largest head. If only the head is small, the target
/// is at most half of it.
fn fits(limits: &mut Limits, given: &Given<'_, '_>) -> Resolution<()> {
    let (head, target) = (limits.head_size, limits.target);
    match given.span("target") {
        None => limits.target = target.min(head / 2),
        Some(span) if target >= head => {
            return Err(Problem::new(&span, format!("a target of {target} bytes never fits"))
                .label("not less than `head_size`")
                .help(format!("a whole request head has {head} bytes (`head_size`)")));
        }
        Some(_) => {}
    }
    Ok(())
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
        for own in self.sites.iter().flat_map(|site| of_site(site)) {
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

/// The treatment of paths that contain %2F, a backslash or %5C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum EncodedSlashes {
    /// Passes such a path on, except where a server of `forward_auth` decides about it, because
    /// that server and the backend may read the path differently. It then gets 404.
    #[default]
    Auto,
    /// Such a path gets 404.
    Refuse,
    /// Passes such a path on, also after `forward_auth`.
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
