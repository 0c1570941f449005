//! Translates `RewriteRule` and `RewriteCond`.

use super::Cx;
use super::around::Around;
use super::conditions::{self, Conditions};
use super::globs;
use super::sections::narrowed;
use super::sections::{Sections, all, last, settle};
use super::syntax::{Directive, is, line};
use super::targets;
use crate::draft::DraftRoute;
use crate::keys::Keys;
use crate::matcher::Matcher;
use crate::pattern::{PatternConditions, Use, as_regex, classify, keeping_paths};
use crate::template::{
    group, is_redirect_target, is_rewrite_target, join, literal, redirect_target,
};
use crate::value::{Table, Value};

/// The translation of the rewrite rules of a block.
#[derive(Default)]
pub struct Rules {
    pub routes: Vec<DraftRoute>,
    /// The path that answers for missing files.
    pub fallback: Option<String>,
    /// Further paths that answer for missing files, each for some of the requests.
    pub fallbacks: Vec<(Matcher, String)>,
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

/// Returns the target of a rule up to the first group or variable.
pub fn target(directive: &Directive) -> &str {
    directive.arg(1).split(['$', '%']).next().unwrap_or_default()
}

/// The directives of mod_rewrite.
pub const NAMES: [&str; 5] =
    ["RewriteEngine", "RewriteOptions", "RewriteBase", "RewriteCond", "RewriteRule"];

/// Translates the rewrite rules of a host. A virtual host has the rules of the main server only
/// with an option such as `RewriteOptions Inherit`.
pub fn of_host(cx: &mut Cx<'_>, sections: &Sections<'_>, scheme: &str) -> Vec<Rules> {
    // Mark the rules of all levels as read: rules that the host does not inherit have no effect.
    settle(&sections.levels, &NAMES);
    let count = if inherits(&sections.levels) { sections.levels.len() } else { 1 };
    let around = |block| Around { url: None, scheme: Some(scheme), is_above: false, block };
    let levels = sections.levels.iter().rev().take(count);
    levels.map(|level| rules(cx, around(level))).collect()
}

/// Translates the rewrite rules of a block. Without `RewriteEngine on`, returns no rules.
pub fn rules(cx: &mut Cx<'_>, around: Around<'_>) -> Rules {
    let block = around.block;
    let mut found = Rules::default();
    // Mark the rules as read: the loop below translates them. Without `RewriteEngine on`, they have
    // no effect.
    settle(&[block], &NAMES);
    let engine = block.iter().rfind(|directive| is(directive, "RewriteEngine"));
    if !engine.is_some_and(|engine| engine.arg(0).eq_ignore_ascii_case("on")) {
        return found;
    }
    let base = last(&[block], "RewriteBase").map(|base| base.arg(0).to_owned());
    let (mut conditions, mut is_missing) = (Vec::new(), false);
    for (at, directive) in block.iter().enumerate() {
        if is(directive, "RewriteCond") {
            conditions.push(directive);
        } else if is(directive, "RewriteRule") {
            let mut read = conditions::read(cx, &conditions, around);
            if read.is_present && !stops(directive) {
                read.unknown = read.unknown.or(conditions.first().copied());
            }
            read.is_missing |= is_missing;
            if stops(directive) {
                is_missing |= is_for_files(directive, &read, around);
                stop(cx, directive, &read, (around, &block[at + 1..]), &mut found);
            }
            note_flags(cx, directive);
            rule(cx, directive, read, (around, base.as_deref()), &mut found);
            conditions.clear();
        }
    }
    found
}

/// Returns the value of a flag such as `R=301`, or an empty text for `R`. `name` is the short name
/// of the flag, but the rule may have the long name. Returns `None` if the rule does not have the
/// flag.
fn flag<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    let flags = directive.arg(2).strip_prefix('[')?.strip_suffix(']')?;
    flags.split(',').map(str::trim).find_map(|flag| {
        let (key, value) = flag.split_once('=').unwrap_or((flag, ""));
        let is_long =
            LONG_FLAGS.iter().any(|(short, long)| *short == name && key.eq_ignore_ascii_case(long));
        (is_long || key.eq_ignore_ascii_case(name)).then_some(value)
    })
}

/// Returns true for a rule such as `RewriteRule ^x - [L]`, which only ends the processing of rules.
/// Also returns true for a rule with S, which only skips some rules. Returns false for a rule that
/// refuses requests.
fn stops(directive: &Directive) -> bool {
    let ends = ["L", "END", "S"].iter().any(|name| flag(directive, name).is_some());
    directive.arg(1) == "-" && refusal(directive).is_none() && ends
}

