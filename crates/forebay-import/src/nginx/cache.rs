//! Translates `proxy_cache` and similar directives to the key `cache` of a route.

use super::Cx;
use super::scope::Scope;
use super::syntax::Directive;
use super::variables::Variables;
use crate::draft::DraftRoute;
use crate::units::duration;
use crate::value::{Table, Value};

/// The prefixes of nginx's cache directives, one for each protocol.
const PREFIXES: [&str; 4] = ["proxy", "fastcgi", "uwsgi", "scgi"];

/// The default time that nginx keeps a stale reply (`inactive` of `proxy_cache_path`).
const INACTIVE: &str = "10m";

/// Adds the key `cache` to a route that passes requests to a backend, if a directive of its scope
/// turns on a cache.
pub fn cache(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) {
    let scope = variables.scope;
    let is_on = |directive: &&Directive| directive.arg(0) != "off";
    let used = |prefix: &&&str| scope.nearest(&format!("{prefix}_cache")).filter(is_on).is_some();
    let Some(prefix) = PREFIXES.iter().find(used).filter(|_| cx.keys.route("cache")) else {
        return;
    };
    // The scope may be a block around several locations. Locations without a backend need no cache.
    if !PREFIXES.iter().any(|prefix| route.keys.get(prefix).is_some()) {
        return;
    }
    let named = |name: &str| format!("{prefix}_{name}");
    // A Forebay route stores all of its replies, or none. Even with `private_cookies`, Forebay
    // stores a reply for one user if the reply states its lifetime, so this key does not replace
    // `no_cache`.
    if let Some(directive) = scope.all(&named("no_cache")).into_iter().find(|d| is_ever(d)) {
        let next = "this route has no `cache`: write a route with this condition in `when` and \
                    without `cache`, and a route after it with `cache`";
        return route.comments.push(cx.note(directive, next));
    }
    let mut table = Table::default();
    let lifetimes = scope.all(&named("cache_valid"));
    if let Some(valid) = valid(&lifetimes) {
        table.set("valid", valid);
    }
    for other in lifetimes.into_iter().filter(|directive| is_for_others(directive)) {
        let next = "replies with these statuses are stored only if they state their lifetime";
        route.comments.push(cx.note(other, next));
    }
    stale(scope, &named("cache_use_stale"), &mut table);
    if let Some(key) = scope.nearest(&named("cache_key")) {
        let text = key.args.concat();
        match variables.fill(&text.replace("$proxy_host", "$host")) {
            Ok(key) if key == "{scheme}{host}{uri}" => {}
            Ok(key) => table.set("key", key),
            Err(unknown) => {
                let next = format!("{unknown} has no placeholder: write `key` of `cache`");
                route.comments.push(cx.note(key, next));
            }
        }
    }
    let mut cookies: Vec<String> = Vec::new();
    for directive in scope.all(&named("cache_bypass")) {
        for condition in &directive.args {
            match condition.strip_prefix("$cookie_").filter(|name| !name.contains('$')) {
                Some(name) if cookies.iter().any(|other| other == name) => {}
                Some(name) => cookies.push(name.to_owned()),
                None => {
                    let next = "write a route above it without `cache`, and with `when`";
                    route.comments.push(cx.note(directive, next));
                }
            }
        }
    }
    if !cookies.is_empty() {
        table.set("private_cookies", cookies);
    }
    let value = if table.is_empty() { Value::from(true) } else { Value::from(table) };
    route.keys.set("cache", value);
}

/// Returns true if `proxy_no_cache`, or the same directive for another protocol, has a condition
/// that may be true.
fn is_ever(directive: &Directive) -> bool {
    directive.args.iter().any(|condition| !matches!(condition.as_str(), "" | "0"))
}

/// Returns the lifetime of replies with the status 200. Returns `None` if no directive states it.
fn valid(directives: &[&Directive]) -> Option<String> {
    let is_for_200 = |directive: &&&Directive| {
        let statuses = &directive.args[..directive.args.len().saturating_sub(1)];
        statuses.is_empty() || statuses.iter().any(|status| status == "200" || status == "any")
    };
    duration(directives.iter().find(is_for_200)?.args.last()?)
}

/// Returns true for a directive with lifetimes of other statuses only: Forebay has no key for them.
fn is_for_others(directive: &Directive) -> bool {
    let (_, statuses) = directive.args.split_last().unwrap_or((&directive.name, &[]));
    let is_known = |status: &String| ["200", "301", "302", "any"].contains(&status.as_str());
    !statuses.is_empty() && !statuses.iter().any(is_known)
}

fn stale(scope: &Scope<'_>, name: &str, table: &mut Table) {
    let Some(directive) = scope.nearest(name) else { return };
    if directive.args.iter().any(|arg| arg == "updating") {
        table.set("stale_while_revalidate", INACTIVE);
    }
    let is_failure = |arg: &String| arg == "error" || arg == "timeout" || arg.starts_with("http_5");
    if directive.args.iter().any(is_failure) {
        table.set("stale_if_error", INACTIVE);
    }
}
