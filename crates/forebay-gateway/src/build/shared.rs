//! State of routes that threads share and that a reload keeps.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use forebay_conf::{Action, Address, HttpVersion, Plan, Scheme};
use forebay_net::log::ErrorLog;
use forebay_net::tls::Alpn;
use forebay_origin::apps::definition::limits;
use forebay_origin::mirror::MirrorState;
use forebay_upstream::{Endpoint, Group, HealthCheck, Names, Permits, Tallies};
use forebay_workers::{LaunchSpec, Launcher};
use tokio::sync::Semaphore;

use super::{BuildError, Origins};
use crate::tls::SiteTls;

/// State of one route that all threads share.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// Permits for simultaneous processes of a `cgi` route.
    pub(super) room: Option<Arc<Semaphore>>,
    /// User and limits of the processes.
    pub(super) launcher: Arc<Launcher>,
    /// Backends, if any.
    pub(super) upstream: Option<SharedUpstream>,
    /// Servers of `forward_auth`, if any.
    pub(super) auth: Option<SharedUpstream>,
    /// Servers of `mirror`, if any.
    pub(super) mirror: Option<SharedUpstream>,
    /// Limits and counters of `mirror`, if any.
    pub(super) mirror_state: Option<Arc<MirrorState>>,
    /// Servers of the keys of `jwt`, if the keys come from a URL.
    pub(super) keys: Option<SharedUpstream>,
}

impl Shared {
    /// Returns all groups of the route.
    fn upstreams(&self) -> impl Iterator<Item = &SharedUpstream> {
        self.upstream.iter().chain(&self.auth).chain(&self.mirror).chain(&self.keys)
    }
}

/// State of a group of backends. All threads and all routes of the group share this state.
#[derive(Clone)]
pub(super) struct SharedUpstream {
    plan: Arc<forebay_conf::Upstream>,
    /// Selects the backend for a request.
    pub(super) group: Arc<Group>,
    /// Counters of the backends.
    pub(super) tallies: Arc<Tallies>,
}

impl SharedUpstream {
    /// Creates the state for `plan`. A backend with the same address in `before` keeps its record
    /// of failures and active requests.
    fn new(plan: &Arc<forebay_conf::Upstream>, before: Option<&Self>) -> Self {
        let Some(before) = before else {
            let (group, tallies) = (Group::new(&(&**plan).into()), Tallies::new(plan.to.len()));
            return Self { plan: plan.clone(), group, tallies };
        };
        if before.plan == *plan {
            return before.clone();
        }
        let index_before = |index: usize| {
            before.plan.addresses().position(|address| *address == plan.to[index].address)
        };
        // A check with other settings has no result yet, so a backend that was down stays down until
        // a check succeeds. Without checks, nothing would bring it back.
        let keeps_health = plan.health.is_some();
        let group = Group::after(&before.group, &(&**plan).into(), index_before, keeps_health);
        let tallies = if targets(&before.plan) == targets(plan) {
            before.tallies.clone()
        } else {
            Tallies::new(plan.to.len())
        };
        Self { plan: plan.clone(), group, tallies }
    }
}

type Targets = Vec<(Scheme, Address)>;

/// What a group without a name is recognised by after a reload.
fn targets(plan: &forebay_conf::Upstream) -> Targets {
    plan.to.iter().map(|backend| (backend.scheme, backend.address.clone())).collect()
}

/// Groups of a new configuration, and groups of the previous configuration.
#[derive(Default)]
struct Upstreams<'a> {
    named: BTreeMap<String, SharedUpstream>,
    named_before: BTreeMap<&'a str, &'a SharedUpstream>,
    /// Previous groups of single routes, in their order. Each previous group is used for at most one
    /// new group.
    anonymous_before: HashMap<Targets, VecDeque<&'a SharedUpstream>>,
}

