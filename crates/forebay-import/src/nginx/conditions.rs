//! Translates blocks of `return`, `rewrite` and `if`, with the conditions of `if` on the request and
//! on files.

use super::here::{EarlyStep, Here, OwnContent, Phase};
use super::locations::{Location, LocationKind};
use super::rewrites;
use super::server::TranslatedServer;
use super::switches::{self, Switch};
use super::syntax::Directive;
use super::variables::{Variables, has_variables};
use super::{Cx, access, maintenance, needless, unread};
use crate::draft::DraftRoute;
use crate::keys::Keys;
use crate::matcher::Matcher;
use crate::pattern::{self, PatternConditions, Use, classify};
use crate::value::{Table, Value};

/// The meaning of a condition.
enum Meaning {
    /// The condition is true for these requests.
    Requests(Box<(Matcher, Option<PatternConditions>)>),
    /// The condition is true for all methods except these.
    OtherMethods(Vec<String>),
    /// The condition is true if the requested file does not exist.
    Missing,
    /// The condition is true if the requested file exists.
    Exists,
    Always,
    Never,
    /// The condition is true while this file exists. Its path does not depend on the request.
    WhileExists(String),
    /// The condition is a variable that a `map` sets. Contains the old paths, each with its target.
    Moved(Vec<(Matcher, String)>),
    /// The condition is true for the requests that one of these matchers takes.
    OneOf(Vec<Matcher>),
    Unknown,
}

/// Translates the `return`, `rewrite`, `if` and `break` directives of a block. Stops after a
/// directive that answers all requests.
pub fn run<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    block: &'a [Directive],
    phase: &mut Phase<'a>,
    out: &mut Vec<EarlyStep>,
) {
    for (at, directive) in block.iter().enumerate() {
        let (known, methods) = (out.len(), phase.methods.clone());
        match directive.name.as_str() {
            "return" => {
                directive.settle();
                let variables = here.variables(server);
                let route =
                    DraftRoute::new(&directive.place, directive.line(), here.matcher.clone());
                let route = rewrites::returned(cx, &variables, directive, route);
                // In Forebay, redirects precede access rules, so a redirect is open even if the
                // rules have no translation.
                let is_redirect = route.keys.get("redirect").is_some();
                out.push(EarlyStep::Route(match phase.closed.take().filter(|_| !is_redirect) {
                    Some(comment) => route.closed(comment),
                    None => route,
                }));
                phase.is_done = true;
            }
            "rewrite" => {
                directive.settle();
                rewrites::rewrite(cx, server, here, directive, phase, out);
            }
            "if" => translate(cx, server, here, directive, phase, out),
            "break" => {
                directive.settle();
                unread::settle_rewrites(&block[at..]);
                return;
            }
            _ => {}
        }
        // An earlier condition answers all methods except `methods`, so limit the new routes to
        // `methods`.
        if let Some(methods) = methods {
            let limit = Matcher::default().with_methods(methods);
            let added = out.split_off(known);
            out.extend(added.into_iter().filter_map(|step| narrowed(step, &limit)));
        }
        if phase.is_done {
            unread::settle_rewrites(&block[at..]);
            return;
        }
    }
}

/// Limits a step to the requests that `limit` takes. Returns `None` if there are no such requests,
/// or if one route cannot have the conditions of both.
fn narrowed(mut step: EarlyStep, limit: &Matcher) -> Option<EarlyStep> {
    let matcher = match &mut step {
        EarlyStep::Route(route) => &mut route.matcher,
        EarlyStep::Content(own) => &mut own.matcher,
    };
    *matcher = matcher.and(limit)?;
    Some(step)
}

