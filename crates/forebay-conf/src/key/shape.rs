//! Values as the user typed them: with a position, one or many, a text or a table, a number or a
//! text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::node::whole;
use super::{Cx, Form, Node, Resolution, boolean, integer, text, wrong};
use crate::error::Problem;

/// A value and its byte range in the file.
#[derive(Clone, Debug, Default)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The byte range in the file.
    pub span: Range<usize>,
}

impl<T> At<T> {
    /// Returns another value with the position of this value.
    pub fn with<U>(&self, value: U) -> At<U> {
        At { value, span: self.span.clone() }
    }
}

impl<T> Deref for At<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A duration such as "30s", which `resolve` checks.
pub type Time = At<TimeText>;

/// A size such as "1MiB", which `resolve` checks.
pub type Size = At<SizeText>;

/// A duration as typed.
#[derive(Clone, Debug)]
pub struct TimeText(pub String);

/// A size as typed.
#[derive(Clone, Debug)]
pub struct SizeText(pub String);

/// A whole number, or a text.
#[derive(Clone, Debug)]
pub struct NumberOrText(pub String);

/// A status, a range of statuses or a class of statuses, which `resolve` checks.
#[derive(Clone, Debug)]
pub struct StatusText(pub String);

/// A single value, or a list of them.
#[derive(Clone, Debug)]
pub enum OneOrMany<T> {
    /// A single value. Its position is that of the enclosing [`At`].
    One(T),
    /// A list of values, each with its own position.
    Many(Vec<At<T>>),
}

impl<T> At<OneOrMany<T>> {
    /// Returns the values with their positions.
    pub fn items(&self) -> Vec<At<&T>> {
        match &self.value {
            OneOrMany::One(value) => vec![self.with(value)],
            OneOrMany::Many(values) => values.iter().map(|at| at.with(&at.value)).collect(),
        }
    }
}

/// `true` for all possible values, `false` for none, or a list of values.
#[derive(Clone, Debug)]
pub enum AllOrList<T> {
    /// `true` for all, `false` for none.
    All(bool),
    /// A list of values, each with its own position.
    List(Vec<At<T>>),
}

/// A table, or a text as its short form.
#[derive(Clone, Debug)]
pub enum TextOr<T> {
    /// The value of the table's most important key.
    Text(String),
    /// The table with all its keys.
    Table(T),
}

/// `true` or `false`, or a table.
#[derive(Clone, Debug)]
pub enum BoolOr<T> {
    /// `true` for a table of defaults, `false` for none.
    Bool(bool),
    /// The table.
    Table(T),
}

impl<T: Form> Form for At<T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        T::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        Ok(Self { value: T::read(node, cx)?, span: node.span() })
    }
}

impl<T: Form> Form for Arc<T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        T::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        T::read(node, cx).map(Self::new)
    }
}

impl Form for bool {
    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "boolean" })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        boolean(node, cx)
    }
}

impl Form for String {
    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }

    fn read(node: &Node<'_>, _: &Cx<'_>) -> Resolution<Self> {
        text(node).map(str::to_owned)
    }
}

impl Form for f64 {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Self>()
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match node.get_ref() {
            DeValue::Float(number) => number.as_str().parse().map_err(|_| wrong(node, "a number")),
            _ => integer::<u32>(node, cx, "a number").map(Self::from),
        }
    }
}

macro_rules! integers {
    ($($kind:ident)*) => { $(
        impl Form for $kind {
            fn schema(generator: &mut SchemaGenerator) -> Schema {
                generator.subschema_for::<Self>()
            }

            fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
                integer(node, cx, stringify!($kind))
            }
        }
    )* };
}

integers!(u8 u16 u32 u64 usize);

/// Returns the text of a value that may be a text or a whole number.
pub(super) fn text_or_number(node: &Node<'_>, expected: &str) -> Resolution<String> {
    match node.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => match whole(number) {
            Some(number) => Ok(number.to_string()),
            None => Ok(number.as_str().to_owned()),
        },
        _ => Err(wrong(node, expected)),
    }
}

impl Form for TimeText {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Self>()
    }

    fn read(node: &Node<'_>, _: &Cx<'_>) -> Resolution<Self> {
        let typed = node.get_ref().as_str().map(|typed| Self(typed.to_owned()));
        typed.ok_or_else(|| wrong(node, "a duration with its unit such as \"60s\""))
    }
}

impl JsonSchema for TimeText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number with its unit: us, ms, s, m (minutes), h, d or w.",
            "type": "string",
            "pattern": r"^\s*([0-9]+(\.[0-9]+)?(us|ms|s|m|h|d|w)\s*)+$",
            "examples": ["250ms", "30s", "1h30m"],
        })
    }
}

impl Form for SizeText {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Self>()
    }

    fn read(node: &Node<'_>, _: &Cx<'_>) -> Resolution<Self> {
        text_or_number(node, "a number of bytes or a size such as \"1MiB\"").map(Self)
    }
}

