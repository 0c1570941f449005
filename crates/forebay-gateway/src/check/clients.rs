//! Checks for rules that apply to fewer or more clients than intended.

use forebay_conf::{Access, Action, Clients, Finding, Listen, Network, Plan, Route, Site};
use forebay_net::privileges::{PrivilegeError, look_up};

/// Returns warnings about rules by address, and about access rules that apply only to some methods.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let of_site = |(at, site): (usize, &Site)| {
        let mut found: Vec<_> = trusts_unix_by_address(at, site).into_iter().collect();
        for (index, route) in site.routes.iter().enumerate() {
            let place = Place { site: at, route: index };
            found.extend(refuses_unix(&place, site, route));
            found.extend(leaves_a_family(&place, &route.access));
            found.extend(admits_nobody(&place, &route.access));
            found.extend(counts_no_user(&place, &route.access));
            found.extend(gate_of_methods(&place, site, route));
        }
        found
    };
    plan.sites.iter().map(AsRef::as_ref).enumerate().flat_map(of_site).collect()
}

/// Returns a finding for each configured owner or group of a socket that does not exist on this
/// machine.
pub fn unknown_owners(plan: &Plan) -> Vec<Finding> {
    let of_site = |(at, site): (usize, &Site)| {
        let access = &site.socket_access;
        let (user, group) = (access.user.as_deref(), access.group.as_deref());
        let named = [
            ("socket_user", user, look_up(user, None)),
            ("socket_group", group, look_up(None, group)),
        ];
        let unknown = named.into_iter().filter_map(move |(key, name, outcome)| {
            let (Some(_), Err(PrivilegeError::Unknown(who))) = (name, outcome) else {
                return None;
            };
            Some(Finding {
                key: vec!["site".into(), at.to_string(), key.into()],
                message: format!("there is no {who} on this machine"),
                help: "add it, or name another one".into(),
            })
        });
        unknown.collect::<Vec<_>>()
    };
    plan.sites.iter().map(AsRef::as_ref).enumerate().flat_map(of_site).collect()
}

/// Numbers of a site and of a route in it.
struct Place {
    site: usize,
    route: usize,
}

impl Place {
    fn key(&self, key: &str) -> Vec<String> {
        let (site, route) = (self.site.to_string(), self.route.to_string());
        ["site", &site, "route", &route, key].map(str::to_owned).to_vec()
    }
}

/// Returns the first Unix socket on which the site listens. Returns `None` if the site listens on
/// no Unix socket.
fn unix_listener(site: &Site) -> Option<&Listen> {
    site.listen.iter().find(|listen| matches!(listen.socket(), Listen::Unix(_)))
}

fn trusts_unix_by_address(at: usize, site: &Site) -> Option<Finding> {
    let listen = unix_listener(site).filter(|_| site.trusts_unix_by_address())?;
    Some(Finding {
        key: vec!["site".into(), at.to_string(), "trusted_proxies".into()],
        message: format!("proxies that connect to {listen} have no address, and are trusted"),
        help: "write \"unix\" for them: 127.0.0.1 includes them, too, for compatibility \
               with older files"
            .into(),
    })
}

/// Returns a warning if a rule by address refuses all clients of a Unix socket, because they have
/// no address.
fn refuses_unix(place: &Place, site: &Site, route: &Route) -> Option<Finding> {
    // Give no warning for AJP or the PROXY protocol, because both carry the client's address.
    let listen = unix_listener(site).filter(|listen| !listen.is_ajp())?;
    let trusts_unix =
        site.trusted_proxies.contains(&Clients::Unix) || site.trusts_unix_by_address();
    if trusts_unix || site.proxy_protocol || !route.access.refuses_unix() {
        return None;
    }
    let key = if route.access.allow.is_empty() { "deny" } else { "allow" };
    Some(Finding {
        key: place.key(key),
        message: format!("clients of {listen} have no address: this rule refuses all of them"),
        help:
            "let the proxy that connects there name its clients (trusted_proxies = [\"unix\"] in \
               the site), or add \"unix\" to `allow`"
                .into(),
    })
}

/// Returns a warning if `deny` has all addresses of one family, and clients of the other family are
/// admitted.
fn leaves_a_family(place: &Place, access: &Access) -> Option<Finding> {
    let all_of = |text: &str| text.parse().map(|addr| Network { addr, prefix_len: 0 });
    let (v4, v6) = (all_of("0.0.0.0").ok()?, all_of("::").ok()?);
    let denies = |network| access.deny.contains(&Clients::Network(network));
    let (denied, left, missing) = match (denies(v4), denies(v6)) {
        (true, false) => ("IPv4", "IPv6", v6),
        (false, true) => ("IPv6", "IPv4", v4),
        _ => return None,
    };
    let is_let_in = |clients: &Clients| match clients {
        Clients::Network(network) => network.addr.is_ipv4() == missing.addr.is_ipv4(),
        Clients::All => true,
        Clients::Unix => false,
    };
    let is_left = access.allow.is_empty() || access.allow.iter().any(is_let_in);
    (is_left && !access.deny.contains(&Clients::All)).then(|| Finding {
        key: place.key("deny"),
        message: format!("this refuses all {denied} clients and lets {left} clients in"),
        help: format!("write deny = [\"all\"], or add \"{missing}\""),
    })
}

/// Returns a warning if `deny` refuses all clients, even those in `allow`. In nginx, `deny all` may
/// follow `allow`, because the first rule that names the client decides.
fn admits_nobody(place: &Place, access: &Access) -> Option<Finding> {
    let is_for_nobody = !access.allow.is_empty() && access.deny.contains(&Clients::All);
    is_for_nobody.then(|| Finding {
        key: place.key("deny"),
        message: "this refuses all clients, also those in `allow`".into(),
        help: "leave `deny` out: `allow` already refuses all clients that it does not name".into(),
    })
}

/// Returns a warning if the key of a rate limit has `{user}`, and no request has a user.
fn counts_no_user(place: &Place, access: &Access) -> Option<Finding> {
    let needs_user = access.rate_limits.iter().any(|limit| limit.needs_user());
    (needs_user && !access.names_users()).then(|| Finding {
        key: place.key("rate_limit"),
        message: "no client of this route has a name, so {user} in the key is empty".into(),
        help: "add `basic_auth`, `digest_auth`, or `user` of `jwt` or `forward_auth`; or write \
               {client} in the key"
            .into(),
    })
}

/// Returns a warning if the access rules of `route` apply only to some methods, and other methods
/// reach a later route with different access rules. Routes that answer with an error status
/// (`respond`, 400 or more) give no warning.
fn gate_of_methods(place: &Place, site: &Site, route: &Route) -> Option<Finding> {
    if route.access == Access::default() || route.matcher.methods.is_empty() {
        return None;
    }
    let below = site.routes.iter().skip(place.route + 1);
    let of_any_method = forebay_conf::Matcher { methods: Vec::new(), ..route.matcher.clone() };
    for other in below.filter(|other| other.matcher.shares_paths(&route.matcher)) {
        let refuses = matches!(&other.action, Action::Respond(reply) if reply.status >= 400);
        if !refuses && other.access != route.access && other.matcher.takes_others(&route.matcher) {
            return Some(Finding {
                key: place.key("methods"),
                message: format!(
                    "the gate of this route holds for {} alone: the route in line {} takes other \
                     methods without it",
                    route.matcher.methods.join(", "),
                    other.line
                ),
                help: "leave `methods` out, or give that route the same gate".into(),
            });
        }
        if other.matcher.covers(&of_any_method) {
            return None;
        }
    }
    None
}
