//! Translates matchers: `/path*`, `*` and `@name`.

use std::collections::HashMap;

use super::Cx;
use super::addresses::networks;
use super::syntax::Directive;
use super::{expression, spelling};
use crate::complement::{without, without_ends};
use crate::matcher::Matcher;
use crate::pattern::{PatternConditions, Use, as_regex, classify, is_path};
use crate::value::{Table, Value};

/// The translation of a matcher to conditions of a route.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    pub matcher: Matcher,
    pub found: Option<PatternConditions>,
    /// True if the path must not be that of an existing file.
    pub is_missing: bool,
    /// Expressions for the excluded paths, in all spellings that Caddy takes for them.
    pub excluded: Vec<String>,
}

impl Condition {
    /// Returns true if the condition has paths or an expression. Returns false if it has only
    /// suffixes, which test the end of the path.
    pub fn has_path(&self) -> bool {
        !self.matcher.paths.is_empty() || self.matcher.regex.is_some() || self.found.is_some()
    }
}

/// The named matchers of a site.
pub type Named<'a> = HashMap<&'a str, Vec<&'a Directive>>;

/// Returns the named matchers of a block and of the blocks around it.
pub fn named<'a>(block: &'a [Directive], around: &Named<'a>) -> Named<'a> {
    let mut all = around.clone();
    for directive in block.iter().filter(|directive| directive.name.starts_with('@')) {
        all.insert(&directive.name, vec![directive]);
    }
    all
}

/// Splits the arguments of a directive into the matcher and the other arguments. The matcher is
/// `None` if the first argument is not a matcher.
pub fn split(directive: &Directive) -> (Option<&str>, &[String]) {
    match directive.args.first() {
        // In `root /srv`, the argument is a directory, and no matcher.
        Some(_) if directive.name == "root" && directive.args.len() == 1 => {
            (None, &directive.args[..])
        }
        Some(first) if first.starts_with('/') || first.starts_with('@') || first == "*" => {
            (Some(first), &directive.args[1..])
        }
        _ => (None, &directive.args[..]),
    }
}

/// Returns the conditions of a matcher. Without a matcher, or with `*`, there are no conditions. An
/// error says why a route cannot have the conditions.
pub fn condition(cx: &Cx<'_>, text: Option<&str>, named: &Named<'_>) -> Result<Condition, String> {
    let Some(text) = text.filter(|text| *text != "*") else { return Ok(Condition::default()) };
    if text.starts_with('/') {
        return paths(cx, &[text.to_owned()]);
    }
    let lines = named.get(text).ok_or_else(|| format!("there is no matcher {text}"))?;
    let (mut all, mut excluded) = (Condition::default(), Vec::new());
    for inner in lines.iter().flat_map(|line| joined(line)) {
        let of_expression = match inner.name.as_str() {
            "expression" => expression::lines(&inner)
                .ok_or_else(|| format!("a route has no condition \"{}\"", super::line(&inner)))?,
            _ => vec![inner],
        };
        for inner in of_expression {
            match excluded_paths(&inner) {
                Some(paths) => excluded.extend(paths),
                None => add(cx, &inner, &mut all)?,
            }
        }
    }
    if !excluded.is_empty() {
        exclude(cx, &mut all.matcher, &excluded)?;
        if excluded.iter().any(|path| spelling::has_others(path)) {
            all.excluded.push(in_all_spellings(&excluded));
        }
    }
    Ok(all)
}

/// Returns the paths of a line `not path ...`. Returns `None` for other lines.
fn excluded_paths(line: &Directive) -> Option<Vec<String>> {
    if line.name != "not" {
        return None;
    }
    match &joined(line)[..] {
        [inner] if inner.name == "path" && !inner.args.is_empty() => Some(inner.args.clone()),
        _ => None,
    }
}

/// Restricts a matcher to the paths that none of these patterns match. Caddy ignores the case of
/// paths. An error says why a route cannot have this condition.
fn exclude(cx: &Cx<'_>, matcher: &mut Matcher, excluded: &[String]) -> Result<(), String> {
    let lower = |paths: &[String]| -> Vec<String> {
        paths.iter().map(|path| path.to_ascii_lowercase()).collect()
    };
    let text = if matcher.regex.is_some() || !matcher.suffixes.is_empty() {
        None
    } else if excluded.iter().all(|path| is_plain(path)) {
        without(&lower(&matcher.paths), &lower(excluded))
    } else if excluded.iter().all(|path| is_end(path)) && matcher.paths.is_empty() {
        without_ends(&excluded.iter().map(|path| &path[1..]).collect::<Vec<_>>())
    } else {
        None
    };
    let text = text
        .ok_or_else(|| format!("a route has no condition \"not path {}\"", excluded.join(" ")))?;
    matcher.regex = Some(any_case(cx, &[text])?);
    matcher.paths.clear();
    Ok(())
}

