//! Divides the shared connections to FastCGI applications among the threads. A thread can use only
//! its own connections, so a thread without a connection would wait forever.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Action, Fastcgi, JwtKeys, Multiplex, Plan, Route, Site, Upstream};

impl Plan {
    /// Returns the connection limit of each address. If the limits of several routes differ, the
    /// smallest applies.
    pub fn max_connections(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        let routes = self.sites.iter().flat_map(|site| &site.routes);
        let of_streams = self.relays.iter().map(|relay| &relay.upstream);
        for upstream in routes.flat_map(Route::upstreams).chain(of_streams) {
            let Some(limit) = upstream.max_connections else { continue };
            for address in upstream.addresses() {
                let most = all.entry(address.to_string()).or_insert(limit);
                *most = limit.min(*most);
            }
        }
        all
    }

    /// Divides the connections of routes with `multiplex` among `threads` threads. If a thread
    /// would get no connection for a route with `multiplex = "auto"`, turns `multiplex` off for
    /// this route. The returned messages report these routes. With `multiplex = "on"`, returns an
    /// error.
    pub fn share_connections(&mut self, threads: usize) -> Result<Vec<String>, String> {
        let (limits, whole) = (self.max_connections(), self.file.clone());
        let mut sharing: BTreeMap<String, usize> = BTreeMap::new();
        for (_, _, fastcgi) in sharing_routes(self) {
            for address in fastcgi.upstream.addresses() {
                *sharing.entry(address.to_string()).or_default() += threads;
            }
        }
        let mut notes = Vec::new();
        for (file, line, fastcgi) in sharing_routes(self) {
            let file = file.as_deref().unwrap_or(whole.name());
            let addresses: Vec<_> = fastcgi.upstream.addresses().map(ToString::to_string).collect();
            for address in addresses {
                let (Some(&most), wanted) = (limits.get(&address), sharing[&address]) else {
                    continue;
                };
                fastcgi.max_shared = fastcgi.max_shared.min(most / wanted);
                if fastcgi.max_shared > 0 {
                    continue;
                }
                let what = format!(
                    "requests cannot share connections to {address} (route on line {line} of \
                     {file}): each of {threads} threads needs one for each route to it, {wanted} \
                     in all, and `max_connections` allows {most}"
                );
                let what = whole.hide(&what);
                if fastcgi.multiplex == Multiplex::On {
                    return Err(format!(
                        "{what}; raise it, or lower `threads` in [server], or leave `multiplex` out"
                    ));
                }
                notes.push(what);
                fastcgi.multiplex = Multiplex::Off;
                break;
            }
        }
        Ok(notes)
    }
}

/// Returns the FastCGI settings of each route with `multiplex`, with the file and the line of the
/// route.
fn sharing_routes(plan: &mut Plan) -> impl Iterator<Item = (&Option<String>, usize, &mut Fastcgi)> {
    let shares = |route: &Route| match &route.action {
        Action::Fastcgi(fastcgi) => fastcgi.multiplex != Multiplex::Off,
        _ => false,
    };
    let sites = plan.sites.iter_mut().filter(move |site| site.routes.iter().any(shares));
    let sites = sites.map(Arc::make_mut);
    let routes =
        sites.flat_map(|Site { routes, file, .. }| routes.iter_mut().map(|route| (&*file, route)));
    routes.filter_map(|(file, Route { action, line, .. })| match action {
        Action::Fastcgi(fastcgi) if fastcgi.multiplex != Multiplex::Off => {
            Some((file, *line, fastcgi))
        }
        _ => None,
    })
}

impl Plan {
    /// Calls `change` with the group of every route and stream. A named group has one call for each
    /// of its uses.
    pub fn change_upstreams(&mut self, change: &mut impl FnMut(&mut Upstream)) {
        let has_one =
            |site: &Site| site.routes.iter().any(|route| route.upstreams().next().is_some());
        let sites = self.sites.iter_mut().filter(|site| has_one(site)).map(Arc::make_mut);
        for upstream in sites.flat_map(|site| &mut site.routes).flat_map(upstreams_mut) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(routes: &[&str]) -> Plan {
        let route = |(at, keys): (usize, &&str)| {
            format!(
                "[[site.route]]\npath = \"/{at}/*\"\nfastcgi = {{ to = \"127.0.0.1:9000\", \
                 root = \"/nowhere\", {keys} }}\n"
            )
        };
        let routes: String = routes.iter().enumerate().map(route).collect();
        let text = format!("[[site]]\nlisten = 8080\n{routes}");
        crate::parse(&text, "test", std::path::Path::new("/")).unwrap()
    }

    /// Returns for each route the multiplexing mode and the number of connections.
    fn shared(plan: &mut Plan) -> Vec<(Multiplex, usize)> {
        let routes = plan.sites[0].routes.iter();
        let fastcgi = routes.map(|route| match &route.action {
            Action::Fastcgi(fastcgi) => (fastcgi.multiplex, fastcgi.max_shared),
            _ => unreachable!("all are FastCGI"),
        });
        fastcgi.collect()
    }

    #[test]
    fn each_thread_gets_as_many_for_each_route() {
        let mut one = plan(&["multiplex = \"on\", max_connections = 9"]);
        assert_eq!(one.share_connections(4), Ok(vec![]));
        assert_eq!(shared(&mut one), [(Multiplex::On, 2)]);
        let keys = "multiplex = \"auto\"";
        let mut two = plan(&[keys, &format!("{keys}, max_connections = 9")]);
        assert_eq!(two.share_connections(4), Ok(vec![]));
        assert_eq!(shared(&mut two), [(Multiplex::Auto, 1); 2], "the limit holds for both");
        let mut unlimited = plan(&["multiplex = \"on\""]);
        assert_eq!(unlimited.share_connections(4), Ok(vec![]));
        assert_eq!(shared(&mut unlimited), [(Multiplex::On, usize::MAX)]);
    }

    #[test]
    fn too_few_for_all_threads_are_not_shared() {
        let mut auto = plan(&["multiplex = \"auto\", max_connections = 3"]);
        assert_eq!(auto.share_connections(4).unwrap().len(), 1);
        assert_eq!(shared(&mut auto)[0].0, Multiplex::Off);
        let mut on = plan(&["multiplex = \"on\", max_connections = 3"]);
        let error = on.share_connections(4).unwrap_err();
        assert!(error.contains("line 3 of test)") && error.contains("allows 3"), "{error}");
        assert_eq!(plan(&["max_connections = 3"]).share_connections(4), Ok(vec![]), "nor wanted");
    }

    #[test]
    fn a_site_without_shared_connections_is_not_copied() {
        let plan = plan(&["max_connections = 3"]);
        let mut copy = plan.clone();
        copy.share_connections(4).unwrap();
        assert!(Arc::ptr_eq(&plan.sites[0], &copy.sites[0]));
    }
}
