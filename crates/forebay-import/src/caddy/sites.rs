//! Translates sites: their addresses and certificates.

use super::around::Around;
use super::block::routes;
use super::syntax::Directive;
use super::{Cx, line, on_demand};
use crate::draft::{DraftRoute, DraftSite};
use crate::files;
use crate::matcher::Matcher;
use crate::value::{Table, Value};

/// The options that all sites share.
struct Global {
    http_port: String,
    https_port: String,
    email: Option<String>,
    directory: Option<String>,
    /// The URL of the application that permits names (`on_demand_tls`).
    ask: Option<String>,
    /// The hosts of `default_bind`.
    bind: Vec<String>,
    redirects: bool,
    https: bool,
}

/// Translates all sites.
pub fn translate(cx: &mut Cx<'_>, lines: &[Directive]) {
    let global = global(cx, lines);
    let without_braces =
        lines.iter().all(|line| line.block.is_none() || line.name.starts_with('@'))
            || lines.first().is_some_and(|first| first.block.is_none() && !first.name.is_empty());
    let sites: Vec<(Vec<String>, &Directive, &[Directive])> = if without_braces {
        let rest = lines.iter().position(|line| !line.name.is_empty()).unwrap_or(0);
        let first = &lines[rest];
        vec![(addresses(first), first, &lines[rest + 1..])]
    } else {
        let blocks = lines.iter().filter(|line| !line.name.is_empty());
        blocks.map(|line| (addresses(line), line, line.inside())).collect()
    };
    for (addresses, directive, block) in sites {
        site(cx, &global, &addresses, directive, block);
    }
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

fn addresses(directive: &Directive) -> Vec<String> {
    let all = std::iter::once(&directive.name).chain(&directive.args);
    let parts = all.flat_map(|word| word.split(','));
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Reads the global options at the top of the file.
fn global(cx: &mut Cx<'_>, lines: &[Directive]) -> Global {
    let mut global = Global {
        http_port: "80".into(),
        https_port: "443".into(),
        email: None,
        directory: None,
        ask: None,
        bind: Vec::new(),
        redirects: true,
        https: true,
    };
    let Some(options) = lines.first().filter(|first| first.name.is_empty()) else { return global };
    for option in options.inside() {
        match option.name.as_str() {
            "http_port" => global.http_port = option.arg(0).to_owned(),
            "https_port" => global.https_port = option.arg(0).to_owned(),
            "default_bind" => global.bind.clone_from(&option.args),
            "email" => global.email = Some(option.arg(0).to_owned()),
            "acme_ca" => global.directory = Some(option.arg(0).to_owned()),
            "on_demand_tls" => global.ask = on_demand::ask(cx, option),
            "auto_https" => {
                global.redirects &= option.arg(0) != "off" && option.arg(0) != "disable_redirects";
                global.https &= option.arg(0) != "off";
            }
            "admin" | "debug" | "log" | "persist_config" => {}
            _ => {
                let comment =
                    cx.note(option, "see the tables [server] and [site.tls] of the reference");
                cx.draft.comments.push(comment);
            }
        }
    }
    global
}

/// A parsed address.
struct SiteAddress {
    scheme: &'static str,
    host: String,
    port: Option<String>,
    path: String,
}

/// Parses a site address, such as `https://example.org:8443/path`. Returns `None` if Forebay cannot
/// express it.
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
            cx.note(directive, format!("{text} is no address: write `listen` and `hosts`"));
            continue;
        };
        let is_plain = address.scheme == "http"
            || address.port.as_deref() == Some(global.http_port.as_str())
            || address.scheme.is_empty()
                && address.host.is_empty()
                && address.port.as_deref() != Some("443")
            || !global.https && address.scheme.is_empty();
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
    for (is_tls, port, hosts, path) in groups {
        one_site(cx, global, (is_tls, &port, hosts, &path), directive, block);
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
    if is_tls {
        match certificate(cx, global, &site, block, directive) {
            Some(tls) => {
                let secure = bound(port).into_iter().map(|bound| format!("https://{bound}"));
                site.listen.extend(secure);
                if global.redirects && port == global.https_port {
                    site.listen.extend(bound(&global.http_port));
                    site.keys.set("redirect_to_https", true);
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
        cx.note(directive, "another site has the same address: join both");
        return;
    }
    let matcher = match path.trim_end_matches('*') {
        "" | "/" => Matcher::default(),
        start => Matcher::prefix(start),
    };
    let around = Around { matcher, ..Around::default() };
    site.routes = routes(cx, block, &around);
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
    cx.draft.sites.push(site);
}

/// Returns the address of a host of `bind`, or `None` if it is not an IP address.
fn address(host: &str) -> Option<std::net::IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host == "localhost" { Some([127, 0, 0, 1].into()) } else { host.parse().ok() }
}

/// Returns the listener for a host of `bind`. A host name becomes a loopback address, so that the
/// site is never more open.
fn bound(host: &str, port: &str) -> String {
    match address(host) {
        Some(std::net::IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Some(address) => format!("{address}:{port}"),
        None => format!("127.0.0.1:{port}"),
    }
}

/// Returns the TLS keys of a site: a certificate from a file, or one that Forebay obtains with
/// ACME.
fn certificate(
    cx: &mut Cx<'_>,
    global: &Global,
    site: &DraftSite,
    block: &[Directive],
    directive: &Directive,
) -> Option<Table> {
    let tls = block.iter().find(|line| line.name == "tls");
    if let Some(tls) = tls.filter(|tls| tls.args.len() == 2) {
        let files = [files::below(&cx.dir, tls.arg(0)), files::below(&cx.dir, tls.arg(1))];
        if files.iter().all(|file| files::is_readable(file)) {
            let mut table = Table::default();
            table.set("certificate", files[0].as_str());
            table.set("key", files[1].as_str());
            return client_certificates(cx, tls, table);
        }
        cx.note(
            tls,
            "the files cannot be read here: copy them, and set tls = { certificate, key }",
        );
        return None;
    }
    let is_public = |host: &String| {
        let is_local = host == "localhost"
            || host.ends_with(".localhost")
            || host.ends_with(".local")
            || host.ends_with(".internal");
        !host.starts_with('*')
            && host.contains('.')
            && !is_local
            && host.parse::<std::net::IpAddr>().is_err()
    };
    if let Some(line) = tls.and_then(on_demand::only) {
        let table = on_demand::table(cx, line, global.ask.as_deref())?;
        let mut acme = authority(global, tls);
        acme.set("on_demand", table);
        return Some(Table::default().with("acme", Value::Table(acme)));
    }
    let has_options = tls.is_some_and(|tls| tls.arg(0) == "internal" || !tls.inside().is_empty());
    if site.hosts.is_empty() || !site.hosts.iter().all(is_public) || has_options {
        let next = "no certificate can be obtained for this site: set tls = { certificate, key }";
        cx.note(tls.unwrap_or(directive), next);
        return None;
    }
    Some(Table::default().with("acme", Value::Table(authority(global, tls))))
}

/// Returns the keys of `acme` for the account at the authority.
fn authority(global: &Global, tls: Option<&Directive>) -> Table {
    let mut acme = Table::default();
    let email = tls.map(|tls| tls.arg(0)).filter(|email| email.contains('@')).map(str::to_owned);
    acme.set_some("email", email.or_else(|| global.email.clone()));
    acme.set_some("directory", global.directory.clone());
    acme
}

/// Adds the file of the authority for client certificates. Returns `None` if the file cannot be
/// read; the site then gets no TLS listener.
fn client_certificates(cx: &mut Cx<'_>, tls: &Directive, mut table: Table) -> Option<Table> {
    let Some(auth) = tls.inside().iter().find(|inner| inner.name == "client_auth") else {
        return Some(table);
    };
    let pool = auth.inside().iter().find(|inner| inner.name.starts_with("trust"));
    let file = pool.and_then(|pool| pool.args.last()).map(|file| files::below(&cx.dir, file));
    match file.filter(|file| files::is_readable(file)) {
        Some(file) => {
            table.set("client_ca", file);
            Some(table)
        }
        None => {
            cx.note(auth, "name the authority's file in `client_ca` of `tls`");
            None
        }
    }
}