/// Returns an expression for the paths that patterns such as `/a*` or `*.b` match in Caddy, in
/// upper or lower case.
fn in_all_spellings(patterns: &[String]) -> String {
    let one = |pattern: &String| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => format!("{}$", spelling::expression(end)),
        (None, Some(start)) => format!("^{}", spelling::expression(start)),
        (None, None) => format!("^{}$", spelling::expression(pattern)),
    };
    format!("~*{}", patterns.iter().map(one).collect::<Vec<_>>().join("|"))
}

/// Returns true if a matcher has an expression, and also paths or suffixes with letters. One
/// expression cannot express all of these conditions without regard to case.
pub fn depends_on_case(matcher: &Matcher) -> bool {
    let has_letters = |text: &String| text.chars().any(char::is_alphabetic);
    matcher.regex.is_some() && matcher.paths.iter().chain(&matcher.suffixes).any(has_letters)
}

/// Returns the lines of a named matcher. Joins lines of the same name, such as two `path` lines,
/// into one line with the values of both. As in Caddy, a request must match only one of these
/// values.
fn joined(line: &Directive) -> Vec<Directive> {
    let all = match line.args.split_first() {
        // The block of `@name not { ... }` belongs to `not`.
        Some((name, args)) => vec![line.with_words(name.clone(), args.to_vec())],
        None => line.inside().to_vec(),
    };
    let mut lines: Vec<Directive> = Vec::new();
    for inner in all {
        let lists = ["path", "method", "host", "remote_ip", "client_ip", "query"];
        let same = lines.iter_mut().find(|other| {
            other.name == inner.name
                && (lists.contains(&other.name.as_str())
                    || other.name == "header" && other.arg(0) == inner.arg(0))
        });
        match same {
            Some(same) if inner.name == "header" => {
                same.args.extend(inner.args.into_iter().skip(1));
            }
            Some(same) => same.args.extend(inner.args),
            None => lines.push(inner),
        }
    }
    lines
}

fn add(cx: &Cx<'_>, line: &Directive, all: &mut Condition) -> Result<(), String> {
    let next = of_line(cx, line)?;
    let conflict =
        || format!("a route cannot have \"{}\" beside the other conditions", super::line(line));
    if let (Some(ours), Some(theirs)) = (&all.matcher.regex, &next.matcher.regex)
        && ours != theirs
    {
        return Err(conflict());
    }
    all.matcher = all.matcher.and(&next.matcher).ok_or_else(conflict)?;
    all.found = next.found.or(all.found.take());
    all.is_missing |= next.is_missing;
    Ok(())
}

/// Returns the conditions of one line of a named matcher. An error says why a route cannot have
/// them.
fn of_line(cx: &Cx<'_>, line: &Directive) -> Result<Condition, String> {
    let of = |matcher: Matcher| Ok(Condition { matcher, ..Condition::default() });
    match line.name.as_str() {
        "path" => paths(cx, &line.args),
        "method" => of(Matcher::default().with_methods(line.args.clone())),
        "path_regexp" => {
            let text = line.args.last().map_or("", String::as_str);
            let found =
                classify(text, false, cx.keys, Use::Exact).map_err(|unknown| unknown.why)?;
            let matcher = found.matcher.clone();
            Ok(Condition { matcher, found: Some(found), ..Condition::default() })
        }
        "not"
            if line.arg(0) == "file" || line.inside().iter().any(|inner| inner.name == "file") =>
        {
            Ok(Condition { is_missing: true, ..Condition::default() })
        }
        _ => match when(cx, line) {
            Some(when) => of(Matcher { when, ..Matcher::default() }),
            None => Err(format!("a route has no condition \"{}\"", line.name)),
        },
    }
}

