//! Selects the site and the route of a request.

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{
    AjpFront, BandwidthLimit, Clients, Cors, EncodedSlashes, ErrorPages, HostPattern, Listen,
    Matcher, OnAbort, Rewrite, RouteTimeouts,
};
use forebay_net::counters::RouteCounters;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::request_fields::RequestFields;
use forebay_net::tls::{Challenges, ServerTls};
use forebay_wire::ClientAddress;
use forebay_wire::http1::host_of;
use forebay_wire::path::Slashes;

use crate::compress::Compression;
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
    /// Selects the requests of the route.
    pub matcher: Matcher,
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
    /// True if the later routes are tried for a request that the origin declines.
    pub fallback: bool,
    /// Alternative to `fallback`: the new path of a declined request.
    pub fallback_to: Option<Rewrite>,
    /// The path that the origin gets instead of the request's own path.
    pub rewrite: Option<Rewrite>,
    /// True if the origin only rewrites the path. A route rewrites each request only once.
    pub rewrites: bool,
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
    /// Finds other paths of the requested resource. `None` if no earlier route can match such a
    /// path.
    pub other_paths: Option<Box<dyn OtherPaths>>,
    /// Kind of answer that the origin gives instead of the resource that the path names.
    pub instead: Instead,
    /// True if only internal redirects may lead to the route.
    pub internal: bool,
    /// True if a reply may name an internal route that answers instead (`X-Accel-Redirect`).
    pub internal_redirects: bool,
    /// Numbers of the later script routes that must not run the files that this route matches.
    pub keeps_from: Vec<usize>,
}

/// Finds other paths for which an origin would answer with the requested resource.
pub trait OtherPaths {
    /// Returns the other paths of the resource that `request` names, such as `/a/index.html` for
    /// `/a/`. Rules of earlier routes for these paths also apply to `request`. `second` is the
    /// current time in seconds. Returns a fault if the request must be refused.
    fn of<'r>(&self, request: &'r Request, second: u64) -> Result<Vec<OtherPath<'r>>, Fault>;
}

/// Another path of the requested resource, or several.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherPath<'r> {
    /// The decoded, normalized path.
    pub path: Cow<'r, [u8]>,
    pub kind: OtherPathKind,
    /// True if the origin ignores upper and lower case in paths.
    pub ignores_case: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPathKind {
    /// The file system shows that the origin answers with exactly this resource.
    Certain,
    /// A guess about a backend that Forebay cannot inspect.
    Guess,
    /// Guesses, too: each beginning of the path that looks like the name of a script. They are not
    /// listed, because a client can send thousands; [`Matcher::find_head`] looks for one.
    Heads,
}

/// Kind of answer that a route gives instead of the resource that the path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The answer is the named resource.
    No,
    /// A redirection, or a fixed reply with a status below 400.
    Answers,
    /// A fixed reply with an error status (400 or higher).
    Refuses,
}

/// Effect of an earlier route on requests that a later route answers. For example, the later route
/// answers `/admin.php/x` with the script `/admin.php`. If the earlier route protects `/admin.php`,
/// its gate also applies to `/admin.php/x`.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// True if the route restricts access.
    pub has_gate: bool,
    /// The route's answer, if it replaces the named resource.
    pub instead: Instead,
    /// True if the later route must not run files in the directory of this route.
    pub keeps: bool,
}

impl Rule {
    /// The path by which the rule applies to a request, if it does: `other`, another path of the
    /// requested resource, or a beginning of it. `matcher` belongs to the route of the rule.
    fn applies<'o>(
        self,
        matcher: &Matcher,
        method: &[u8],
        other: &'o OtherPath<'_>,
    ) -> Option<&'o [u8]> {
        let answers = match self.instead {
            Instead::No => false,
            // A redirection or a successful fixed reply protects nothing. So it need not apply to a
            // path that is only a guess.
            Instead::Answers => other.kind == OtherPathKind::Certain,
            Instead::Refuses => true,
        };
        if !(self.has_gate || answers || self.keeps) {
            return None;
        }
        if other.kind == OtherPathKind::Heads {
            return matcher.find_head(method, &other.path, other.ignores_case);
        }
        let holds = matcher.holds_for(method, &other.path, other.ignores_case);
        holds.then_some(&other.path)
    }
}

