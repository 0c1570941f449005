//! Translates `RewriteRule` and `RewriteCond`.

use super::Cx;
use super::sections::{all, last};
use super::syntax::{Directive, is, line};
use super::targets;
use crate::draft::DraftRoute;
use crate::keys::Keys;
use crate::matcher::Matcher;
use crate::pattern::{PatternConditions, Use, as_regex, classify};
use crate::template::{group, is_redirect_target, is_rewrite_target, literal, redirect_target};
use crate::value::Table;

/// The translation of the rewrite rules of a block.
#[derive(Default)]
pub struct Rules {
    pub routes: Vec<DraftRoute>,
    /// The path that answers for missing files.
    pub fallback: Option<String>,
}

/// The translation of the `RewriteCond` lines of a rule.
#[derive(Default)]
struct Conditions {
    matcher: Matcher,
    is_missing: bool,
    never: bool,
    unknown: bool,
}

/// The context of rewrite rules: the path of their directory, and the scheme of the site.
#[derive(Clone, Copy)]
pub struct Around<'s> {
    /// The path of the directory. Patterns match only the rest of the path. `None` for the rules of
    /// a server.
    pub url: Option<&'s str>,
    pub scheme: Option<&'s str>,
}

/// Returns true if a level inherits the rules of the level around it, or passes its own ones down.
pub fn inherits(levels: &[&[Directive]]) -> bool {
    all(levels, "RewriteOptions")
        .iter()
        .flat_map(|options| &options.args)
        .any(|option| option.to_ascii_lowercase().starts_with("inherit"))
}

/// Returns true if the route of a rule passes requests to a backend.
pub fn passes_on(route: &DraftRoute) -> bool {
    ["proxy", "fastcgi", "scgi", "uwsgi", "ajp"].iter().any(|key| route.keys.get(key).is_some())
}

/// Returns the target of a rule up to its first group.
pub fn target(directive: &Directive) -> &str {
    directive.arg(1).split(['$', '%']).next().unwrap_or_default()
}

/// Translates the rules of a block.
pub fn rules(cx: &mut Cx<'_>, block: &[Directive], around: Around<'_>) -> Rules {
    let mut found = Rules::default();
    let engine = block.iter().rfind(|directive| is(directive, "RewriteEngine"));
    if !engine.is_some_and(|engine| engine.arg(0).eq_ignore_ascii_case("on")) {
        return found;
    }
    let base = last(&[block], "RewriteBase").map(|base| base.arg(0).to_owned());
    let mut conditions = Vec::new();
    for directive in block {
        if is(directive, "RewriteCond") {
            conditions.push(directive);
        } else if is(directive, "RewriteRule") {
            let read = read_conditions(cx, &conditions, around.scheme);
            rule(cx, directive, (read, conditions.len()), (around, base.as_deref()), &mut found);
            conditions.clear();
        }
    }
    found
}

fn read_conditions(cx: &Cx<'_>, list: &[&Directive], scheme: Option<&str>) -> Conditions {
    let mut found = Conditions::default();
    for condition in list {
        let (test, pattern) = (condition.arg(0), condition.arg(1));
        let flags = condition.arg(2).to_ascii_uppercase();
        if flags.contains("OR") {
            found.unknown = true;
        }
        let name = test.strip_prefix("%{").and_then(|rest| rest.strip_suffix('}')).unwrap_or("");
        match (name.to_ascii_uppercase().as_str(), pattern) {
            ("REQUEST_FILENAME", "!-f" | "!-d" | "!-l" | "!-e") => found.is_missing = true,
            ("HTTPS", "off" | "!on" | "!=on" | "=off") => only(&mut found, scheme, "http"),
            ("HTTPS", "on" | "!off" | "!=off" | "=on") => only(&mut found, scheme, "https"),
            ("SERVER_PORT", "80" | "^80$" | "!443" | "!^443$") => only(&mut found, scheme, "http"),
            ("SERVER_PORT", "443" | "^443$") => only(&mut found, scheme, "https"),
            ("REQUEST_METHOD", methods) => method(&mut found, methods),
            ("REQUEST_URI", text) if !text.starts_with('!') => {
                match classify(text, flags.contains("NC"), cx.keys, Use::Exact) {
                    Ok(path) => match found.matcher.and(&path.matcher) {
                        Some(both) => found.matcher = both,
                        None => found.unknown = true,
                    },
                    Err(_) => found.unknown = true,
                }
            }
            // Such conditions only exclude the front controller itself, so they need no
            // translation.
            ("REQUEST_URI", "!=/favicon.ico" | "!^/index\\.php") => {}
            _ => found.unknown = true,
        }
    }
    found
}

