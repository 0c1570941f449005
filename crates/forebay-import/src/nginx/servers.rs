//! Translates `server` blocks to sites.

use super::access::only;
use super::here::{Here, Phase};
use super::listeners::{Listener, listeners, min_version, names};
use super::locations::{Location, order};
use super::pages::pages;
use super::scope::Scope;
use super::server::TranslatedServer;
use super::syntax::Directive;
use super::{Cx, answer, fields, internal, logs, rewrites, unread};
use crate::draft::{DraftRoute, DraftSite};
use crate::files;
use crate::matcher::Matcher;
use crate::units::duration;
use crate::value::{Table, Value};

/// Maximum number of positions in the order of a server's locations. A location with an expression
/// has several positions if it precedes prefix locations with different lists of expressions.
const MOST_SLOTS: usize = 5_000;

/// Listeners and hosts of a server that become one site.
struct SitePart {
    listeners: Vec<Listener>,
    hosts: Vec<String>,
    is_default: bool,
}

/// Translates all servers into sites.
pub fn translate<'a>(cx: &mut Cx<'a>, servers: &[&'a Directive]) {
    let all = listeners(cx, servers);
    let names: Vec<Vec<String>> = servers.iter().map(|server| names(cx, server)).collect();
    let mut parts: Vec<(usize, SitePart)> = Vec::new();
    for (at, listeners) in all.iter().enumerate() {
        let (default, others): (Vec<_>, Vec<_>) =
            listeners.iter().cloned().partition(|listener| is_default(&all, at, &listener.address));
        for (listeners, is_default) in [(default, true), (others, false)] {
            if !listeners.is_empty() {
                parts.push((at, SitePart { listeners, hosts: names[at].clone(), is_default }));
            }
        }
    }
    // In Forebay, the first site of a listener answers for unknown hosts. So default servers come
    // first.
    parts.sort_by_key(|(_, part)| !part.is_default);
    let mut taken: Vec<(String, String)> = Vec::new();
    let mut first_sites: Vec<Option<usize>> = vec![None; servers.len()];
    for (at, mut part) in parts {
        claim(cx, servers[at], &mut part, &mut taken);
        if part.hosts.is_empty() && !part.is_default {
            let text = format!("{}: no request reaches this server.", servers[at].place);
            cx.draft.comments.push(text);
            continue;
        }
        first_sites[at].get_or_insert(cx.draft.sites.len());
        site(cx, servers[at], part);
    }
    for (server, first) in servers.iter().zip(first_sites) {
        // Without a site, no request reaches the server.
        let Some(first) = first else {
            server.settle_all();
            continue;
        };
        let around = cx.http.blocks();
        let comments = unread::report(cx, &around, server.inside());
        if let Some(site) = cx.draft.sites.get_mut(first) {
            site.comments.extend(comments);
        }
    }
    if cx.draft.sites.is_empty() {
        nothing(cx, servers[0]);
    }
}

/// Returns true if server `at` answers for unknown hosts on a listener.
fn is_default(all: &[Vec<Listener>], at: usize, address: &str) -> bool {
    let with = |other: &&Vec<Listener>| other.iter().any(|listener| listener.address == address);
    let explicit = all.iter().position(|other| {
        other.iter().any(|listener| listener.address == address && listener.is_default)
    });
    let first = all.iter().position(|other| with(&other));
    explicit.or(first) == Some(at)
}

/// Removes hosts that an earlier server has on the same listener, because nginx uses the first
/// server.
fn claim(
    cx: &mut Cx<'_>,
    server: &Directive,
    part: &mut SitePart,
    taken: &mut Vec<(String, String)>,
) {
    let is_taken = |taken: &[(String, String)], host: &str| {
        part.listeners.iter().any(|l| taken.iter().any(|(a, h)| *a == l.address && h == host))
    };
    let mut kept: Vec<String> = Vec::new();
    for host in &part.hosts {
        if is_taken(taken, host) || kept.contains(host) {
            if !kept.contains(host) {
                let text = format!("{}: another server has the name {host}.", server.place);
                cx.draft.comments.push(text);
            }
        } else {
            kept.push(host.clone());
        }
    }
    let claimed = kept.iter().flat_map(|host| {
        part.listeners.iter().map(move |listener| (listener.address.clone(), host.clone()))
    });
    taken.extend(claimed);
    part.hosts = kept;
}

