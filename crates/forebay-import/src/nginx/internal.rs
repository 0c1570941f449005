//! Translates `internal`: locations that clients cannot ask for, and the applications that choose
//! them.

use super::Cx;
use super::here::Here;
use super::locations::{Location, LocationKind};
use super::scope::Scope;
use super::server::TranslatedServer;
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::matcher::Matcher;

/// Directives that list fields of replies for nginx to ignore.
const IGNORES: [&str; 4] = [
    "proxy_ignore_headers",
    "fastcgi_ignore_headers",
    "scgi_ignore_headers",
    "uwsgi_ignore_headers",
];

/// Returns true if a location is hidden: clients get 404 for its paths. A location inherits
/// `internal`. Clients cannot ask for a named location, so `internal` changes nothing there.
pub fn is_hidden(location: &Location<'_>) -> bool {
    !matches!(location.kind, LocationKind::Named(_)) && location.scope.nearest("internal").is_some()
}

/// Returns true if a location is hidden and answers the subrequests of `mirror` or `auth_request`.
/// Such a location needs no route, because the routes with these directives name its backend.
pub fn serves_subrequests(server: &TranslatedServer<'_>, location: &Location<'_>) -> bool {
    let names = |directive: &Directive, path: &str| {
        matches!(directive.name.as_str(), "mirror" | "auth_request") && directive.arg(0) == path
    };
    fn is_named(block: &[Directive], names: &dyn Fn(&Directive) -> bool) -> bool {
        block.iter().any(|inner| names(inner) || is_named(inner.inside(), names))
    }
    let Some(path) = location.path().filter(|_| is_hidden(location)) else { return false };
    server.scope.all_levels().any(|directive| names(directive, path))
        || is_named(server.scope.own(), &|directive| names(directive, path))
}

/// Returns true if an application may choose one of the locations, or a location inside them, with
/// X-Accel-Redirect. This is true for a hidden location that does not answer subrequests.
pub fn has_choice(server: &TranslatedServer<'_>, locations: &[Location<'_>]) -> bool {
    locations.iter().any(|location| {
        is_hidden(location) && !serves_subrequests(server, location)
            || has_choice(server, location.inner())
    })
}

/// Hides the routes of a location with `internal`. nginx checks `internal` before it reads `return`
/// and `rewrite`.
pub fn hide(location: &Location<'_>, routes: &mut [DraftRoute]) {
    if is_hidden(location) {
        routes.iter_mut().for_each(|route| route.keys.set("internal", true));
    }
}

/// Returns the matcher of the scripts that a hidden location runs, and that a `try_files` of the
/// server names for missing files. Clients may ask for these scripts directly, because a rule for a
/// script would close all paths that the script answers. Returns `None` if there are no such
/// scripts.
pub fn entry(server: &TranslatedServer<'_>, here: &Here<'_, '_>) -> Option<Matcher> {
    here.location.scope.peek_own("fastcgi_pass").filter(|_| is_hidden(here.location))?;
    let scopes = server.locations.iter().map(|location| &location.scope);
    let targets = scopes
        .chain([&server.scope])
        .filter_map(|scope| scope.peek_own("try_files")?.args.last())
        .map(|target| target.split(['?', '$']).next().unwrap_or_default());
    let mut paths: Vec<String> = Vec::new();
    for path in targets {
        let is_new = !paths.iter().any(|known| known == path);
        if path.starts_with('/') && is_new && here.matcher.takes("GET", path) == Some(true) {
            paths.extend([path.to_owned(), format!("{path}/*")]);
        }
    }
    let scripts = Matcher { paths, ..Matcher::default() };
    if scripts.paths.is_empty() { None } else { here.matcher.and(&scripts) }
}

/// Sets the key `internal_redirects` if the server has hidden locations. An application can then
/// choose a hidden location with the field X-Accel-Redirect, as in nginx. Does not set the key if
/// the scope ignores this field. Adds a note if the scope ignores another field.
pub fn redirects(
    cx: &mut Cx<'_>,
    server: &TranslatedServer<'_>,
    scope: &Scope<'_>,
    route: &mut DraftRoute,
) {
    let programs = ["proxy", "fastcgi", "scgi", "uwsgi"];
    let Some(program) = programs.iter().find(|key| route.keys.get(key).is_some()) else { return };
    let directive = IGNORES.iter().filter(|name| name.starts_with(program));
    let mut is_ignored = false;
    for directive in directive.filter_map(|name| scope.nearest(name)) {
        let is_choice = |field: &&String| field.eq_ignore_ascii_case("x-accel-redirect");
        is_ignored |= directive.args.iter().any(|field| is_choice(&field));
        if !directive.args.iter().all(|field| is_choice(&field)) {
            let next = "Forebay obeys the other fields: see `cache` in the guide on caching";
            let comment = cx.note(directive, next);
            route.comments.push(comment);
        }
    }
    if server.has_hidden && !is_ignored {
        route.keys.set("internal_redirects", true);
    }
}
