//! Which site and route take a request.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use forebay_conf::{AjpFront, EncodedSlashes, HostPattern, Listen, Matcher};
use forebay_wire::ClientAddress;
use forebay_wire::http1::host_of;

use crate::compress::Compression;
use crate::exchange::{Gate, Origin};
use crate::fault::Fault;
use crate::forwarded::Trust;
use crate::head::Request;
use crate::reply::Rules;
use crate::tls::{Challenges, ServerTls};

/// The sites behind each listener, as one thread holds them.
#[derive(Default)]
pub struct Table {
    /// By listener, in the order in which the server was given them; none where one was closed.
    pub listeners: Vec<Vec<Rc<Site>>>,
    /// Listeners that the last reload closed. Their connections end with the next reply.
    pub(crate) leaving: Vec<usize>,
    /// By listener: what is spoken over its connections.
    spoken: Vec<Spoken>,
    /// What authorities ask for that issue certificates.
    pub challenges: Option<Arc<Challenges>>,
}

/// What is spoken over connections, at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Spoken {
    #[default]
    Http,
    Tls,
    Ajp,
}

/// One site.
pub struct Site {
    /// Which hosts it is for; none means any.
    pub hosts: Vec<HostPattern>,
    /// Whose forwarding fields are trusted.
    pub trust: Trust,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: bool,
    /// What web servers have to keep to that pass requests on by AJP.
    pub ajp: Option<AjpFront>,
    /// Whether HTTP/3 is spoken beside its listeners with TLS.
    pub http3: bool,
    /// Sends clients that come without TLS to where they come with it, if they are to.
    pub redirect_to_https: Option<Box<dyn Origin>>,
    /// What clients are shown where they come by TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// What becomes of paths with slashes in disguise.
    pub encoded_slashes: EncodedSlashes,
    /// Held as long as a request may use the site: its count shows when what is behind it can be
    /// stopped.
    pub held: Arc<()>,
    /// Its routes; the first that matches takes the request.
    pub routes: Vec<Route>,
}

/// One route of a site.
pub struct Route {
    /// Which requests it takes.
    pub matcher: Matcher,
    /// What answers them.
    pub origin: Box<dyn Origin>,
    /// Who may use it; `None`: everybody.
    pub gate: Option<Box<dyn Gate>>,
    /// Whether they are logged.
    pub log: bool,
    /// Changes to the head of replies.
    pub rules: Option<Rc<Rules>>,
    /// How replies are compressed; `None`: not at all.
    pub compression: Option<Rc<Compression>>,
    /// Largest request body, in bytes.
    pub max_body: u64,
    /// Whether a request that is not the origin's goes on to the routes below.
    pub fallback: bool,
    /// The path by which such a request is routed anew instead.
    pub fallback_to: Option<Vec<u8>>,
    /// Whether what a slow client does not take of a reply is kept for it.
    pub buffer: bool,
    /// Whether a request's body is taken in whole before the origin is called.
    pub request_buffering: bool,
    /// What sends the files that the origin's replies name.
    pub sendfile: Option<Sendfile>,
    /// The other paths of what the origin answers with; `None` if no rule above can hold for one.
    pub other_paths: Option<Box<dyn OtherPaths>>,
    /// A redirection and a fixed reply answer in place of what the path names.
    pub instead: Instead,
    /// The script routes below, by number, that get nothing of what this route takes first.
    pub keeps_from: Vec<usize>,
}

/// Finds the other paths by which an origin may know what a request asks for.
pub trait OtherPaths {
    /// Returns the paths, without that of `request` itself, that the rules above the route are matched
    /// with. `second` is the present. A fault refuses the request.
    fn of(&self, request: &Request, second: u64) -> Result<Vec<OtherPath>, Fault>;
}

/// Another path of what a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherPath {
    /// The path, decoded and normal.
    pub path: Vec<u8>,
    /// True if the file system shows that the origin answers with just that. False for a guess about a
    /// backend that Forebay cannot look into.
    pub is_certain: bool,
    /// True if the origin compares paths without regard to case.
    pub ignores_case: bool,
}