/// Adds a site that answers 503. Its comment says that no server could be translated.
fn nothing(cx: &mut Cx<'_>, server: &Directive) {
    let route = DraftRoute::new(&server.place, server.line(), Matcher::path("/*")).respond(503);
    let site = DraftSite {
        comments: vec!["No server could be translated.".into()],
        listen: vec!["127.0.0.1:8080".into()],
        routes: vec![route],
        ..DraftSite::default()
    };
    cx.draft.sites.push(site);
}

/// Adds the sites of one part of a server.
fn site<'a>(cx: &mut Cx<'a>, directive: &'a Directive, mut part: SitePart) {
    let scope = cx.http.inside(directive.inside());
    let tls = tls(cx, &scope, directive, &part);
    let asks = tls.as_ref().is_some_and(|tls| tls.get("client_ca").is_some());
    let (secure, plain): (Vec<_>, Vec<_>) =
        part.listeners.iter().cloned().partition(|listener| listener.is_tls);
    // A site that requests client certificates cannot have listeners without TLS, so these get
    // their own site.
    if asks && !plain.is_empty() {
        let rest =
            SitePart { listeners: plain, hosts: part.hosts.clone(), is_default: part.is_default };
        one_site(cx, directive, rest, None, &scope);
        part.listeners = secure;
    }
    one_site(cx, directive, part, tls, &scope);
}

/// Adds the site for a part of a server: its listeners, TLS, limits and routes.
fn one_site<'a>(
    cx: &mut Cx<'a>,
    directive: &'a Directive,
    part: SitePart,
    tls: Option<Table>,
    scope: &Scope<'a>,
) {
    let mut site = DraftSite {
        comments: vec![format!("{}: server", directive.place)],
        ..DraftSite::default()
    };
    site.listen = listen(cx, &mut site.comments, &part, tls.is_some());
    let is_secure = |listener: &Listener| listener.is_tls;
    let scheme = match (part.listeners.iter().all(is_secure), part.listeners.iter().any(is_secure))
    {
        (true, _) => Some("https"),
        (_, false) => Some("http"),
        _ => None,
    };
    let has_tls = site.listen.iter().any(|listen| listen.starts_with("https://"));
    if let Some(tls) = tls.filter(|_| has_tls) {
        site.keys.set("tls", tls);
        let is_quic = part.listeners.iter().any(|listener| listener.is_quic);
        let can = site.listen.iter().all(|listen| !listen.contains("unix:"));
        let asks = matches!(site.keys.get("tls"), Some(Value::Table(tls)) if tls.get("client_ca").is_some());
        if is_quic && can && !asks && !part.listeners.iter().any(|l| l.has_proxy_protocol) {
            site.keys.set("http3", true);
        }
    }
    proxies(cx, scope, &part, &mut site);
    let max_body = fields::max_body(scope.value("client_max_body_size").unwrap_or("1m"));
    site.keys.set("max_body", max_body.as_str());
    cx.site_max_body = scope.value("client_max_body_size").map(fields::max_body);
    cx.site_compress = None;
    if cx.keys.has("Site", "defaults")
        && let Some(compress) = fields::compress(scope)
    {
        site.keys.set("defaults", Table::default().with("compress", compress.clone()));
        cx.site_compress = Some(compress);
    }
    let is_exact = |host: &&String| !host.starts_with('*');
    let mut server = TranslatedServer {
        directive,
        scope: scope.clone(),
        locations: Location::of_server(scope),
        keys: cx.keys,
        name: part.hosts.iter().find(is_exact).cloned(),
        has_hidden: false,
        scheme,
        fallback: None,
        maintenance: None,
    };
    server.has_hidden = internal::has_choice(&server, &server.locations);
    let hosts = by_host(cx, &server, &part, &site);
    site.hosts = hosts;
    if site.hosts.is_empty() && !part.is_default {
        // `by_host` has added a site for each host of this server, so the server's other lines have
        // no effect.
        directive.settle_all();
        return;
    }
    if part.is_default && !site.hosts.is_empty() && is_shared(cx, &site) {
        site.hosts.push("*".into());
    }
    let pages = pages(cx, scope, &server.locations);
    if !pages.is_empty() {
        site.keys.set("error_pages", pages);
    }
    site.routes = routes(cx, &mut server);
    slashes(cx, scope, &mut site);
    marks(cx, scope, &mut site);
    site.keys.set_some("maintenance", server.maintenance.take());
    logs::site(cx, scope, &mut site);
    cx.draft.sites.push(site);
}