/// Returns true if a rule such as `RewriteRule ^ - [L]` applies to all existing files, and to no
/// other requests. The rules below it then apply only to missing files. Returns false for a rule
/// with `S`. The caller checks that the rule ends the processing of rules.
fn is_for_files(directive: &Directive, conditions: &Conditions<'_>, around: Around<'_>) -> bool {
    conditions.is_present
        && conditions.unknown.is_none()
        && takes_all(directive.arg(0), around.url.is_some())
        && conditions.alternatives[..] == [Matcher::default()]
        && flag(directive, "S").is_none()
}

/// Returns true for a pattern that matches all paths. In a directory, paths have no first slash.
fn takes_all(pattern: &str, is_directory: bool) -> bool {
    let inner = pattern.trim_start_matches('^');
    let (inner, is_closed) = inner.strip_suffix('$').map_or((inner, false), |rest| (rest, true));
    let inner = inner.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(inner);
    let inner = inner.strip_prefix("/?").unwrap_or(inner);
    let inner = inner.strip_prefix('/').filter(|_| !is_directory).unwrap_or(inner);
    let inner = inner.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(inner);
    matches!(inner, ".*" | ".+" | ".*?") || !is_closed && matches!(inner, "" | "." | ".?")
}

/// Adds a note on the rule `directive`, which keeps its requests from the rules `below`. If one of
/// the rules `below` passes requests to a backend, also adds a closed route for the paths of
/// `directive`. Otherwise Forebay would pass these paths to the backend. Does nothing if
/// `directive` needs no translation.
fn stop(
    cx: &mut Cx<'_>,
    directive: &Directive,
    conditions: &Conditions<'_>,
    (around, below): (Around<'_>, &[Directive]),
    found: &mut Rules,
) {
    let pattern = directive.arg(0).trim_start_matches('^').trim_start_matches("/?");
    let name = pattern.trim_start_matches('/').trim_end_matches('$').replace('\\', "");
    let rules = || below.iter().filter(|d| is(d, "RewriteRule") && !stops(d) && d.arg(1) != "-");
    let is_target = |rule: &Directive| {
        let path = rule.arg(1).split(['?', '$']).next().unwrap_or_default().trim_end_matches('/');
        !name.is_empty() && (path == name || path.ends_with(&format!("/{name}")))
    };
    let is_needless = conditions.alternatives.is_empty()
        || is_for_files(directive, conditions, around)
        || rules().all(is_target);
    if is_needless {
        return;
    }
    let next = "the rules below also apply to these paths: write routes for these paths first";
    let comment = cx.note(directive, next);
    if rules().any(|rule| flag(rule, "P").is_some()) {
        let url = around.url.map(|url| url.trim_end_matches('/'));
        let matcher = match pattern_of(cx, directive.arg(0), "", url, true) {
            Ok(found) => found.matcher,
            Err(matcher) => matcher,
        };
        let route = DraftRoute::new(&directive.place, line(directive), matcher);
        found.routes.push(route.closed(comment));
    }
}

/// Adds a note on flags without a translation.
fn note_flags(cx: &mut Cx<'_>, directive: &Directive) {
    let flags = ["CO", "C", "T", "H", "N"];
    if let Some(name) = flags.into_iter().find(|name| flag(directive, name).is_some()) {
        cx.note(directive, format!("the flag {name} has no translation: write routes by hand"));
    }
    let known = ["HTTP_AUTHORIZATION", "BASE", "no-gzip", "no-brotli", "dont-vary"];
    let variable = flag(directive, "E").and_then(|value| value.split(':').next());
    if let Some(name) = variable.filter(|name| !known.contains(name)) {
        let next = format!("write {name} in `env` of the application, or in `params`");
        cx.note(directive, next);
    }
}

/// The long names of flags.
const LONG_FLAGS: [(&str, &str); 15] = [
    ("C", "chain"),
    ("CO", "cookie"),
    ("E", "env"),
    ("H", "handler"),
    ("L", "last"),
    ("N", "next"),
    ("S", "skip"),
    ("T", "type"),
    ("F", "forbidden"),
    ("G", "gone"),
    ("R", "redirect"),
    ("P", "proxy"),
    ("NC", "nocase"),
    ("QSA", "qsappend"),
    ("QSD", "qsdiscard"),
];

/// Returns the status of a rule that refuses requests, or `None` for other rules.
fn refusal(directive: &Directive) -> Option<u64> {
    let code = flag(directive, "R").and_then(|code| code.parse().ok());
    match () {
        () if flag(directive, "F").is_some() => Some(403),
        () if flag(directive, "G").is_some() => Some(410),
        () => code.filter(|code| (400..600).contains(code)),
    }
}

/// Returns the first rule of a block that refuses or redirects requests. Returns `None` if there is
/// none.
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
    let is_plain = conditions.unknown.is_none();
    let has_when = conditions.alternatives.iter().any(|matcher| !matcher.when.is_empty());
    let is_upgrade = (!is_plain || has_when)
        && ["ws://", "wss://"].iter().any(|scheme| target.starts_with(scheme));
    if is_upgrade && !is_plain {
        // Other rules answer these requests. Requests without an upgrade reach them, too.
        cx.note(directive, UPGRADES);
        return;
    }
    let url = around.url.map(|url| url.trim_end_matches('/'));
    // A rule for missing files that does not redirect or refuse requests names a front controller:
    // one script that answers for all missing files.
    let is_redirect = flag(directive, "R").is_some() || target.contains("://");
    if conditions.is_missing && is_plain && refusal.is_none() && !is_redirect {
        match front_controller(cx, directive, url, base) {
            Some(target) => fallback(cx, directive, (&conditions, url), target, found),
            None => drop(cx.note(directive, "name the script for missing files in `fallback_to`")),
        }
        return;
    }
    if conditions.is_missing && is_redirect {
        cx.note(directive, "the route also applies to existing files: write `path` for others");
    }
    let route = |matcher| {
        let mut route = DraftRoute::new(&directive.place, line(directive), matcher);
        if conditions.is_unmapped {
            route.comments.push(UNMAPPED.into());
        }
        route
    };
    let conditional = match pattern_of(cx, pattern, target, url, flag(directive, "NC").is_some()) {
        Ok(found) if !around.is_above || refusal.is_none() => found,
        Ok(_) => {
            let comment = cx.note(directive, NEXT);
            found.routes.push(route(Matcher::path("/*")).closed(comment));
            return;
        }
        Err(_) if is_upgrade => {
            cx.note(directive, UPGRADES);
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
            // `narrowed` has closed the route for `alternative`, because one route cannot have all
            // of the conditions. Close all paths of the rule.
            found.routes.push(DraftRoute { matcher: conditional.matcher.clone(), ..narrow });
            return;
        }
        if let Some(status) = refusal {
            found.routes.push(narrow.respond(status));
            continue;
        }
        let answered = answer(cx, directive, &conditional, (around, base), narrow.clone());
        let answered = answered.and_then(|route| keeping_rest(cx, &conditional.matcher, route));
        match answered {
            Ok(route) => found.routes.push(route),
            Err(_) if is_upgrade => drop(cx.note(directive, UPGRADES)),
            Err(why) => {
                let comment = cx.note(directive, format!("{why}: {NEXT}"));
                found.routes.push(narrow.closed(comment));
            }
        }
    }
}

