//! Translates matchers: `/path*`, `*` and `@name`.

use std::collections::HashMap;

use super::Cx;
use super::syntax::Directive;
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
}

/// The named matchers of a site.
pub type Named<'a> = HashMap<&'a str, Vec<&'a Directive>>;

/// Collects the named matchers of a block.
pub fn named<'a>(block: &'a [Directive], around: &Named<'a>) -> Named<'a> {
    let mut all = around.clone();
    for directive in block.iter().filter(|directive| directive.name.starts_with('@')) {
        all.insert(&directive.name, vec![directive]);
    }
    all
}

/// Splits the arguments of a directive into its matcher and the others.
pub fn split(directive: &Directive) -> (Option<&str>, &[String]) {
    match directive.args.first() {
        // `root /srv` has no matcher.
        Some(_) if directive.name == "root" && directive.args.len() == 1 => {
            (None, &directive.args[..])
        }
        Some(first) if first.starts_with('/') || first.starts_with('@') || first == "*" => {
            (Some(first), &directive.args[1..])
        }
        _ => (None, &directive.args[..]),
    }
}

/// Returns the conditions of a matcher. An error says why a route cannot have them.
pub fn condition(cx: &Cx<'_>, text: Option<&str>, named: &Named<'_>) -> Result<Condition, String> {
    let Some(text) = text.filter(|text| *text != "*") else { return Ok(Condition::default()) };
    if text.starts_with('/') {
        return paths(cx, &[text.to_owned()]);
    }
    let lines = named.get(text).ok_or_else(|| format!("there is no matcher {text}"))?;
    let mut all = Condition::default();
    for line in lines {
        if line.block.is_none() {
            let inner = Directive {
                name: line.arg(0).to_owned(),
                args: line.args.iter().skip(1).cloned().collect(),
                block: None,
                place: line.place.clone(),
            };
            add(cx, &inner, &mut all)?;
        }
        for inner in line.inside() {
            add(cx, inner, &mut all)?;
        }
    }
    Ok(all)
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

/// Returns the conditions of one line of a named matcher.
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
            Ok(Condition { matcher, found: Some(found), is_missing: false })
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

/// Returns the value of the key `when` for a line of a matcher.
fn when(cx: &Cx<'_>, line: &Directive) -> Option<Table> {
    if !cx.keys.route("when") {
        return None;
    }
    // `when` would read a text after `~` as an expression.
    let has_wildcard = |text: &str| text.contains(['*', '{']) || text.starts_with('~');
    let mut when = Table::default();
    match line.name.as_str() {
        "header" if line.args.len() == 2 && !has_wildcard(line.arg(1)) => {
            when.table("header").set(line.arg(0).trim_start_matches('+'), line.arg(1));
        }
        "query" if line.args.len() == 1 => {
            let (name, value) = line.arg(0).split_once('=')?;
            if has_wildcard(value) {
                return None;
            }
            when.table("query").set(name, value);
        }
        "remote_ip" | "client_ip" => {
            let private =
                ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.1/8", "fd00::/8", "::1"];
            let mut list: Vec<String> = Vec::new();
            for who in &line.args {
                if who == "private_ranges" {
                    list.extend(private.map(str::to_owned));
                } else if who.split('/').next()?.parse::<std::net::IpAddr>().is_ok() {
                    list.push(who.clone());
                } else {
                    return None;
                }
            }
            when.set("client", list);
        }
        "protocol" if matches!(line.arg(0), "http" | "https") => when.set("scheme", line.arg(0)),
        "host" if line.args.len() == 1 && !has_wildcard(line.arg(0)) => {
            when.table("header").set("Host", line.arg(0));
        }
        "not" => {
            let inner = match line.inside() {
                [inner] => when_of_method(cx, inner)?,
                [] => {
                    let (name, args) = line.args.split_first()?;
                    let inner = Directive {
                        name: name.clone(),
                        args: args.to_vec(),
                        block: None,
                        place: line.place.clone(),
                    };
                    when_of_method(cx, &inner)?
                }
                _ => return None,
            };
            when.set("not", Value::Table(inner));
        }
        _ => return None,
    }
    Some(when)
}

fn when_of_method(cx: &Cx<'_>, line: &Directive) -> Option<Table> {
    match line.name.as_str() {
        "method" => Some(Table::default().with("method", line.args.clone())),
        "not" => None,
        _ => when(cx, line),
    }
}

/// Returns the conditions for paths. One of them must match.
fn paths(cx: &Cx<'_>, list: &[String]) -> Result<Condition, String> {
    let mut matcher = Matcher::default();
    for path in list {
        let end = path.strip_prefix('*').filter(|end| !end.contains(['*', '/']) && !end.is_empty());
        if let Some(end) = end {
            if end.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                return Err(format!("a route has no condition for {path}"));
            }
            matcher.suffixes.push(end.to_owned());
        } else if is_path(path) {
            matcher.paths.push(path.clone());
        } else {
            let regex: Vec<String> = path.split('*').map(regex_syntax::escape).collect();
            let text = format!("^{}$", regex.join(".*"));
            let found = as_regex(&text, true, cx.keys).filter(|_| list.len() == 1);
            let found = found.ok_or_else(|| format!("a route has no condition for {path}"))?;
            matcher.regex = found.matcher.regex;
        }
    }
    if !matcher.paths.is_empty() && !matcher.suffixes.is_empty() {
        return Err("a route has paths or ends of paths, and both must hold".into());
    }
    Ok(Condition { matcher, ..Condition::default() })
}