/// Translates an `if` block.
fn translate<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    directive: &'a Directive,
    phase: &mut Phase<'a>,
    out: &mut Vec<EarlyStep>,
) {
    // `maps` translates variables that a block sets. Others get a note later.
    if server.is_host_condition(directive) || only_sets(directive) {
        return;
    }
    directive.settle();
    let block = directive.inside();
    let decides =
        block.iter().any(|inner| matches!(inner.name.as_str(), "return" | "rewrite" | "if"));
    let meaning = meaning(cx, server, here, directive);
    if matches!(meaning, Meaning::Requests(_) | Meaning::OneOf(_)) {
        line_feed(cx, here, directive, phase, out);
    }
    match meaning {
        Meaning::Never => directive.settle_all(),
        Meaning::Always => run(cx, server, here, block, phase, out),
        Meaning::Requests(of) => {
            requests(cx, server, here, directive, *of, phase, out);
        }
        Meaning::OneOf(all) => {
            for matcher in all {
                requests(cx, server, here, directive, (matcher, None), phase, out);
            }
        }
        Meaning::OtherMethods(methods) if decides => {
            let inner = block.iter().find(|inner| inner.name == "return");
            // The block applies to all methods except `methods`. Only one route (`phase.otherwise`)
            // can answer these other methods, so a second block of this kind has no translation.
            let Some(inner) = inner.filter(|_| phase.methods.is_none()) else {
                phase.closed = Some(cx.note(directive, "limit `methods` of the route"));
                return;
            };
            inner.settle();
            let variables = here.variables(server);
            // A route for GET also takes HEAD. If the block applies to HEAD, but not to GET, HEAD
            // needs its own route.
            let has = |name: &str| methods.iter().any(|method| method == name);
            let head = Matcher::default().with_methods(vec!["HEAD".into()]);
            let head = Some(head).filter(|_| has("GET") && !has("HEAD"));
            if let Some(head) = head.and_then(|head| here.matcher.and(&head)) {
                let route = DraftRoute::new(&directive.place, directive.line(), head);
                let route = rewrites::returned(cx, &variables, inner, route);
                out.push(EarlyStep::Route(route));
            }
            let route = DraftRoute::new(&directive.place, directive.line(), here.matcher.clone());
            phase.otherwise = Some(rewrites::returned(cx, &variables, inner, route));
            phase.methods = Some(methods);
        }
        Meaning::Missing => {
            missing(cx, server, here, directive, phase);
            directive.settle_all();
        }
        Meaning::WhileExists(file) if closes(block) => {
            directive.settle_all();
            match maintenance::table(cx, server, here, &file) {
                Some(table) => {
                    let mut known = phase.maintenance.iter().chain(&server.maintenance);
                    if known.any(|known| !maintenance::is_same_file(known, &table)) {
                        let comment = cx.note(directive, maintenance::TWO_FILES);
                        phase.closed.get_or_insert(comment);
                    } else {
                        phase.maintenance = Some(table);
                    }
                }
                None => {
                    let next = "write a page and this file in `maintenance`";
                    phase.closed.get_or_insert(cx.note(directive, next));
                }
            }
        }
        Meaning::Moved(pairs) if moves(block) => {
            directive.settle_all();
            for (matcher, to) in pairs {
                let Some(matcher) = here.matcher.and(&matcher) else {
                    if here.matcher.conflicts_with(&matcher) {
                        let next = "a route cannot have both conditions: write routes for them";
                        phase.closed.get_or_insert(cx.note(directive, next));
                    }
                    continue;
                };
                let route = DraftRoute::new(&directive.place, directive.line(), matcher);
                let status = block.iter().find_map(|inner| inner.arg(0).parse().ok());
                let status =
                    status.filter(|s| matches!(s, 301 | 302 | 303 | 307 | 308)).unwrap_or(301);
                let to = crate::template::redirect_target(&to, false, cx.keys);
                if crate::template::is_redirect_target(&to) {
                    out.push(EarlyStep::Route(route.redirect(&to, status)));
                } else {
                    cx.note(directive, format!("\"{to}\" is no target: write it in `redirect`"));
                }
            }
        }
        _ if decides => {
            let next = "Forebay has no such condition: see `when` and `methods` of a route";
            phase.closed.get_or_insert(cx.note(directive, next));
        }
        _ => note(cx, directive),
    }
}

