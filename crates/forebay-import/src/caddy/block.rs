//! Translates the directives of a site or of a `handle` block, in Caddy's own order.

use super::around::{Around, Layer};
use super::matchers::{Condition, condition, depends_on_case, in_any_case, named, split};
use super::rewrites::fill;
use super::syntax::Directive;
use super::{Cx, layers, line, rewrites, servers};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::pattern::keeping_paths;
use crate::template::{is_redirect_target, is_rewrite_target, literal, redirect_target};
use crate::value::{Table, Value};

/// Returns the position of a directive in Caddy's order, if it answers requests or changes their
/// path. Returns `None` for other directives, which only add keys to routes.
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
    here.lines = block;
    here.has_file_server = block.iter().any(|directive| directive.name == "file_server");
    let mut out = Vec::new();
    let mut answers: Vec<(&Directive, Result<Condition, String>)> = Vec::new();
    for directive in block.iter().filter(|directive| !directive.name.starts_with('@')) {
        let of = condition(cx, split(directive).0, &here.named);
        if rank(&directive.name).is_some() {
            answers.push((directive, of));
        } else {
            let of = of.and_then(|of| with_prefix(&here, of));
            // With `uri strip_prefix` in the block, Caddy removes the prefix before it applies
            // access rules such as `basic_auth`. A condition of these rules on the path then has no
            // translation.
            let is_late = block.iter().any(strips) && is_late(&directive.name);
            let of = of.and_then(|of| {
                if is_late && of.has_path() { Err(STRIPPED.to_owned()) } else { Ok(of) }
            });
            exclude(cx, &of);
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
    here.is_alone = answers.len() == 1;
    for (directive, of) in answers {
        let of = of.and_then(|of| with_prefix(&here, of));
        exclude(cx, &of);
        let routes = answer(cx, directive, of, &mut here);
        out.extend(routes);
        // In a `route` block, Caddy reads the lines in their order, so a later `rewrite` must not
        // lead to earlier lines.
        here.is_whole &= !here.is_route || directive.name == "rewrite";
    }
    let tries = block.iter().find(|directive| directive.name == "try_files");
    if let Some(tries) = tries.filter(|_| !sends_files(block)) {
        cx.note(tries, "no files are sent here: write `rewrite` in the routes");
    } else if let Some(tries) = tries.filter(|tries| {
        // In a `route` block, Caddy reads the lines before `try_files` with the old path, as
        // Forebay does. So skip these lines.
        let before = block.iter().take_while(|line| here.is_route && line.place != tries.place);
        block.iter().skip(before.count()).any(rewrites::ignores_tries)
    }) {
        let next = "Caddy changes the path before it reads `handle`, `reverse_proxy` and `respond`, but \
                    their routes test the old path: check these routes";
        cx.note(tries, next);
    }
    out
}

/// Adds the expressions for the paths that a condition excludes to `cx.excluded`.
fn exclude(cx: &mut Cx<'_>, of: &Result<Condition, String>) {
    if let Ok(of) = of {
        cx.excluded.extend(of.excluded.iter().cloned());
    }
}

/// Returns true for a line that removes a prefix of the path.
fn strips(line: &Directive) -> bool {
    line.name == "uri" && split(line).1.first().is_some_and(|first| first == "strip_prefix")
}

/// Returns true for an access rule that Caddy applies after `uri` has changed the path.
fn is_late(name: &str) -> bool {
    matches!(name, "basic_auth" | "basicauth" | "forward_auth") || servers::is_gate(name)
}

/// The reason for a condition on a path that has lost its prefix.
const STRIPPED: &str = "this condition is about the path without the removed prefix";

/// Adds the prefix that the block removes to the paths of a condition: with `/api`, the path `/x`
/// becomes `/api/x`. Caddy tests the path without the prefix, but Forebay's routes test the whole
/// path. Returns an error for a condition with an expression, and if some requests of the block
/// lack the prefix.
fn with_prefix(here: &Around<'_>, mut of: Condition) -> Result<Condition, String> {
    let Some(prefix) = here.strip.as_deref().filter(|prefix| !prefix.is_empty()) else {
        return Ok(of);
    };
    if !of.has_path() {
        return Ok(of);
    }
    let is_below =
        |path: &String| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    let paths = &here.matcher.paths;
    let is_always = !paths.is_empty() && paths.iter().all(is_below);
    if !is_always || of.matcher.regex.is_some() || of.found.is_some() {
        return Err(STRIPPED.into());
    }
    of.matcher.paths.iter_mut().for_each(|path| path.insert_str(0, prefix));
    Ok(of)
}

/// Returns true if a line of a block, or of a block inside it, sends files.
fn sends_files(block: &[Directive]) -> bool {
    let is_files = |name: &str| matches!(name, "file_server" | "php_fastcgi");
    block.iter().any(|line| is_files(&line.name) || sends_files(line.inside()))
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
    directive.settle();
    let of = match of {
        Ok(of) => of,
        Err(why) => {
            let comment = cx.note(directive, format!("{why}: write a route for these requests"));
            return vec![route(here.matcher.clone()).closed(comment)];
        }
    };
    if refuses(directive) && depends_on_case(&of.matcher) {
        let next = "write the paths in the expression: Caddy ignores the case of paths";
        let comment = cx.note(directive, next);
        return vec![route(here.matcher.clone()).closed(comment)];
    }
    let spelled = match directive.name.as_str() {
        "abort" | "error" | "respond" if refuses(directive) => in_any_case(cx, &of.matcher),
        _ => None,
    };
    let of = Condition { matcher: spelled.unwrap_or(of.matcher), ..of };
    let Some(matcher) = here.matcher.and(&of.matcher) else {
        let is_at_odds = here.matcher.is_at_odds(&of.matcher);
        if !is_at_odds && !here.matcher.conflicts_with(&of.matcher) {
            // No request meets the conditions of the block and of the directive.
            directive.settle_all();
            return Vec::new();
        }
        let comment = cx.note(directive, AT_ODDS);
        return vec![route(here.matcher.clone()).closed(comment)];
    };
    if of.is_missing {
        // The directive applies to missing files: its argument is the path that answers for them.
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
        "rewrite" if here.is_whole => {
            vec![rewrites::rewrite(cx, directive, first, route(matcher))]
        }
        "rewrite" => {
            let closed = rewrites::within(cx, directive, first, route(matcher), here);
            return closed.into_iter().collect();
        }
        "uri" => match (first, args.get(1), split(directive).0) {
            ("strip_prefix", Some(prefix), None)
                if here.strip.as_deref().is_none_or(str::is_empty) =>
            {
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
            let is_usual = |file: &String| {
                matches!(
                    file.as_str(),
                    "{path}" | "{path}/" | "{path}/index.html" | "{path}/index.php"
                )
            };
            if cx.keys.has("Files", "extensions") && first == "{path}" {
                here.extensions = args.iter().filter_map(|file| extension(file)).collect();
            }
            let others = args.split_last().map_or(&[][..], |(_, others)| others);
            let is_usual = |file: &String| {
                let end = extension(file);
                is_usual(file) || end.is_some_and(|end| here.extensions.contains(&end))
            };
            let is_missing = last.starts_with('=') || last.starts_with('/');
            if !others.iter().all(is_usual) || !is_missing && !is_usual(&last.to_owned()) {
                let next = "only the path itself is looked for: add routes for the other files";
                cx.note(directive, next);
            }
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
            let other = in_any_case(cx, &of.matcher).filter(|_| refuses(directive));
            let other = other.and_then(|other| here.matcher.and(&other));
            let mut routes = inner(cx, directive, matcher, &of, here);
            routes.extend(other.map(|other| {
                let mut route = route(other).respond(403);
                route.comments.push("Caddy ignores the case of paths in its rules.".into());
                route
            }));
            return routes;
        }
        "abort" => vec![route(matcher).respond(444)],
        "error" | "respond" => vec![respond(cx, directive, args, route(matcher))],
        _ => servers::answer(cx, directive, args, route(matcher), here),
    };
    let mut all = Vec::new();
    for route in routes {
        let parts = layered(cx, directive, route, &here.layers);
        all.extend(parts.into_iter().map(|part| rewrites::rewritten(cx, directive, part, here)));
    }
    all
}

/// The `.html` of `{path}.html`, with which `try_files` looks for a longer name.
fn extension(file: &str) -> Option<String> {
    let end = file.strip_prefix("{path}.")?;
    let is_plain = !end.is_empty() && end.bytes().all(|b| b.is_ascii_alphanumeric());
    is_plain.then(|| format!(".{end}"))
}

/// Returns true if a directive or its block refuses some requests.
fn refuses(directive: &Directive) -> bool {
    match directive.name.as_str() {
        "abort" | "error" => true,
        "respond" => split(directive).1.iter().any(|arg| rewrites::is_refusal(arg)),
        "handle" | "handle_path" | "route" => directive.inside().iter().any(refuses),
        name => servers::is_gate(name),
    }
}

/// Returns the routes of a directive with a block of its own, such as `handle`. `here` describes
/// the block that contains the directive.
fn inner<'a>(
    cx: &mut Cx<'_>,
    directive: &'a Directive,
    matcher: Matcher,
    of: &Condition,
    here: &Around<'a>,
) -> Vec<DraftRoute> {
    let is_whole = here.is_whole && here.is_alone && matcher == Matcher::default();
    let is_route = directive.name == "route";
    let mut inside = Around { matcher, is_route, is_whole, ..here.clone() };
    if directive.name == "handle_path" {
        let path = of.matcher.paths.first().map_or("", String::as_str);
        inside.strip = Some(path.trim_end_matches('*').trim_end_matches('/').to_owned());
    }
    routes(cx, directive.inside(), &inside)
}

/// Maximum number of routes that access rules may make of one route.
const MOST_PARTS: usize = 64;

/// Adds the keys of layers to a route. A layer has the keys of one line, and the requests that the
/// line applies to. If these are only a part of the route's requests, the part gets its own route.
/// This route is closed if one route cannot have the conditions of the part together with those of
/// an access rule.
fn layered(
    cx: &mut Cx<'_>,
    directive: &Directive,
    route: DraftRoute,
    layers: &[Layer],
) -> Vec<DraftRoute> {
    // Caddy redirects and rewrites before it applies access rules, so such routes get no access
    // rules.
    let is_redirect = ["redirect", "rewrite"].iter().any(|key| route.keys.get(key).is_some());
    let is_gate = |key: &str| crate::draft::GATES.contains(&key);
    let restricts = |layer: &&Layer| {
        let has_gate = layer.keys.0.iter().any(|(key, _)| is_gate(key));
        layer.closed.is_some() || has_gate && !is_redirect
    };
    let parts = parts(&route.matcher, layers, restricts);
    let is_whole = parts.len() > MOST_PARTS && layers.iter().any(|layer| restricts(&layer));
    let parts = if is_whole { vec![route.matcher.clone()] } else { parts };
    let mut out = Vec::new();
    for matcher in parts {
        let mut part = DraftRoute { matcher, ..route.clone() };
        let conflicts = |layer: &Layer| {
            !layer.matcher.covers(&part.matcher) && part.matcher.conflicts_with(&layer.matcher)
        };
        let mut closed = None;
        if is_whole || layers.iter().filter(restricts).any(conflicts) {
            closed = Some(cx.note(directive, AT_ODDS));
        } else if layers.iter().any(conflicts) {
            let next =
                "a route cannot have the conditions of all lines: write their keys in routes";
            part.comments.push(cx.note(directive, next));
        }
        for layer in layers.iter().filter(|layer| layer.matcher.covers(&part.matcher)) {
            closed = layer.closed.clone().or(closed);
            for (key, value) in &layer.keys.0 {
                match value {
                    _ if is_redirect && is_gate(key) => {}
                    Value::Table(table) if key.ends_with("_headers") => {
                        let merged = part.keys.table(key);
                        table.0.iter().for_each(|(name, value)| merged.set(name, value.clone()));
                    }
                    value => part.keys.set(key, value.clone()),
                }
            }
        }
        if closed.is_none() && route.depends_on_path() {
            match keeping_paths(&route.matcher, &part.matcher, cx.keys) {
                Some(matcher) => part.matcher = matcher,
                None => closed = Some(cx.note(directive, AT_ODDS)),
            }
        }
        out.push(match closed {
            Some(comment) => part.closed(comment),
            None => part,
        });
    }
    out
}

/// Splits the requests of a route into parts, because a layer may apply to only some of the
/// requests. Sorts the parts so that the first part that takes a request has all access rules for
/// this request.
fn parts(whole: &Matcher, layers: &[Layer], restricts: impl Fn(&&Layer) -> bool) -> Vec<Matcher> {
    let mut parts = vec![whole.clone()];
    let add = |parts: &mut Vec<Matcher>, layer: &Layer, of: usize, most: usize| {
        for at in 0..of {
            if !layer.matcher.covers(&parts[at])
                && let Some(part) = parts[at].and(&layer.matcher)
                && !parts.contains(&part)
                && parts.len() <= most
            {
                parts.push(part);
            }
        }
    };
    layers.iter().for_each(|layer| add(&mut parts, layer, 1, usize::MAX));
    // So far, each layer has split only the whole route. Now split all parts by each access rule.
    for layer in layers.iter().filter(&restricts) {
        let of = parts.len();
        add(&mut parts, layer, of, MOST_PARTS);
    }
    let length = |matcher: &Matcher| matcher.paths.iter().map(String::len).max().unwrap_or(0);
    let rules = |matcher: &Matcher| {
        let rules = layers.iter().filter(&restricts);
        rules.filter(|layer| layer.matcher.covers(matcher)).count()
    };
    let whole = parts.remove(0);
    parts.sort_by_key(|part| std::cmp::Reverse((rules(part), length(part))));
    parts.push(whole);
    parts
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
    // The module `sites` reads these two lines.
    if !matches!(directive.name.as_str(), "tls" | "bind") {
        directive.settle();
    }
    let gates = matches!(directive.name.as_str(), "basic_auth" | "basicauth" | "forward_auth");
    let is_at_odds = of.as_ref().is_ok_and(|of| {
        here.matcher.is_at_odds(&of.matcher) || here.matcher.conflicts_with(&of.matcher)
    });
    let matcher = match of {
        Ok(of) => {
            let spelled = in_any_case(cx, &of.matcher).filter(|_| gates);
            here.matcher.and(&spelled.unwrap_or(of.matcher))
        }
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
            let name = directive.name.as_str();
            if matches!(name, "header" | "request_header" | "encode" | "log_skip" | "skip_log") {
                return;
            }
            out.push(
                DraftRoute::new(&directive.place, line(directive), here.matcher.clone())
                    .closed(comment),
            );
        }
        directive.settle_all();
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
    // A target may contain `{host}` only as the whole host, as in `https://{host}/x`. In other
    // targets, replace `{host}` by the host name of the site.
    let to = to.map(|to| match &cx.host {
        Some(host) if !is_redirect_target(&to) => to.replace("{host}", host),
        _ => to,
    });
    match to.filter(|to| is_redirect_target(to)) {
        Some(to) => route.redirect(&to, status),
        None => {
            let comment = cx.note(directive, "write the target in `redirect`");
            route.closed(comment)
        }
    }
}

/// Returns `to` as the path for missing files. Returns `None` if Forebay does not accept this path,
/// for example without a slash at the beginning.
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
        inner.settle();
        match inner.name.as_str() {
            "body" => body = inner.arg(0).to_owned(),
            // Ignore `close`: Forebay may keep the client's connection open after the reply.
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

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    /// Returns the routes of a site with these lines.
    fn routes(lines: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("Caddyfile");
        std::fs::write(&file, format!(":80 {{\n{lines}\n}}\n")).unwrap();
        let toml = import(Language::Caddy, &file).unwrap().toml;
        toml.split("[[site.route]]").skip(1).map(str::to_owned).collect()
    }

    const OUTSIDE: &str = "@outside not remote_ip 10.0.0.0/8\nbasic_auth @outside {\na b\n}\n";

    #[test]
    fn a_rule_at_odds_with_a_route_closes_it() {
        for lines in [
            format!("{OUTSIDE}@nobot not header User-Agent bot\nreverse_proxy @nobot 127.0.0.1:9"),
            "@a path_regexp ^/a[0-9]+$\n@b path_regexp 1$\nbasic_auth @a {\na b\n}\n\
             reverse_proxy @b 127.0.0.1:9"
                .into(),
        ] {
            let found = routes(&lines);
            assert!(!found.is_empty(), "{lines}");
            for route in found {
                assert!(route.contains("403") && !route.contains("proxy ="), "{lines}:\n{route}");
            }
        }
        // No request meets both of these.
        let found = routes(
            "@a header X-Api 1\n@b header X-Api 2\nbasic_auth @a {\na b\n}\n\
             reverse_proxy @b 127.0.0.1:9",
        );
        assert!(found.iter().any(|route| route.contains("proxy =")), "{found:?}");
    }

    #[test]
    fn excluded_paths_and_simple_expressions_become_conditions() {
        for (matcher, wanted) in [
            ("@x not path /ab*", "~*^/(?:$|[^a]|a(?:$|[^b]))"),
            ("@x not path /A /b", "~*^/(?:$|[^ab]|a.|b.)"),
            ("@x {\nnot path /a*\nnot path /b*\nmethod PUT\n}", "~*^/(?:$|[^ab])"),
            ("@x {\npath /a*\nnot path /ab*\n}", "~*^/a(?:$|[^b])"),
            ("@x not path *.b", "~*(?:^|[^b]|(?:^|[^"),
            ("@x expression path('/a*') && {method} == 'PUT'", "methods = [\"PUT\"]"),
            ("@x expression `!path('/a*')`", "~*^/(?:$|[^a])"),
            ("@x expression \"{header.X-Kind}.contains('bot')\"", "X-Kind"),
        ] {
            let found = routes(&format!("{matcher}\nreverse_proxy @x 127.0.0.1:9"));
            let is_there = found.iter().any(|route| route.contains(wanted));
            assert!(is_there && !found.concat().contains("403"), "{matcher}: {found:?}");
        }
        for matcher in [
            "@x not path *a*",
            "@x {\nnot {\npath /a\nmethod GET\n}\n}",
            "@x {\npath_regexp b\nnot path /a\n}",
            "@x {\npath *.php\nnot path /a*\n}",
            "@x not path /a* *.php",
            "@x not path /*",
            "@x expression path('/a') || method('GET')",
            "@x expression {path}.matches('a')",
        ] {
            let found = routes(&format!("{matcher}\nreverse_proxy @x 127.0.0.1:9")).concat();
            assert!(found.contains("403") && !found.contains("proxy ="), "{matcher}: {found}");
        }
        // The refusal holds for the path in any case.
        let found = routes("@x {\npath /a*\npath_regexp b\n}\nrespond @x 404").concat();
        assert!(found.contains("403"), "{found}");
    }

    #[test]
    fn a_rule_holds_for_its_part_of_a_narrow_route() {
        let found =
            routes(&format!("{OUTSIDE}@api header X-Api 1\nreverse_proxy @api 127.0.0.1:9"));
        assert!(found[0].contains("not") && found[0].contains("403"), "{found:?}");
        assert!(!found[1].contains("not =") && found[1].contains("proxy ="), "{found:?}");
    }

    #[test]
    fn a_rule_holds_for_the_parts_of_other_lines() {
        let found = routes(&format!("header /static/* X-A b\n{OUTSIDE}reverse_proxy 127.0.0.1:9"));
        let first = found.iter().position(|route| route.contains("proxy =")).unwrap();
        let closed = |path: bool| {
            let is = |route: &String| {
                route.contains("403") && route.contains("not") && route.contains("/static/") == path
            };
            found.iter().position(is).unwrap()
        };
        assert!(closed(true) < first && closed(false) < first, "{found:?}");
    }
}
