//! Translates `ErrorDocument` to the key `error_pages`.

use super::Cx;
use super::access::{access_without_translation, is_open_to_all};
use super::sections::{Sections, all, is_below, last, settle};
use super::syntax::Directive;
use crate::draft::{DraftRoute, DraftSite};
use crate::files;
use crate::value::Table;

const NAME: &str = "ErrorDocument";

/// Returns the error pages of a site or a route. For a site, `layers` are the blocks of the site,
/// `routes` are all its routes, and `outer` is empty. For a route, `layers` are the blocks of the
/// route, `routes` has only this route, and `outer` are the blocks of the site.
fn pages(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    outer: &[&[Directive]],
    layers: &[&[Directive]],
    routes: &[DraftRoute],
) -> Table {
    let mut table = Table::default();
    for page in all(layers, NAME) {
        let (code, to) = (page.arg(0), page.arg(1));
        // The last line for a status replaces the earlier lines, even if the last line has no
        // translation.
        table.remove(code);
        let is_fallback = code == "404"
            && routes.iter().any(|route| route.keys.get("fallback_to") == Some(&to.into()));
        let is_default = to.eq_ignore_ascii_case("default");
        if is_default && all(outer, NAME).iter().any(|page| page.arg(0) == code) {
            let next = "the page of the site stays here: name another page in `error_pages`";
            cx.note(page, next);
            continue;
        }
        if is_fallback || is_default {
            page.settle();
            continue;
        }
        let is_status = code.parse::<u16>().is_ok_and(|code| (400..=599).contains(&code));
        match file(cx, sections, to).filter(|_| is_status && cx.keys.route("error_pages")) {
            Some(file) => {
                page.settle();
                table.set(code, file);
            }
            None => drop(cx.note(page, next(to))),
        }
    }
    table
}

/// Returns the next step for a page without a translation.
fn next(to: &str) -> &'static str {
    match to {
        _ if to.starts_with('/') && to.ends_with(".php") => {
            "a script writes this page: write the page to a file, and name it in `error_pages`"
        }
        _ if to.starts_with('/') => {
            "Forebay cannot read this page for all clients: name a file in `error_pages`"
        }
        _ if to.contains("://") => {
            "an error leads to no other URL: write a page to a file, and name it in `error_pages`"
        }
        _ => "write this text to a file, and name the file in `error_pages`",
    }
}

/// Returns the file of a URL path if all clients may read the file. Otherwise returns `None`, for
/// example for PHP scripts and for names that begin with a dot.
fn file(cx: &mut Cx<'_>, sections: &Sections<'_>, path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_plain = path.starts_with('/') && !path.contains(['?', '%', '#']);
    if !is_plain || path.split('/').any(|part| part.starts_with('.')) || name.contains(".php") {
        return None;
    }
    let aliases = all(&sections.levels, "Alias").into_iter();
    let longest = aliases
        .filter(|alias| is_below(path, alias.arg(0)))
        .max_by_key(|alias| alias.arg(0).len())
        .map(|alias| (alias.arg(0), alias.arg(1)));
    let root = last(&sections.levels, "DocumentRoot").map(|root| ("", root.arg(0)));
    let (url, dir) = longest.or(root)?;
    let rest = path.strip_prefix(url.trim_end_matches('/'))?;
    let file = files::joined(&cx.path(dir), rest.trim_start_matches('/'));
    let place = file.rsplit_once('/').map(|(dir, _)| dir.to_owned());
    let layers = sections.layers(path, place.as_deref());
    // The page must not show a file that Apache would refuse.
    let is_open = is_open_to_all(cx, &layers);
    let restricts = layers.iter().any(|layer| access_without_translation(layer).is_some());
    (is_open && !restricts && files::is_readable(&file)).then_some(file)
}

/// Adds the error pages of the whole site. Removes a page, and adds a note, if the routes of the
/// site do not send the file of the page to all clients.
pub fn check(cx: &mut Cx<'_>, site: &mut DraftSite, sections: &Sections<'_>) {
    let table = pages(cx, sections, &[], &sections.levels, &site.routes);
    if !table.is_empty() {
        site.keys.set("error_pages", table);
    }
    let blocks = sections.directories.iter().chain(&sections.locations).map(|s| s.block);
    let blocks: Vec<&[Directive]> = sections.levels.iter().copied().chain(blocks).collect();
    for page in all(&blocks, NAME) {
        let path = page.arg(1);
        if !path.starts_with('/') || sends(&site.routes, path) {
            continue;
        }
        let Some(file) = file(cx, sections, path) else { continue };
        let mut is_removed = false;
        let tables = site.routes.iter_mut().map(|route| &mut route.keys);
        for keys in tables.chain([&mut site.keys]) {
            is_removed |= drop_page(keys, page.arg(0), &file);
        }
        if is_removed {
            cx.note(page, next(path));
        }
    }
}

/// Returns true if the routes send a file for the URL path `path` to all clients.
fn sends(routes: &[DraftRoute], path: &str) -> bool {
    for route in routes {
        let refuses = route.has_gate() || route.keys.get("respond").is_some();
        match route.matcher.takes("GET", path) {
            Some(true) => return !refuses && route.keys.get("files").is_some(),
            // The route refuses some clients, and may take the path.
            None if refuses => return false,
            _ => {}
        }
    }
    false
}

/// Removes a page from the key `error_pages`. Returns false if the key has no page with this status
/// and this file.
fn drop_page(keys: &mut Table, code: &str, file: &str) -> bool {
    let Some(crate::value::Value::Table(pages)) = keys.get("error_pages") else { return false };
    if pages.get(code) != Some(&file.into()) {
        return false;
    }
    let mut pages = pages.clone();
    pages.remove(code);
    keys.remove("error_pages");
    if !pages.is_empty() {
        keys.set("error_pages", pages);
    }
    true
}

/// Adds the error pages of sections to a route, and translates `ProxyErrorOverride`. `layers` are
/// all sections that apply to the route.
pub fn decorate(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    route: &mut DraftRoute,
) {
    let inner = &layers[sections.levels.len()..];
    let table = pages(cx, sections, &sections.levels, inner, std::slice::from_ref(route));
    if !table.is_empty() {
        route.keys.set("error_pages", table);
    }
    settle(layers, &["ProxyErrorOverride"]);
    let Some(intercepts) = last(layers, "ProxyErrorOverride") else { return };
    match &intercepts.args[..] {
        [on] if on.eq_ignore_ascii_case("on") => route.keys.set("intercept", true),
        [off] if off.eq_ignore_ascii_case("off") => {}
        _ => {
            let next = "`intercept` has no list of statuses: write pages for some in `error_pages`";
            route.comments.push(cx.note(intercepts, next));
        }
    }
}