/// Returns the value of the key `when` for a line of a matcher. Returns `None` if the line has no
/// translation.
fn when(cx: &Cx<'_>, line: &Directive) -> Option<Table> {
    if !cx.keys.route("when") {
        return None;
    }
    let mut when = Table::default();
    match line.name.as_str() {
        "header" => {
            let (name, values) = line.args.split_first()?;
            let value = match (name.strip_prefix('!'), values) {
                (Some(_), _) => Value::Bool(false),
                (None, []) => Value::Bool(true),
                (None, values) => one_of(values.iter().map(|value| wildcard(value)))?,
            };
            when.table("header").set(name.trim_start_matches(['+', '!']), value);
        }
        "header_regexp" => {
            let [.., name, text] = &line.args[..] else { return None };
            if !crate::pattern::is_readable(text) {
                return None;
            }
            when.table("header").set(name, format!("~{text}"));
        }
        "query" => {
            let pairs: Vec<(&str, &str)> =
                line.args.iter().map(|arg| arg.split_once('=')).collect::<Option<_>>()?;
            let (name, _) = *pairs.first()?;
            // Some versions of Caddy accept a request with one of several parameters. Other
            // versions require all of them. So several parameters have no translation.
            if pairs.iter().any(|(other, _)| *other != name) {
                return None;
            }
            let value = if pairs.iter().any(|(_, value)| *value == "*") {
                Value::Bool(true)
            } else {
                one_of(pairs.iter().map(|(_, value)| exact(value)))?
            };
            when.table("query").set(name, value);
        }
        // With trusted proxies, Forebay's `client` is the address in X-Forwarded-For. Caddy's
        // `remote_ip` is the address of the proxy, so it has no translation.
        "remote_ip" if cx.trusts_proxies => return None,
        // This Caddyfile finds the client's address in a way that Forebay does not have. Forebay's
        // `client` would be the address of the proxy, which the line may admit.
        "client_ip" if cx.has_other_clients => return None,
        "remote_ip" | "client_ip" => when.set("client", networks(&line.args)?),
        "protocol" if matches!(line.arg(0), "http" | "https") => when.set("scheme", line.arg(0)),
        "host" if line.args.iter().all(|host| !host.contains('{')) => {
            // Caddy ignores the case and the port of the host, so the expression ignores them, too.
            let host = |host: &String| {
                let text = regex_syntax::escape(host).replace("\\*", "[^.]+");
                Some(format!("~*^{text}\\.?(:[0-9]*)?$"))
            };
            when.table("header").set("Host", one_of(line.args.iter().map(host))?);
        }
        "not" => {
            let mut all = Matcher::default();
            for inner in joined(line) {
                let when = when_of_method(cx, &inner)?;
                all = all.and(&Matcher { when, ..Matcher::default() })?;
            }
            let inner = Some(all.when).filter(|when| !when.is_empty())?;
            when.set("not", Value::Table(inner));
        }
        _ => return None,
    }
    Some(when)
}

/// Returns a value of a key in `when` that matches if one of `texts` matches. Returns `None` if
/// there are no texts, or if Forebay cannot express one of them.
fn one_of(texts: impl Iterator<Item = Option<String>>) -> Option<Value> {
    let mut all = texts.collect::<Option<Vec<String>>>()?;
    match all.len() {
        0 => None,
        1 => all.pop().map(Value::from),
        _ => Some(all.into()),
    }
}

/// Returns a text as a value of `when`, which reads a value that begins with `~` as an expression.
/// Returns `None` for a text with a placeholder.
fn exact(text: &str) -> Option<String> {
    if text.contains('{') {
        return None;
    }
    let is_expression = text.starts_with('~');
    Some(if is_expression { format!("~^{}$", regex_syntax::escape(text)) } else { text.to_owned() })
}

/// Returns a text that may begin or end with `*` as a value of `when`. Returns `None` for a text
/// with a placeholder.
fn wildcard(text: &str) -> Option<String> {
    let (start, rest) = match text.strip_prefix('*') {
        Some(rest) => ("", rest),
        None => ("^", text),
    };
    let (end, middle) = match rest.strip_suffix('*') {
        Some(middle) => ("", middle),
        None => ("$", rest),
    };
    match (start, end) {
        ("^", "$") => exact(text),
        _ if text == "*" => Some("~".to_owned() + ".*"),
        _ if middle.contains('{') => None,
        _ => Some(format!("~{start}{}{end}", regex_syntax::escape(middle))),
    }
}

fn when_of_method(cx: &Cx<'_>, line: &Directive) -> Option<Table> {
    match line.name.as_str() {
        "method" => Some(Table::default().with("method", line.args.clone())),
        "not" => None,
        _ => when(cx, line),
    }
}