/// Restricts a rule to a scheme. All listeners of a site have the same scheme, so the rule applies
/// to all requests of the site or to none.
fn only(found: &mut Conditions, scheme: Option<&str>, wanted: &str) {
    match scheme {
        Some(scheme) => found.never |= scheme != wanted,
        None => found.unknown = true,
    }
}

fn method(found: &mut Conditions, text: &str) {
    let text = text.trim_start_matches('^').trim_end_matches('$');
    let text = text.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).unwrap_or(text);
    let list: Vec<String> = text.split('|').map(str::to_owned).collect();
    let is_method =
        |method: &String| !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
    if list.iter().all(is_method) {
        found.matcher.methods = list;
    } else {
        found.unknown = true;
    }
}

/// Returns the value of a flag such as `R=301`, or an empty text for `R`.
fn flag<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    let flags = directive.arg(2).strip_prefix('[')?.strip_suffix(']')?;
    flags.split(',').map(str::trim).find_map(|flag| {
        let (key, value) = flag.split_once('=').unwrap_or((flag, ""));
        key.eq_ignore_ascii_case(name).then_some(value)
    })
}

fn rule(
    cx: &mut Cx<'_>,
    directive: &Directive,
    (conditions, count): (Conditions, usize),
    (around, base): (Around<'_>, Option<&str>),
    found: &mut Rules,
) {
    let (pattern, target) = (directive.arg(0), directive.arg(1));
    if conditions.never {
        return;
    }
    let decides = flag(directive, "F").is_some() || flag(directive, "G").is_some();
    if target == "-" && !decides {
        // Rules such as `RewriteRule ^index\.php$ - [L]`, and rules that only set variables, do not
        // change replies.
        return;
    }
    if conditions.unknown && (target.starts_with("ws://") || target.starts_with("wss://")) {
        // Forebay passes WebSocket upgrades on to every backend, so the rule is not needed.
        return;
    }
    let url = around.url.map(|url| url.trim_end_matches('/'));
    // The rule is a front controller: one script answers for all missing files.
    if conditions.is_missing && !conditions.unknown && !decides && flag(directive, "R").is_none() {
        match front_controller(cx, target, url, base) {
            Some(target) => found.fallback = Some(target),
            None => drop(cx.note(directive, "name the script for missing files in `fallback_to`")),
        }
        return;
    }
    let next = "write routes with `redirect`, `rewrite` or `proxy` for these paths";
    let conditional = match pattern_of(cx, pattern, target, url, flag(directive, "NC").is_some()) {
        Ok(found) => found,
        Err(matcher) => {
            let comment = cx.note(directive, next);
            found
                .routes
                .push(DraftRoute::new(&directive.place, line(directive), matcher).closed(comment));
            return;
        }
    };
    let Some(matcher) = conditional.matcher.and(&conditions.matcher) else { return };
    let route = DraftRoute::new(&directive.place, line(directive), matcher);
    if conditions.unknown {
        let text = format!("its {count} RewriteCond lines have no translation: {next}");
        let comment = cx.note(directive, text);
        found.routes.push(route.closed(comment));
        return;
    }
    let answered = answer(cx, directive, &conditional, (url, base), route.clone());
    found.routes.push(match answered {
        Ok(route) => route,
        Err(why) => {
            let comment = cx.note(directive, format!("{why}: {next}"));
            route.closed(comment)
        }
    });
}

/// Returns the path for missing files from a target such as `index.php`, `/index.php/$1` or
/// `index.php?q=$1`.
fn front_controller(
    cx: &Cx<'_>,
    target: &str,
    url: Option<&str>,
    base: Option<&str>,
) -> Option<String> {
    let target = below(target, url, base);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = path.split_once('$').map_or(path, |(before, _)| before.trim_end_matches('/'));
    if path.len() < 2 || path.contains('%') || !is_rewrite_target(path) {
        return None;
    }
    if query.is_empty() || !cx.keys.has_placeholders() {
        return Some(path.to_owned());
    }
    // In a directory, the pattern matches the path without its first slash, as `{rest}` does.
    let query = query.replace("$1", "{rest}").replace("$0", "{rest}");
    let whole = format!("{path}?{query}");
    Some(if is_rewrite_target(&whole) && !whole.contains('$') { whole } else { path.to_owned() })
}

/// Returns a target as an absolute path. A relative target begins at `base` (from `RewriteBase`),
/// or else at the path of the directory.
fn below(target: &str, url: Option<&str>, base: Option<&str>) -> String {
    if target.starts_with('/') || target.contains("://") || target.starts_with("%{") {
        return target.to_owned();
    }
    let base = base.or(url).unwrap_or("").trim_end_matches('/');
    format!("{base}/{target}")
}

/// Returns the conditions of a pattern. In a directory, a pattern matches the path below the
/// directory.
fn pattern_of(
    cx: &Cx<'_>,
    pattern: &str,
    target: &str,
    url: Option<&str>,
    ignore_case: bool,
) -> Result<PatternConditions, Matcher> {
    let whole = match (url, pattern.strip_prefix('^')) {
        (Some(url), Some(rest)) => format!("^{}/{rest}", regex_syntax::escape(url)),
        (Some(url), None) if !url.is_empty() => {
            format!("^{}/.*{pattern}", regex_syntax::escape(url))
        }
        _ if pattern == "." => "^".into(),
        _ => pattern.to_owned(),
    };
    if whole.starts_with('!') {
        return Err(Matcher::path("/*"));
    }
    let found = classify(&whole, ignore_case, cx.keys, Use::Exact).map_err(|unknown| {
        unknown.superset.map_or_else(|| Matcher::path("/*"), |matcher| *matcher)
    })?;
    let lacks = (1..10).any(|n| target.contains(&format!("${n}")) && group(n, &found).is_none());
    if lacks { as_regex(&whole, ignore_case, cx.keys).ok_or(found.matcher) } else { Ok(found) }
}

/// Returns the complete route of a rule. An error says why the rule has no translation.
fn answer(
    cx: &mut Cx<'_>,
    directive: &Directive,
    conditional: &PatternConditions,
    (url, base): (Option<&str>, Option<&str>),
    mut route: DraftRoute,
) -> Result<DraftRoute, String> {
    if flag(directive, "F").is_some() {
        return Ok(route.respond(403));
    }
    if flag(directive, "G").is_some() {
        return Ok(route.respond(410));
    }
    let target = below(directive.arg(1), url, base);
    let (target, drops_query) = match target.strip_suffix('?') {
        Some(rest) => (rest.to_owned(), true),
        None => (target, flag(directive, "QSD").is_some()),
    };
    // A query in the target replaces the client's query, unless QSA appends the client's query.
    let keeps = !drops_query && (!target.contains('?') || flag(directive, "QSA").is_some());
    if flag(directive, "P").is_some() {
        let path = target.split('$').next().unwrap_or_default().to_owned();
        let is_rest =
            target.ends_with("$1") && (conditional.rest == Some(1) || conditional.path == Some(1));
        if !is_rest && target.contains(['$', '%']) {
            return Err("the server's path has groups".into());
        }
        let prefix =
            conditional.matcher.paths.first().map_or("/", String::as_str).trim_end_matches('*');
        targets::pass(cx, &[cx.main], directive, (prefix, &path), &mut route)?;
        return Ok(route);
    }
    let filled = with_groups(&target, conditional, cx.keys).ok_or("a part has no placeholder")?;
    let redirects = flag(directive, "R").is_some() || filled.contains("://");
    if redirects {
        let status = flag(directive, "R").and_then(|code| match code {
            "permanent" => Some(301),
            "seeother" => Some(303),
            code => code.parse().ok(),
        });
        let status = status.filter(|s| matches!(s, 301 | 302 | 303 | 307 | 308)).unwrap_or(302);
        let to = redirect_target(&filled, keeps, cx.keys);
        return if is_redirect_target(&to) {
            Ok(route.redirect(&to, status))
        } else {
            Err(format!("\"{to}\" is no target"))
        };
    }
    if !cx.keys.route("rewrite") {
        return Err("this version has no `rewrite`".into());
    }
    let to = if keeps { filled } else { format!("{filled}?") };
    if !is_rewrite_target(to.trim_end_matches('?')) {
        return Err(format!("\"{to}\" is no path"));
    }
    route.keys = Table::default().with("rewrite", to);
    Ok(route)
}

/// Returns a target with placeholders in place of `$1`, `%{HTTP_HOST}` and similar variables.
/// Returns `None` if a variable has no placeholder.
pub fn with_groups(target: &str, found: &PatternConditions, keys: &Keys) -> Option<String> {
    let mut out = String::new();
    let mut rest = target;
    while let Some(at) = rest.find(['$', '%']) {
        out.push_str(&literal(&rest[..at], keys));
        let after = &rest[at + 1..];
        let digit = after.chars().next().and_then(|c| c.to_digit(10));
        if let (true, Some(number)) = (rest[at..].starts_with('$'), digit) {
            out.push_str(&group(number as usize, found)?);
            rest = &after[1..];
            continue;
        }
        let (name, behind) = after.strip_prefix('{')?.split_once('}')?;
        let value = match name.to_ascii_uppercase().as_str() {
            "HTTP_HOST" | "SERVER_NAME" => "{host}",
            "REQUEST_URI" => "{path}",
            "QUERY_STRING" => "{query}",
            "REQUEST_SCHEME" if keys.has_placeholders() => "{scheme}",
            _ => return None,
        };
        out.push_str(value);
        rest = behind;
    }
    out.push_str(&literal(rest, keys));
    Some(out)
}