/// Adds a route that refuses paths with a line feed at their end, for a block that refuses the
/// matches of an expression with `$`. nginx's `$` also matches before a final line feed, but
/// Forebay's does not.
fn line_feed<'a>(
    cx: &mut Cx<'a>,
    here: &Here<'_, 'a>,
    directive: &'a Directive,
    phase: &mut Phase<'a>,
    out: &mut Vec<EarlyStep>,
) {
    let refuses =
        |inner: &Directive| inner.name == "return" && inner.arg(0).starts_with(['4', '5']);
    let is_path = |name: &str| matches!(name, "$uri" | "$document_uri");
    let words = words(directive);
    let Some(variable) = words.first() else { return };
    let maps = || cx.http.every("map").filter(|map| map.arg(1) == variable && is_path(map.arg(0)));
    let has_end = match &words[1..] {
        [_, text] if is_path(variable) => pattern::has_end(text),
        _ => maps().flat_map(Directive::inside).any(|entry| pattern::has_end(&entry.name)),
    };
    if !has_end || !directive.inside().iter().any(refuses) {
        return;
    }
    let all = Matcher { regex: Some("\\n$".into()), ..Matcher::default() };
    match here.matcher.and(&all).filter(|_| here.matcher.regex.is_none()) {
        Some(matcher) => {
            let mut route =
                DraftRoute::new(&directive.place, directive.line(), matcher).respond(403);
            route.comments.push("In nginx, `$` also matches before a line feed at the end.".into());
            out.push(EarlyStep::Route(route));
        }
        // The location's own expression has a `$`, so `answer::line_feed` adds the route.
        None if matches!(here.location.kind, LocationKind::Regex { text, .. } if pattern::has_end(text)) =>
            {}
        None => {
            let next = "nginx's `$` also matches before a line feed: write routes for both paths";
            phase.closed.get_or_insert(cx.note(directive, next));
        }
    }
}

fn note(cx: &mut Cx<'_>, directive: &Directive) {
    cx.note(directive, "Forebay has no such condition: see `when` of a route, or remove the block");
}

/// Returns true if a block answers with status 503, and contains no other directives than
/// `return 503` and `set`.
fn closes(block: &[Directive]) -> bool {
    block.iter().all(|inner| inner.name == "return" && inner.args == ["503"] || inner.name == "set")
        && block.iter().any(|inner| inner.name == "return")
}

fn moves(block: &[Directive]) -> bool {
    block.iter().any(|inner| {
        inner.name == "return" && inner.args.iter().any(|arg| arg.starts_with('$'))
            || inner.name == "rewrite" && inner.arg(1).starts_with('$')
    })
}