/// Adds the key `underscores_in_headers` if nginx passes fields whose names have underscores. With
/// `ignore_invalid_headers off`, nginx passes fields with any name.
fn marks(cx: &Cx<'_>, scope: &Scope<'_>, site: &mut DraftSite) {
    let passes = scope.value("underscores_in_headers") == Some("on")
        || scope.value("ignore_invalid_headers") == Some("off");
    if passes && cx.keys.has("Site", "underscores_in_headers") {
        site.keys.set("underscores_in_headers", true);
    }
}

/// Adds the keys `encoded_slashes` and `merge_slashes` to a site with a `proxy` route. The reason
/// is that nginx passes encoded slashes and repeated slashes unchanged if `proxy_pass` has no path.
fn slashes(cx: &Cx<'_>, scope: &Scope<'_>, site: &mut DraftSite) {
    let has = |key: &str| site.routes.iter().any(|route| route.keys.get(key).is_some());
    if !has("proxy") {
        return;
    }
    let is_unchanged = |route: &DraftRoute| match route.keys.get("proxy") {
        Some(Value::Table(proxy)) => {
            proxy.get("strip_prefix").is_none() && proxy.get("decode_path").is_none()
        }
        Some(_) => true,
        None => false,
    };
    let mut routes = site.routes.iter().filter(|route| route.keys.get("rewrite").is_none());
    let local = ["files", "fastcgi", "scgi", "uwsgi", "cgi", "app"];
    let only_passes = !local.iter().any(|key| has(key)) && routes.any(is_unchanged);
    if cx.keys.has("Site", "encoded_slashes") {
        site.keys.set("encoded_slashes", "pass");
    }
    let is_off = scope.value("merge_slashes") == Some("off");
    if (is_off || only_passes) && cx.keys.has("Site", "merge_slashes") {
        site.keys.set("merge_slashes", false);
    }
}

/// Returns true if an earlier site has one of the listeners, so that `site` is not the first site
/// there.
fn is_shared(cx: &Cx<'_>, site: &DraftSite) -> bool {
    cx.draft
        .sites
        .iter()
        .any(|other| other.listen.iter().any(|listen| site.listen.contains(listen)))
}

/// Returns the listeners in Forebay's form. Leaves out TLS listeners if `has_tls` is false, because
/// the site then has no certificate. If no listener remains, returns a listener without TLS that
/// only this machine can use.
fn listen(cx: &Cx<'_>, comments: &mut Vec<String>, part: &SitePart, has_tls: bool) -> Vec<String> {
    let usable = part.listeners.iter().filter(|listener| !listener.is_tls || has_tls);
    let mut listen: Vec<String> = usable.map(Listener::written).collect();
    if listen.is_empty() {
        let text = "Without its certificate, the site listens on this machine only, without TLS.";
        comments.push(text.into());
        let is_taken = |address: &String| {
            let same = cx.draft.sites.iter().filter(|other| other.listen.contains(address));
            let mut hosts = same.map(|other| &other.hosts);
            hosts
                .any(|hosts| hosts.is_empty() || hosts.iter().any(|host| part.hosts.contains(host)))
        };
        // Another site with one of these hosts may already use this loopback address, so look for a
        // free one.
        let first = part.listeners.first().map(Listener::on_loopback).unwrap_or_default();
        let others = (2..=250).map(|n| first.replacen("127.0.0.1", &format!("127.0.0.{n}"), 1));
        let mut all = std::iter::once(first.clone()).chain(others);
        listen.push(all.find(|address| !is_taken(address)).unwrap_or(first));
    }
    listen
}

