//! Selects the site and the route of a request.

use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{
    AjpFront, BandwidthLimit, Clients, Cors, EncodedSlashes, ErrorPages, HostPattern, Listen,
    OnAbort, RouteTimeouts,
};
use forebay_net::counters::RouteCounters;
use forebay_net::request_fields::RequestFields;
use forebay_net::tls::{Challenges, ServerTls};
use forebay_wire::ClientAddress;
use forebay_wire::http1::host_of;
use forebay_wire::path::Slashes;

use crate::compress::Compression;
use crate::decide::RouteFacts;
use crate::exchange::{Gate, Origin};
use crate::filter::Filters;
use crate::forwarded::Trust;
use crate::pages::Closed;
use crate::relay::Relay;
use crate::reply::Rules;

/// The sites of each listener. Each thread has its own table.
#[derive(Default)]
pub struct Table {
    /// Sites per listener, in the server's order of listeners. A listener that the last reload closed
    /// keeps its former sites until the next reload.
    pub listeners: Vec<Vec<Rc<Site>>>,
    /// Listeners that the last reload closed. Their connections end with the next reply.
    pub(crate) leaving: Vec<usize>,
    /// Protocol of each listener's connections.
    spoken: Vec<Spoken>,
    /// Streams (`[[stream]]`) per listener, in the order of `listeners`.
    pub relays: Vec<Vec<Rc<Relay>>>,
    /// Current challenges of ACME authorities.
    pub challenges: Option<Arc<Challenges>>,
}

/// Protocol with which a connection begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Spoken {
    #[default]
    Http,
    Tls,
    Ajp,
    Stream,
}

/// A site.
pub struct Site {
    /// Name of the site in logs and traces.
    pub name: Rc<str>,
    /// Host names of the site. Empty for any host.
    pub hosts: Vec<HostPattern>,
    /// Host names of all sites of the configuration.
    pub all_hosts: Rc<[HostPattern]>,
    /// Trusted proxies and their forwarding fields.
    pub trust: Trust,
    /// True if connections begin with a PROXY header.
    pub proxy_protocol: bool,
    /// Settings for web servers that forward requests over AJP.
    pub ajp: Option<AjpFront>,
    /// True if the site's TLS listeners also offer HTTP/3.
    pub http3: bool,
    /// Redirects clients without TLS to HTTPS, if configured.
    pub redirect_to_https: Option<Box<dyn Origin>>,
    /// TLS settings of the site. `None` for a site without TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Treatment of paths with encoded slashes or backslashes.
    pub encoded_slashes: EncodedSlashes,
    /// Treatment of repeated slashes in paths.
    pub slashes: Slashes,
    /// True if request fields with names such as `x_user`, which have marks other than hyphens, are
    /// passed on.
    pub passes_marks: bool,
    /// Token of the site's configuration. The applications of the configuration can be stopped when
    /// no site holds the token any longer.
    pub held: Arc<()>,
    /// Number of the access log for requests that no route answers.
    pub log: Option<usize>,
    /// Error pages for errors before a route is found.
    pub pages: Option<Rc<ErrorPages>>,
    /// Routes. The first route that matches and does not decline answers the request.
    pub routes: Vec<Route>,
}

/// A route of a site.
// More than 20 fields: one for each step of a request that a route can change. The gateway sets
// them once, when it reads the configuration.
pub struct Route {
    /// Name of the route in logs and traces.
    pub name: Rc<str>,
    /// What selects the requests of the route, and protects them.
    pub facts: RouteFacts,
    /// Answers the requests.
    pub origin: Box<dyn Origin>,
    /// Access check. `None` means no restriction.
    pub gate: Option<Box<dyn Gate>>,
    /// Number of the access log for the route's requests. `None` if they are not logged.
    pub log: Option<usize>,
    /// Counters of the route's requests. `None` if routes are not counted.
    pub counters: Option<Arc<RouteCounters>>,
    /// Changes to the fields of requests.
    pub fields: Option<Rc<RequestFields>>,
    /// Changes to the head of replies.
    pub rules: Option<Rc<Rules>>,
    /// Error pages. `None` means short built-in pages.
    pub pages: Option<Rc<ErrorPages>>,
    /// True if the pages also replace error replies of the origin.
    pub intercepts: bool,
    /// The page that answers while the route is closed.
    pub closed: Option<Box<Closed>>,
    /// Web pages of other origins that may use the route.
    pub cors: Option<Rc<Cors>>,
    /// Changes to the bodies of replies.
    pub filters: Option<Rc<Filters>>,
    /// Compression of replies. `None` means no compression.
    pub compression: Option<Rc<Compression>>,
    /// Limit on the speed of replies.
    pub bandwidth_limit: Option<BandwidthLimit>,
    /// Time limits for slow clients.
    pub timeouts: RouteTimeouts,
    /// Maximum size of a request body in bytes.
    pub max_body: u64,
    /// What happens to a request whose client has left.
    pub on_abort: OnAbort,
    /// Time limit of a request that runs on after its client has left.
    pub runs_on: Duration,
    /// True if reply bytes that a slow client does not accept are buffered.
    pub buffer: bool,
    /// True if the complete request body is read before the origin is called.
    pub request_buffering: bool,
    /// Sends the files that the origin's replies name.
    pub sendfile: Option<Sendfile>,
    /// True if a reply may name an internal route that answers instead (`X-Accel-Redirect`).
    pub internal_redirects: bool,
}

