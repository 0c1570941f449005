//! Translates errors of the TOML reader into messages that help the person who wrote the file.

use std::ops::Range;

use crate::duration::parse_duration;
use crate::error::Problem;
use crate::file::places;
use crate::foreign;
use crate::suggest;

/// Returns the problem for an error of the TOML reader.
pub(crate) fn explain(error: &toml::de::Error, text: &str) -> Problem {
    let span = error.span().unwrap_or(0..0);
    let message = error.message();
    unknown_key(message, &span)
        .or_else(|| unknown_value(message, &span))
        .or_else(|| wrong_type(message, &span))
        .unwrap_or_else(|| syntax(message, &span, text))
}

/// Explains an unknown key: a misspelt key, a key of another server, or a key of another table.
/// Returns `None` if `message` is another error.
fn unknown_key(message: &str, span: &Range<usize>) -> Option<Problem> {
    let (typed, expected) = unknown(message, "unknown field `")?;
    let problem = Problem::new(span, format!("unknown key `{typed}`"));
    let names = || expected.iter().copied();
    let keys = format!("the keys of this table are {}", suggest::list(names(), "and", '`'));
    let meant = suggest::nearest(typed, names()).filter(|_| !foreign::is_known(typed));
    if let Some(meant) = meant {
        return Some(problem.label(format!("did you mean `{meant}`?")).help(keys));
    }
    if let Some(advice) = foreign::advice(typed) {
        return Some(problem.label("a key of another server").help(advice));
    }
    let problem = problem.label("no such key in this table");
    let places = places(typed);
    if places.is_empty() || places.len() > 6 {
        return Some(problem.help(keys));
    }
    Some(problem.help(format!("`{typed}` is a key of {}; {keys}", places.join(" or "))))
}

fn unknown_value(message: &str, span: &Range<usize>) -> Option<Problem> {
    let (typed, expected) = unknown(message, "unknown variant `")?;
    let names = || expected.iter().copied();
    let problem = Problem::new(span, format!("unknown value \"{typed}\""));
    let problem = problem.help(format!("write {}", suggest::list(names(), "or", '"')));
    Some(match suggest::nearest(typed, names()) {
        Some(meant) => problem.label(format!("did you mean \"{meant}\"?")),
        None => problem.label("not one of the values of this key"),
    })
}

/// Returns the typed name and the known names from serde's message "unknown field `x`, expected one
/// of `a`, `b`". Returns `None` if the message does not begin with `beginning`.
fn unknown<'m>(message: &'m str, beginning: &str) -> Option<(&'m str, Vec<&'m str>)> {
    let (typed, expected) = message.strip_prefix(beginning)?.rsplit_once("`, expected ")?;
    Some((typed, expected.split('`').skip(1).step_by(2).collect()))
}

/// Explains a value of a wrong type. Returns `None` if `message` is another error.
fn wrong_type(message: &str, span: &Range<usize>) -> Option<Problem> {
    if message == "wanted string or table" {
        let problem = Problem::new(span, "expected a string").label("wrong type");
        return Some(problem.help(HELP_STRING));
    }
    let rest = message.strip_prefix("invalid type: ");
    let rest = rest.or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    if let Some(help) = short_form(found, expected) {
        let problem = Problem::new(span, format!("expected a table, found {found}"));
        return Some(problem.label("wrong type").help(help));
    }
    let help_number = match found.strip_prefix("integer ") {
        Some(_) => "write a number in this range",
        None => "write it in digits, without quotes",
    };
    let (expected, help) = match expected {
        "usize" | "u64" => ("a whole number, 0 or more", help_number),
        "u8" => ("a whole number from 0 to 255", help_number),
        "u16" => ("a whole number from 0 to 65535", help_number),
        "u32" => ("a whole number from 0 to 4294967295", help_number),
        "a sequence" if found == "map" => (
            "a list of tables",
            "double the brackets: [[site]] begins a site, [[site.route]] a route of it",
        ),
        "a sequence" => ("a list", "put it in brackets, even a single value: [\"...\"]"),
        "a map" | "a table" => ("a table", "write keys with their values: { key = \"value\" }"),
        "a boolean" => ("true or false", "write true or false, without quotes"),
        "a string" => ("a string", HELP_STRING),
        other => (other, ""),
    };
    let found = match found {
        "map" => "a table",
        "sequence" => "a list",
        other => other,
    };
    let help = if help.is_empty() { format!("write {expected}") } else { help.to_owned() };
    let problem = Problem::new(span, format!("expected {expected}, found {found}"));
    Some(problem.label("wrong type").help(help))
}

/// Returns help for a key that needs a table but has a text: a rate as in `rate_limit = "10/s"`, or
/// a lifetime as in `cache = "5m"`. Returns `None` for other values.
fn short_form(found: &str, expected: &str) -> Option<String> {
    let typed = found.strip_prefix("string ")?;
    let text = typed.trim_matches('"');
    match expected {
        "a table" if text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('/') => {
            Some(format!("a rate is a key of the table: {{ rate = {typed} }}"))
        }
        "true, false or a table" if parse_duration(text).is_ok() => {
            Some(format!("a lifetime is a key of the table: {{ valid = {typed} }}"))
        }
        _ => None,
    }
}

const HELP_STRING: &str = "write a text in quotes";

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