/// Returns the TLS keys of a server; `None` if it has no TLS listener or no certificate.
fn tls(cx: &mut Cx<'_>, scope: &Scope<'_>, server: &Directive, part: &SitePart) -> Option<Table> {
    if !part.listeners.iter().any(|listener| listener.is_tls) {
        return None;
    }
    let (mut tls, mut is_complete) = (Table::default(), true);
    tls.set_some("min_version", min_version(scope));
    for (name, key, is_required) in [
        ("ssl_certificate", "certificate", true),
        ("ssl_certificate_key", "key", true),
        ("ssl_stapling_file", "ocsp_staple", false),
    ] {
        let directive = scope.any(&[name]).first().copied();
        let Some(directive) = directive else {
            if is_required {
                let place = &server.place;
                let next = "the server has no certificate: set tls = { certificate, key }";
                cx.draft.notes.add(place, &server.line(), next);
                is_complete = false;
            }
            continue;
        };
        let file = files::below(&cx.dir, directive.arg(0));
        if files::is_readable(&file) {
            tls.set(key, file);
            continue;
        }
        cx.note(directive, format!("{file} cannot be read here: copy it, and set {key} of `tls`"));
        is_complete &= !is_required;
    }
    if let Some(directive) = scope.all("ssl_certificate").get(1) {
        cx.note(directive, "a site has one certificate: the first one is used");
    }
    if !is_complete {
        return None;
    }
    client_certificates(cx, scope, &mut tls)?;
    Some(tls)
}

/// Adds the file of the authority for client certificates to `tls`. Returns `None` if the file
/// cannot be read, or if nginx checks for revoked certificates. The site then gets no TLS listener.
fn client_certificates(cx: &mut Cx<'_>, scope: &Scope<'_>, tls: &mut Table) -> Option<()> {
    let verify = scope.nearest("ssl_verify_client").filter(|verify| verify.arg(0) != "off");
    let Some(verify) = verify else { return Some(()) };
    let ocsp = scope.nearest("ssl_ocsp").filter(|ocsp| ocsp.arg(0) != "off");
    if let Some(list) = scope.nearest("ssl_crl").or(ocsp) {
        // Forebay has no check for revoked certificates, and would accept such certificates.
        cx.note(list, super::names::next_step(&list.name));
        return None;
    }
    let file = scope.value("ssl_client_certificate").map(|file| files::below(&cx.dir, file));
    match file.filter(|file| files::is_readable(file)) {
        Some(file) => {
            tls.set("client_ca", file);
            if verify.arg(0).starts_with("optional") {
                tls.set("client_auth", "request");
            }
            Some(())
        }
        None => {
            cx.note(
                verify,
                "the authority's file cannot be read here: copy it, and set client_ca of `tls`",
            );
            None
        }
    }
}

