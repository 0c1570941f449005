//! Tests for the routes of a site: requests, and the replies of the old server.

use crate::draft::{DraftRoute, DraftSite, UNKNOWN_HOSTS};
use crate::value::Value;

/// Maximum number of tests of a site.
const MOST: usize = 50;

/// Returns the tests of a site as lines of the key `expect`. Returns no tests for a site that
/// redirects to HTTPS.
pub fn expectations(site: &DraftSite) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let is_of_others = |route: &DraftRoute| route.comments.iter().any(|text| text == UNKNOWN_HOSTS);
    // The tests have a host of the site.
    let routes = &site.routes[usize::from(site.routes.first().is_some_and(is_of_others))..];
    for (at, route) in routes.iter().enumerate() {
        if found.len() >= MOST {
            break;
        }
        let Some(line) = expectation(&routes[..at], route) else { continue };
        if !found.contains(&line) {
            found.push(line);
        }
    }
    if site.keys.get("redirect_to_https").is_some() { Vec::new() } else { found }
}

fn expectation(above: &[DraftRoute], route: &DraftRoute) -> Option<String> {
    let answer = answer(route)?;
    let mut path = route.matcher.sample()?;
    let is_plain = |c: char| c.is_ascii_graphic() && !"%?#;\\{}\"<>^`|".contains(c);
    if !route.matcher.when.is_empty() || !path.chars().all(is_plain) {
        return None;
    }
    let method = route.matcher.methods.first().map_or("GET", String::as_str);
    // Write no test for a request that an earlier route may take.
    let is_clear = |other: &DraftRoute| other.matcher.takes(method, &path) == Some(false);
    if !above.iter().all(is_clear) {
        return None;
    }
    if let Some((target, status)) = redirect(route).filter(|_| answer != "404") {
        if target.contains("{uri}") || target.contains("{query}") {
            path.push_str("?a=1");
        }
        let to = location(&target, &path, route)?;
        return Some(format!("{}{path} -> {status} {to}", method_of(method)));
    }
    Some(format!("{}{path} -> {answer}", method_of(method)))
}

fn method_of(method: &str) -> String {
    if method == "GET" { String::new() } else { format!("{method} ") }
}

/// Returns the status of the route's reply, if clients on this machine always get the same status.
/// Returns `None` if the status depends on more than the path.
fn answer(route: &DraftRoute) -> Option<String> {
    let keys = &route.keys;
    if keys.get("internal").is_some() {
        return Some("404".into());
    }
    if ["forward_auth", "perl_gate", "satisfy"].iter().any(|key| keys.get(key).is_some()) {
        return None;
    }
    if let Some((_, status)) = redirect(route) {
        return (!route.has_gate()).then(|| status.to_string());
    }
    if keys.get("deny") == Some(&Value::from("all")) {
        return Some("403".into());
    }
    if keys.get("allow").is_some() || keys.get("deny").is_some() {
        return None;
    }
    if keys.get("basic_auth").is_some() {
        return Some("401".into());
    }
    match keys.get("respond") {
        Some(Value::Text(_)) => Some("200".into()),
        Some(Value::Table(table)) => match table.get("status") {
            Some(Value::Number(444)) => None,
            Some(Value::Number(status)) => Some(status.to_string()),
            _ => Some("200".into()),
        },
        _ => None,
    }
}

fn redirect(route: &DraftRoute) -> Option<(String, u64)> {
    match route.keys.get("redirect")? {
        Value::Text(to) => Some((to.clone(), 302)),
        Value::Table(table) => match (table.get("to")?, table.get("status")) {
            (Value::Text(to), Some(Value::Number(status))) => Some((to.clone(), *status)),
            (Value::Text(to), _) => Some((to.clone(), 302)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the `Location` field for a path. Returns `None` if the field depends on more than the
/// path and the query.
fn location(target: &str, uri: &str, route: &DraftRoute) -> Option<String> {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let pattern = route.matcher.paths.first().map_or("/*", String::as_str);
    let rest =
        pattern.strip_suffix('*').map_or(path, |start| path.strip_prefix(start).unwrap_or(path));
    let filled = target
        .replace("{uri}", uri)
        .replace("{path}", path)
        .replace("{query}", query)
        .replace("{rest}", rest.trim_start_matches('/'));
    let filled = filled.strip_suffix('?').unwrap_or(&filled).to_owned();
    (!filled.contains('{')).then_some(filled)
}