/// Translates a block whose condition selects requests.
fn requests<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    directive: &'a Directive,
    (matcher, found): (Matcher, Option<PatternConditions>),
    phase: &mut Phase<'a>,
    out: &mut Vec<EarlyStep>,
) {
    let conflicts = matches!((&here.matcher.regex, &matcher.regex), (Some(a), Some(b)) if a != b)
        || here.matcher.is_at_odds(&matcher);
    let Some(both) = here.matcher.and(&matcher).filter(|_| !conflicts) else {
        if conflicts {
            let next = "a route cannot have both conditions: write routes for them";
            phase.closed.get_or_insert(cx.note(directive, next));
        }
        // Without a conflict, no request meets both conditions, so the block has no effect.
        directive.settle_all();
        return;
    };
    let narrow = Here {
        location: here.location,
        matcher: both,
        found: found.or_else(|| here.found.clone()),
        region: here.region,
    };
    let block = directive.inside();
    let answers = |inner: &&Directive| {
        !matches!(inner.name.as_str(), "return" | "rewrite" | "set" | "break" | "if" | "add_header")
            && !needless::is_needless(&inner.name)
    };
    let has = |name: &str| block.iter().any(|inner| inner.name == name);
    // In a block with `return`, other directives have little effect, so they get only notes later.
    if block.iter().any(|inner| answers(&inner)) && !has("return") {
        if has("rewrite") {
            let next = "Forebay has no such block: write a route with this condition in `when`";
            phase.closed.get_or_insert(cx.note(directive, next));
        } else {
            note(cx, directive);
        }
        return;
    }
    let only_breaks = block.iter().any(|inner| inner.name == "break")
        && !block.iter().any(|inner| matches!(inner.name.as_str(), "return" | "rewrite" | "if"));
    if only_breaks {
        // After `break`, nginx ignores the further `return` and `rewrite` lines, so mark them as
        // read.
        unread::settle_rewrites(block);
        match here.location.directive {
            None => note(cx, directive),
            Some(_) if phase.closed.is_some() => {}
            Some(_) => {
                let Here { matcher, found, .. } = narrow;
                let rewrite = phase.rewrite.clone();
                out.push(EarlyStep::Content(OwnContent { matcher, found, rewrite }));
            }
        }
        return;
    }
    let mut inner = Phase::default();
    let mut steps = Vec::new();
    run(cx, server, &narrow, block, &mut inner, &mut steps);
    // A last `rewrite ... break` that takes all requests of the block.
    if let Some(to) = inner.rewrite.take() {
        let Here { matcher, found, .. } = &narrow;
        steps.push(if here.location.directive.is_some() {
            let (matcher, found) = (matcher.clone(), found.clone());
            EarlyStep::Content(OwnContent { matcher, found, rewrite: Some(to) })
        } else {
            let mut route = DraftRoute::new(&directive.place, directive.line(), matcher.clone());
            route.keys.set("rewrite", to);
            EarlyStep::Route(route)
        });
    }
    let scope = here.location.scope.inside(block);
    if !steps.iter().any(|step| matches!(step, EarlyStep::Route(_))) {
        for field in block.iter().filter(|inner| inner.name == "add_header") {
            cx.note(field, "write a route with this condition in `when`, and `set_headers`");
        }
    }
    if let Some(log) = block.iter().find(|i| i.name == "access_log" && i.arg(0) == "off") {
        log.settle();
        let routes = steps.iter_mut().filter_map(|step| match step {
            EarlyStep::Route(route) => Some(route),
            EarlyStep::Content(_) => None,
        });
        routes.for_each(|route| route.keys.set("log", false));
    }
    for step in &mut steps {
        let EarlyStep::Route(route) = step else { continue };
        // If a block has `add_header`, nginx adds the block's fields to its replies, and no fields
        // of outer blocks.
        if !scope.own().iter().any(|inner| inner.name == "add_header") {
            break;
        }
        let variables = server.variables(&scope, None);
        super::fields::decorate(cx, &variables, route);
        route.comments.push(format!("{}: {}", directive.place, directive.line()));
    }
    out.extend(steps);
    if let Some(comment) = inner.closed {
        let route = DraftRoute::new(&directive.place, directive.line(), narrow.matcher);
        out.push(EarlyStep::Route(route.closed(comment)));
    }
}

/// Translates a block such as `if (!-f $request_filename) { ... }`, which applies to missing files.
fn missing<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    directive: &'a Directive,
    phase: &mut Phase<'a>,
) {
    for inner in directive.inside() {
        match inner.name.as_str() {
            "rewrite" => {
                let variables = here.variables(server);
                let found = classify(inner.arg(0), false, cx.keys, Use::Exact).ok();
                let variables = Variables { found: found.as_ref(), ..variables };
                match rewrites::fallback_target(cx, &variables, inner.arg(1)) {
                    // The target `/$uri` begins with two slashes, so in nginx only the location `/`
                    // takes the new path.
                    Ok(target) if target == "/{path}" => phase.is_left = true,
                    Ok(target) => phase.fallback = Some(target),
                    Err(next) => drop(cx.note(inner, next)),
                }
            }
            "proxy_pass" => phase.missing_pass = Some(inner),
            "return" if passes_on(server, here) => {
                let next = "a backend answers for missing files, too: limit the paths of the route";
                phase.closed.get_or_insert(cx.note(directive, next));
            }
            "return" if inner.arg(0) == "404" => {}
            "break" | "set" => {}
            _ => drop(cx.note(inner, "Forebay answers 404 for a missing file")),
        }
    }
}

