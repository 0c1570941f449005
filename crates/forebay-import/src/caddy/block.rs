//! Translates the directives of a site or of a `handle` block, in Caddy's own order.

use super::around::{Around, Layer};
use super::fill::fill;
use super::matchers::{Condition, condition, named, split};
use super::syntax::Directive;
use super::{Cx, layers, line, servers};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::template::{is_redirect_target, is_rewrite_target, literal, redirect_target};
use crate::value::{Table, Value};

/// Returns the position of a directive in Caddy's order, if it answers requests or changes their
/// path. Returns `None` for other directives, which become layers of keys on routes.
fn rank(name: &str) -> Option<usize> {
    let order: [&[&str]; 9] = [
        &["redir"],
        &["rewrite"],
        &["uri"],
        &["try_files"],
        &["handle", "handle_path", "route"],
        &["abort", "error", "respond"],
        &["metrics", "reverse_proxy"],
        &["php_fastcgi"],
        &["file_server"],
    ];
    order.iter().position(|names| names.contains(&name))
}

/// Returns the routes of a block.
pub fn routes<'a>(cx: &mut Cx<'_>, block: &'a [Directive], around: &Around<'a>) -> Vec<DraftRoute> {
    let mut here = around.clone();
    here.named = named(block, &around.named);
    here.has_file_server = block.iter().any(|directive| directive.name == "file_server");
    let mut out = Vec::new();
    let mut answers: Vec<(&Directive, Result<Condition, String>)> = Vec::new();
    for directive in block.iter().filter(|directive| !directive.name.starts_with('@')) {
        let of = condition(cx, split(directive).0, &here.named);
        if rank(&directive.name).is_some() {
            answers.push((directive, of));
        } else {
            layer(cx, directive, of, &mut here, &mut out);
        }
    }
    if !around.is_route {
        let length = |of: &Result<Condition, String>| match of {
            Ok(of) => of.matcher.paths.first().map_or(0, |path| path.len() + 1),
            Err(_) => 0,
        };
        let key = |(directive, of): &(&Directive, Result<Condition, String>)| {
            let has_matcher = split(directive).0.is_some();
            (rank(&directive.name), !has_matcher, std::cmp::Reverse(length(of)))
        };
        answers.sort_by_key(key);
    }
    for (directive, of) in answers {
        let routes = answer(cx, directive, of, &mut here);
        out.extend(routes);
    }
    out
}

/// The next step if the conditions of nested blocks do not fit into one route.
const AT_ODDS: &str = "a route cannot have the conditions of all blocks: write routes for them";

/// Returns the routes of a directive that answers requests or changes their path.
fn answer<'a>(
    cx: &mut Cx<'_>,
    directive: &'a Directive,
    of: Result<Condition, String>,
    here: &mut Around<'a>,
) -> Vec<DraftRoute> {
    let route = |matcher: Matcher| DraftRoute::new(&directive.place, line(directive), matcher);
    let of = match of {
        Ok(of) => of,
        Err(why) => {
            let comment = cx.note(directive, format!("{why}: write a route for these requests"));
            return vec![route(here.matcher.clone()).closed(comment)];
        }
    };
    let Some(matcher) = here.matcher.and(&of.matcher) else {
        if !here.matcher.is_at_odds(&of.matcher) {
            return Vec::new();
        }
        let comment = cx.note(directive, AT_ODDS);
        return vec![route(here.matcher.clone()).closed(comment)];
    };
    if of.is_missing {
        // The directive names the path for missing files.
        match fallback(cx, split(directive).1.first().map_or("", String::as_str)) {
            Some(to) if directive.name == "rewrite" => here.fallback = Some(to),
            _ => drop(cx.note(directive, "name the path for missing files in `fallback_to`")),
        }
        return Vec::new();
    }
    let args = split(directive).1;
    let first = args.first().map_or("", String::as_str);
    let routes = match directive.name.as_str() {
        "redir" => vec![redirect(cx, directive, args, route(matcher), &of)],
        "rewrite" => vec![rewrite(cx, directive, first, route(matcher))],
        "uri" => match (first, args.get(1), split(directive).0) {
            ("strip_prefix", Some(prefix), None) => {
                here.strip = Some(format!("/{}", prefix.trim_matches('/')));
                return Vec::new();
            }
            _ => {
                let comment = cx.note(directive, "write the path in `strip_prefix` or `rewrite`");
                vec![route(matcher).closed(comment)]
            }
        },
        "try_files" => {
            let last = args.last().map_or("", String::as_str);
            match fallback(cx, last) {
                Some(to) => here.fallback = Some(to),
                None if last.starts_with('=') || last.starts_with("{path}") => {}
                None => {
                    drop(cx.note(directive, "name the path for missing files in `fallback_to`"));
                }
            }
            return Vec::new();
        }
        "handle" | "handle_path" | "route" => {
            return inner(cx, directive, matcher, &of, here);
        }
        "abort" => vec![route(matcher).respond(444)],
        "error" | "respond" => vec![respond(cx, directive, args, route(matcher))],
        _ => servers::answer(cx, directive, args, route(matcher), here),
    };
    routes.into_iter().flat_map(|route| layered(route, &here.layers)).collect()
}

