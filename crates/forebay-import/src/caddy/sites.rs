//! Translates sites: their addresses and certificates.

use super::around::Around;
use super::block::routes;
use super::certificates::certificate;
use super::options::{self, Global};
use super::syntax::Directive;
use super::{Cx, line, unread};
use crate::draft::{DraftRoute, DraftSite};
use crate::matcher::Matcher;
use crate::value::Table;

/// Translates all sites.
pub fn translate(cx: &mut Cx<'_>, lines: &[Directive]) {
    let mut global = options::read(cx, lines);
    let sites = blocks(cx, lines);
    let plain = sites.iter().flat_map(|(addresses, ..)| addresses).filter_map(|text| parse(text));
    let is_usual = |address: &SiteAddress| {
        address.port.as_deref().is_none_or(|port| port == global.http_port)
            && is_plain(&global, address)
    };
    let plain = plain.filter(is_usual).map(|address| address.host);
    let plain = plain.collect();
    global.plain = plain;
    for (addresses, directive, block) in sites {
        site(cx, &global, &addresses, directive, block);
    }
    // In Forebay, the first site of a listener answers for unknown hosts. So sites without host
    // names come first.
    cx.draft.sites.sort_by_key(|site| !site.hosts.is_empty());
    unknown_hosts(cx);
    if cx.draft.sites.is_empty() {
        let first = &lines[0];
        let route = DraftRoute::new(&first.place, line(first), Matcher::path("/*")).respond(503);
        cx.draft.sites.push(DraftSite {
            comments: vec!["No site could be translated.".into()],
            listen: vec!["127.0.0.1:8080".into()],
            routes: vec![route],
            ..DraftSite::default()
        });
    }
}

/// The addresses of a site, its first line, and the lines within its block.
type SiteBlock<'l> = (Vec<String>, &'l Directive, &'l [Directive]);

/// Returns the blocks of the sites. A site without braces has all lines up to the end of the file.
fn blocks<'l>(cx: &mut Cx<'_>, lines: &'l [Directive]) -> Vec<SiteBlock<'l>> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.name.is_empty()) {
        if line.name == "import" && line.block.is_none() {
            cx.note(line, "the file does not exist: copy it here, and import again");
            continue;
        }
        if line.block.is_none() {
            found.push((addresses(line), line, &lines[at + 1..]));
            break;
        }
        found.push((addresses(line), line, line.inside()));
    }
    found
}

/// Adds a route for unknown hosts to the first site of each listener where every site has names.
/// Forebay's first site answers for unknown hosts, but Caddy sends them an empty reply of status
/// 200. A site of its own would need a certificate, so the route tests the host.
fn unknown_hosts(cx: &mut Cx<'_>) {
    let sites = &cx.draft.sites;
    let listens = |site: &DraftSite, listen: &String| site.listen.contains(listen);
    let is_first = |at: usize, listen: &String| {
        !sites[..at].iter().any(|site| listens(site, listen))
            && !sites.iter().any(|site| listens(site, listen) && site.hosts.is_empty())
    };
    let first: Vec<usize> = (0..sites.len())
        .filter(|&at| sites[at].listen.iter().any(|listen| is_first(at, listen)))
        .collect();
    for at in first {
        let site = &mut cx.draft.sites[at];
        let Some(place) = site.routes.first().map(|route| route.place.clone()) else { continue };
        let pattern = |host: &String| match host.strip_prefix('*') {
            Some(end) => format!(".+{}", regex_syntax::escape(end)),
            None => regex_syntax::escape(host),
        };
        let names: Vec<String> = site.hosts.iter().map(pattern).collect();
        let host = format!(r"~*^(?:{})\.?(?::[0-9]*)?$", names.join("|"));
        let known = Table::default().with("header", Table::default().with("Host", host));
        let when = Table::default().with("not", known);
        let matcher = Matcher { when, ..Matcher::path("/*") };
        let mut route = DraftRoute::new(&place, site.hosts.join(", "), matcher).respond(200);
        route.comments.push(crate::draft::UNKNOWN_HOSTS.into());
        route.is_decorated = true;
        site.routes.insert(0, route);
    }
}

