//! Forms: values that are checked while they are read.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use schemars::{Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::shape::{At, SizeText, TimeText};
use super::{Cx, Form, FromText, Node, Resolution, boolean, integer, wrong};
use crate::error::Problem;
use crate::{parse_duration, parse_size};

/// Returns the number if it is in the range.
pub(crate) fn within<T: PartialOrd + Display + Copy>(
    number: T,
    range: RangeInclusive<T>,
    span: &Range<usize>,
) -> Resolution<T> {
    if range.contains(&number) {
        return Ok(number);
    }
    let (wrong, help) = if number < *range.start() {
        ("small", format!("the least is {}", range.start()))
    } else {
        ("large", format!("the most is {}", range.end()))
    };
    Err(Problem::new(span, format!("{number} is too {wrong}")).help(help))
}

/// Returns a size in bytes.
pub(crate) fn size(typed: &str, span: &Range<usize>) -> Resolution<u64> {
    parse_size(typed).map_err(|wrong| {
        Problem::new(span, format!("the size \"{typed}\" {wrong}"))
            .help("write bytes, or a number with its unit, such as \"8k\" or \"16MiB\"")
    })
}

/// Returns a duration.
pub(crate) fn duration(typed: &str, span: &Range<usize>) -> Resolution<Duration> {
    parse_duration(typed).map_err(|wrong| {
        Problem::new(span, format!("the duration \"{typed}\" {wrong}"))
            .help("write a number with its unit (ms, s, m, h, d or w), such as \"60s\"")
    })
}

/// Returns a duration that is more than zero.
pub(crate) fn above_zero(time: Duration, span: &Range<usize>) -> Resolution<Duration> {
    if time.is_zero() {
        return Err(Problem::new(span, "this time has to be above zero")
            .help("give it time, such as \"60s\", or leave it out for the default"));
    }
    Ok(time)
}

/// Returns the text if it is not empty and has no control characters.
pub(crate) fn plain<'t>(text: &'t str, span: &Range<usize>) -> Resolution<&'t str> {
    if text.is_empty() {
        return Err(Problem::new(span, "this is empty").help("give a value, or leave it out"));
    }
    no_control(text, span)
}

/// Returns the text if it has no control characters.
pub(crate) fn no_control<'t>(text: &'t str, span: &Range<usize>) -> Resolution<&'t str> {
    match text.chars().find(|c| c.is_control()) {
        Some(c) => {
            let message = format!("the control character {} is not allowed here", c.escape_debug());
            Err(Problem::new(span, message).help("leave it out"))
        }
        None => Ok(text),
    }
}

/// Checks that a list has an item. `effect` says what an empty one would mean, after a comma.
pub(crate) fn not_empty<T>(
    list: &[T],
    span: &Range<usize>,
    effect: &str,
    help: &str,
) -> Resolution<()> {
    if list.is_empty() {
        return Err(Problem::new(span, format!("this list is empty{effect}")).help(help));
    }
    Ok(())
}

/// Returns the value of a required key. `table` is the position for the error, and `example` a
/// value for the help.
pub(crate) fn required<'t, T>(
    typed: &'t Option<T>,
    table: &Range<usize>,
    key: &str,
    example: &str,
) -> Resolution<&'t T> {
    typed.as_ref().ok_or_else(|| {
        let problem = Problem::new(table, format!("`{key}` is missing"));
        problem.label(format!("needs `{key}`")).help(format!("add {key} = {example}"))
    })
}

/// Returns the problem for a key that has no effect together with other keys.
pub(crate) fn no_effect(span: &Range<usize>, key: &str, why: &str, help: &str) -> Problem {
    Problem::new(span, format!("`{key}` has no effect {why}")).help(help)
}

/// A size of `MIN` to `MAX` bytes.
pub(crate) struct Bytes<const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>;

impl<const MIN: u64, const MAX: u64> Form<u64> for Bytes<MIN, MAX> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        SizeText::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<u64> {
        let SizeText(typed) = SizeText::read(node, cx)?;
        within(size(&typed, &node.span())?, MIN..=MAX, &node.span())
    }
}

impl<const MIN: u64, const MAX: u64> Form<usize> for Bytes<MIN, MAX> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        SizeText::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<usize> {
        let size: u64 = Self::read(node, cx)?;
        Ok(usize::try_from(size).unwrap_or(usize::MAX))
    }
}

/// A size in bytes, or `u64::MAX` for "unlimited".
pub(crate) struct Unlimited;

impl Form<u64> for Unlimited {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        SizeText::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<u64> {
        match node.get_ref().as_str() {
            Some("unlimited") => Ok(u64::MAX),
            _ => Bytes::<0>::read(node, cx),
        }
    }
}