/// Returns the condition that the path matches one of these patterns. An error says why a route
/// cannot have this condition.
fn paths(cx: &Cx<'_>, list: &[String]) -> Result<Condition, String> {
    let of = |matcher: Matcher| Ok(Condition { matcher, ..Condition::default() });
    if list.iter().all(|path| is_plain(path)) {
        return of(Matcher { paths: list.to_vec(), ..Matcher::default() });
    }
    if list.iter().all(|path| is_end(path)) {
        let suffixes = list.iter().map(|path| path[1..].to_owned()).collect();
        return of(Matcher { suffixes, ..Matcher::default() });
    }
    let regex = list.iter().map(|path| path_expression(path)).collect::<Result<Vec<_>, _>>()?;
    of(Matcher { regex: Some(any_case(cx, &regex)?), ..Matcher::default() })
}

/// Returns true for a pattern such as `*.php`.
fn is_end(path: &str) -> bool {
    path.strip_prefix("*.").is_some_and(|end| !end.is_empty() && !end.contains(GLOB))
        && !path.contains('/')
}

/// Returns true for a path that may end with `*`.
fn is_plain(path: &str) -> bool {
    let start = path.strip_suffix('*').unwrap_or(path);
    is_path(path) && !start.contains(GLOB)
}

/// Characters with a special meaning in path patterns.
const GLOB: [char; 5] = ['*', '?', '[', '\\', '%'];

/// Returns an expression for the paths that one of these expressions matches, in upper or lower
/// case. Returns an error if a route cannot have this expression.
fn any_case(cx: &Cx<'_>, all: &[String]) -> Result<String, String> {
    let text = match all {
        [only] => only.clone(),
        all => format!("(?:{})", all.join("|")),
    };
    let found = as_regex(&text, true, cx.keys).and_then(|found| found.matcher.regex);
    found.ok_or_else(|| "a route cannot have these paths".into())
}

/// Returns an expression for a path pattern. As in Caddy, one `*` at the beginning or the end
/// matches any text. Each other `*` matches a part of a segment. Returns an error for a pattern
/// with `[`, `\`, `%` or `{`.
fn path_expression(path: &str) -> Result<String, String> {
    let unknown = || format!("a route has no condition for {path}");
    if path.contains(['[', '\\', '%', '{']) {
        return Err(unknown());
    }
    let literal = spelling::expression;
    let count = path.matches('*').count();
    let (first, last) = (path.starts_with('*'), path.ends_with('*'));
    let middle = path.trim_matches('*');
    let has_one = !path.contains('?');
    Ok(match (first, last, count) {
        _ if middle.is_empty() => ".*".into(),
        (true, true, 2) if has_one => literal(middle),
        (true, false, 1) if has_one => format!("{}$", literal(middle)),
        (false, true, 1) if has_one => format!("^{}", literal(middle)),
        _ => {
            let text = literal(path).replace("\\*", "[^/]*").replace("\\?", "[^/]");
            format!("^{text}$")
        }
    })
}

/// Returns a copy of the matcher with an expression in place of its paths and suffixes, because
/// Caddy ignores the case of paths. Returns `None` if the paths and suffixes have no letters, or if
/// one expression cannot express all conditions.
pub fn in_any_case(cx: &Cx<'_>, matcher: &Matcher) -> Option<Matcher> {
    let has_letters = |text: &String| text.chars().any(char::is_alphabetic);
    if !matcher.paths.iter().chain(&matcher.suffixes).any(has_letters) || matcher.regex.is_some() {
        return None;
    }
    let path = |path: &String| match path.strip_suffix('*') {
        Some(start) => spelling::expression(start),
        None => format!("{}$", spelling::expression(path)),
    };
    let paths: Vec<String> = matcher.paths.iter().map(path).collect();
    let ends: Vec<String> =
        matcher.suffixes.iter().map(|end| format!("{}$", spelling::expression(end))).collect();
    let group = |all: &[String]| match all {
        [only] => only.clone(),
        all => format!("(?:{})", all.join("|")),
    };
    let text = match (&paths[..], &ends[..]) {
        (paths, []) => format!("^{}", group(paths)),
        ([], ends) => group(ends),
        // A path and a suffix must both match, and may overlap, so one expression cannot express
        // both.
        _ => return None,
    };
    let regex = Some(any_case(cx, &[text]).ok()?);
    Some(Matcher { paths: Vec::new(), suffixes: Vec::new(), regex, ..matcher.clone() })
}