/// Sends files that an origin names.
pub struct Sendfile {
    /// Directory that must contain the files that absolute paths name.
    pub root: PathBuf,
    /// Sends the file that the request's path names, below the directory.
    pub files: Box<dyn Origin>,
}

impl AsRef<RouteFacts> for Route {
    fn as_ref(&self) -> &RouteFacts {
        &self.facts
    }
}

impl Table {
    /// Creates a table from the sites and the address of each listener.
    pub fn new(listeners: Vec<(Vec<Rc<Site>>, Option<&Listen>)>) -> Self {
        let spoken = |listen: Option<&Listen>| match listen {
            Some(Listen::Https(_)) => Spoken::Tls,
            Some(Listen::Ajp(_)) => Spoken::Ajp,
            Some(Listen::Stream(_)) => Spoken::Stream,
            _ => Spoken::Http,
        };
        let (listeners, spoken) =
            listeners.into_iter().map(|(sites, listen)| (sites, spoken(listen))).unzip();
        Self { listeners, leaving: Vec::new(), spoken, relays: Vec::new(), challenges: None }
    }

    /// Returns true if connections of a listener begin with a TLS handshake.
    pub fn is_https(&self, listener: usize) -> bool {
        self.spoken(listener) == Spoken::Tls
    }

    /// Returns true if a listener belongs to a `[[stream]]`.
    pub fn is_stream(&self, listener: usize) -> bool {
        self.spoken(listener) == Spoken::Stream
    }

    /// Returns the streams of a listener.
    pub fn relays(&self, listener: usize) -> &[Rc<Relay>] {
        self.relays.get(listener).map_or(&[], |relays| relays)
    }

    /// Returns the stream that a client selects with `server_name` (SNI), or `None` if no stream
    /// fits. The order of preference is: exact name, longest wildcard, stream without names.
    pub fn relay(&self, listener: usize, server_name: Option<&str>) -> Option<&Rc<Relay>> {
        let name = server_name.unwrap_or_default().as_bytes();
        best_relay(self.relays(listener).iter().map(|relay| &relay.names[..]), name)
            .map(|at| &self.relays(listener)[at])
    }

    /// Returns the settings of a listener that speaks AJP. Returns `None` for other listeners.
    pub fn ajp(&self, listener: usize) -> Option<&AjpFront> {
        let is_ajp = self.spoken(listener) == Spoken::Ajp;
        self.sites(listener).iter().find_map(|site| site.ajp.as_ref()).filter(|_| is_ajp)
    }

    fn spoken(&self, listener: usize) -> Spoken {
        self.spoken.get(listener).copied().unwrap_or_default()
    }

    /// Returns the TLS settings of the site that a client selects with `server_name` (SNI). Returns
    /// `None` if the site has no TLS.
    pub fn tls(&self, listener: usize, server_name: Option<&str>) -> Option<&Arc<ServerTls>> {
        self.site(listener, server_name.unwrap_or_default().as_bytes())?.tls.as_ref()
    }

    /// Returns true if connections of a listener begin with a PROXY header.
    pub(crate) fn is_proxied(&self, listener: usize) -> bool {
        self.sites(listener).iter().any(|site| site.proxy_protocol)
            || self.relays(listener).iter().any(|relay| relay.proxy_protocol)
    }

    /// Returns true if the peer may name the client in a PROXY header. If no site or stream of the
    /// listener lists trusted proxies, returns true for every peer.
    pub(crate) fn may_announce(&self, listener: usize, peer: ClientAddress) -> bool {
        let mut proxies = self.proxies(listener).peekable();
        proxies.peek().is_none() || proxies.any(|clients| clients.contains(peer.ip()))
    }

    /// Returns true if a site or stream of the listener lists the address as a trusted proxy.
    pub(crate) fn is_trusted(&self, listener: usize, address: IpAddr) -> bool {
        self.proxies(listener).any(|clients| clients.contains(Some(address)))
    }

