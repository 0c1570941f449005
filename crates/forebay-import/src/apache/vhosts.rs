//! Translates virtual hosts to sites.

use super::bases::{Base, Content, bases};
use super::expressions::expressions;
use super::fields::decorate;
use super::listeners::{self, HostTls};
use super::networks::network;
use super::rewrites;
use super::sections::{Sections, all, last, settle};
use super::syntax::{Directive, is, line};
use super::{Cx, htaccess, named_files, pages, place, proxies, unread};
use crate::draft::{DraftRoute, DraftSite};
use crate::files;
use crate::matcher::Matcher;
use crate::units::duration;
use crate::value::{Table, Value};

/// Translates the main server and all virtual hosts.
pub fn translate(cx: &mut Cx<'_>) {
    let main = cx.main;
    let comments = cx.note_unread(main);
    cx.draft.comments.extend(comments);
    process(cx);
    let hosts: Vec<&Directive> = main.iter().filter(|d| is(d, "VirtualHost")).collect();
    let htaccess = htaccess::read(cx, &hosts);
    for host in &hosts {
        let comments = cx.note_unread(host.inside());
        site(cx, Some(host), &htaccess);
        if let Some(site) = cx.draft.sites.last_mut() {
            site.comments.extend(comments);
        }
    }
    if hosts.is_empty() {
        site(cx, None, &htaccess);
    }
    listeners::note_unused(cx, &hosts);
    proxies::settle_unused(cx);
    let unread = unread::report(cx, &htaccess);
    cx.draft.comments.extend(unread);
}

fn process(cx: &mut Cx<'_>) {
    let main = [cx.main];
    settle(&main, &["KeepAlive", "KeepAliveTimeout", "MaxKeepAliveRequests"]);
    if let Some(user) = last(&main, "User") {
        if files::has_user(user.arg(0)) {
            user.settle();
            cx.draft.server.set("user", user.arg(0));
        } else {
            let next = "there is no such user here: create it, and set `user` of [server]";
            cx.note(user, next);
        }
    }
    if let Some(group) = last(&main, "Group") {
        let user = cx.draft.server.get("user").cloned();
        if user == Some(Value::from(group.arg(0))) {
            group.settle();
        } else if files::has_group(group.arg(0)) && user.is_some() {
            group.settle();
            cx.draft.server.set("group", group.arg(0));
        } else {
            let next =
                "there is no such user or group here: create it, and set `group` of [server]";
            cx.note(group, next);
        }
    }
    let off = last(&main, "KeepAlive").is_some_and(|keep| keep.arg(0).eq_ignore_ascii_case("off"));
    let time = last(&main, "KeepAliveTimeout").and_then(|time| duration(time.arg(0)));
    if let Some(line) = last(&main, "KeepAliveTimeout").filter(|_| time.is_none() && !off) {
        cx.note(line, "set `keep_alive` of [server.timeouts]");
    }
    cx.draft.timeouts.set_some("keep_alive", if off { Some("0s".into()) } else { time });
    let requests = last(&main, "MaxKeepAliveRequests").and_then(|n| n.arg(0).parse::<u64>().ok());
    let requests = requests.filter(|n| *n > 0);
    if let Some(line) = last(&main, "MaxKeepAliveRequests").filter(|_| requests.is_none() && !off) {
        cx.note(line, "set `keepalive_requests` of [server.limits]");
    }
    cx.draft.limits.set_some("keepalive_requests", requests);
}