impl<'a> Upstreams<'a> {
    fn after(previous: Option<&'a Origins>) -> Self {
        let mut upstreams = Self::default();
        if let Some(previous) = previous {
            let of_routes = previous.shared.iter().flatten();
            let of_routes = of_routes.flat_map(Shared::upstreams);
            for upstream in of_routes.chain(&previous.relays) {
                match &upstream.plan.name {
                    Some(name) => drop(upstreams.named_before.insert(name, upstream)),
                    None => {
                        let same = upstreams.anonymous_before.entry(targets(&upstream.plan));
                        same.or_default().push_back(upstream);
                    }
                }
            }
        }
        upstreams
    }

    /// Returns the state of the group `plan`. After a reload, a named group keeps the state of the
    /// previous group with this name. A group without a name keeps the state of a group with the
    /// same backends.
    fn take(&mut self, plan: &Arc<forebay_conf::Upstream>) -> SharedUpstream {
        let Some(name) = &plan.name else {
            let before = self.anonymous_before.get_mut(&targets(plan));
            return SharedUpstream::new(plan, before.and_then(VecDeque::pop_front));
        };
        let before = self.named_before.get(name.as_str()).copied();
        let made = self.named.entry(name.clone());
        made.or_insert_with(|| SharedUpstream::new(plan, before)).clone()
    }
}

/// Returns the state of every route, indexed by site and route, and the group of every stream.
/// After a reload, an unchanged `cgi` route keeps the count of its processes. Groups of backends
/// keep their state as [`Upstreams::take`] describes.
pub(super) fn shared_of_all(
    plan: &Plan,
    previous: Option<&Origins>,
) -> Result<(Vec<Vec<Shared>>, Vec<SharedUpstream>), BuildError> {
    let kept = |site: usize, at: usize, route: &forebay_conf::Route| {
        let previous = previous?;
        let before = previous.plan.sites.get(site)?.routes.get(at)?;
        let is_cgi = matches!(route.action, Action::Cgi(_));
        let has_same_servers = before.access.forward_auth == route.access.forward_auth
            && before.access.jwt == route.access.jwt
            && before.mirror == route.mirror;
        (is_cgi && has_same_servers && before.action == route.action)
            .then(|| previous.shared[site][at].clone())
    };
    let mut upstreams = Upstreams::after(previous);
    let mirror_before =
        |site: usize, at: usize| previous?.shared.get(site)?.get(at)?.mirror_state.clone();
    let mut of_site = |(site, routes): (usize, &forebay_conf::Site)| {
        let routes = routes.routes.iter().enumerate();
        let shared = routes.map(|(at, route)| match kept(site, at, route) {
            Some(kept) => Ok(kept),
            None => {
                let mut shared = shared(route, &mut upstreams)?;
                let state = || mirror_before(site, at).unwrap_or_default();
                shared.mirror_state = route.mirror.is_some().then(state);
                Ok(shared)
            }
        });
        shared.collect()
    };
    let shared = plan
        .sites
        .iter()
        .map(AsRef::as_ref)
        .enumerate()
        .map(&mut of_site)
        .collect::<Result<_, _>>()?;
    let relays = plan.relays.iter().map(|relay| upstreams.take(&relay.upstream)).collect();
    Ok((shared, relays))
}

/// Returns the state of a route that all threads share. Routes that name the same `[upstream]`
/// share the state of this group.
fn shared(
    route: &forebay_conf::Route,
    upstreams: &mut Upstreams<'_>,
) -> Result<Shared, BuildError> {
    let mut shared = Shared {
        upstream: route.action.upstream().map(|plan| upstreams.take(plan)),
        auth: (route.access.forward_auth.as_ref())
            .and_then(|auth| Some(upstreams.take(auth.upstream()?))),
        keys: route.access.jwt.as_ref().and_then(|jwt| {
            let url = jwt.url()?;
            Some(upstreams.take(&url.proxy.upstream))
        }),
        mirror: route.mirror.as_ref().map(|mirror| upstreams.take(&mirror.proxy.upstream)),
        ..Shared::default()
    };
    if let Action::Cgi(cgi) = &route.action {
        shared.room = Some(Arc::new(Semaphore::new(cgi.max_processes)));
        let launcher = Launcher::new("cgi", &launch_of(cgi));
        let error = |error| BuildError::Route { line: route.line, error };
        shared.launcher = Arc::new(launcher.map_err(error)?);
    }
    Ok(shared)
}

