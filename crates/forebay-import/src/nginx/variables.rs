//! Translates nginx's variables to Forebay's placeholders.

use super::scope::Scope;
use super::syntax::Directive;
use crate::keys::Keys;
use crate::pattern::PatternConditions;
use crate::template::{group, join, literal};

/// The placeholders of variables.
const PLACEHOLDERS: [(&str, &str); 18] = [
    ("host", "{host}"),
    ("http_host", "{host}{requested_port}"),
    ("scheme", "{scheme}"),
    ("request_uri", "{uri}"),
    ("uri", "{path}"),
    ("document_uri", "{path}"),
    ("fastcgi_script_name", "{path}"),
    ("args", "{query}"),
    ("query_string", "{query}"),
    ("remote_addr", "{client}"),
    ("realip_remote_addr", "{client}"),
    ("binary_remote_addr", "{client}"),
    ("remote_port", "{client_port}"),
    ("remote_user", "{user}"),
    ("request_method", "{method}"),
    ("server_port", "{port}"),
    ("request_id", "{request_id}"),
    ("ssl_client_s_dn", "{tls.subject}"),
];

/// Placeholders that every version allows in the target of a redirect.
const OF_REDIRECTS: [&str; 5] = ["{host}", "{uri}", "{path}", "{query}", "{rest}"];

/// The values of nginx's variables in one scope.
pub struct Variables<'s, 'a> {
    pub scope: &'s Scope<'a>,
    pub keys: &'s Keys,
    /// The groups of the expression that matched last.
    pub found: Option<&'s PatternConditions>,
    /// The first name of the server, unless it has a wildcard.
    pub server_name: Option<&'s str>,
    /// The scheme of the server's listeners, if all have the same.
    pub scheme: Option<&'s str>,
}

impl Variables<'_, '_> {
    /// Returns a text with values or placeholders in place of its variables. An error is the name
    /// of a variable that has neither.
    pub fn fill(&self, text: &str) -> Result<String, String> {
        self.fill_within(text, 0)
    }

    fn fill_within(&self, text: &str, depth: usize) -> Result<String, String> {
        let mut out = String::new();
        for part in split(text) {
            let (part, name) = match part {
                Piece::Text(text) => (literal(text, self.keys), text),
                Piece::Variable(name) => (self.value(name, depth)?, name),
            };
            join(&mut out, &part).ok_or_else(|| format!("{{{name}"))?;
        }
        // `$is_args$args` is the query with its question mark.
        Ok(out.replace("{is_args}{query}", "?{query}").replace("{is_args}", "?"))
    }

    /// Returns the value or placeholder of a variable. An error is the name of a variable that has
    /// neither. The value of a variable may contain other variables, and `depth` is the
    /// number of variables around this one. The limit of `depth` ends chains without an end.
    fn value(&self, name: &str, depth: usize) -> Result<String, String> {
        let unknown = || format!("${name}");
        if depth > 8 {
            return Err(unknown());
        }
        if let Ok(number) = name.parse::<usize>() {
            return self.found.and_then(|found| group(number, found)).ok_or_else(unknown);
        }
        let regex = self.found.and_then(|found| found.matcher.regex.as_deref()).unwrap_or("");
        if regex.contains(&format!("(?<{name}>")) || regex.contains(&format!("(?P<{name}>")) {
            return Ok(format!("{{{name}}}"));
        }
        if name == "is_args" {
            return Ok("{is_args}".into());
        }
        if let Some(set) = self.constant(name).or_else(|| self.constant_map(name)) {
            return self.fill_within(set, depth + 1);
        }
        if let ("scheme", Some(scheme)) = (name, self.scheme) {
            return Ok(scheme.to_owned());
        }
        if name == "server_name" {
            return Ok(self.server_name.unwrap_or("{host}").to_owned());
        }
        let fixed = PLACEHOLDERS.iter().find(|(variable, _)| *variable == name);
        let placeholder = match fixed {
            Some((_, placeholder)) => (*placeholder).to_owned(),
            None => of_request(name).ok_or_else(unknown)?,
        };
        if self.keys.has_placeholders() || OF_REDIRECTS.contains(&placeholder.as_str()) {
            Ok(placeholder)
        } else {
            Err(unknown())
        }
    }

    /// Returns the value of a variable if exactly one `set` of the scope sets it, outside of `if`
    /// blocks. Otherwise returns `None`.
    fn constant(&self, name: &str) -> Option<&str> {
        let mut all = self.scope.every("set");
        let first = all.find(|set| set.arg(0).strip_prefix('$') == Some(name))?;
        let again = all.any(|set| set.arg(0).strip_prefix('$') == Some(name));
        let in_condition = self.scope.every("if").any(|condition| {
            condition
                .inside()
                .iter()
                .any(|inner| inner.name == "set" && inner.arg(0).strip_prefix('$') == Some(name))
        });
        (!again && !in_condition).then(|| first.arg(1))
    }
}

impl<'a> Variables<'_, 'a> {
    /// Returns the value of a variable that a `map` of a constant text sets, as in
    /// `map '' $upstream { default 127.0.0.1:9000; }`. Returns `None` for other maps.
    fn constant_map(&self, name: &str) -> Option<&'a str> {
        let of_name = |map: &&Directive| map.arg(1).strip_prefix('$') == Some(name);
        let map = self.scope.every("map").find(of_name)?;
        let (text, entries) = (map.arg(0), map.inside());
        let is_other = |entry: &Directive| {
            entry.name.starts_with('~')
                || matches!(entry.name.as_str(), "include" | "hostnames" | "volatile")
        };
        if has_variables(text) || map.args.len() != 2 || entries.iter().any(is_other) {
            return None;
        }
        let named = |name: &str| entries.iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
        let entry = named(text).or_else(|| named("default"));
        map.settle_all();
        Some(entry.map_or("", |entry| entry.arg(0)))
    }
}

/// Returns the placeholder of a field, a cookie or a parameter. Returns `None` for other variables.
fn of_request(name: &str) -> Option<String> {
    let named = |start: &str| name.strip_prefix(start).filter(|rest| !rest.is_empty());
    if let Some(field) = named("http_") {
        let words: Vec<String> = field.split('_').map(capitalized).collect();
        return Some(format!("{{header.{}}}", words.join("-")));
    }
    named("cookie_")
        .map(|cookie| format!("{{cookie.{cookie}}}"))
        .or_else(|| named("arg_").map(|parameter| format!("{{query.{parameter}}}")))
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(chars).collect()
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'t> {
    Text(&'t str),
    Variable(&'t str),
}

/// Splits a text into plain text and variables.
pub fn split(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        let in_braces = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, behind) = match in_braces {
            Some((name, behind)) => (name, behind),
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = match after.chars().next() {
                    Some(digit) if digit.is_ascii_digit() => 1,
                    _ => after.find(|c| !is_name(c)).unwrap_or(after.len()),
                };
                after.split_at(end)
            }
        };
        if name.is_empty() {
            // A `$` alone is text, as at the end of an expression.
            pieces.push(Piece::Text(&rest[..before.len() + 1]));
        } else {
            pieces.push(Piece::Text(before));
            pieces.push(Piece::Variable(name));
        }
        rest = behind;
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| *piece != Piece::Text(""));
    pieces
}

/// Returns true if a text has variables.
pub fn has_variables(text: &str) -> bool {
    split(text).iter().any(|piece| matches!(piece, Piece::Variable(_)))
}