/// Adds the site of a virtual host, or of the main server if `host` is `None`. Adds no site if
/// Apache opens no listener for the host.
fn site(cx: &mut Cx<'_>, host: Option<&Directive>, htaccess: &[(String, Directive)]) {
    let main = cx.main;
    let mut levels: Vec<&[Directive]> = vec![main];
    levels.extend(host.map(Directive::inside));
    let mut site = DraftSite::default();
    let place = host.or(main.first()).map(|directive| directive.place.clone());
    let Some(place) = place else { return };
    site.comments.push(format!("{place}: {}", host.map_or("the main server".into(), line)));
    site.hosts = hosts(cx, &levels);
    if site.hosts.is_empty() {
        site.hosts = host.map(listeners::names).unwrap_or_default();
    }
    settle(&levels, &HOST);
    let is_tls =
        last(&levels, "SSLEngine").is_some_and(|ssl| ssl.arg(0).eq_ignore_ascii_case("on"));
    let tls = if is_tls { tls(cx, &levels, host) } else { None };
    site.listen = listeners::listen(cx, host, tls_of(is_tls, tls.is_some()));
    if site.listen.is_empty() {
        if let Some(host) = host {
            cx.note(host, "no Listen line has this address, so Apache sends it no requests");
            host.settle_all();
        }
        return;
    }
    if is_tls && tls.is_none() {
        site.comments.push(
            "Without its certificate, the site listens on this machine only, without TLS.".into(),
        );
    }
    site.keys.set_some("tls", tls);
    trusted_proxies(cx, &levels, &mut site);
    let shares =
        |other: &&DraftSite| other.listen.iter().any(|listen| site.listen.contains(listen));
    let others: Vec<&DraftSite> = cx.draft.sites.iter().filter(shares).collect();
    let is_taken = |host: &String| others.iter().any(|other| other.hosts.contains(host));
    let (taken, free): (Vec<String>, Vec<String>) = site.hosts.iter().cloned().partition(is_taken);
    let is_hidden = if site.hosts.is_empty() {
        others.iter().any(|other| other.hosts.is_empty())
    } else {
        free.is_empty()
    };
    if is_hidden {
        if let Some(host) = host {
            let next = "another host has the same names, so Apache sends it no requests";
            let comment = cx.note(host, next);
            cx.draft.comments.push(comment);
            host.settle_all();
        }
        return;
    }
    if let Some(host) = host.filter(|_| !taken.is_empty()) {
        let names = taken.join(", ");
        let next =
            format!("another host has these names, so Apache sends it their requests: {names}");
        site.comments.push(cx.note(host, next));
        site.hosts = free;
    }
    let mut sections = Sections::new(cx, levels);
    sections.add_htaccess(htaccess);
    let scheme = if is_tls { "https" } else { "http" };
    site.routes = routes(cx, &sections, scheme);
    pages::check(cx, &mut site, &sections);
    limit_bodies(&sections, &mut site);
    refuse_encoded_slashes(&sections, &mut site);
    if site.routes.is_empty() {
        site.routes.push(DraftRoute::new(&place, "no content", Matcher::path("/*")).respond(404));
    }
    cx.draft.sites.push(site);
}

/// Returns true if a route passes requests to a program or server.
fn passes_on(route: &DraftRoute) -> bool {
    const PASS: [&str; 7] = ["cgi", "fastcgi", "scgi", "uwsgi", "ajp", "proxy", "app"];
    PASS.iter().any(|key| route.keys.get(key).is_some())
}

/// Sets `encoded_slashes = "refuse"` if Apache answers 404 for `%2F`, as by default. Forebay's own
/// default would pass such a path to a program or server that never got one before. With `On` and
/// `NoDecode`, Forebay's default is as open as Apache.
fn refuse_encoded_slashes(sections: &Sections<'_>, site: &mut DraftSite) {
    settle(&sections.levels, &["AllowEncodedSlashes"]);
    let allowed = last(&sections.levels, "AllowEncodedSlashes");
    let is_off = allowed.is_none_or(|allowed| allowed.arg(0).eq_ignore_ascii_case("off"));
    if is_off && site.routes.iter().any(passes_on) {
        site.keys.set("encoded_slashes", "refuse");
    }
}

