//! Translates `rewrite`. Forebay selects a route for the new path among all routes of the site, but in
//! Caddy, the request stays in its block.

use super::Cx;
use super::around::Around;
use super::matchers::{Condition, condition, named, split};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::template::{is_rewrite_target, join, literal, without_query};
use crate::value::Value;

/// Returns the route of `rewrite` in a block that has all routes of the site. Forebay then selects
/// one of these routes by the new path. Closes the route if the target has no translation.
pub fn rewrite(
    cx: &mut Cx<'_>,
    directive: &Directive,
    to: &str,
    mut route: DraftRoute,
) -> DraftRoute {
    match target(cx, to) {
        Some(to) => {
            route.keys.set("rewrite", to);
            route
        }
        None => {
            let comment = cx.note(directive, "write the path in `rewrite` if this version has it");
            route.closed(comment)
        }
    }
}

fn target(cx: &Cx<'_>, to: &str) -> Option<String> {
    let (mut target, keeps_query) = without_query(&fill(cx, to, None)?);
    // In Caddy, a query in the target replaces the client's query. Forebay would append the
    // client's query, so add a question mark to the end.
    let has_client = keeps_query || target.contains("{query}") || target.contains("{uri}");
    if target.contains('?') && !target.ends_with('?') && !has_client {
        target.push('?');
    }
    (is_rewrite_target(&target) && cx.keys.route("rewrite")).then_some(target)
}

/// Translates `rewrite` in a block that has only some routes of the site. Stores the new path in
/// `here` for these routes, and returns `None`. If other lines of the block may depend on the new
/// path, returns a closed route, because Forebay's routes test the old path.
pub fn within(
    cx: &mut Cx<'_>,
    directive: &Directive,
    to: &str,
    route: DraftRoute,
    here: &mut Around<'_>,
) -> Option<DraftRoute> {
    let is_possible = route.matcher.covers(&here.matcher) && here.rewrite.is_none();
    let target = target(cx, to).filter(|_| is_possible).and_then(|to| unprefixed(here, to));
    let is_read = |to: &String| here.lines.iter().any(|line| reads_path(cx, line, here, to));
    if let Some(to) = target.filter(|to| !is_read(to)) {
        here.rewrite = Some(to);
        here.strip = None;
        // The fallback from `try_files` of an outer block depends on the old path, so drop it.
        here.fallback = None;
        return None;
    }
    let next = "the new path stays in this block: write `rewrite` in the block's routes";
    let comment = cx.note(directive, next);
    Some(route.closed(comment))
}

/// Replaces `{path}` by `/{rest}` if the block removes a prefix, because Caddy's `{path}` is then
/// the path after the prefix. Returns `None` if Forebay's `{rest}` would be another path. Also
/// returns `None` for a target with `{uri}`.
fn unprefixed(here: &Around<'_>, to: String) -> Option<String> {
    let Some(prefix) = here.strip.as_deref().filter(|prefix| !prefix.is_empty()) else {
        return Some(to);
    };
    if to.contains("{uri}") || to.contains("{rest}") {
        return None;
    }
    if !to.contains("{path}") {
        return Some(to);
    }
    let is_whole = here.matcher.paths == [format!("{prefix}/*")];
    Some(to.replace("{path}", "/{rest}")).filter(|to| is_whole && is_rewrite_target(to))
}

/// Returns true if a line, or a line of its block, may depend on the new path or query.
fn reads_path(cx: &Cx<'_>, line: &Directive, here: &Around<'_>, to: &str) -> bool {
    // Caddy reads these lines before `rewrite`, so they depend on the old path.
    let is_early = matches!(line.name.as_str(), "header" | "redir" | "root") && !here.is_route;
    if line.name.starts_with('@') || line.name == "rewrite" || is_early {
        return false;
    }
    if matches!(line.name.as_str(), "uri" | "forward_auth" | "handle_path" | "try_files") {
        return true;
    }
    let Ok(of) = condition(cx, split(line).0, &here.named) else { return true };
    let when = Value::Table(of.matcher.when.clone()).to_string();
    let reads_query = to.contains('?') && when.contains("query");
    if of.has_path() || of.is_missing || !of.matcher.suffixes.is_empty() || reads_query {
        return true;
    }
    if !matches!(line.name.as_str(), "handle" | "route") {
        return false;
    }
    let inside = Around {
        named: named(line.inside(), &here.named),
        is_route: here.is_route || line.name == "route",
        ..Around::default()
    };
    line.inside().iter().any(|line| reads_path(cx, line, &inside, to))
}

