//! Changes of a plan's groups of servers while Forebay serves.

use std::sync::Arc;

use super::{Action, JwtKeys, Plan, Route, Upstream};

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
    let mut found = Vec::new();
    match &mut route.action {
        Action::Fastcgi(fastcgi) => found.push(&mut fastcgi.upstream),
        Action::AppServer(server) => found.push(&mut server.upstream),
        Action::Ajp(ajp) => found.push(&mut ajp.upstream),
        Action::Proxy(proxy) => found.push(&mut proxy.upstream),
        _ => {}
    }
    found.extend(route.access.forward_auth.as_mut().map(|auth| &mut auth.proxy.upstream));
    found.extend(route.mirror.as_mut().map(|mirror| &mut mirror.proxy.upstream));
    if let Some(JwtKeys::Url(url)) = route.access.jwt.as_mut().map(|jwt| &mut jwt.keys) {
        found.push(&mut url.proxy.upstream);
    }
    found
}