/// Returns the routes of a block inside of this block.
fn inner<'a>(
    cx: &mut Cx<'_>,
    directive: &'a Directive,
    matcher: Matcher,
    of: &Condition,
    here: &Around<'a>,
) -> Vec<DraftRoute> {
    let mut inside = Around { matcher, is_route: directive.name == "route", ..here.clone() };
    if directive.name == "handle_path" {
        let path = of.matcher.paths.first().map_or("", String::as_str);
        inside.strip = Some(path.trim_end_matches('*').trim_end_matches('/').to_owned());
    }
    routes(cx, directive.inside(), &inside)
}

/// Applies layers to a route. If a layer applies to only a part of the requests, this part gets its
/// own route.
fn layered(route: DraftRoute, layers: &[Layer]) -> Vec<DraftRoute> {
    let mut parts: Vec<Matcher> = Vec::new();
    for layer in layers {
        if !layer.matcher.covers(&route.matcher)
            && let Some(part) = route.matcher.and(&layer.matcher)
            && !parts.contains(&part)
        {
            parts.push(part);
        }
    }
    let length = |matcher: &Matcher| matcher.paths.iter().map(String::len).max().unwrap_or(0);
    parts.sort_by_key(|matcher| std::cmp::Reverse(length(matcher)));
    parts.push(route.matcher.clone());
    let part = |matcher: Matcher| {
        let mut part = DraftRoute { matcher, ..route.clone() };
        let mut closed = None;
        for layer in layers.iter().filter(|layer| layer.matcher.covers(&part.matcher)) {
            closed = layer.closed.clone().or(closed);
            let is_redirect =
                part.keys.get("redirect").is_some() || part.keys.get("rewrite").is_some();
            for (key, value) in &layer.keys.0 {
                let is_gate = crate::draft::GATES.contains(&key.as_str());
                match value {
                    // Redirects precede access rules.
                    _ if is_redirect && is_gate => {}
                    Value::Table(table) if key.ends_with("_headers") => {
                        let merged = part.keys.table(key);
                        table.0.iter().for_each(|(name, value)| merged.set(name, value.clone()));
                    }
                    value => part.keys.set(key, value.clone()),
                }
            }
        }
        match closed {
            Some(comment) => part.closed(comment),
            None => part,
        }
    };
    parts.into_iter().map(part).collect()
}