/// Returns the user and limits of a route's scripts.
pub(crate) fn launch_of(cgi: &forebay_conf::Cgi) -> LaunchSpec {
    LaunchSpec {
        user: cgi.user.clone(),
        group: cgi.group.clone(),
        limits: limits(cgi.limits),
        ..LaunchSpec::default()
    }
}

/// Returns one health check for each backend of a group with health checks. If several routes use a
/// named group, each of its backends still has only one health check.
pub(super) fn checks(
    (shared, relays): (&[Vec<Shared>], &[SharedUpstream]),
    endpoints: &BTreeMap<String, Endpoint>,
    tls: &SiteTls,
) -> Vec<HealthCheck> {
    let mut checks = Vec::new();
    let mut names = BTreeSet::new();
    let of_routes = shared.iter().flatten();
    let of_routes = of_routes.flat_map(Shared::upstreams);
    for SharedUpstream { plan, group, .. } in of_routes.chain(relays) {
        let is_first = plan.name.as_ref().is_none_or(|name| names.insert(name));
        let Some(health) = plan.health.as_ref().filter(|_| is_first) else { continue };
        for (index, backend) in plan.to.iter().enumerate() {
            let name = backend.address.to_string();
            let client = backend.https.then(|| tls.backends[&plan.tls].clone());
            checks.push(HealthCheck {
                group: group.clone(),
                index,
                endpoint: endpoints[&name].clone(),
                name,
                authority: backend.authority.clone(),
                speaks_http2: backend.version == HttpVersion::Http2,
                tls: client.map(|client| (client, host_of_url(backend), alpn(backend))),
                send_proxy: plan.send_proxy,
                strict: plan.strict,
                health: health.clone(),
            });
        }
    }
    checks
}

/// Returns the limits on connections by backend address. If a limit is unchanged, connections that
/// `previous` has opened still count.
pub(super) fn permits(
    plan: &Plan,
    previous: Option<&Origins>,
) -> BTreeMap<String, (usize, Arc<Permits>)> {
    let permits = |(name, most)| {
        let kept = previous.and_then(|previous| previous.permits.get(&name));
        let kept = kept.filter(|(limit, _)| *limit == most).cloned();
        (name, kept.unwrap_or_else(|| (most, Permits::new(most))))
    };
    plan.max_connections().into_iter().map(permits).collect()
}

/// Returns the resolver of backends' names. If the DNS servers are unchanged, returns `previous`.
pub(super) fn names(plan: &Plan, errors: &ErrorLog, previous: Option<&Arc<Names>>) -> Arc<Names> {
    let servers = &plan.server.dns_servers;
    match previous.filter(|names| names.uses(servers)) {
        Some(names) => names.clone(),
        None => Names::new(servers, errors),
    }
}

/// Returns the host name in the URL of a backend. The certificate of the backend must contain this
/// name.
pub(super) fn host_of_url(to: &forebay_conf::Backend) -> String {
    let host = to.authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    host.map_or(&*to.authority, |(host, _)| host).to_owned()
}

/// The HTTP versions to offer to a backend with TLS.
pub(super) fn alpn(to: &forebay_conf::Backend) -> Alpn {
    match to.version {
        _ if to.scheme == Scheme::Stream => Alpn::None,
        HttpVersion::Http11 => Alpn::Http11,
        HttpVersion::Http2 => Alpn::Http2,
        HttpVersion::Negotiated => Alpn::Any,
    }
}