impl JsonSchema for SizeText {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Bytes, or a number with its unit: k, m, g or KiB, MiB, GiB (powers \
                            of 1024), kB, MB, GB (powers of 1000).",
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": r"^(unlimited|\s*[0-9]+\s*([kKmMgG]([iI]?[bB])?|[bB])?\s*)$",
            "examples": [65536, "8k", "16MiB"],
        })
    }
}

impl Form for NumberOrText {
    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "string"] })
    }

    fn read(node: &Node<'_>, _: &Cx<'_>) -> Resolution<Self> {
        text_or_number(node, "a string such as \"127.0.0.1:8080\" or a port number").map(Self)
    }
}

impl Form for StatusText {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Self>()
    }

    fn read(node: &Node<'_>, _: &Cx<'_>) -> Resolution<Self> {
        let expected =
            "a status such as 503, a range such as \"500-504\" or a class such as \"5xx\"";
        text_or_number(node, expected).map(Self)
    }
}

impl JsonSchema for StatusText {
    fn schema_name() -> Cow<'static, str> {
        "StatusRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A status, a range of statuses or a class of statuses.",
            "type": ["integer", "string"],
            "minimum": 100,
            "maximum": 599,
            "pattern": "^[1-5]([0-9][0-9](-[1-5][0-9][0-9])?|xx)$",
            "examples": [503, "500-504", "5xx"],
        })
    }
}

fn each<'n, 's: 'n, T: Form>(
    nodes: impl IntoIterator<Item = &'n Node<'s>>,
    cx: &Cx<'_>,
) -> Resolution<Vec<T>> {
    each_by::<T, T>(nodes, cx)
}

/// Reads each of the values, and returns the problems of all.
pub(super) fn each_by<'n, 's: 'n, T, F: Form<T>>(
    nodes: impl IntoIterator<Item = &'n Node<'s>>,
    cx: &Cx<'_>,
) -> Resolution<Vec<T>> {
    let nodes = nodes.into_iter();
    // Sites are large, and growing lists of thousands would move them many times.
    let mut values = Vec::with_capacity(nodes.size_hint().0);
    let (mut problems, mut real) = (Vec::new(), 0);
    for node in nodes {
        match F::read(node, cx) {
            Ok(value) => values.push(value),
            Err(problem) => {
                real += usize::from(!problem.is_not_whole());
                problems.push(problem);
            }
        }
        if real == super::MOST_PROBLEMS || cx.has_enough() {
            break;
        }
    }
    Problem::all(problems).map_or(Ok(values), Err)
}

impl<T: Form> Form for Vec<T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let one = T::schema(generator);
        json_schema!({ "type": "array", "items": one })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        let items = node.get_ref().as_array().ok_or_else(|| wrong(node, "a sequence"))?;
        each(items, cx)
    }
}

impl<T: Form> Form for BTreeMap<String, T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let one = T::schema(generator);
        json_schema!({ "type": "object", "additionalProperties": one })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        let table = node.get_ref().as_table().ok_or_else(|| wrong(node, "a map"))?;
        let values = each(table.values(), cx)?;
        Ok(table.keys().map(|name| name.get_ref().to_string()).zip(values).collect())
    }
}

impl<T: Form> Form for OneOrMany<T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let one = T::schema(generator);
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match node.get_ref() {
            DeValue::Array(items) => each(items, cx).map(Self::Many),
            DeValue::String(_) | DeValue::Integer(_) | DeValue::Table(_) => {
                T::read(node, cx).map(Self::One)
            }
            _ => Err(wrong(node, "a string or a list of strings")),
        }
    }
}

impl<T: Form> Form for AllOrList<T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let one = T::schema(generator);
        json_schema!({ "anyOf": [{ "type": "boolean" }, { "type": "array", "items": one }] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match (node.get_ref(), boolean(node, cx)) {
            (DeValue::Array(items), _) => each(items, cx).map(Self::List),
            (_, Ok(all)) => Ok(Self::All(all)),
            _ => Err(wrong(node, "true, false or a list of strings")),
        }
    }
}

impl<T: Form> Form for TextOr<T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let table = T::schema(generator);
        json_schema!({ "anyOf": [{ "type": "string" }, table] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match node.get_ref() {
            DeValue::String(text) => Ok(Self::Text(text.to_string())),
            DeValue::Table(_) => T::read(node, cx).map(Self::Table),
            _ => Err(wrong(node, "a string or a table")),
        }
    }
}

impl<T: Form> Form for BoolOr<T> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let table = T::schema(generator);
        json_schema!({ "anyOf": [{ "type": "boolean" }, table] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match (node.get_ref(), boolean(node, cx)) {
            (DeValue::Table(_), _) => T::read(node, cx).map(Self::Table),
            (_, Ok(value)) => Ok(Self::Bool(value)),
            _ => Err(wrong(node, "true, false or a table")),
        }
    }
}