/// Returns true if `here` passes some requests to a backend that does not look for files.
fn passes_on(server: &TranslatedServer<'_>, here: &Here<'_, '_>) -> bool {
    let passes = |location: &Location<'_>| location.passes_on_without_files();
    match here.location.directive {
        Some(_) => passes(here.location),
        None => server.locations.iter().any(passes),
    }
}

/// Returns the words of a condition without its parentheses.
fn words(directive: &Directive) -> Vec<String> {
    let mut words = directive.args.clone();
    if let Some(first) = words.first_mut() {
        *first = first.strip_prefix('(').unwrap_or(first).to_owned();
    }
    if let Some(last) = words.last_mut() {
        *last = last.strip_suffix(')').unwrap_or(last).to_owned();
    }
    words.retain(|word| !word.is_empty());
    words
}

fn meaning(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    here: &Here<'_, '_>,
    directive: &Directive,
) -> Meaning {
    let words = words(directive);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["!-e" | "!-f", file] if is_request_file(file) => Meaning::Missing,
        ["-e" | "-f", file] if is_request_file(file) => Meaning::Exists,
        ["-f" | "-e", file] if !has_variables(file) && file.starts_with('/') => {
            Meaning::WhileExists(file.to_owned())
        }
        ["$invalid_referer"] => match access::invalid(cx, server, &here.location.scope) {
            Some(matcher) => Meaning::Requests(Box::new((matcher, None))),
            None => Meaning::Unknown,
        },
        [variable] if moves(directive.inside()) => match moved(cx, server, here, variable) {
            Some(pairs) => Meaning::Moved(pairs),
            None => compared(cx, server, (variable, "~", "^([^0]|0.)")),
        },
        // In `if ($x != "")`, `words` has removed the empty text.
        [variable, "!="] if moves(directive.inside()) => match moved(cx, server, here, variable) {
            Some(pairs) => Meaning::Moved(pairs),
            None => compared(cx, server, (variable, "!=", "")),
        },
        // A variable is true unless it is empty or "0".
        [variable] => switch(cx, server, variable, &|value| !matches!(value, "" | "0"))
            .unwrap_or_else(|| compared(cx, server, (variable, "~", "^([^0]|0.)"))),
        [variable, operator @ ("=" | "!="), text] if !text.contains('$') => {
            switch(cx, server, variable, &|value| (value == text) == (operator == "="))
                .unwrap_or_else(|| compared(cx, server, (variable, operator, text)))
        }
        ["$request_uri", operator, text] if operator.starts_with('~') => {
            target(cx, directive, operator, text)
                .unwrap_or_else(|| when(cx.keys, "request_uri", operator, text))
        }
        [variable, operator, text] => compared(cx, server, (variable, operator, text)),
        // In `if ($x = "")`, `words` has removed the empty text.
        [variable, operator] => compared(cx, server, (variable, operator, "")),
        _ => Meaning::Unknown,
    }
}

/// Returns the meaning of a condition on a variable that a `map` or `geo` sets. The condition holds
/// for the values that `is_true` accepts. Returns `None` if a route cannot have the condition.
fn switch(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    variable: &str,
    is_true: &dyn Fn(&str) -> bool,
) -> Option<Meaning> {
    let compare = |comparison: (&str, &str, &str)| requests_with(cx, server, comparison);
    Some(match switches::requests(cx, variable, is_true, &compare)? {
        Switch::OneOf(all) => Meaning::OneOf(all),
        Switch::OtherMethods(methods) => Meaning::OtherMethods(methods),
    })
}

