//! Translates conditions on variables that `map` and `geo` set, such as `if ($bad_bot)`.

use super::Cx;
use super::syntax::Directive;
use crate::matcher::Matcher;
use crate::network::network;
use crate::value::{Table, Value};

/// Maximum number of conditions for one variable.
const MOST: usize = 32;

/// The requests that give a variable a wanted value.
pub enum Switch {
    /// One of these matchers takes the request.
    OneOf(Vec<Matcher>),
    /// The request has none of these methods.
    OtherMethods(Vec<String>),
}

/// Returns the matcher for a comparison: a variable, an operator and a text.
type Compare<'c> = &'c dyn Fn((&str, &str, &str)) -> Option<Matcher>;

/// Returns the requests that give the variable of a `map` or `geo` a value that `is_true` accepts.
/// Returns `None` if no `map` or `geo` sets the variable, if another directive may also set it, or
/// if routes cannot have this condition.
pub fn requests(
    cx: &Cx<'_>,
    variable: &str,
    is_true: &dyn Fn(&str) -> bool,
    compare: Compare<'_>,
) -> Option<Switch> {
    // Another directive may change the variable after the `map` or `geo` has set it.
    if cx.changed.contains(variable) {
        return None;
    }
    let sets = |block: &&Directive| block.args.last().is_some_and(|last| last == variable);
    if let Some(geo) = cx.http.every("geo").find(sets) {
        let found = of_addresses(geo, is_true)?;
        geo.settle_all();
        return Some(Switch::OneOf(vec![found]));
    }
    let map = cx.http.every("map").find(|map| sets(map) && map.args.len() == 2)?;
    let found = of_map(map, is_true, compare)?;
    map.settle_all();
    Some(found)
}

/// A line `KEY VALUE;` of a `map`, but not `default` or `volatile`.
struct Choice<'m> {
    operator: &'static str,
    text: String,
    is_true: bool,
    key: &'m str,
}

fn of_map(map: &Directive, is_true: &dyn Fn(&str) -> bool, compare: Compare<'_>) -> Option<Switch> {
    let (mut exact, mut expressions, mut default) = (Vec::new(), Vec::new(), is_true(""));
    for entry in map.inside() {
        let (key, value) = (entry.name.as_str(), entry.arg(0));
        if value.contains('$') || entry.args.len() != 1 && key != "volatile" {
            return None;
        }
        let (operator, text) = match (key, key.strip_prefix("~*"), key.strip_prefix('~')) {
            ("volatile", ..) => continue,
            ("hostnames" | "include", ..) => return None,
            ("default", ..) => {
                default = is_true(value);
                continue;
            }
            ("", ..) => ("=", String::new()),
            (_, Some(text), _) => ("~*", text.to_owned()),
            (_, None, Some(text)) => ("~", text.to_owned()),
            // nginx compares the texts of a `map` without regard to case.
            _ => ("~*", format!("^{}$", regex_syntax::escape(key.trim_start_matches('\\')))),
        };
        let choice = Choice { operator, text, is_true: is_true(value), key };
        let list = if key.starts_with('~') { &mut expressions } else { &mut exact };
        list.push(choice);
    }
    let variable = map.arg(0);
    let has_order = exact.iter().any(|choice| !choice.is_true) && !expressions.is_empty()
        || expressions.iter().any(|choice| !choice.is_true);
    exact.append(&mut expressions);
    if default {
        if exact.iter().any(|choice| choice.is_true) {
            return None;
        }
        return others(variable, &exact, compare);
    }
    let wanted: Vec<Choice<'_>> = exact.into_iter().filter(|choice| choice.is_true).collect();
    // A request that a line without an accepted value matches does not reach the later lines. A
    // list of matchers cannot express this order.
    if has_order && !wanted.is_empty() || wanted.len() > 2_000 {
        return None;
    }
    let of = |choice: &Choice<'_>| compare((variable, choice.operator, &choice.text));
    let all = wanted.iter().map(of).collect::<Option<Vec<Matcher>>>()?;
    let all = joined(all);
    (all.len() <= MOST).then_some(Switch::OneOf(all))
}

/// Returns the requests that meet none of `choices`. Returns `None` if routes cannot have this
/// condition.
fn others(variable: &str, choices: &[Choice<'_>], compare: Compare<'_>) -> Option<Switch> {
    if choices.is_empty() {
        return Some(Switch::OneOf(vec![Matcher::default()]));
    }
    if variable == "$request_method" {
        let is_method = |key: &str| !key.is_empty() && key.bytes().all(|b| b.is_ascii_uppercase());
        let methods = choices.iter().map(|choice| choice.key);
        return methods
            .map(|key| is_method(key).then(|| key.to_owned()))
            .collect::<Option<Vec<_>>>()
            .map(Switch::OtherMethods);
    }
    let mut all = Matcher::default();
    for choice in choices {
        let operator = match choice.operator {
            "~" => "!~",
            "~*" => "!~*",
            _ => "!=",
        };
        all = all.and(&compare((variable, operator, &choice.text))?)?;
    }
    Some(Switch::OneOf(vec![all]))
}

/// Joins two or more conditions to one condition with a list of values, if all of them compare the
/// same variable. Otherwise returns all conditions unchanged.
fn joined(all: Vec<Matcher>) -> Vec<Matcher> {
    let of_variable = |matcher: &Matcher| -> Option<(String, Value)> {
        let only = Matcher { when: matcher.when.clone(), ..Matcher::default() };
        match matcher.when.0.as_slice() {
            [(key, Value::Table(table))] if key == "variable" && *matcher == only => {
                match table.0.as_slice() {
                    [(name, text @ Value::Text(_))] => Some((name.clone(), text.clone())),
                    _ => None,
                }
            }
            _ => None,
        }
    };
    let Some(pairs) = all.iter().map(of_variable).collect::<Option<Vec<_>>>() else { return all };
    match pairs.first() {
        Some((name, _)) if pairs.len() > 1 && pairs.iter().all(|(other, _)| other == name) => {
            let values = pairs.iter().map(|(_, value)| value.clone()).collect();
            let variable = Table::default().with(name, Value::List(values));
            let when = Table::default().with("variable", variable);
            vec![Matcher { when, ..Matcher::default() }]
        }
        _ => all,
    }
}

/// Returns a matcher for clients by address: the `geo` gives these addresses a value for which
/// `is_true` returns true. Returns `None` if one list of addresses cannot express the condition.
fn of_addresses(geo: &Directive, is_true: &dyn Fn(&str) -> bool) -> Option<Matcher> {
    if geo.args.len() == 2 && geo.arg(0) != "$remote_addr" {
        return None;
    }
    let (mut default, mut list) = (is_true(""), Vec::new());
    for entry in geo.inside() {
        let value = is_true(entry.arg(0));
        match entry.name.as_str() {
            "default" => default = value,
            name => list.push((network(name)?, value)),
        }
    }
    // A network inside another network may have another value, and one list cannot express this. So
    // all networks must have the opposite of the default.
    if list.is_empty() || list.iter().any(|(_, value)| *value == default) {
        return None;
    }
    let list: Vec<String> = list.into_iter().map(|(network, _)| network).collect();
    let client = Table::default().with("client", list);
    let when = if default { Table::default().with("not", client) } else { client };
    Some(Matcher { when, ..Matcher::default() })
}
