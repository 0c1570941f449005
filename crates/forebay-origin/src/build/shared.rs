//! What threads share of routes, and what a reload keeps of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_conf::{Action, Plan};
use forebay_workers::{LaunchSpec, Launcher};
use tokio::sync::Semaphore;

use super::{BuildError, Origins, addresses};
use crate::definition::limits;
use crate::upstream::{Balancing, Check, Endpoint, Group, Permits, Tallies};

/// What all threads share of one route.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// The processes that there may be at once.
    pub(super) room: Option<Arc<Semaphore>>,
    /// Who those run as.
    pub(super) launcher: Arc<Launcher>,
    /// Its backends, where it has any.
    pub(super) group: Option<Arc<Group>>,
    /// What is counted about them.
    pub(super) tallies: Arc<Tallies>,
}

/// By site and route. A route that does the same as that in its place before keeps what it had: its
/// processes count on, and what is known of its backends holds.
pub(super) fn shared_of_all(
    plan: &Plan,
    previous: Option<&Origins>,
) -> Result<Vec<Vec<Shared>>, BuildError> {
    let kept = |site: usize, at: usize, route: &forebay_conf::Route| {
        let previous = previous?;
        let before = previous.plan.sites.get(site)?.routes.get(at)?;
        (before.action == route.action).then(|| previous.shared[site][at].clone())
    };
    let of_site = |(site, routes): (usize, &forebay_conf::Site)| {
        let routes = routes.routes.iter().enumerate();
        routes.map(|(at, route)| kept(site, at, route).map_or_else(|| shared(route), Ok)).collect()
    };
    plan.sites.iter().enumerate().map(of_site).collect()
}

fn shared(route: &forebay_conf::Route) -> Result<Shared, BuildError> {
    let mut shared = Shared { tallies: Tallies::new(addresses(route).len()), ..Shared::default() };
    match &route.action {
        Action::Cgi(cgi) => {
            shared.room = Some(Arc::new(Semaphore::new(cgi.max_processes)));
            let launcher = Launcher::new("cgi", &launch_of(cgi));
            let error = |error| BuildError::Route { line: route.line, error };
            shared.launcher = Arc::new(launcher.map_err(error)?);
        }
        Action::Proxy(proxy) => shared.group = Some(Group::new(&proxy.into())),
        Action::Fastcgi(_) | Action::AppServer(_) => {
            shared.group = Some(Group::new(&Balancing::equal(addresses(route).len())));
        }
        _ => {}
    }
    Ok(shared)
}

/// Who the scripts of a route run as, and what they may use.
pub(crate) fn launch_of(cgi: &forebay_conf::Cgi) -> LaunchSpec {
    LaunchSpec {
        user: cgi.user.clone(),
        group: cgi.group.clone(),
        limits: limits(cgi.limits),
        ..LaunchSpec::default()
    }
}

/// Which backends are to be asked how they are.
pub(super) fn checks(
    plan: &Plan,
    shared: &[Vec<Shared>],
    endpoints: &BTreeMap<String, Endpoint>,
) -> Vec<Check> {
    let routes = plan.sites.iter().flat_map(|site| &site.routes).zip(shared.iter().flatten());
    let mut checks = Vec::new();
    for (route, shared) in routes {
        let (Action::Proxy(proxy), Some(group)) = (&route.action, &shared.group) else { continue };
        let Some(health) = &proxy.health else { continue };
        for (index, backend) in proxy.to.iter().enumerate() {
            let name = backend.address.to_string();
            checks.push(Check {
                group: group.clone(),
                index,
                endpoint: endpoints[&name].clone(),
                name,
                authority: backend.authority.clone(),
                send_proxy: proxy.send_proxy,
                health: health.clone(),
            });
        }
    }
    checks
}

/// The limits on connections. One that did not change counts the connections of `previous`, too.
pub(super) fn slots(
    plan: &Plan,
    previous: Option<&Origins>,
) -> BTreeMap<String, (usize, Arc<Permits>)> {
    let slots = |(name, most)| {
        let kept = previous.and_then(|previous| previous.slots.get(&name));
        let kept = kept.filter(|(limit, _)| *limit == most).cloned();
        (name, kept.unwrap_or_else(|| (most, Permits::new(most))))
    };
    plan.max_connections().into_iter().map(slots).collect()
}
