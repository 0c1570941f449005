//! Selects the site and the route of a request.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{
    AjpFront, BandwidthLimit, Clients, Cors, EncodedSlashes, ErrorPages, HostPattern, Listen,
    NetworkList, OnAbort, RouteTimeouts,
};
use forebay_net::counters::RouteCounters;
use forebay_net::head::Request;
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
use crate::host_index::{HostIndex, specificity};
use crate::pages::Closed;
use crate::relay::Relay;
use crate::reply::Rules;
use crate::route_index::RouteIndex;

/// The sites of each listener. Each thread has its own table.
#[derive(Default)]
pub struct Table {
    /// In the server's order of listeners.
    listeners: Vec<ListenerTable>,
    /// Current challenges of ACME authorities.
    pub challenges: Option<Arc<Challenges>>,
}

/// The sites or streams of one listener. A listener that the last reload closed keeps its former
/// sites and streams until the next reload.
#[derive(Clone, Default)]
struct ListenerTable {
    sites: Vec<Rc<Site>>,
    /// Names of `sites`.
    hosts: Arc<HostIndex>,
    relays: Vec<Rc<Relay>>,
    /// Server names of `relays`.
    server_names: Arc<HostIndex>,
    /// Protocol of the listener's connections.
    spoken: Spoken,
    /// True if connections begin with a PROXY header.
    is_proxied: bool,
    /// Trusted proxies of all sites and streams.
    proxies: HashSet<Clients>,
    /// Lists of further trusted proxies.
    proxy_lists: Vec<Arc<NetworkList>>,
    /// True if the last reload closed the listener. Its connections end with the next reply.
    is_leaving: bool,
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
    pub all_hosts: Arc<HostIndex>,
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
    /// Paths of `routes`.
    pub index: Arc<RouteIndex>,
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
    /// Creates a table from the sites, streams and address of each listener.
    pub fn new(
        listeners: impl IntoIterator<Item = (Vec<Rc<Site>>, Vec<Rc<Relay>>, Option<Listen>)>,
    ) -> Self {
        let listeners = listeners.into_iter();
        let listeners =
            listeners.map(|(sites, relays, listen)| ListenerTable::new(sites, relays, listen));
        Self { listeners: listeners.collect(), challenges: None }
    }

    fn at(&self, listener: usize) -> Option<&ListenerTable> {
        self.listeners.get(listener)
    }

    /// Returns true if connections of a listener begin with a TLS handshake.
    pub fn is_https(&self, listener: usize) -> bool {
        self.at(listener).is_some_and(|at| at.spoken == Spoken::Tls)
    }

    /// Returns true if a listener belongs to a `[[stream]]`.
    pub fn is_stream(&self, listener: usize) -> bool {
        self.at(listener).is_some_and(|at| at.spoken == Spoken::Stream)
    }

    /// Returns the streams of a listener.
    pub fn relays(&self, listener: usize) -> &[Rc<Relay>] {
        self.at(listener).map_or(&[], |at| &at.relays)
    }

    /// Returns the stream that a client selects with `server_name` (SNI), or `None` if no stream
    /// fits. The order of preference is: exact name, longest wildcard, stream without names.
    pub fn relay(&self, listener: usize, server_name: Option<&str>) -> Option<&Rc<Relay>> {
        let at = self.at(listener)?;
        let found = at.server_names.find(server_name.unwrap_or_default().as_bytes())?;
        Some(&at.relays[found.item])
    }

    /// Returns the settings of a listener that speaks AJP. Returns `None` for other listeners.
    pub fn ajp(&self, listener: usize) -> Option<&AjpFront> {
        let at = self.at(listener).filter(|at| at.spoken == Spoken::Ajp)?;
        at.sites.iter().find_map(|site| site.ajp.as_ref())
    }

    /// Returns the TLS settings of the site that a client selects with `server_name` (SNI). A client
    /// that wants an address names none (RFC 6066, section 3), so `local`, the address that it reached,
    /// selects its site. Returns `None` if the site has no TLS.
    pub fn tls(
        &self,
        listener: usize,
        server_name: Option<&str>,
        local: Option<IpAddr>,
    ) -> Option<&Arc<ServerTls>> {
        let host = match (server_name, local.map(|local| local.to_canonical())) {
            (Some(name), _) => Cow::Borrowed(name),
            (None, Some(IpAddr::V6(local))) => Cow::Owned(format!("[{local}]")),
            (None, Some(local)) => Cow::Owned(local.to_string()),
            (None, None) => Cow::Borrowed(""),
        };
        self.site(listener, host.as_bytes())?.tls.as_ref()
    }

    /// Returns true if connections of a listener begin with a PROXY header.
    pub(crate) fn is_proxied(&self, listener: usize) -> bool {
        self.at(listener).is_some_and(|at| at.is_proxied)
    }

    /// Returns true if the peer may name the client in a PROXY header. If no site or stream of the
    /// listener lists trusted proxies, returns true for every peer.
    pub(crate) fn may_announce(&self, listener: usize, peer: ClientAddress) -> bool {
        self.at(listener).is_none_or(|at| {
            at.proxies.is_empty() && at.proxy_lists.is_empty() || at.trusts(peer.ip())
        })
    }