fn addresses(directive: &Directive) -> Vec<String> {
    let all = std::iter::once(&directive.name).chain(&directive.args);
    let parts = all.flat_map(|word| word.split(','));
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// A parsed address.
struct SiteAddress {
    scheme: &'static str,
    host: String,
    port: Option<String>,
    path: String,
}

/// Parses a site address, such as `https://example.org:8443/path`. Returns `None` if Forebay cannot
/// express the address.
fn parse(text: &str) -> Option<SiteAddress> {
    let (scheme, rest) = match text.split_once("://") {
        Some(("http", rest)) => ("http", rest),
        Some(("https", rest)) => ("https", rest),
        Some(_) => return None,
        None => ("", text),
    };
    let (rest, path) = match rest.find('/') {
        Some(at) => (&rest[..at], &rest[at..]),
        None => (rest, ""),
    };
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port))
            if !host.ends_with(':') && (!host.contains(':') || host.ends_with(']')) =>
        {
            (host, Some(port.to_owned()))
        }
        _ => (rest, None),
    };
    let is_port = |port: &String| port.parse::<u16>().is_ok_and(|port| port > 0);
    let plain = host.strip_prefix("*.").unwrap_or(host).trim_matches(['[', ']']);
    let is_host =
        host.is_empty() || plain.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c));
    (is_host && port.as_ref().is_none_or(is_port)).then(|| SiteAddress {
        scheme,
        host: host.to_ascii_lowercase(),
        port,
        path: path.to_owned(),
    })
}

/// Returns true if Caddy answers for an address without TLS.
fn is_plain(global: &Global, address: &SiteAddress) -> bool {
    address.scheme == "http"
        || address.port.as_deref() == Some(global.http_port.as_str())
        || address.scheme.is_empty()
            && address.host.is_empty()
            && address.port.as_deref() != Some("443")
        || !global.https && address.scheme.is_empty()
}

/// Returns true if a site without TLS answers for one of these hosts.
fn has_plain(global: &Global, hosts: &[String]) -> bool {
    hosts.is_empty() && global.plain.contains("")
        || hosts.iter().any(|host| global.plain.contains(host))
}

/// Adds a site for each group of addresses with the same listener and path.
fn site(
    cx: &mut Cx<'_>,
    global: &Global,
    addresses: &[String],
    directive: &Directive,
    block: &[Directive],
) {
    let mut groups: Vec<(bool, String, Vec<String>, String)> = Vec::new();
    for text in addresses {
        let Some(address) = parse(text) else {
            cx.note_site(directive, format!("{text} is no address: write `listen` and `hosts`"));
            continue;
        };
        let is_plain = is_plain(global, &address);
        let default = if is_plain { &global.http_port } else { &global.https_port };
        let port = address.port.clone().unwrap_or_else(|| default.clone());
        let same = groups
            .iter_mut()
            .find(|(tls, p, _, path)| (*tls, p, path) == (!is_plain, &port, &address.path));
        let hosts = match same {
            Some((_, _, hosts, _)) => hosts,
            None => {
                groups.push((!is_plain, port, Vec::new(), address.path.clone()));
                &mut groups.last_mut().expect("a group was just added").2
            }
        };
        if !address.host.is_empty() && !hosts.contains(&address.host) {
            hosts.push(address.host);
        }
    }
    if groups.is_empty() {
        // The note on the address is about all lines of the site.
        return;
    }
    let first = cx.draft.sites.len();
    for (is_tls, port, hosts, path) in groups {
        one_site(cx, global, (is_tls, &port, hosts, &path), directive, block);
    }
    let comments = unread::report(cx, &directive.name, block);
    if let Some(site) = cx.draft.sites.get_mut(first) {
        site.comments.extend(comments);
    }
}

