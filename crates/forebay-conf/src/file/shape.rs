//! Types for the shapes of values: with a position, one or many, a text or a table, a number or a
//! text.
//!
//! Serde's `untagged` and `flatten` would do most of this. However, they copy the value first and
//! lose its position, so that every error would point at the whole table.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

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

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = toml::Spanned::<T>::deserialize(deserializer)?;
        Ok(Self { span: spanned.span(), value: spanned.into_inner() })
    }
}

/// A value that must be a table in the file. A derived `Deserialize` would also accept a list of
/// the values, such as `["10/s", 5]` for `{ rate = "10/s", burst = 5 }`.
#[derive(Clone, Debug, Default)]
pub struct Table<T>(pub T);

impl<T> Deref for Table<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
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

/// A visitor that accepts texts, and also whole numbers if `numbers` is true. It builds a `T` from
/// the value.
struct Scalar<T> {
    expecting: &'static str,
    numbers: bool,
    make: fn(String) -> T,
}

impl<T> Visitor<'_> for Scalar<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Ok((self.make)(text.to_owned()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        if !self.numbers {
            return Err(E::invalid_type(de::Unexpected::Signed(number), &self));
        }
        Ok((self.make)(number.to_string()))
    }
}

impl<'de> Deserialize<'de> for TimeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a duration with its unit such as \"60s\"";
        deserializer.deserialize_any(Scalar { expecting, numbers: false, make: Self })
    }
}

impl<'de> Deserialize<'de> for SizeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a number of bytes or a size such as \"1MiB\"";
        deserializer.deserialize_any(Scalar { expecting, numbers: true, make: Self })
    }
}

impl<'de> Deserialize<'de> for NumberOrText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a string such as \"127.0.0.1:8080\" or a port number";
        deserializer.deserialize_any(Scalar { expecting, numbers: true, make: Self })
    }
}

impl<'de> Deserialize<'de> for StatusText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting =
            "a status such as 503, a range such as \"500-504\" or a class such as \"5xx\"";
        deserializer.deserialize_any(Scalar { expecting, numbers: true, make: Self })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(text.into_deserializer()).map(OneOrMany::One)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                T::deserialize(number.into_deserializer()).map(OneOrMany::One)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(OneOrMany::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(OneOrMany::Many)
            }
        }
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for AllOrList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AllOrListVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for AllOrListVisitor<T> {
            type Value = AllOrList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a list of strings")
            }

            fn visit_bool<E: de::Error>(self, all: bool) -> Result<Self::Value, E> {
                Ok(AllOrList::All(all))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(AllOrList::List)
            }
        }
        deserializer.deserialize_any(AllOrListVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Only<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Only<T> {
            type Value = Table<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Table)
            }
        }
        deserializer.deserialize_any(Only(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
            type Value = TextOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a table")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOr::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(TextOr::Table)
            }
        }
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoolOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoolOrVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for BoolOrVisitor<T> {
            type Value = BoolOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a table")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
                Ok(BoolOr::Bool(value))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(BoolOr::Table)
            }
        }
        deserializer.deserialize_any(BoolOrVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: JsonSchema> JsonSchema for Table<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
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

impl JsonSchema for NumberOrText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "NumberOrText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "string"] })
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

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

impl<T: JsonSchema> JsonSchema for TextOr<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("TextOr_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "type": "string" }, table] })
    }
}

impl<T: JsonSchema> JsonSchema for BoolOr<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("BoolOr_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "type": "boolean" }, table] })
    }
}

impl<T: JsonSchema> JsonSchema for AllOrList<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("AllOrList_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "type": "boolean" }, { "type": "array", "items": one }] })
    }
}