/// Adds the keys for proxies that the server trusts: `proxy_protocol`, `trusted_proxies` and
/// `forwarded`.
fn proxies(cx: &mut Cx<'_>, scope: &Scope<'_>, part: &SitePart, site: &mut DraftSite) {
    let trusted = scope.all("set_real_ip_from");
    let is_network = |text: &&str| {
        let address = text.split('/').next().unwrap_or_default();
        address.parse::<std::net::IpAddr>().is_ok()
    };
    let list: Vec<&str> = trusted
        .iter()
        .map(|directive| if directive.arg(0) == "unix:" { "unix" } else { directive.arg(0) })
        .filter(|text| *text == "unix" || is_network(text))
        .collect();
    for other in trusted.iter().filter(|from| from.arg(0) != "unix:" && !is_network(&from.arg(0))) {
        site.comments.push(cx.note(other, "write its address in `trusted_proxies`"));
    }
    let by_header = part.listeners.iter().any(|listener| listener.has_proxy_protocol);
    if by_header {
        site.keys.set("proxy_protocol", true);
    }
    let header = scope.value("real_ip_header").unwrap_or("X-Real-IP");
    let is_forwarded = header.eq_ignore_ascii_case("x-forwarded-for");
    if list.is_empty() {
        return;
    }
    if is_forwarded || (by_header && header == "proxy_protocol") {
        site.keys.set("trusted_proxies", list);
        if is_forwarded {
            site.keys.set("forwarded", "x-forwarded");
        }
        return;
    }
    let next = "let the proxy send X-Forwarded-For, and name it in `trusted_proxies`";
    site.comments.push(cx.note(trusted[0], next));
}

/// Adds a site for each block `if ($host = NAME) { return ...; }` of a server. Returns the other
/// hosts of the server.
fn by_host<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    part: &SitePart,
    site: &DraftSite,
) -> Vec<String> {
    let mut hosts = part.hosts.clone();
    for (directive, host) in server.host_conditions() {
        if !hosts.contains(&host) && !part.is_default {
            // nginx passes no requests for this host to this server, so the block has no effect.
            directive.settle_all();
            continue;
        }
        hosts.retain(|other| *other != host);
        let Some(inner) = directive.inside().iter().find(|inner| inner.name == "return") else {
            continue;
        };
        directive.settle();
        inner.settle();
        let variables = server.variables(&server.scope, None);
        let route = DraftRoute::new(&inner.place, inner.line(), Matcher::path("/*"));
        let route = rewrites::returned(cx, &variables, inner, route);
        let same = cx.draft.sites.last_mut().filter(|last| {
            last.listen == site.listen
                && last.routes.len() == 1
                && last.routes[0].keys == route.keys
                && !last.hosts.is_empty()
        });
        match same {
            Some(last) => last.hosts.push(host),
            None => cx.draft.sites.push(DraftSite {
                comments: vec![format!("{}: {}", directive.place, directive.line())],
                hosts: vec![host],
                routes: vec![route],
                ..site.clone()
            }),
        }
    }
    hosts
}

fn routes<'a>(cx: &mut Cx<'a>, server: &mut TranslatedServer<'a>) -> Vec<DraftRoute> {
    let whole = Location::of_block(&server.scope);
    let here = Here { location: &whole, matcher: Matcher::path("/*"), found: None, region: None };
    let mut phase = Phase::default();
    let mut out = answer::before(cx, server, &here, server.scope.own(), &mut phase);
    server.maintenance = phase.maintenance.take();
    if phase.is_done {
        // The server's own `return` or `rewrite` answers all requests, so the locations have no
        // effect.
        let locations = server.scope.own().iter().filter(|inner| inner.name == "location");
        locations.for_each(Directive::settle_all);
        unread::settle_unreached(server.scope.own());
        out.extend(phase.otherwise);
        return out;
    }
    if let Some(comment) = phase.closed.take() {
        // The whole site is closed, and the note is about the line that closes it.
        server.directive.settle_all();
        out.push(here.route(server).closed(comment));
        return out;
    }
    if let Some(to) = phase.rewrite.take() {
        let mut route = here.route(server);
        route.keys.set("rewrite", to);
        out.push(route);
    }
    server.fallback = phase.fallback.take();
    let slots = order(&server.locations);
    if slots.len() > MOST_SLOTS {
        server.directive.settle_all();
        let next = format!("the locations need more than {MOST_SLOTS} routes: use several servers");
        let comment = cx.note(server.directive, next);
        return vec![here.route(server).closed(comment)];
    }
    let mut rest = Vec::new();
    for slot in slots {
        rest.extend(answer::routes(cx, server, slot));
    }
    if let Some(methods) = phase.methods {
        only(&methods, &mut rest);
    }
    out.extend(rest);
    out.extend(phase.otherwise);
    out
}

