//! A value of a configuration with its position, as it was typed.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use super::{Cx, Resolution};
use crate::error::Problem;
use crate::parse_duration;

/// A value with its position.
pub(crate) type Node<'s> = Spanned<DeValue<'s>>;

/// Returns the text, which may be empty.
pub(crate) fn text<'n>(node: &'n Node<'_>) -> Resolution<&'n str> {
    node.get_ref().as_str().ok_or_else(|| wrong(node, "a string"))
}

/// Returns true or false.
pub(crate) fn boolean(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<bool> {
    match (node.get_ref(), from_outside(node, cx)) {
        (DeValue::Boolean(value), _) => Ok(*value),
        (_, Some("true")) => Ok(true),
        (_, Some("false")) => Ok(false),
        _ => Err(wrong(node, "a boolean")),
    }
}

/// Returns a whole number. `expected` names the type for a message.
pub(crate) fn integer<T: TryFrom<i64>>(
    node: &Node<'_>,
    cx: &Cx<'_>,
    expected: &str,
) -> Resolution<T> {
    let digits = |text: &&str| text.len() < 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = match node.get_ref() {
        DeValue::Integer(number) => whole(number),
        _ => from_outside(node, cx).filter(digits).and_then(|text| text.parse().ok()),
    };
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| wrong(node, expected))
}

/// Returns the value of a TOML integer.
pub(super) fn whole(number: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Returns the text of a value from the environment or a file, which may be meant as a number or a
/// boolean.
fn from_outside<'n>(node: &'n Node<'_>, cx: &Cx<'_>) -> Option<&'n str> {
    node.get_ref().as_str().filter(|_| cx.outside.contains_key(&node.span().start))
}

/// Returns the problem with a value of another type than the expected one.
pub(crate) fn wrong(node: &Node<'_>, expected: &str) -> Problem {
    let found = match node.get_ref() {
        DeValue::String(text) => format!("string {text:?}"),
        DeValue::Integer(number) => match whole(number) {
            Some(number) => format!("integer `{number}`"),
            None => format!("integer `{}`", number.as_str()),
        },
        DeValue::Float(number) => format!("floating point `{}`", number.as_str()),
        DeValue::Boolean(value) => format!("boolean `{value}`"),
        DeValue::Datetime(time) => format!("time `{time}`"),
        DeValue::Array(_) => "sequence".to_owned(),
        DeValue::Table(_) => "map".to_owned(),
    };
    wrong_type(&found, expected, &node.span()).about_form()
}

/// Returns the problem with a value of a wrong type. `found` and `expected` are in the words of
/// serde.
pub(crate) fn wrong_type(found: &str, expected: &str, span: &Range<usize>) -> Problem {
    if let Some(help) = short_form(found, expected) {
        let problem = Problem::new(span, format!("expected a table, found {found}"));
        return problem.label("wrong type").help(help);
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
    problem.label("wrong type").help(help)
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