/// Returns the route with the paths of its rule, so that `{rest}` is the text of the rule's group
/// although a condition names a narrower path. An error says why the route has no translation.
fn keeping_rest(cx: &Cx<'_>, whole: &Matcher, mut route: DraftRoute) -> Result<DraftRoute, String> {
    if route.depends_on_path() {
        let kept = keeping_paths(whole, &route.matcher, cx.keys);
        route.matcher = kept.ok_or("a route has one expression")?;
    }
    Ok(route)
}

/// The next step for a rule about WebSocket upgrades that has no translation.
const UPGRADES: &str = "Forebay passes WebSocket upgrades on to every backend: write a route with \
    `proxy` for these paths if no other route has this backend";

/// The comment on a rule with `REQUEST_FILENAME` in a virtual host.
const UNMAPPED: &str = "In a virtual host, Apache tests the path of the URL in place of the file, \
    so the rule also applies to existing files. To send these: `fallback_to` in the route of files.";

/// Adds `target` as the path that answers for missing files: for all of them, or only for the
/// missing files that meet `conditions`. Adds a note if the rule has no translation.
fn fallback(
    cx: &mut Cx<'_>,
    directive: &Directive,
    (conditions, url): (&Conditions<'_>, Option<&str>),
    target: String,
    found: &mut Rules,
) {
    let own = match pattern_of(cx, directive.arg(0), "", url, flag(directive, "NC").is_some()) {
        _ if takes_all(directive.arg(0), url.is_some()) => Matcher::default(),
        Ok(own) => own.matcher,
        Err(_) => {
            cx.note(directive, "name the script for these missing files in `fallback_to`");
            return;
        }
    };
    for alternative in &conditions.alternatives {
        match own.and(alternative) {
            Some(all) if all == Matcher::default() => {
                // Only the first rule for all missing files has an effect.
                found.fallback.get_or_insert(target.clone());
            }
            // In a route with further conditions, `{rest}` may differ from the text of the group
            // `$1`, so the rule has no translation.
            Some(_) if target.contains("{rest}") => {
                cx.note(directive, "name the script for these missing files in `fallback_to`");
            }
            Some(some) if found.fallback.is_none() => found.fallbacks.push((some, target.clone())),
            Some(_) => {}
            None if own.conflicts_with(alternative) => {
                cx.note(directive, "name the script for these missing files in `fallback_to`");
            }
            None => {}
        }
    }
}

/// The next step for a rule without a translation.
const NEXT: &str = "write routes with `redirect`, `rewrite` or `proxy` for these paths";

/// Returns the path for missing files from a target such as `index.php`, `/index.php/$1` or
/// `index.php?q=$1`. Returns `None` if Forebay cannot rewrite to this target.
fn front_controller(
    cx: &Cx<'_>,
    directive: &Directive,
    url: Option<&str>,
    base: Option<&str>,
) -> Option<String> {
    let target = below(directive.arg(1), url, base);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = path.split_once('$').map_or(path, |(before, _)| before.trim_end_matches('/'));
    if path.len() < 2 || path.contains('%') || !is_rewrite_target(path) {
        return None;
    }
    if query.is_empty() || !cx.keys.has_placeholders() {
        return Some(path.to_owned());
    }
    // In a directory, the text of `$1` has no first slash, so it is `{rest}`. In a virtual host, it
    // has the first slash, so it is `{path}`, unless the pattern begins with `^/`.
    let has_slash = url.is_none() && !directive.arg(0).starts_with("^/");
    let rest = if has_slash { "{path}" } else { "{rest}" };
    let query = query.replace("$1", rest).replace("$0", rest);
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

/// Returns the conditions of a pattern. In a directory, whose path is `url`, the pattern applies to
/// the path below the directory. If the pattern has no translation, returns an error: a matcher
/// that takes all paths of the pattern, and perhaps other paths.
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
        // A path begins with a slash, so these expressions match it from its beginning.
        None if ["/(.*)", "/(.*)$", "(.*)", "(.*)$"].contains(&pattern) => {
            Some(format!("^{pattern}"))
        }
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
    (around, base): (Around<'_>, Option<&str>),
    mut route: DraftRoute,
) -> Result<DraftRoute, String> {
    let url = around.url.map(|url| url.trim_end_matches('/'));
    let target = below(directive.arg(1), url, base);
    let (target, drops_query) = match target.strip_suffix('?') {
        Some(rest) => (rest.to_owned(), true),
        None => (target, flag(directive, "QSD").is_some()),
    };
    let target = with_bare_host(target, &route, cx.keys);
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
        targets::pass(cx, &[cx.main, around.block], directive, (prefix, &path), &mut route)?;
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

/// A variable that Apache does not have: the text of `%1` after a condition such as
/// `%{HTTP_HOST} ^www\.(.+)$`.
const BARE_HOST: &str = "BARE_HOST";

/// Replaces `%1` by [`BARE_HOST`] if the route's condition on the host has this meaning.
fn with_bare_host(target: String, route: &DraftRoute, keys: &Keys) -> String {
    const HOSTS: [&str; 6] = [
        r"^www\.(.+)$",
        r"^www\.(.*)$",
        r"^www\.(.+)",
        r"^www\.(.*)",
        r"^(?:www\.)?(.+)$",
        r"^(?:www\.)?(.*)$",
    ];
    let header = match route.matcher.when.get("header") {
        Some(Value::Table(header)) => header.get("Host"),
        _ => None,
    };
    let has_host = match header {
        Some(Value::Text(host)) => {
            HOSTS.contains(&host.trim_start_matches('~').trim_start_matches('*'))
        }
        _ => false,
    };
    if has_host && keys.has_placeholders() {
        return target.replace("%1", &format!("%{{{BARE_HOST}}}"));
    }
    target
}

/// Returns a target with placeholders in place of `$1`, `%{HTTP_HOST}` and similar variables.
/// Returns `None` if a variable has no placeholder.
pub fn with_groups(target: &str, found: &PatternConditions, keys: &Keys) -> Option<String> {
    let mut out = String::new();
    let mut rest = target;
    while let Some(at) = rest.find(['$', '%']) {
        join(&mut out, &literal(&rest[..at], keys))?;
        let after = &rest[at + 1..];
        let digit = after.chars().next().and_then(|c| c.to_digit(10));
        if let (true, Some(number)) = (rest[at..].starts_with('$'), digit) {
            join(&mut out, &group(number as usize, found)?)?;
            rest = &after[1..];
            continue;
        }
        let (name, behind) = after.strip_prefix('{')?.split_once('}')?;
        let value = match name.to_ascii_uppercase().as_str() {
            "HTTP_HOST" => "{host}{requested_port}",
            BARE_HOST => "{bare_host}{requested_port}",
            "SERVER_NAME" => "{host}",
            "REQUEST_URI" => "{path}",
            "QUERY_STRING" => "{query}",
            "REQUEST_SCHEME" if keys.has_placeholders() => "{scheme}",
            _ => return None,
        };
        join(&mut out, value)?;
        rest = behind;
    }
    join(&mut out, &literal(rest, keys)).map(|()| out)
}