fn is_request_file(file: &str) -> bool {
    matches!(
        file,
        "$request_filename"
            | "$document_root$uri"
            | "$document_root$fastcgi_script_name"
            | "$document_root/$uri"
    )
}

/// Returns the requests that meet a comparison of a variable; `None` if a route cannot have this
/// condition.
pub fn requests_with(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    (variable, operator, text): (&str, &str, &str),
) -> Option<Matcher> {
    match compared(cx, server, (variable, operator, text)) {
        Meaning::Requests(of) => Some(of.0),
        _ => None,
    }
}

/// Returns true for a block that only sets variables.
pub fn only_sets(directive: &Directive) -> bool {
    let block = directive.inside();
    !block.is_empty() && block.iter().all(|inner| inner.name == "set")
}

/// Returns the requests that meet the condition of an `if`; `None` if a route cannot have it.
pub fn condition(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    directive: &Directive,
) -> Option<Matcher> {
    let words = words(directive);
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [variable, operator, text] if !has_variables(text) || operator.starts_with('~') => {
            requests_with(cx, server, (variable, operator, text))
        }
        _ => None,
    }
}

/// Returns the meaning of a comparison of a variable with a text.
fn compared(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    (variable, operator, text): (&str, &str, &str),
) -> Meaning {
    // A `map` may compare a text of several variables, such as `$scheme$host`. A route has no
    // condition on such a text.
    let is_name =
        |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let Some(name) = variable.strip_prefix('$').filter(is_name) else { return Meaning::Unknown };
    match name {
        "request_method" => methods(operator, text),
        "scheme" | "https" | "server_port" => scheme(cx, server, variable, operator, text),
        "uri" | "document_uri" if operator.starts_with('~') => path(cx, operator, text),
        "uri" | "document_uri" if operator.starts_with("!~") => {
            match pattern::negated(text, operator == "!~*", cx.keys) {
                Some(matcher) => Meaning::Requests(Box::new((matcher, None))),
                None => Meaning::Unknown,
            }
        }
        "uri" | "document_uri" if operator == "=" && crate::pattern::is_path(text) => {
            Meaning::Requests(Box::new((Matcher::path(text), None)))
        }
        name => when(cx.keys, name, operator, text),
    }
}

/// Returns the meaning of a comparison of the path with an expression.
fn path(cx: &Cx<'_>, operator: &str, text: &str) -> Meaning {
    match classify(text, operator == "~*", cx.keys, Use::Exact) {
        Ok(found) => Meaning::Requests(Box::new((found.matcher.clone(), Some(found)))),
        Err(_) => Meaning::Unknown,
    }
}

/// Translates a comparison of `$request_uri` with an expression to a condition on the path. The
/// block must refuse all targets with a fixed beginning, or use groups such as `$1` and refuse
/// nothing. Otherwise returns `None`. Also returns `None` for an expression on the query.
fn target(cx: &Cx<'_>, directive: &Directive, operator: &str, text: &str) -> Option<Meaning> {
    if text.contains("\\?") {
        return None;
    }
    let block = directive.inside();
    // A redirect to a target with `$1` needs a condition on the path, because other conditions have
    // no groups. A redirect restricts nothing, so an inexact condition is safe.
    let has_groups = |inner: &Directive| {
        let is_group =
            |at: usize, arg: &str| arg[at + 1..].starts_with(|c: char| c.is_ascii_digit());
        let mut args = inner.args.iter();
        args.any(|arg| arg.match_indices('$').any(|(at, _)| is_group(at, arg)))
    };
    let is_refused =
        |inner: &Directive| inner.name == "return" && inner.arg(0).starts_with(['4', '5']);
    let meaning = path(cx, operator, text);
    let is_start = match &meaning {
        Meaning::Requests(of) => {
            of.0.regex.is_none()
                && of.0.suffixes.is_empty()
                && of.0.paths.iter().all(|path| path.ends_with('*'))
        }
        _ => false,
    };
    let closes = block.iter().any(is_refused) && is_start && text.starts_with("^/");
    let moves = block.iter().any(has_groups) && !block.iter().any(is_refused);
    (closes || moves).then_some(meaning)
}

