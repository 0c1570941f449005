//! Checks for routes and streams that send requests back to themselves.

use forebay_conf::{
    Action, Backend, Finding, HostField, HostPattern, Listen, Plan, Relay, Route, Site,
};
use forebay_server::route::{index_sites, select_site};
use forebay_upstream::hops::OwnListeners;

/// Returns warnings about routes and streams whose backend is their own listener. Looks up no names
/// of backends.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, site) in plan.sites.iter().enumerate() {
        for (index, route) in site.routes.iter().enumerate() {
            let Some((key, listen)) = own_listener(plan, site, route) else { continue };
            let key = ["site", &at.to_string(), "route", &index.to_string(), key];
            found.push(Finding {
                key: key.map(str::to_owned).to_vec(),
                message: format!(
                    "this route sends requests to {listen}, a listener of its own site: they come \
                     back to the route, and Forebay answers them with status 508"
                ),
                help: "name the address of the server that should answer".into(),
            });
        }
    }
    let relays = plan.relays.iter().enumerate();
    found.extend(relays.filter_map(|(at, relay)| {
        let listen = listener_of_stream(relay)?;
        Some(Finding {
            key: ["stream", &at.to_string(), "to"].map(str::to_owned).to_vec(),
            message: format!(
                "this stream sends connections to {listen}, its own listener: each connection \
                 opens another one, until Forebay has no more"
            ),
            help: "name the address of another server".into(),
        })
    }));
    found
}

/// Returns the key of the route's action, and the listener from which the route's requests come
/// back to the route. Returns `None` if the requests do not come back.
fn own_listener<'s>(
    plan: &Plan,
    site: &'s Site,
    route: &Route,
) -> Option<(&'static str, &'s Listen)> {
    // With `rewrite` or `when`, the route may not match a request that comes back: `rewrite` has
    // changed the path, or the request no longer meets `when`.
    if route.rewrite.is_some() || route.matcher.when.is_some() {
        return None;
    }
    let (key, upstream, host) = match &route.action {
        Action::Proxy(proxy) if proxy.strip_prefix.is_none() => {
            ("proxy", &proxy.upstream, proxy.host)
        }
        Action::Ajp(ajp) => ("ajp", &ajp.upstream, HostField::Client),
        _ => return None,
    };
    let is_spoken = |listen: &Listen, to: &Backend| {
        listen.is_ajp() == (key == "ajp") && listen.is_https() == to.https
    };
    let comes_back = |listen: &&Listen| {
        upstream.to.iter().any(|to| {
            is_spoken(listen, to)
                && OwnListeners::from_iter([*listen]).take(&to.address)
                && (host == HostField::Client || is_selected(plan, site, listen, &to.authority))
        })
    };
    site.listen.iter().find(comes_back).map(|listen| (key, listen))
}

/// Returns true if the host name selects `site` on the listener.
fn is_selected(plan: &Plan, site: &Site, listen: &Listen, authority: &str) -> bool {
    let here: Vec<_> = plan.sites.iter().filter(|other| other.listen.contains(listen)).collect();
    let hosts = index_sites(here.iter().map(|other| &other.hosts[..]));
    here.get(select_site(&hosts, authority.as_bytes()))
        .is_some_and(|best| std::ptr::eq(&***best, site))
}

/// Returns the listener that receives the stream's own connections. Returns `None` if the stream
/// does not connect to itself.
fn listener_of_stream(relay: &Relay) -> Option<&Listen> {
    let takes_all = relay.sni == [HostPattern::Any];
    relay.listen.iter().filter(|listen| takes_all && !listen.is_udp()).find(|listen| {
        let listeners = OwnListeners::from_iter([*listen]);
        relay.upstream.to.iter().any(|to| !to.https && listeners.take(&to.address))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn warned(text: &str) -> Vec<String> {
        let plan = forebay_conf::parse(text, "site.toml", Path::new("/")).unwrap();
        doubts(&plan).into_iter().map(|finding| finding.key.join(".")).collect()
    }

    fn site(listen: &str, keys: &str, route: &str) -> String {
        format!("[[site]]\nlisten = \"{listen}\"\n{keys}\n[[site.route]]\n{route}\n")
    }

    #[test]
    fn a_route_to_its_own_listener_is_reported() {
        for (listen, to) in [
            (":8080", "http://127.0.0.1:8080"),
            (":8080", "http://localhost:8080"),
            (":8080", "http://[::1]:8080"),
            ("127.0.0.1:8080", "http://localhost:8080"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
        ] {
            let text = site(listen, "", &format!("proxy = \"{to}\""));
            assert_eq!(warned(&text), ["site.0.route.0.proxy"], "{listen} {to}");
        }
        let named = site(":8080", "hosts = [\"a.example\"]", "proxy = \"http://localhost:8080\"");
        assert_eq!(warned(&named).len(), 1, "the client's host is kept");
        let stream = "[[stream]]\nlisten = \"127.0.0.1:9000\"\nto = \"127.0.0.1:9000\"\n";
        assert_eq!(warned(stream), ["stream.0.to"]);
    }

    #[test]
    fn a_route_whose_requests_do_not_come_back_is_not_reported() {
        let to_localhost = "proxy = { to = \"http://localhost:8080\", host = \"backend\" }";
        let hosts = "hosts = [\"a.example\"]";
        let other = site(":8080", "hosts = [\"localhost\"]", "respond = \"in\"");
        for text in [
            site(":8080", "", "proxy = \"http://127.0.0.1:8081\""),
            site("127.0.0.1:8080", "", "proxy = \"http://127.0.0.2:8080\""),
            site(":8080", "", "proxy = \"https://127.0.0.1:8080\""),
            site(":8080", "", "proxy = \"unix:/run/a.sock\""),
            site(
                ":8080",
                "",
                "path = \"/a/*\"\nproxy = { to = \"http://127.0.0.1:8080\", strip_prefix = \"/a\" }",
            ),
            site(":8080", "", "rewrite = \"/b\"\nproxy = \"http://127.0.0.1:8080\""),
            site(":8080", "", "when = { header.X-A = false }\nproxy = \"http://127.0.0.1:8080\""),
            site(":8080", hosts, to_localhost) + &other,
            "[[stream]]\nlisten = \"127.0.0.1:9000\"\nto = \"127.0.0.1:9001\"\n".to_owned(),
        ] {
            assert_eq!(warned(&text), [""; 0], "{text}");
        }
    }
}