    /// Returns true if a site or stream of the listener lists the address as a trusted proxy.
    pub(crate) fn is_trusted(&self, listener: usize, address: IpAddr) -> bool {
        self.at(listener).is_some_and(|at| at.trusts(Some(address)))
    }

    /// Returns true if a reload has closed the listener, so that its connections should end.
    pub(crate) fn is_leaving(&self, listener: usize) -> bool {
        self.at(listener).is_some_and(|at| at.is_leaving)
    }

    /// Keeps the sites and streams of listeners that a reload has closed, for their remaining connections.
    pub(crate) fn keep_leaving(&mut self, old: &Self) {
        for (new, old) in self.listeners.iter_mut().zip(&old.listeners) {
            if new.is_empty() && !old.is_empty() && !old.is_leaving {
                *new = ListenerTable { is_leaving: true, ..old.clone() };
            }
        }
    }

    /// Returns the sites of a listener.
    pub fn sites(&self, listener: usize) -> &[Rc<Site>] {
        self.at(listener).map_or(&[], |at| &at.sites)
    }

    /// Returns the names of a listener's sites.
    pub(crate) fn hosts(&self, listener: usize) -> Arc<HostIndex> {
        self.at(listener).map(|at| at.hosts.clone()).unwrap_or_default()
    }

    /// Returns the site for `authority` (`host[:port]`) on a listener, or `None` if the listener
    /// has no sites. [`select_site`] states the order of preference.
    pub fn site(&self, listener: usize, authority: &[u8]) -> Option<&Rc<Site>> {
        let at = self.at(listener)?;
        match &at.sites[..] {
            [site] => Some(site),
            sites => sites.get(select_site(&at.hosts, authority)),
        }
    }
}

impl ListenerTable {
    fn new(sites: Vec<Rc<Site>>, relays: Vec<Rc<Relay>>, listen: Option<Listen>) -> Self {
        let of_sites = sites.iter().flat_map(|site| &site.trust.proxies);
        let of_relays = relays.iter().flat_map(|relay| &relay.trusted_proxies);
        let lists = sites.iter().flat_map(|site| &site.trust.lists);
        let lists = lists.chain(relays.iter().flat_map(|relay| &relay.proxy_lists));
        let mut proxy_lists: Vec<Arc<NetworkList>> = Vec::new();
        for list in lists {
            if !proxy_lists.iter().any(|other| Arc::ptr_eq(other, list)) {
                proxy_lists.push(list.clone());
            }
        }
        Self {
            hosts: Arc::new(index_sites(sites.iter().map(|site| &site.hosts[..]))),
            server_names: Arc::new(HostIndex::new(relays.iter().map(|relay| &relay.names[..]))),
            spoken: match listen {
                Some(Listen::Https(_)) => Spoken::Tls,
                Some(Listen::Ajp(_)) => Spoken::Ajp,
                Some(Listen::Stream(_)) => Spoken::Stream,
                _ => Spoken::Http,
            },
            is_proxied: sites.iter().any(|site| site.proxy_protocol)
                || relays.iter().any(|relay| relay.proxy_protocol),
            proxies: of_sites.chain(of_relays).copied().collect(),
            proxy_lists,
            is_leaving: false,
            sites,
            relays,
        }
    }

    fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.relays.is_empty()
    }

    fn trusts(&self, address: Option<IpAddr>) -> bool {
        self.proxies.iter().any(|clients| clients.contains(address))
            || address
                .is_some_and(|address| self.proxy_lists.iter().any(|list| list.contains(address)))
    }
}

/// Returns the index of the sites with these host patterns. A site without patterns is for any
/// host.
pub fn index_sites<'a>(sites: impl IntoIterator<Item = &'a [HostPattern]>) -> HostIndex {
    let patterns = |hosts: &'a [HostPattern]| match hosts {
        [] => &[HostPattern::Any],
        hosts => hosts,
    };
    HostIndex::new(sites.into_iter().map(patterns))
}

/// Returns the number of the site for `authority` (`host[:port]`). The order of preference is:
/// exact host name, longest wildcard, first site for any host, first site.
pub fn select_site(sites: &HostIndex, authority: &[u8]) -> usize {
    sites.find(host_of(authority)).map_or(0, |found| found.item)
}

/// Returns true if one of these patterns names the host.
pub fn names_host(patterns: &[HostPattern], host: &[u8]) -> bool {
    patterns.iter().any(|pattern| specificity(pattern, host) > 0)
}

impl Site {
    /// Returns true if another site of the configuration names the host more exactly.
    pub(crate) fn is_of_other(&self, host: &[u8]) -> bool {
        let own = self.hosts.iter().map(|pattern| specificity(pattern, host)).max();
        let own = own.unwrap_or(0).max(1);
        self.all_hosts.find(host).is_some_and(|best| best.specificity > own)
    }

    /// Returns the first route that matches. Does not change the request.
    pub(crate) fn first_route(&self, request: &Request) -> Option<&Route> {
        let candidates = self.index.candidates(&request.path, 0);
        candidates.map(|at| &self.routes[at]).find(|route| request.meets(&route.facts.matcher))
    }
}
