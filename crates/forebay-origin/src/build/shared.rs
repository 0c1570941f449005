//! What threads share of routes, and what a reload keeps of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_conf::{Action, Plan};
use tokio::sync::Semaphore;

use super::{Origins, addresses};
use crate::upstream::{Balancing, Check, Endpoint, Group, Slots, Tallies};

/// What all threads share of one route.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// The processes that there may be at once.
    pub(super) room: Option<Arc<Semaphore>>,
    /// Its backends, where it has any.
    pub(super) group: Option<Arc<Group>>,
    /// What is counted about them.
    pub(super) tallies: Arc<Tallies>,
}

/// By site and route. A route that does the same as that in its place before keeps what it had: its
/// processes count on, and what is known of its backends holds.
pub(super) fn shared_of_all(plan: &Plan, previous: Option<&Origins>) -> Vec<Vec<Shared>> {
    let kept = |site: usize, at: usize, route: &forebay_conf::Route| {
        let previous = previous?;
        let before = previous.plan.sites.get(site)?.routes.get(at)?;
        (before.action == route.action).then(|| previous.shared[site][at].clone())
    };
    let of_site = |(site, routes): (usize, &forebay_conf::Site)| {
        let routes = routes.routes.iter().enumerate();
        routes.map(|(at, route)| kept(site, at, route).unwrap_or_else(|| shared(route))).collect()
    };
    plan.sites.iter().enumerate().map(of_site).collect()
}

fn shared(route: &forebay_conf::Route) -> Shared {
    let mut shared = Shared { tallies: Tallies::new(addresses(route).len()), ..Shared::default() };
    match &route.action {
        Action::Cgi(cgi) => shared.room = Some(Arc::new(Semaphore::new(cgi.max_processes))),
        Action::Proxy(proxy) => shared.group = Some(Group::new(&proxy.into())),
        Action::Fastcgi(_) | Action::AppServer(_) => {
            shared.group = Some(Group::new(&Balancing::equal(addresses(route).len())));
        }
        _ => {}
    }
    shared
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
) -> BTreeMap<String, (usize, Arc<Slots>)> {
    let slots = |(name, most)| {
        let kept = previous.and_then(|previous| previous.slots.get(&name));
        let kept = kept.filter(|(limit, _)| *limit == most).cloned();
        (name, kept.unwrap_or_else(|| (most, Slots::new(most))))
    };
    plan.max_connections().into_iter().map(slots).collect()
}