/// The relation of a route's answer to what its path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The answer is what the path names.
    No,
    /// A redirection, or a fixed reply that is no error.
    Answers,
    /// An error.
    Refuses,
}

/// The say of a route about a route below.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// True if it admits some clients alone.
    pub has_gate: bool,
    /// Its answer, if it answers in place of what is there.
    pub instead: Instead,
    /// True if it keeps the route below from running what is in its directory.
    pub keeps: bool,
}

impl Rule {
    /// Returns true if the rule, whose route has this matcher, decides about `other` and was not asked by
    /// the method and path of the request itself.
    pub fn holds(
        self,
        matcher: &Matcher,
        (method, path): (&[u8], &[u8]),
        other: &OtherPath,
    ) -> bool {
        let answers = match self.instead {
            Instead::No => false,
            // A redirection, or a fixed reply that is no error, refuses nobody: a guess is not enough.
            Instead::Answers => other.is_certain,
            Instead::Refuses => true,
        };
        (self.has_gate || answers || self.keeps)
            && matcher.matches(method, path).is_none()
            && matcher.holds_for(method, &other.path, other.ignores_case)
    }
}

/// Where an origin may have files sent from.
pub struct Sendfile {
    /// The directory that absolute paths have to be below.
    pub root: PathBuf,
    /// Sends the file that the path of the request names, below that directory.
    pub files: Box<dyn Origin>,
}

impl Route {
    /// Whether a request that is not the origin's is answered by another route.
    pub(crate) fn falls_back(&self) -> bool {
        self.fallback || self.fallback_to.is_some()
    }

    /// Sets the part of the path that the route looks up. Returns false if the route does not take the
    /// request.
    pub(crate) fn take(&self, request: &mut Request) -> bool {
        let method = request.head.method.of(&request.bytes);
        let Some(found) = self.matcher.matches(method, &request.path) else { return false };
        request.rest = request.path.len() - found.rest.len()..request.path.len();
        true
    }

    /// Returns what the route says about the route numbered `below`.
    fn rule(&self, below: usize) -> Rule {
        Rule {
            has_gate: self.gate.is_some(),
            instead: self.instead,
            keeps: self.keeps_from.contains(&below),
        }
    }
}

impl Table {
    /// The sites of each listener, and where it listens.
    pub fn new(listeners: Vec<(Vec<Rc<Site>>, Option<&Listen>)>) -> Self {
        let spoken = |listen: Option<&Listen>| match listen {
            Some(Listen::Https(_)) => Spoken::Tls,
            Some(Listen::Ajp(_)) => Spoken::Ajp,
            _ => Spoken::Http,
        };
        let (listeners, spoken) =
            listeners.into_iter().map(|(sites, listen)| (sites, spoken(listen))).unzip();
        Self { listeners, leaving: Vec::new(), spoken, challenges: None }
    }

    /// Whether connections of a listener begin with a TLS handshake.
    pub(crate) fn is_https(&self, listener: usize) -> bool {
        self.spoken(listener) == Spoken::Tls
    }

    /// What is asked of the web servers that come to a listener, where they speak AJP.
    pub(crate) fn ajp(&self, listener: usize) -> Option<&AjpFront> {
        let is_ajp = self.spoken(listener) == Spoken::Ajp;
        self.sites(listener).iter().find_map(|site| site.ajp.as_ref()).filter(|_| is_ajp)
    }

    fn spoken(&self, listener: usize) -> Spoken {
        self.spoken.get(listener).copied().unwrap_or_default()
    }

    /// The TLS of the site that a client names by `server_name` (SNI).
    pub(crate) fn tls(
        &self,
        listener: usize,
        server_name: Option<&str>,
    ) -> Option<&Arc<ServerTls>> {
        self.site(listener, server_name.unwrap_or_default().as_bytes())?.tls.as_ref()
    }

