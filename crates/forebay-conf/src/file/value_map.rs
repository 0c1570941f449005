//! The tables [map.NAME].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::error::Problem;
use crate::key::{
    At, Cx, Form, MOST_PROBLEMS, Node, Resolution, no_control, plain, regex, required, template,
    wrong,
};
use crate::plan::{Placeholder, Scope, Template, TemplatePart, ValueMap};

/// The largest number of patterns with `*` or `~` in one table. Forebay tries them in turn.
const MOST_TRIED: usize = 1000;

/// Tables of values by name, which texts may then name. A table with a wrong value is left out.
pub(super) struct Maps;

impl Form<()> for Maps {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<Described>();
        json_schema!({ "type": "object", "additionalProperties": one })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<()> {
        let tables = node.get_ref().as_table().ok_or_else(|| wrong(node, "a map"))?;
        let (mut maps, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, table) in tables {
            if problems.len() + cx.wrong_values.borrow().len() >= MOST_PROBLEMS {
                break;
            }
            let name = name.get_ref();
            match value_map(name, table, cx) {
                Ok(map) => drop(maps.insert(name.to_string(), Arc::new(map))),
                Err(problem) if problem.is_about_form() => problems.push(problem),
                Err(problem) => {
                    cx.wrong_values.borrow_mut().push(problem);
                    // The texts that name it are no further problem.
                    maps.insert(name.to_string(), Arc::default());
                }
            }
        }
        cx.names.borrow_mut().maps = maps;
        Problem::all(problems).map_or(Ok(()), Err)
    }
}

fn value_map(name: &str, node: &Node<'_>, cx: &Cx<'_>) -> Resolution<ValueMap> {
    let mut values = BTreeMap::<String, At<String>>::read(node, cx)?;
    let (from, default) = (values.remove("from"), values.remove("default"));
    let mut values: Vec<_> = values.into_iter().collect();
    // The order of the file, because the first regular expression that matches counts.
    values.sort_by_key(|(_, at)| at.span.start);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(Problem::new(&node.span(), format!("\"{name}\" is not the name of a map"))
            .help("use letters, digits, hyphens and underscores, as in [map.origin]"));
    }
    let from_at = required(&from, &node.span(), "from", "\"{header.Origin}\"")?;
    let from = parse(plain(from_at, &from_at.span)?, &from_at.span)?;
    if from.constant().is_some() {
        return Err(Problem::new(&from_at.span, "this text is the same for every request")
            .help("use a placeholder, such as \"{header.Origin}\""));
    }
    let mut map = ValueMap {
        name: name.to_owned(),
        from,
        exact: BTreeMap::new(),
        globs: Vec::new(),
        expressions: Vec::new(),
        default: match &default {
            Some(at) => parse(no_control(at, &at.span)?, &at.span)?,
            None => Template::default(),
        },
    };
    let is_host = matches!(
        map.from.parts(),
        [TemplatePart::Value(Placeholder::Host | Placeholder::BareHost)]
    );
    for (pattern, at) in &values {
        let value = parse(no_control(at, &at.span)?, &at.span)?;
        no_control(pattern, &at.span)?;
        // Forebay looks up hosts in lower case, so convert the keys to lower case.
        let is_lowered = is_host && !pattern.starts_with('~');
        let pattern = &if is_lowered { pattern.to_ascii_lowercase() } else { pattern.clone() };
        match pattern.split_once('*') {
            _ if pattern.starts_with('~') => {
                map.expressions.push((regex(pattern, &at.span)?, value));
            }
            None => drop(map.exact.insert(pattern.clone(), value)),
            Some((_, end)) if end.contains('*') => {
                return Err(Problem::new(&at.span, format!("\"{pattern}\" has several `*`"))
                    .help("write a regular expression, such as \"~^a.*b\""));
            }
            Some((start, end)) => map.globs.push((start.to_owned(), end.to_owned(), value)),
        }
    }
    if map.globs.len() + map.expressions.len() > MOST_TRIED {
        let message = format!("more than {MOST_TRIED} patterns with `*` or `~`");
        return Err(Problem::new(&node.span(), message).help("write texts without them"));
    }
    map.globs.sort_by_key(|(start, end, _)| std::cmp::Reverse(start.len() + end.len()));
    Ok(map)
}

/// Parses a text of a table [map.NAME]. The text may have placeholders, but no groups of
/// `path_regex` and no {map.NAME}.
fn parse(typed: &str, span: &Range<usize>) -> Resolution<Template> {
    template(typed, span, Scope::default())
}

/// The schema of a table.
struct Described;

impl JsonSchema for Described {
    fn schema_name() -> Cow<'static, str> {
        "ValueMap".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A table of values, for the placeholder {map.NAME}. Each other key is a \
                            pattern: a text, a text with one `*`, or a regular expression after `~` \
                            (with `~*` without case). If several patterns match, a text has precedence, \
                            then the longest pattern with `*`, then the first regular expression.",
            "type": "object",
            "required": ["from"],
            "properties": {
                "from": {
                    "description": "The text that is looked up, with placeholders, such as \
                                    \"{header.Origin}\".",
                    "type": "string",
                },
                "default": {
                    "description": "The value if no pattern fits. Default: \"\".",
                    "type": "string",
                    "default": "",
                },
            },
            "additionalProperties": { "type": "string" },
        })
    }
}