/// Adds one site, with its listener, certificate and routes.
fn one_site(
    cx: &mut Cx<'_>,
    global: &Global,
    (is_tls, port, hosts, path): (bool, &str, Vec<String>, &str),
    directive: &Directive,
    block: &[Directive],
) {
    let mut site = DraftSite {
        comments: vec![format!("{}: {}", directive.place, line(directive))],
        hosts,
        ..DraftSite::default()
    };
    let bind = block.iter().find(|line| line.name == "bind");
    bind.iter().for_each(|bind| bind.settle());
    let hosts = bind.map_or(&global.bind, |bind| &bind.args);
    let bound = |port: &str| -> Vec<String> {
        match &hosts[..] {
            [] => vec![format!(":{port}")],
            hosts => hosts.iter().map(|host| bound(host, port)).collect(),
        }
    };
    if let Some(bind) = bind.filter(|bind| bind.args.iter().any(|host| address(host).is_none())) {
        cx.note(bind, "the site listens on this machine only: write its addresses in `listen`");
    }
    let mut redirects = None;
    if is_tls {
        match certificate(cx, global, &site, block, directive) {
            Some(tls) => {
                let secure = bound(port).into_iter().map(|bound| format!("https://{bound}"));
                site.listen.extend(secure);
                // A site that requests client certificates has no listener without TLS.
                let is_plain = tls.get("client_ca").is_none();
                if global.redirects && port == global.https_port && is_plain {
                    site.listen.extend(bound(&global.http_port));
                    site.keys.set("redirect_to_https", true);
                } else if global.redirects && port == "443" && !has_plain(global, &site.hosts) {
                    redirects = Some(bound(&global.http_port));
                }
                site.keys.set("tls", tls);
            }
            None => {
                let text =
                    "Without a certificate, the site listens on this machine only, without TLS.";
                site.comments.push(text.into());
                site.listen.push(format!("127.0.0.1:{port}"));
            }
        }
    } else {
        site.listen.extend(bound(port));
    }
    let is_taken = |other: &DraftSite| {
        other.listen.iter().any(|listen| site.listen.contains(listen))
            && (site.hosts.is_empty() && other.hosts.is_empty()
                || site.hosts.iter().any(|host| other.hosts.contains(host)))
    };
    if cx.draft.sites.iter().any(is_taken) {
        cx.note_site(directive, "another site has the same address: join both");
        block.iter().for_each(Directive::settle_all);
        return;
    }
    let matcher = match path.trim_end_matches('*') {
        "" | "/" => Matcher::default(),
        start => Matcher::prefix(start),
    };
    let is_whole = matcher == Matcher::default();
    let around = Around { matcher, is_whole, ..Around::default() };
    if !global.trusted.is_empty() {
        site.keys.set("trusted_proxies", global.trusted.clone());
        site.keys.set("forwarded", "x-forwarded");
    }
    cx.host = match &site.hosts[..] {
        [host] if !host.starts_with('*') => Some(host.clone()),
        _ => None,
    };
    site.routes = routes(cx, block, &around);
    let excluded = std::mem::take(&mut cx.excluded);
    site.routes.splice(0..0, other_spellings(directive, excluded));
    for route in &mut site.routes {
        let matcher = &route.matcher;
        if matcher.paths.is_empty() && matcher.suffixes.is_empty() && matcher.regex.is_none() {
            route.matcher.paths.push("/*".into());
        }
    }
    if site.routes.is_empty() {
        let route = DraftRoute::new(&directive.place, line(directive), Matcher::path("/*"));
        site.routes.push(route.respond(404));
    }
    let hosts = site.hosts.clone();
    cx.draft.sites.push(site);
    if let Some(listen) = redirects {
        let route = DraftRoute::new(&directive.place, line(directive), Matcher::path("/*"));
        let routes = vec![route.redirect("https://{host}{uri}", 308)];
        cx.draft.sites.push(DraftSite { listen, hosts, routes, ..DraftSite::default() });
    }
}

/// Returns routes that refuse excluded paths in another spelling, with U+0130 for i or U+212A for
/// k. For example, Caddy's `not path /admin` also excludes the path with U+0130 in place of i.
/// Forebay's expression for all other paths accepts that path. `excluded` has the expressions for
/// the excluded paths.
fn other_spellings(directive: &Directive, mut excluded: Vec<String>) -> Vec<DraftRoute> {
    excluded.sort();
    excluded.dedup();
    let route = |regex: String| {
        let when = Table::default().with("variable", Table::default().with("request_uri", OTHERS));
        let matcher = Matcher { regex: Some(regex), when, ..Matcher::default() };
        let mut route = DraftRoute::new(&directive.place, line(directive), matcher).respond(403);
        let text = "Caddy takes some letters beyond ASCII, such as \u{130}, for i or k.";
        route.comments.push(text.into());
        route
    };
    excluded.into_iter().map(route).collect()
}

/// The two letters beyond ASCII that Caddy takes for i and k, in the path of a request's target.
const OTHERS: &str = r"~*^[^?]*(?:(?:%C4|\xC4)(?:%B0|\xB0)|(?:%E2|\xE2)(?:%84|\x84)(?:%AA|\xAA))";

/// Returns the address of a host of `bind`. Returns `None` for a host name other than `localhost`.
fn address(host: &str) -> Option<std::net::IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host == "localhost" { Some([127, 0, 0, 1].into()) } else { host.parse().ok() }
}

/// Returns the listener for a host of `bind`. A host name other than `localhost` becomes a loopback
/// address, so that no other machine can connect.
fn bound(host: &str, port: &str) -> String {
    match address(host) {
        Some(std::net::IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Some(address) => format!("{address}:{port}"),
        None => format!("127.0.0.1:{port}"),
    }
}
