//! Translates errors of the TOML reader into messages that help the person who wrote the file.

use std::ops::Range;

use crate::error::Problem;
use crate::file::places;
use crate::foreign;
use crate::suggest;

/// Returns the problem for an error of the TOML reader.
pub(crate) fn explain(error: &toml::de::Error, text: &str) -> Problem {
    let span = error.span().unwrap_or(0..0);
    syntax(error.message(), &span, text)
}

/// Explains a key that is not one of `expected`: a misspelt key, a key of another server, or a key
/// of another table.
pub(crate) fn unknown_key(typed: &str, expected: &[&str], span: &Range<usize>) -> Problem {
    let problem = Problem::new(span, format!("unknown key `{typed}`"));
    let names = || expected.iter().copied();
    let keys = format!("the keys of this table are {}", suggest::list(names(), "and", '`'));
    let meant = suggest::nearest(typed, names()).filter(|_| !foreign::is_known(typed));
    if let Some(meant) = meant {
        return problem.label(format!("did you mean `{meant}`?")).help(keys);
    }
    if let Some(advice) = foreign::advice(typed) {
        return problem.label("a key of another server").help(advice);
    }
    let problem = problem.label("no such key in this table");
    let places = places(typed);
    if places.is_empty() || places.len() > 6 {
        return problem.help(keys);
    }
    problem.help(format!("`{typed}` is a key of {}; {keys}", places.join(" or ")))
}

/// Returns the problem for a text that is not valid TOML.
fn syntax(message: &str, span: &Range<usize>, text: &str) -> Problem {
    if message == "duplicate key" {
        return Problem::new(span, "this is given twice")
            .label("a second time")
            .help("a key or a [table] may be given once in the same place: join the two");
    }
    let problem = Problem::new(span, format!("not valid TOML: {message}"));
    if message.contains("recursion") {
        return problem.help("no key of a configuration is nested as deep as this");
    }
    if let Some((key, value)) = bare_value(text, span.start) {
        let switch = switch(value).filter(|_| takes_boolean(key));
        return problem.help(match switch {
            Some(switch) => format!("write {key} = {switch}"),
            None => format!("put a text in quotes: {key} = \"{value}\""),
        });
    }
    if message.contains("unclosed") || message.contains("string, expected `") {
        return problem.help("a quote or bracket is opened before this and not closed");
    }
    problem.help("a line is [table], [[list of tables]] or key = value; # begins a comment")
}

/// Returns the boolean that a word means in the configurations of other servers.
fn switch(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "on" | "yes" | "enabled" | "true" => Some(true),
        "off" | "no" | "disabled" | "false" => Some(false),
        _ => None,
    }
}

/// Returns true if a key of this name may be true or false in one of the tables.
fn takes_boolean(key: &str) -> bool {
    let schema: serde_json::Value = serde_json::from_str(&crate::schema()).unwrap_or_default();
    let is_boolean = |kind: &serde_json::Value| kind.to_string().contains("\"boolean\"");
    let tables = schema["$defs"].as_object().into_iter().flatten().map(|(_, table)| table);
    tables.filter_map(|table| table["properties"].get(key)).any(|kind| {
        match kind["$ref"].as_str().and_then(|at| at.strip_prefix("#/$defs/")) {
            Some(name) => is_boolean(&schema["$defs"][name]),
            None => is_boolean(kind),
        }
    })
}

/// Returns the key and the value of a line whose value is a text without quotes. Returns `None` for
/// other lines.
fn bare_value(text: &str, offset: usize) -> Option<(&str, &str)> {
    let offset = offset.min(text.len());
    let bytes = text.as_bytes();
    let start = bytes[..offset].iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
    let line = text.get(start..)?.lines().next()?;
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split('#').next()?.trim());
    let word = |c: char| c.is_alphanumeric() || "_.:/*-".contains(c);
    let plain = !value.is_empty() && value.len() < 80 && value.chars().all(word);
    let named = !key.is_empty() && key.len() < 40 && key.chars().all(word);
    (plain && named).then_some((key, value))
}