    fn proxies(&self, listener: usize) -> impl Iterator<Item = &Clients> {
        let of_sites = self.sites(listener).iter().flat_map(|site| &site.trust.proxies);
        let of_relays = self.relays(listener).iter().flat_map(|relay| &relay.trusted_proxies);
        of_sites.chain(of_relays)
    }

    /// Returns true if a reload has closed the listener, so that its connections should end.
    pub(crate) fn is_leaving(&self, listener: usize) -> bool {
        self.leaving.contains(&listener)
    }

    /// Keeps the sites and streams of listeners that a reload has closed, for their remaining connections.
    pub(crate) fn keep_leaving(&mut self, old: &Self) {
        for (listener, sites) in self.listeners.iter_mut().enumerate() {
            if sites.is_empty() && !old.is_leaving(listener) && !old.sites(listener).is_empty() {
                *sites = old.listeners[listener].clone();
                self.spoken[listener] = old.spoken(listener);
                self.leaving.push(listener);
            }
        }
        for (listener, relays) in self.relays.iter_mut().enumerate() {
            if relays.is_empty() && !old.is_leaving(listener) && old.is_stream(listener) {
                *relays = old.relays(listener).to_vec();
                self.spoken[listener] = Spoken::Stream;
                self.leaving.push(listener);
            }
        }
    }

    pub fn sites(&self, listener: usize) -> &[Rc<Site>] {
        self.listeners.get(listener).map_or(&[], |sites| sites)
    }

    /// Returns the site for `authority` (`host[:port]`) on a listener, or `None` if the listener
    /// has no sites. The order of preference is: exact host name, longest wildcard, first site
    /// without host names, first site of the listener.
    pub fn site(&self, listener: usize, authority: &[u8]) -> Option<&Rc<Site>> {
        let sites = self.listeners.get(listener)?;
        if let [site] = &sites[..] {
            return Some(site);
        }
        best_site(sites.iter().map(|site| &site.hosts[..]), authority).map(|at| &sites[at])
    }
}

/// Returns the index of the best site for `authority` among these host patterns; see
/// [`Table::site`].
pub fn best_site<'a>(
    sites: impl Iterator<Item = &'a [HostPattern]>,
    authority: &[u8],
) -> Option<usize> {
    let host = host_of(authority);
    let best = sites.enumerate().max_by_key(|(at, hosts)| {
        let rank = hosts.iter().map(|pattern| rank(pattern, host)).max();
        let rank = if hosts.is_empty() { 1 } else { rank.unwrap_or(0) };
        (rank, std::cmp::Reverse(*at))
    });
    best.map(|(at, _)| at)
}

/// Returns the index of the best stream for a server name, or `None` if no stream fits. Each item
/// of `relays` has the names of one stream. [`Table::relay`] states the order.
pub fn best_relay<'a>(
    relays: impl Iterator<Item = &'a [HostPattern]>,
    server_name: &[u8],
) -> Option<usize> {
    let ranked = relays.enumerate().map(|(at, names)| {
        (names.iter().map(|pattern| rank(pattern, server_name)).max().unwrap_or(0), at)
    });
    let best = ranked.max_by_key(|(rank, at)| (*rank, std::cmp::Reverse(*at)));
    best.filter(|(rank, _)| *rank > 0).map(|(_, at)| at)
}

/// Returns true if one of these patterns names the host.
pub fn names_host(patterns: &[HostPattern], host: &[u8]) -> bool {
    patterns.iter().any(|pattern| rank(pattern, host) > 0)
}

impl Site {
    /// Returns true if another site of the configuration names the host more exactly.
    pub(crate) fn is_of_other(&self, host: &[u8]) -> bool {
        let best = |patterns: &[HostPattern]| patterns.iter().map(|one| rank(one, host)).max();
        best(&self.all_hosts) > best(&self.hosts).max(Some(1))
    }
}

/// Returns the rank of a match: 0 for no match, and 1 for any host. Longer suffixes rank higher,
/// and exact names rank highest.
fn rank(pattern: &HostPattern, host: &[u8]) -> usize {
    match pattern {
        HostPattern::Any => 1,
        HostPattern::Exact(name) if host.eq_ignore_ascii_case(name.as_bytes()) => usize::MAX,
        HostPattern::Suffix(suffix) => {
            let cut = host.len().checked_sub(suffix.len());
            let matches =
                cut.is_some_and(|at| at > 0 && host[at..].eq_ignore_ascii_case(suffix.as_bytes()));
            if matches { 1 + suffix.len() } else { 0 }
        }
        HostPattern::Exact(_) => 0,
    }
}