/// Directives of `http` with a time, and their keys of [server.timeouts].
const TIMES: [(&str, &str); 4] = [
    ("client_header_timeout", "head"),
    ("client_body_timeout", "body_idle"),
    ("keepalive_timeout", "keep_alive"),
    ("send_timeout", "write"),
];

/// Translates the settings of the whole process.
pub fn settings(cx: &mut Cx<'_>, main: &[Directive]) {
    if let Some(user) = main.iter().find(|directive| directive.name == "user") {
        user.settle();
        let (name, group) = (user.arg(0), user.arg(1));
        if files::has_user(name) {
            cx.draft.server.set("user", name);
            if files::has_group(group) && group != name {
                cx.draft.server.set("group", group);
            }
        } else {
            let comment = cx.note(user, "this machine has no such user: set `user` of [server]");
            cx.draft.comments.push(comment);
        }
    }
    let threads = main.iter().find(|directive| directive.name == "worker_processes");
    let number = threads.and_then(|directive| directive.arg(0).parse::<u64>().ok());
    let number = number.filter(|number| (1..=512).contains(number));
    threads.filter(|_| number.is_some()).iter().for_each(|threads| threads.settle());
    cx.draft.server.set_some("threads", number);
    for (name, key) in TIMES {
        let Some(time) = cx.http.value(name).and_then(duration) else { continue };
        if time != "0s" || key == "keep_alive" {
            cx.draft.timeouts.set(key, time);
        }
    }
    let requests = cx.http.value("keepalive_requests").and_then(|n| n.parse::<u64>().ok());
    cx.draft.limits.set_some("keepalive_requests", requests.filter(|n| *n > 0));
    logs::process(cx);
    head_size(cx);
}

/// Translates `large_client_header_buffers` to the key `head_size`: all buffers together hold the
/// head of a request.
fn head_size(cx: &mut Cx<'_>) {
    /// The default of `head_size` in bytes.
    const DEFAULT: u64 = 32 * 1024;
    let Some(buffers) = cx.http.nearest("large_client_header_buffers") else { return };
    let number = buffers.arg(0).parse::<u64>().ok();
    let bytes = crate::units::bytes(buffers.arg(1));
    match number.zip(bytes).and_then(|(number, bytes)| number.checked_mul(bytes)) {
        Some(DEFAULT) => {}
        Some(all @ 1_024..=1_048_576) => {
            cx.draft.limits.set("head_size", all.to_string());
            // In nginx, the request line must fit into one of the buffers.
            let target = bytes.filter(|bytes| *bytes > 8 * 1024).map(|bytes| bytes.min(all / 2));
            cx.draft.limits.set_some("target", target.map(|bytes| bytes.to_string()));
        }
        _ => drop(cx.note(buffers, "write the largest request head in `head_size`")),
    }
}

/// Adds comments with the directives that need no key in Forebay, and the reasons. The caller has
/// translated all other lines.
pub fn needless(cx: &mut Cx<'_>, main: &[Directive]) {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut blocks = vec![main];
    while let Some(block) = blocks.pop() {
        for directive in block {
            let name = directive.name.as_str();
            let reason = super::needless::reason(name).filter(|_| !directive.is_settled());
            if let Some(reason) = reason {
                match found.iter_mut().find(|(other, _)| *other == reason) {
                    Some((_, names)) if names.contains(&name) => {}
                    Some((_, names)) => names.push(name),
                    None => found.push((reason, vec![name])),
                }
            }
            if matches!(name, "http" | "server" | "location" | "upstream" | "stream") {
                blocks.push(directive.inside());
            }
        }
    }
    found.sort_unstable();
    let text = |(reason, mut names): (&str, Vec<&str>)| {
        names.sort_unstable();
        format!("Forebay needs no key for {}: {reason}.", names.join(", "))
    };
    cx.draft.comments.splice(0..0, found.into_iter().map(text));
}
