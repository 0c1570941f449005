//! Translates `RewriteRule` and `RewriteCond`.

use super::Cx;
use super::conditions::{self, Conditions};
use super::globs;
use super::narrow::narrowed;
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

/// The context of rewrite rules: the path of their directory, and the scheme of the site.
#[derive(Clone, Copy)]
pub struct Around<'s> {
    /// The path of the directory. Patterns match only the rest of the path. `None` for the rules of
    /// a server.
    pub url: Option<&'s str>,
    pub scheme: Option<&'s str>,
    /// True if the directory of the rules is above the directory of the path. Patterns then match a
    /// path that begins outside of the site.
    pub is_above: bool,
}

/// Returns true if a block inherits the rewrite rules of the block around it, or passes its own
/// rules to inner blocks.
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
            let read = conditions::read(cx, &conditions, around.scheme);
            rule(cx, directive, read, (around, base.as_deref()), &mut found);
            conditions.clear();
        }
    }
    found
}

/// Returns the value of a flag such as `R=301`, or an empty text for `R`.
fn flag<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    let flags = directive.arg(2).strip_prefix('[')?.strip_suffix(']')?;
    flags.split(',').map(str::trim).find_map(|flag| {
        let (key, value) = flag.split_once('=').unwrap_or((flag, ""));
        let is_long =
            LONG_FLAGS.iter().any(|(short, long)| *short == name && key.eq_ignore_ascii_case(long));
        (is_long || key.eq_ignore_ascii_case(name)).then_some(value)
    })
}

/// The long names of flags.
const LONG_FLAGS: [(&str, &str); 7] = [
    ("F", "forbidden"),
    ("G", "gone"),
    ("R", "redirect"),
    ("P", "proxy"),
    ("NC", "nocase"),
    ("QSA", "qsappend"),
    ("QSD", "qsdiscard"),
];

/// Returns the status of a rule that refuses requests.
fn refusal(directive: &Directive) -> Option<u64> {
    let code = flag(directive, "R").and_then(|code| code.parse().ok());
    match () {
        () if flag(directive, "F").is_some() => Some(403),
        () if flag(directive, "G").is_some() => Some(410),
        () => code.filter(|code| (400..600).contains(code)),
    }
}

/// Returns a rule of a block that refuses or redirects requests.
pub fn decision(block: &[Directive]) -> Option<&Directive> {
    let mut rules = block.iter().filter(|directive| is(directive, "RewriteRule"));
    rules.find(|rule| refusal(rule).is_some() || flag(rule, "R").is_some())
}

fn rule(
    cx: &mut Cx<'_>,
    directive: &Directive,
    conditions: Conditions<'_>,
    (around, base): (Around<'_>, Option<&str>),
    found: &mut Rules,
) {
    let (pattern, target) = (directive.arg(0), directive.arg(1));
    if conditions.alternatives.is_empty() {
        return;
    }
    let refusal = refusal(directive);
    if target == "-" && refusal.is_none() {
        // Rules such as `RewriteRule ^index\.php$ - [L]`, and rules that only set variables, do not
        // change replies.
        return;
    }
    let is_plain = conditions.unknown.is_none()
        && conditions.alternatives.iter().all(|matcher| matcher.when.is_empty());
    if !is_plain && (target.starts_with("ws://") || target.starts_with("wss://")) {
        // Forebay passes WebSocket upgrades on to every backend, so the rule is not needed.
        return;
    }
    let url = around.url.map(|url| url.trim_end_matches('/'));
    // The rule names a front controller: one script answers for all missing files.
    if conditions.is_missing && is_plain && refusal.is_none() && flag(directive, "R").is_none() {
        match front_controller(cx, target, url, base) {
            Some(target) => found.fallback = Some(target),
            None => drop(cx.note(directive, "name the script for missing files in `fallback_to`")),
        }
        return;
    }
    let route = |matcher| DraftRoute::new(&directive.place, line(directive), matcher);
    let conditional = match pattern_of(cx, pattern, target, url, flag(directive, "NC").is_some()) {
        Ok(found) if !around.is_above || refusal.is_none() => found,
        Ok(_) => {
            let comment = cx.note(directive, NEXT);
            found.routes.push(route(Matcher::path("/*")).closed(comment));
            return;
        }
        Err(matcher) => {
            let comment = cx.note(directive, NEXT);
            found.routes.push(route(matcher).closed(comment));
            return;
        }
    };
    if let Some(condition) = conditions.unknown {
        let text = format!("{}: {} has no translation: {NEXT}", condition.place, line(condition));
        let comment = cx.note(directive, text);
        let known = conditions.alternatives.first().filter(|_| conditions.alternatives.len() == 1);
        let matcher = known.and_then(|known| conditional.matcher.and(known));
        found.routes.push(route(matcher.unwrap_or(conditional.matcher)).closed(comment));
        return;
    }
    for alternative in &conditions.alternatives {
        let Some(narrow) = narrowed(cx, route(conditional.matcher.clone()), alternative) else {
            continue;
        };
        if narrow.keys.get("respond").is_some() {
            // The route is closed, because a route cannot have both conditions.
            found.routes.push(DraftRoute { matcher: conditional.matcher.clone(), ..narrow });
            return;
        }
        if let Some(status) = refusal {
            found.routes.push(narrow.respond(status));
            continue;
        }
        let answered = answer(cx, directive, &conditional, (url, base), narrow.clone());
        found.routes.push(match answered {
            Ok(route) => route,
            Err(why) => {
                let comment = cx.note(directive, format!("{why}: {NEXT}"));
                narrow.closed(comment)
            }
        });
    }
}

/// The next step for a rule without a translation.
const NEXT: &str = "write routes with `redirect`, `rewrite` or `proxy` for these paths";

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
    let below = |url: Option<&str>| Matcher::prefix(&format!("{}/", url.unwrap_or_default()));
    let whole = match url {
        Some(url) => {
            let start = format!("^{}/", regex_syntax::escape(url));
            globs::after(pattern, &start, ".*?")
        }
        None if pattern == "." => Some("^".into()),
        None => Some(pattern.to_owned()),
    };
    let Some(whole) = whole.filter(|_| !pattern.starts_with('!')) else { return Err(below(url)) };
    let found = classify(&whole, ignore_case, cx.keys, Use::Exact)
        .map_err(|unknown| unknown.superset.map_or_else(|| below(url), |matcher| *matcher))?;
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
        if status.is_some_and(|status: u64| !(300..400).contains(&status)) {
            return Err("the status is no redirect".into());
        }
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