/// Adds the new path of the block to a route that passes requests on or sends files.
pub fn rewritten(
    cx: &mut Cx<'_>,
    directive: &Directive,
    mut route: DraftRoute,
    here: &Around<'_>,
) -> DraftRoute {
    let Some(to) = &here.rewrite else { return route };
    let has = |key: &str| route.keys.get(key).is_some();
    let sends_files = match directive.name.as_str() {
        "php_fastcgi" => true,
        // The directory of a files route belongs to the old path, so the new path does not fit this
        // directory.
        "file_server" => !has("files") || !route.matcher.paths.is_empty(),
        _ => false,
    };
    if sends_files {
        let next =
            "the block has a `rewrite`: write `path_regex`, `rewrite` and the answer in a route";
        let comment = cx.note(directive, next);
        return route.closed(comment);
    }
    if has("proxy") || has("files") {
        route.keys.set("rewrite", to.as_str());
    }
    route
}

/// Returns true if the route of a line answers requests by the old path, although Caddy would
/// answer them by the new path from `try_files`. Returns false for refusals. Also returns false for
/// `file_server`, whose route looks for files as `try_files` does.
pub fn ignores_tries(line: &Directive) -> bool {
    match line.name.as_str() {
        "handle" | "handle_path" | "route" => {
            line.inside().iter().any(|line| line.name == "rewrite" || ignores_tries(line))
        }
        "metrics" | "reverse_proxy" => true,
        "respond" => !split(line).1.iter().any(|arg| is_refusal(arg)),
        _ => false,
    }
}

/// Returns true if the argument is a status of 400 or more, with which a line refuses requests.
pub fn is_refusal(arg: &str) -> bool {
    arg.parse::<u16>().is_ok_and(|code| code >= 400)
}

/// Returns a text with Forebay's placeholders; `None` if one has no counterpart.
pub fn fill(cx: &Cx<'_>, text: &str, of: Option<&Condition>) -> Option<String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        join(&mut out, before)?;
        let Some((name, behind)) = after.split_once('}') else {
            return join(&mut out, &literal(&rest[before.len()..], cx.keys)).map(|()| out);
        };
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !is_name {
            out.push('{');
            rest = after;
            continue;
        }
        join(&mut out, &placeholder(cx, name, of)?)?;
        rest = behind;
    }
    join(&mut out, rest).map(|()| out)
}

/// Returns Forebay's placeholder for one of Caddy's. Returns `None` if there is no counterpart.
fn placeholder(cx: &Cx<'_>, name: &str, of: Option<&Condition>) -> Option<String> {
    let fixed = match name {
        "uri" | "http.request.uri" | "http.request.orig_uri" => "{uri}",
        "path" | "http.request.uri.path" | "http.request.orig_uri.path" => "{path}",
        "query" | "http.request.uri.query" => "{query}",
        "host" | "http.request.host" => "{host}",
        "hostport" | "http.request.hostport" => "{host}{requested_port}",
        _ => "",
    };
    if !fixed.is_empty() {
        return Some(fixed.into());
    }
    if let Some(group) = name.strip_prefix("re.").or_else(|| name.strip_prefix("http.regexp.")) {
        let number = group.rsplit('.').next()?.parse().ok()?;
        return crate::template::group(number, of?.found.as_ref()?);
    }
    if !cx.keys.has_placeholders() {
        return None;
    }
    let named = |start: &str| name.strip_prefix(start).filter(|rest| !rest.is_empty());
    if let Some(field) = named("header.").or_else(|| named("http.request.header.")) {
        return Some(format!("{{header.{field}}}"));
    }
    if let Some(cookie) = named("cookie.").or_else(|| named("http.request.cookie.")) {
        return Some(format!("{{cookie.{cookie}}}"));
    }
    if let Some(parameter) = named("query.").or_else(|| named("http.request.uri.query.")) {
        return Some(format!("{{query.{parameter}}}"));
    }
    let fixed = match name {
        "scheme" | "http.request.scheme" => "{scheme}",
        "method" | "http.request.method" => "{method}",
        "port" | "http.request.port" => "{port}",
        "remote_host" | "client_ip" | "http.request.remote.host" => "{client}",
        "remote_port" | "http.request.remote.port" => "{client_port}",
        "http.auth.user.id" => "{user}",
        "http.request.uuid" => "{request_id}",
        "tls_client_subject" | "http.request.tls.client.subject" => "{tls.subject}",
        _ => return None,
    };
    Some(fixed.into())
}