/// Sets `max_body` of a site to Apache's default if a route without its own limit passes bodies on.
fn limit_bodies(sections: &Sections<'_>, site: &mut DraftSite) {
    let is_default = last(&sections.levels, "LimitRequestBody").is_none();
    let needs_limit =
        site.routes.iter().any(|route| route.keys.get("max_body").is_none() && passes_on(route));
    if is_default && needs_limit {
        // Since 2.4.54. Before, there was no limit.
        site.keys.set("max_body", "1GiB");
    }
}

/// Adds the proxies that may name the client's address, by mod_remoteip or mod_rpaf.
fn trusted_proxies(cx: &mut Cx<'_>, levels: &[&[Directive]], site: &mut DraftSite) {
    settle(levels, &["RPAFenable"]);
    let is_on = |line: &Directive| line.arg(0).eq_ignore_ascii_case("on");
    let by_rpaf = last(levels, "RPAFenable").is_some_and(is_on);
    let mut lines = [all(levels, "RemoteIPInternalProxy"), all(levels, "RemoteIPTrustedProxy")];
    let mut header = last(levels, "RemoteIPHeader");
    if by_rpaf {
        (lines, header) = ([all(levels, "RPAFproxy_ips"), Vec::new()], last(levels, "RPAFheader"));
    } else if header.is_none() {
        // Nothing names the client.
        return;
    }
    let header = header.filter(|line| !line.arg(0).eq_ignore_ascii_case("x-forwarded-for"));
    if let Some(line) = header {
        let next = "let the proxy send X-Forwarded-For, and name it in `trusted_proxies`";
        site.comments.push(cx.note(line, next));
        return;
    }
    settle(levels, &["RPAFheader", "RemoteIPHeader"]);
    let mut list: Vec<String> = Vec::new();
    for line in lines.concat() {
        line.settle();
        for text in &line.args {
            match network(text) {
                Some(network) => list.push(network),
                None => site.comments.push(cx.note(line, "write its address in `trusted_proxies`")),
            }
        }
    }
    if !list.is_empty() {
        site.keys.set("trusted_proxies", list);
        site.keys.set("forwarded", "x-forwarded");
    }
}

/// The directives about the names and the TLS of a host.
const HOST: [&str; 7] = [
    "ServerName",
    "ServerAlias",
    "SSLEngine",
    "SSLCertificateFile",
    "SSLCertificateKeyFile",
    "SSLVerifyClient",
    "SSLCACertificateFile",
];