/// Methods that are not the beginning of another usual method.
const METHODS: [&str; 15] = [
    "GET",
    "HEAD",
    "QUERY",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "REPORT",
    "PURGE",
];

/// Returns the meaning of a comparison with `$request_method`.
fn methods(operator: &str, text: &str) -> Meaning {
    let whole = text.strip_prefix('^').and_then(|text| text.strip_suffix('$'));
    let bare = text.trim_start_matches('^').trim_end_matches('$');
    let group = bare.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
    let inner = group.map_or(bare, |group| group.strip_prefix("?:").unwrap_or(group));
    let list: Vec<String> = if operator.contains('~') {
        inner.split('|').map(str::to_owned).collect()
    } else {
        vec![text.to_owned()]
    };
    let is_method =
        |method: &String| !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
    if !list.iter().all(is_method) {
        return Meaning::Unknown;
    }
    // Without `^` and `$`, an expression such as `POST` also matches longer methods. With `!~`, the
    // translation also refuses longer methods, so the route is never more open than in nginx. But
    // the expression must name whole methods.
    let is_exact = whole.is_some() && (group.is_some() || !inner.contains('|'));
    let is_narrow =
        operator.starts_with('!') && list.iter().all(|method| METHODS.contains(&method.as_str()));
    if operator.contains('~') && !is_exact && !is_narrow {
        return Meaning::Unknown;
    }
    match operator {
        "=" | "~" | "~*" => {
            Meaning::Requests(Box::new((Matcher::default().with_methods(list), None)))
        }
        "!=" | "!~" | "!~*" => Meaning::OtherMethods(list),
        _ => Meaning::Unknown,
    }
}

/// Returns the meaning of a condition on the scheme. The listeners of the server determine the
/// scheme.
fn scheme(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    variable: &str,
    operator: &str,
    text: &str,
) -> Meaning {
    let is_equal = match operator {
        "=" => true,
        "!=" => false,
        _ => return Meaning::Unknown,
    };
    let names = match (variable, text) {
        ("$scheme", "https") | ("$https", "on") | ("$server_port", "443") => "https",
        ("$scheme", "http") | ("$https", "") | ("$server_port", "80") => "http",
        _ => return Meaning::Unknown,
    };
    match server.scheme {
        Some(scheme) if (scheme == names) == is_equal => Meaning::Always,
        Some(_) => Meaning::Never,
        None => {
            let wanted = if (names == "https") == is_equal { "https" } else { "http" };
            if !cx.keys.route("when") {
                return Meaning::Unknown;
            }
            let when = Table::default().with("scheme", wanted);
            Meaning::Requests(Box::new((Matcher { when, ..Matcher::default() }, None)))
        }
    }
}

