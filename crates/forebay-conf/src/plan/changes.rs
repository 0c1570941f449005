//! Changes of a plan's groups of servers while Forebay serves.

use std::sync::Arc;

use super::{JwtKeys, Plan, Route, Upstream};

impl Plan {
    /// Calls `change` with the group of every route and stream. A named group has one call for each
    /// of its uses.
    pub fn change_upstreams(&mut self, change: &mut impl FnMut(&mut Upstream)) {
        let routes = self.sites.iter_mut().flat_map(|site| &mut site.routes);
        for upstream in routes.flat_map(upstreams_mut) {
            change(Arc::make_mut(upstream));
        }
        for relay in &mut self.relays {
            change(Arc::make_mut(&mut relay.upstream));
        }
    }
}

/// Returns the groups that [`Route::upstreams`] returns, as mutable references.
fn upstreams_mut(route: &mut Route) -> Vec<&mut Arc<Upstream>> {
    let mut found: Vec<_> = route.action.upstream_mut().into_iter().collect();
    found.extend(route.access.forward_auth.as_mut().and_then(|auth| auth.server.upstream_mut()));
    found.extend(route.mirror.as_mut().map(|mirror| &mut mirror.proxy.upstream));
    if let Some(JwtKeys::Url(url)) = route.access.jwt.as_mut().map(|jwt| &mut jwt.keys) {
        found.push(&mut url.proxy.upstream);
    }
    found
}