impl Form for Duration {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        TimeText::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        let TimeText(typed) = TimeText::read(node, cx)?;
        duration(&typed, &node.span())
    }
}

/// A duration of more than zero.
pub(crate) struct AboveZero;

impl Form<Duration> for AboveZero {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        TimeText::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Duration> {
        above_zero(Duration::read(node, cx)?, &node.span())
    }
}

/// A whole number from `MIN` to `MAX`.
pub(crate) struct Whole<const MIN: u64, const MAX: u64>;

macro_rules! whole {
    ($($kind:ident)*) => { $(
        impl<const MIN: u64, const MAX: u64> Form<$kind> for Whole<MIN, MAX> {
            fn schema(generator: &mut SchemaGenerator) -> Schema {
                $kind::schema(generator)
            }

            fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<$kind> {
                let number: $kind = integer(node, cx, stringify!($kind))?;
                within(number as u64, MIN..=MAX, &node.span()).map(|_| number)
            }
        }
    )* };
}

whole!(u8 u16 u32 u64 usize);

/// A text that is not empty and has no control characters.
pub(crate) struct Text;

impl FromText<String> for Text {
    fn from_text(text: &str, _: &Range<usize>) -> Resolution<String> {
        Ok(text.to_owned())
    }
}

/// A value with its position.
pub(crate) struct Placed<F>(F);

impl<T, F: Form<T>> Form<At<T>> for Placed<F> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        F::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<At<T>> {
        Ok(At { value: F::read(node, cx)?, span: node.span() })
    }
}

/// One value, or a list of values.
pub(crate) struct Many<F>(F);

impl<T, F: Form<T>> Form<Vec<T>> for Many<F> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let one = F::schema(generator);
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Vec<T>> {
        match node.get_ref() {
            DeValue::Array(items) => super::shape::each_by::<T, F>(items, cx),
            DeValue::String(_) | DeValue::Integer(_) | DeValue::Table(_) => {
                F::read(node, cx).map(|value| vec![value])
            }
            _ => Err(wrong(node, "a string or a list of strings")),
        }
    }
}

/// `true` for a table of defaults, `false` for none, or a table.
pub(crate) struct Switch<F>(F);

impl<T, F: Form<T>> Form<Option<T>> for Switch<F> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let table = F::schema(generator);
        json_schema!({ "anyOf": [{ "type": "boolean" }, table] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Option<T>> {
        match (node.get_ref(), boolean(node, cx)) {
            (DeValue::Table(_), _) => F::read(node, cx).map(Some),
            (_, Ok(false)) => Ok(None),
            (_, Ok(true)) => {
                let empty = Node::new(node.span(), DeValue::Table(Default::default()));
                F::read(&empty, cx).map(Some)
            }
            _ => Err(wrong(node, "true, false or a table")),
        }
    }
}

/// A status such as "503", a range such as "500-504" or a class such as "5xx".
pub(crate) struct StatusRange<const LEAST: u16>;

impl<const LEAST: u16> Form<RangeInclusive<u16>> for StatusRange<LEAST> {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        super::StatusText::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<RangeInclusive<u16>> {
        let super::StatusText(text) = super::StatusText::read(node, cx)?;
        let range = status_range(&text)
            .filter(|range| !range.is_empty() && *range.start() >= LEAST && *range.end() <= 599);
        range.ok_or_else(|| {
            Problem::new(&node.span(), format!("\"{text}\" is not a status or a range of statuses"))
                .help(format!("write statuses from {LEAST} to 599, such as 503 or \"500-504\""))
        })
    }
}

/// Returns the statuses of "503", "500-504" or "5xx". Returns `None` for any other text.
fn status_range(text: &str) -> Option<RangeInclusive<u16>> {
    let status = |text: &str| {
        let is_status = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
        is_status.then(|| text.parse().ok()).flatten()
    };
    if let Some(class) = text.strip_suffix("xx") {
        let class = status(&format!("{class}00"))?;
        return Some(class..=class + 99);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(status(first)?..=status(last)?)
}

/// A request method. `GET` stands for HEAD as well where that is said.
pub(crate) struct Method;

impl FromText<String> for Method {
    fn from_text(text: &str, span: &Range<usize>) -> Resolution<String> {
        let problem = || Problem::new(span, format!("\"{text}\" is not a method"));
        if !is_token(text) {
            return Err(problem().help("write a method such as \"GET\""));
        }
        let upper = text.to_ascii_uppercase();
        if upper != text && KNOWN_METHODS.contains(&upper.as_str()) {
            return Err(problem().help(format!("methods are in capitals: write \"{upper}\"")));
        }
        Ok(text.to_owned())
    }
}

const KNOWN_METHODS: [&str; 10] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];

/// Returns true if the text is a token (RFC 9110 section 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    let byte = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(byte)
}