/// Returns the meaning of a condition that the key `when` can express, or `Meaning::Unknown` for
/// other conditions.
fn when(keys: &Keys, name: &str, operator: &str, text: &str) -> Meaning {
    let (is_not, mark) = match operator {
        "=" => (false, ""),
        "!=" => (true, ""),
        "~" => (false, "~"),
        "~*" => (false, "~*"),
        "!~" => (true, "~"),
        "!~*" => (true, "~*"),
        _ => return Meaning::Unknown,
    };
    let is_readable = mark.is_empty() || crate::pattern::is_readable(text);
    if !keys.route("when") || text.contains('$') && mark.is_empty() || !is_readable {
        return Meaning::Unknown;
    }
    // `$host` is in lower case, without a port or a final dot. The field Host may have both, so the
    // text becomes an expression that allows them.
    let of_host = if name == "host" { host_pattern(text, mark) } else { None };
    if name == "host" && of_host.is_none() {
        return Meaning::Unknown;
    }
    let value = match (text, mark) {
        _ if of_host.is_some() => Value::from(of_host.unwrap_or_default()),
        // nginx compares this text as it is, but `when` would read it as an expression.
        (text, "") if text.starts_with('~') => return Meaning::Unknown,
        (text, mark) => Value::Text(format!("{mark}{text}")),
    };
    let mut when = Table::default();
    let is_variable = ["arg_", "cookie_", "http_"].iter().any(|start| name.starts_with(start))
        || matches!(name, "request_uri" | "args" | "query_string");
    if is_variable && keys.has("When", "variable") {
        when.table("variable").set(name, value);
    } else if name == "ssl_client_verify" && text == "SUCCESS" && mark.is_empty() {
        when.set("client_certificate", true);
    } else if name == "remote_addr" && text.parse::<std::net::IpAddr>().is_ok() {
        when.set("client", vec![text]);
    } else if name == "host" {
        when.table("header").set("Host", value);
    } else {
        return Meaning::Unknown;
    }
    let when = if is_not { Table::default().with("not", Value::Table(when)) } else { when };
    Meaning::Requests(Box::new((Matcher { when, ..Matcher::default() }, None)))
}

/// Converts a text or expression for `$host` to an expression for the field Host, which may have a
/// port after the name. Returns `None` for an empty text. Also returns `None` for an expression
/// with `$` before its end, because the port cannot be added at this `$`.
fn host_pattern(text: &str, mark: &str) -> Option<String> {
    const END: &str = r"\.?(:[0-9]*)?$";
    if mark.is_empty() {
        return (!text.is_empty()).then(|| format!("~*^{}{END}", regex_syntax::escape(text)));
    }
    let (start, end) = match text.strip_suffix('$') {
        Some(start) => (start, END),
        None => (text, ""),
    };
    (!start.contains('$') && !start.ends_with('\\')).then(|| format!("~*{start}{end}"))
}

/// Returns the old paths and their targets in the `map` that sets a variable, in the order in which
/// nginx looks for them. Returns `None` if no `map` sets the variable, or if the `map` has other
/// entries.
fn moved(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    here: &Here<'_, '_>,
    variable: &str,
) -> Option<Vec<(Matcher, String)>> {
    if cx.changed.contains(variable) {
        return None;
    }
    let mut maps = cx.http.every("map");
    let map = maps.find(|map| map.arg(1) == variable)?;
    if !matches!(map.arg(0), "$uri" | "$request_uri" | "$document_uri") {
        return None;
    }
    let (mut fixed, mut expressions) = (Vec::new(), Vec::new());
    for entry in map.inside() {
        match (entry.name.as_str(), entry.arg(0)) {
            ("default" | "hostnames" | "volatile", "" | "0") => {}
            (from, to)
                if crate::pattern::is_path(from) && !from.ends_with('*') && !to.contains('$') =>
            {
                fixed.push((Matcher::path(from), crate::template::literal(to, cx.keys)));
            }
            (from, to) if from.starts_with('~') && to.starts_with('/') => {
                let text = from.trim_start_matches(['~', '*']);
                let ignores_case = from.starts_with("~*");
                let fill = |found: PatternConditions| {
                    let variables = Variables { found: Some(&found), ..here.variables(server) };
                    let to = variables.fill(to).ok()?;
                    Some((found.matcher, to))
                };
                let simple = classify(text, ignores_case, cx.keys, Use::Exact).ok();
                let whole = || pattern::as_regex(text, ignores_case, cx.keys).and_then(fill);
                expressions.push(simple.and_then(fill).or_else(whole)?);
            }
            _ => return None,
        }
    }
    map.settle_all();
    fixed.extend(expressions);
    Some(fixed)
}