/// Returns the host names of the innermost block in `levels`. Adds a note for each name that
/// Forebay does not accept.
fn hosts(cx: &mut Cx<'_>, levels: &[&[Directive]]) -> Vec<String> {
    let own = levels.last().copied().unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for directive in own.iter().filter(|d| is(d, "ServerName") || is(d, "ServerAlias")) {
        for name in &directive.args {
            let name = name.split_once("://").map_or(name.as_str(), |(_, name)| name);
            let name = name.split(':').next().unwrap_or_default().to_ascii_lowercase();
            let plain = name.strip_prefix("*.").unwrap_or(&name);
            let is_host = !plain.is_empty()
                && plain.split('.').all(|label| {
                    !label.is_empty()
                        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
                });
            if !is_host {
                cx.note(directive, "a name is a host, or `*.` before one: see `hosts`");
            } else if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn tls_of(is_tls: bool, has_certificate: bool) -> HostTls {
    match has_certificate {
        _ if !is_tls => HostTls::Off,
        true => HostTls::Certified,
        false => HostTls::Uncertified,
    }
}

/// Adds notes on all but the last of the certificates and keys of a host.
fn note_other_certificates(cx: &mut Cx<'_>, levels: &[&[Directive]]) {
    for name in ["SSLCertificateFile", "SSLCertificateKeyFile"] {
        let lines = levels.iter().rev().map(|level| all(&[level], name));
        let lines = lines.into_iter().find(|lines| !lines.is_empty()).unwrap_or_default();
        let others = lines.split_last().map_or(&[][..], |(_, others)| others);
        for line in others {
            cx.note(line, "a site has one certificate and its key: see `tls`");
        }
    }
}

fn tls(cx: &mut Cx<'_>, levels: &[&[Directive]], host: Option<&Directive>) -> Option<Table> {
    let mut tls = Table::default();
    let certificate = last(levels, "SSLCertificateFile");
    note_other_certificates(cx, levels);
    let Some(certificate) = certificate else {
        if let Some(host) = host {
            cx.note(host, "the host has no certificate: set tls = { certificate, key }");
        }
        return None;
    };
    // Without `SSLCertificateKeyFile`, the key is in the certificate's file.
    let key = last(levels, "SSLCertificateKeyFile").unwrap_or(certificate);
    for (directive, name) in [(certificate, "certificate"), (key, "key")] {
        let file = cx.path(directive.arg(0));
        if !files::is_readable(&file) {
            cx.note(
                directive,
                format!("{file} cannot be read here: copy it, and set {name} of `tls`"),
            );
            return None;
        }
        tls.set(name, file);
    }
    if let Some(chain) = last(levels, "SSLCertificateChainFile") {
        cx.note(chain, "append the intermediate certificates to the file of `certificate`");
    }
    let verify =
        last(levels, "SSLVerifyClient").map(|verify| (verify, verify.arg(0).to_lowercase()));
    let Some((verify, mode)) = verify.filter(|(_, mode)| mode != "none") else { return Some(tls) };
    let ca = last(levels, "SSLCACertificateFile").map(|ca| cx.path(ca.arg(0)));
    match ca.filter(|ca| files::is_readable(ca)) {
        Some(ca) => {
            tls.set("client_ca", ca);
            if mode.starts_with("optional") {
                tls.set("client_auth", "request");
            }
            Some(tls)
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

fn routes(cx: &mut Cx<'_>, sections: &Sections<'_>, scheme: &str) -> Vec<DraftRoute> {
    let mut rules = server_rules(cx, sections, scheme).into_iter().peekable();
    let mut out = Vec::new();
    // In Apache, rewrite rules that redirect or refuse requests precede the access rules. Rewrite
    // rules that pass requests to a backend do not, so stop at the first of them.
    while let Some((_, route)) = rules.next_if(|(_, route)| !rewrites::passes_on(route)) {
        out.push(route);
    }
    let bases = bases(cx, sections);
    cx.dirs.extend(bases.iter().filter_map(|base| base.dir.clone()));
    out.extend(expressions(cx, sections, &bases));
    out.extend(named_files::of_files(cx, sections, &bases));
    // So far, all routes have fixed replies. Add the host's fields to them. Other routes get these
    // fields together with their content.
    out.iter_mut().for_each(|route| decorate(cx, &sections.levels, route));
    for (directive, mut route) in rules {
        if !rewrites::passes_on(&route) {
            decorate(cx, &sections.levels, &mut route);
            out.push(route);
            continue;
        }
        let matcher = route.matcher.clone();
        let target = rewrites::target(directive).to_owned();
        let content = Content::Rule(Box::new(route), target);
        let base = Base { directive, url: "/".into(), matcher, dir: None, content };
        out.extend(place::routes(cx, sections, (&[], &base), scheme));
    }
    for (at, base) in bases.iter().enumerate() {
        out.extend(place::routes(cx, sections, (&bases[..at], base), scheme));
    }
    out
}

/// Returns the routes of the rewrite rules of the host, each with its directive.
fn server_rules<'a>(
    cx: &mut Cx<'_>,
    sections: &Sections<'a>,
    scheme: &str,
) -> Vec<(&'a Directive, DraftRoute)> {
    let mut out = Vec::new();
    for rules in rewrites::of_host(cx, sections, scheme) {
        for route in rules.routes {
            let mut all = sections.levels.iter().copied().flatten();
            let directive = all.find(|directive| directive.place == route.place);
            out.extend(directive.map(|directive| (directive, route)));
        }
    }
    out
}
