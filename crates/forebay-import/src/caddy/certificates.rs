//! Translates `tls`: certificates from files or from an authority, and client certificates.

use super::options::Global;
use super::syntax::Directive;
use super::{Cx, on_demand};
use crate::draft::DraftSite;
use crate::files;
use crate::value::{Table, Value};

/// Lines of `tls` that do not select a certificate.
const LIMITS: [&str; 4] = ["alpn", "ciphers", "curves", "protocols"];

/// Returns the TLS keys of a site: a certificate from a file, or one that Forebay obtains with
/// ACME. Adds a note and returns `None` if Forebay cannot get a certificate for the site.
pub fn certificate(
    cx: &mut Cx<'_>,
    global: &Global,
    site: &DraftSite,
    block: &[Directive],
    directive: &Directive,
) -> Option<Table> {
    let tls = block.iter().find(|line| line.name == "tls");
    tls.iter().for_each(|tls| tls.settle());
    // Only the first line `tls` is translated. A second one may require certificates from clients.
    let others = block.iter().filter(|line| line.name == "tls").skip(1);
    if let Some(other) = others.into_iter().find(|line| has_client_auth(line)) {
        cx.note(other, "join the lines `tls` of this site, and write `client_ca` in `tls`");
        return None;
    }
    if let Some(tls) = tls.filter(|tls| tls.args.len() == 2) {
        let files = [files::below(&cx.dir, tls.arg(0)), files::below(&cx.dir, tls.arg(1))];
        if files.iter().all(|file| files::is_readable(file)) {
            let mut table = Table::default();
            table.set("certificate", files[0].as_str());
            table.set("key", files[1].as_str());
            versions(tls, &mut table);
            return client_certificates(cx, tls, table);
        }
        cx.note(
            tls,
            "the files cannot be read here: copy them, and set tls = { certificate, key }",
        );
        return None;
    }
    if let Some(line) = tls.and_then(on_demand::only) {
        line.settle_all();
        let table = on_demand::table(cx, line, global.ask.as_deref())?;
        let mut acme = authority(global, tls);
        acme.set("on_demand", table);
        return Some(Table::default().with("acme", Value::Table(acme)));
    }
    let is_limit = |line: &Directive| LIMITS.contains(&line.name.as_str());
    let has_options =
        tls.is_some_and(|tls| tls.arg(0) == "internal" || !tls.inside().iter().all(is_limit));
    if site.hosts.is_empty() || !site.hosts.iter().all(|host| is_public(host)) || has_options {
        let next = "no certificate can be obtained for this site: set tls = { certificate, key }";
        match tls {
            Some(tls) => cx.note(tls, next),
            None => cx.note_site(directive, next),
        };
        return None;
    }
    let mut table = Table::default().with("acme", Value::Table(authority(global, tls)));
    tls.iter().for_each(|tls| versions(tls, &mut table));
    Some(table)
}

fn has_client_auth(tls: &Directive) -> bool {
    tls.inside().iter().any(|line| line.name == "client_auth")
}

/// Returns true if a public authority may issue a certificate for this name. Returns false for
/// wildcards, addresses and local names.
fn is_public(host: &str) -> bool {
    let is_local = host == "localhost"
        || host.ends_with(".localhost")
        || host.ends_with(".local")
        || host.ends_with(".internal");
    !host.starts_with('*')
        && host.contains('.')
        && !is_local
        && host.parse::<std::net::IpAddr>().is_err()
}

/// Adds the oldest version of TLS from the line `protocols`. If the versions of the line have no
/// translation, does not mark the line as read, so that it gets a note later.
fn versions(tls: &Directive, table: &mut Table) {
    let Some(line) = tls.inside().iter().find(|line| line.name == "protocols") else { return };
    if line.args.get(1).is_some_and(|newest| newest != "tls1.3") {
        return;
    }
    match line.arg(0) {
        "tls1.2" => line.settle(),
        "tls1.3" => {
            line.settle();
            table.set("min_version", "1.3");
        }
        _ => {}
    }
}

/// Returns the keys of `acme` for the account at the authority.
fn authority(global: &Global, tls: Option<&Directive>) -> Table {
    let mut acme = Table::default();
    let email = tls.map(|tls| tls.arg(0)).filter(|email| email.contains('@')).map(str::to_owned);
    acme.set_some("email", email.or_else(|| global.email.clone()));
    acme.set_some("directory", global.directory.clone());
    acme
}

/// Adds the file of the authority for client certificates to `table`. Returns `table` unchanged if
/// the site requests no client certificates. Returns `None` if a rule for these certificates has no
/// translation, so that the site gets no TLS listener.
fn client_certificates(cx: &mut Cx<'_>, tls: &Directive, mut table: Table) -> Option<Table> {
    let Some(auth) = tls.inside().iter().find(|inner| inner.name == "client_auth") else {
        return Some(table);
    };
    let is_pool = |line: &&Directive| {
        matches!(line.name.as_str(), "trust_pool" | "trusted_ca_cert" | "trusted_ca_cert_file")
    };
    // Other lines have no translation: for example, `trusted_leaf_cert` admits only some clients
    // with a certificate from the authority.
    let is_known = |line: &Directive| line.name == "mode" || is_pool(&line);
    let pools: Vec<_> = auth.inside().iter().filter(is_pool).collect();
    let file = pools.first().and_then(|pool| pool.args.last());
    let file = file.map(|file| files::below(&cx.dir, file));
    let is_usable = pools.len() == 1 && auth.inside().iter().all(is_known);
    match file.filter(|file| is_usable && files::is_readable(file)) {
        Some(file) => {
            auth.settle();
            pools[0].settle_all();
            // With another mode than `require_and_verify`, clients without a valid certificate may
            // connect to Caddy. Forebay refuses these clients, so the line `mode` gets a note
            // later.
            let mode = auth.inside().iter().find(|line| line.name == "mode");
            mode.iter().filter(|mode| mode.arg(0) == "require_and_verify").for_each(|m| m.settle());
            table.set("client_ca", file);
            Some(table)
        }
        None => {
            cx.note(auth, "name the authority's file in `client_ca` of `tls`");
            None
        }
    }
}