/// Adds a layer for a directive that changes requests or replies, or that restricts access.
fn layer<'a>(
    cx: &mut Cx<'_>,
    directive: &'a Directive,
    of: Result<Condition, String>,
    here: &mut Around<'a>,
    out: &mut Vec<DraftRoute>,
) {
    let args = split(directive).1;
    let gates = matches!(directive.name.as_str(), "basic_auth" | "basicauth" | "forward_auth");
    let is_at_odds = of.as_ref().is_ok_and(|of| here.matcher.is_at_odds(&of.matcher));
    let matcher = match of {
        Ok(of) => here.matcher.and(&of.matcher),
        Err(why) if gates || servers::is_gate(&directive.name) => {
            let comment = cx.note(directive, format!("{why}: write the rule in the routes"));
            out.push(
                DraftRoute::new(&directive.place, line(directive), here.matcher.clone())
                    .closed(comment),
            );
            return;
        }
        Err(why) => {
            cx.note(directive, format!("{why}: write the keys in the routes"));
            return;
        }
    };
    let Some(matcher) = matcher else {
        if is_at_odds {
            let comment = cx.note(directive, AT_ODDS);
            out.push(
                DraftRoute::new(&directive.place, line(directive), here.matcher.clone())
                    .closed(comment),
            );
        }
        return;
    };
    if directive.name == "root" {
        let path = args.last().map_or(".", String::as_str);
        if path.contains('{') || !matcher.covers(&here.matcher) {
            cx.note(directive, "write the directory in `files` of each route");
        } else {
            here.root = Some(crate::files::below(&cx.dir, path));
        }
        return;
    }
    let mut layer = Layer { matcher, keys: Table::default(), closed: None };
    layers::layer(cx, directive, args, &mut layer);
    if !layer.keys.is_empty() || layer.closed.is_some() {
        here.layers.push(layer);
    }
}

/// Returns the route of `redir`.
fn redirect(
    cx: &mut Cx<'_>,
    directive: &Directive,
    args: &[String],
    route: DraftRoute,
    of: &Condition,
) -> DraftRoute {
    let status = match args.get(1).map_or("", String::as_str) {
        "permanent" => 301,
        "" | "temporary" => 302,
        code => {
            code.parse().ok().filter(|c| matches!(c, 301 | 302 | 303 | 307 | 308)).unwrap_or(302)
        }
    };
    let to = args.first().and_then(|to| fill(cx, to, Some(of)));
    let to = to.map(|to| redirect_target(&to, false, cx.keys));
    match to.filter(|to| is_redirect_target(to)) {
        Some(to) => route.redirect(&to, status),
        None => {
            let comment = cx.note(directive, "write the target in `redirect`");
            route.closed(comment)
        }
    }
}

fn rewrite(cx: &mut Cx<'_>, directive: &Directive, to: &str, mut route: DraftRoute) -> DraftRoute {
    let target = fill(cx, to, None).map(|to| crate::template::without_query(&to).0);
    match target.filter(|to| is_rewrite_target(to) && cx.keys.route("rewrite")) {
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

/// Returns the path for missing files.
fn fallback(cx: &Cx<'_>, to: &str) -> Option<String> {
    if !to.starts_with('/') {
        return None;
    }
    let filled = crate::template::without_query(&fill(cx, to, None)?).0;
    let path =
        if cx.keys.has_placeholders() { filled } else { filled.split('?').next()?.to_owned() };
    (is_rewrite_target(&path) && (cx.keys.has_placeholders() || !path.contains('{')))
        .then_some(path)
}

/// Returns the route of `respond` or `error`.
fn respond(
    cx: &mut Cx<'_>,
    directive: &Directive,
    args: &[String],
    mut route: DraftRoute,
) -> DraftRoute {
    let number = |text: &String| text.parse::<u64>().ok().filter(|code| (200..=599).contains(code));
    let is_error = directive.name == "error";
    let mut status = args.iter().find_map(number);
    let mut body = args.iter().find(|arg| number(arg).is_none()).cloned().unwrap_or_default();
    for inner in directive.inside() {
        match inner.name.as_str() {
            "body" => body = inner.arg(0).to_owned(),
            "close" => {}
            _ => drop(cx.note(inner, "a fixed reply has a status and a body")),
        }
    }
    let status = *status.get_or_insert(if is_error { 500 } else { 200 });
    route = route.respond(status);
    let has_placeholder =
        fill(cx, &body, None).is_none_or(|filled| filled != literal(&body, cx.keys));
    if has_placeholder {
        let comment =
            cx.note(directive, "a fixed reply has no placeholders: write a text in `respond`");
        route.comments.push(comment);
    } else if !body.is_empty() && !is_error && !matches!(status, 204 | 205 | 304) {
        route.keys.set("respond", Table::default().with("status", status).with("body", body));
    }
    route
}