    /// Whether connections of a listener begin with a PROXY header.
    pub(crate) fn is_proxied(&self, listener: usize) -> bool {
        self.sites(listener).iter().any(|site| site.proxy_protocol)
    }

    /// Whether a peer may name the client in a PROXY header: anyone, where no site names
    /// trusted proxies.
    pub(crate) fn may_announce(&self, listener: usize, peer: ClientAddress) -> bool {
        let mut proxies =
            self.sites(listener).iter().flat_map(|site| &site.trust.proxies).peekable();
        proxies.peek().is_none() || proxies.any(|clients| clients.contains(peer.ip()))
    }

    /// Whether connections of a listener should end.
    pub(crate) fn is_leaving(&self, listener: usize) -> bool {
        self.leaving.contains(&listener)
    }

    /// Keeps the sites of listeners that were closed now, for the connections that they brought.
    pub(crate) fn keep_leaving(&mut self, old: &Self) {
        for (listener, sites) in self.listeners.iter_mut().enumerate() {
            if sites.is_empty() && !old.is_leaving(listener) && !old.sites(listener).is_empty() {
                *sites = old.listeners[listener].clone();
                self.spoken[listener] = old.spoken(listener);
                self.leaving.push(listener);
            }
        }
    }

    pub(crate) fn sites(&self, listener: usize) -> &[Rc<Site>] {
        self.listeners.get(listener).map_or(&[], |sites| sites)
    }

    /// The site for `authority` (`host[:port]`) on a listener: the one that names the host exactly,
    /// else the one with the longest wildcard, else the first for any host, else the first.
    pub fn site(&self, listener: usize, authority: &[u8]) -> Option<&Rc<Site>> {
        let sites = self.listeners.get(listener)?;
        if let [site] = &sites[..] {
            return Some(site);
        }
        best_site(sites.iter().map(|site| &site.hosts[..]), authority).map(|at| &sites[at])
    }
}

/// Which of the sites, given by their host patterns, [`Table::site`] finds for `authority`.
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

impl Site {
    /// The first route, from the one numbered `from` on, that takes `request`; sets the part of
    /// the path that it looks up.
    pub fn route(&self, request: &mut Request, from: usize) -> Option<(usize, &Route)> {
        let mut routes = self.routes.iter().enumerate().skip(from);
        routes.find(|(_, route)| route.take(request))
    }

    /// Returns the rules that hold for other paths of what `request` asks of the route numbered `at`,
    /// and were not asked by its own path: their numbers, each with the path.
    pub(crate) fn rules_above(
        &self,
        at: usize,
        request: &Request,
        second: u64,
    ) -> Result<Vec<(usize, Vec<u8>)>, Fault> {
        let Some(others) = &self.routes[at].other_paths else { return Ok(Vec::new()) };
        let method = request.head.method.of(&request.bytes);
        let mut found = Vec::new();
        for other in others.of(request, second)? {
            let holds = |(_, route): &(usize, &Route)| {
                route.rule(at).holds(&route.matcher, (method, &request.path), &other)
            };
            let rules = self.routes[..at].iter().enumerate().filter(holds);
            found.extend(rules.map(|(number, _)| (number, other.path.clone())));
        }
        Ok(found)
    }

    /// Whether the path of `request`, read with its slashes in disguise as slashes, is not for the
    /// route numbered `at`, which takes it as it is; routes are looked at from the one numbered
    /// `from` on.
    pub fn is_ambiguous(&self, request: &Request, from: usize, at: usize) -> bool {
        let method = request.head.method.of(&request.bytes);
        let mut routes = self.routes[from..=at].iter();
        let takes = |route: &Route| route.matcher.matches(method, &request.unmasked).is_some();
        !request.unmasked.is_empty() && routes.position(takes) != Some(at - from)
    }
}

/// 0: no match; 1: any host; longer patterns count more, exact ones most.
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