/// The rules that apply to `request` because they match another path of the requested resource, in
/// the order of their routes: for each the number of its route, and the path that it matches.
/// `rules` has the rules before the route that answers. A rule that matches the request's own path
/// is left out, because the request has tried this route itself. The last result is a rule that
/// answers instead of the resource, if there is one.
pub fn applying_rules<'m>(
    rules: impl Iterator<Item = (&'m Matcher, Rule)>,
    request: &Request,
    others: &[OtherPath<'_>],
) -> Vec<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    if others.is_empty() {
        return found;
    }
    let method = request.method();
    for (number, (matcher, rule)) in rules.enumerate() {
        if matcher.matches(method, &request.path).is_none()
            && let Some(path) = others.iter().find_map(|other| rule.applies(matcher, method, other))
            && request.meets_when(matcher)
        {
            found.push((number, path.to_vec()));
            if rule.instead != Instead::No {
                break;
            }
        }
    }
    found
}

/// Returns true if `other` is the path of an index file of the directory `path`.
pub fn is_index_of(path: &[u8], other: &[u8]) -> bool {
    let name = other.strip_prefix(path).filter(|_| path.ends_with(b"/"));
    name.is_some_and(|name| !name.is_empty() && !name.contains(&b'/'))
}

/// Sends files that an origin names.
pub struct Sendfile {
    /// Directory that must contain the files that absolute paths name.
    pub root: PathBuf,
    /// Sends the file that the request's path names, below the directory.
    pub files: Box<dyn Origin>,
}

impl Route {
    /// Returns true if the route has `fallback` or `fallback_to`: another route answers a request
    /// that the origin declines.
    pub(crate) fn falls_back(&self) -> bool {
        self.fallback || self.fallback_to.is_some()
    }

    /// Returns the effect of this route on requests of the later route with number `below`.
    fn rule(&self, below: usize) -> Rule {
        Rule {
            has_gate: self.gate.is_some(),
            instead: self.instead,
            keeps: self.keeps_from.contains(&below),
        }
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

    /// Returns the first matching route from number `from` on, with its number. Stores in `request`
    /// the part of the path that the route's origin looks up. Returns `None` if no route matches.
    pub fn route(&self, request: &mut Request, from: usize) -> Option<(usize, &Route)> {
        let mut routes = self.routes.iter().enumerate().skip(from);
        routes.find(|(_, route)| request.take(&route.matcher))
    }

    /// Returns true if the resources of route `at` may have several paths, such as `/a/` and
    /// `/a/index.html`. If the result is false, `Site::rules_above` always returns an empty list.
    pub(crate) fn has_rules_above(&self, at: usize) -> bool {
        self.routes[at].other_paths.is_some()
    }

    /// The rules of routes before `at` for other paths of the requested resource, as
    /// [`applying_rules`] returns them. Fails if the request must be refused.
    pub fn rules_above(
        &self,
        at: usize,
        request: &Request,
        second: u64,
    ) -> Result<Vec<(usize, Vec<u8>)>, Fault> {
        let Some(others) = &self.routes[at].other_paths else { return Ok(Vec::new()) };
        let others = others.of(request, second)?;
        let rules = self.routes[..at].iter().map(|route| (&route.matcher, route.rule(at)));
        Ok(applying_rules(rules, request, &others))
    }

    /// Returns true if the path `Request::unmasked` would select another route than `at`, among the
    /// routes from number `from` on. In `unmasked`, `%2F`, `%5C` and `\` have become slashes, and
    /// repeated slashes have become one slash. If this changes nothing, `unmasked` is empty, and
    /// the result is false.
    pub fn is_ambiguous(&self, request: &Request, from: usize, at: usize) -> bool {
        let method = request.head.method.of(&request.bytes);
        let mut routes = self.routes[from..=at].iter();
        let takes = |route: &Route| {
            route.matcher.matches(method, &request.unmasked).is_some()
                && request.meets_when(&route.matcher)
        };
        !request.unmasked.is_empty() && routes.position(takes) != Some(at - from)
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
