//! Conditions of a route on other parts of a request than its path, as typed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::shape::{At, OneOrMany, Table};

/// Conditions on a request. It must meet all of them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// Methods, such as "GET" (which includes HEAD).
    pub method: Option<At<OneOrMany<String>>>,
    /// Request headers by name: a value, a list of values, true for any value, or false if there is
    /// no such header. A value that begins with "~" is a regular expression, one with "~*" ignores
    /// case.
    pub header: BTreeMap<String, At<Values>>,
    /// Cookies by name, with values as in `header`.
    pub cookie: BTreeMap<String, At<Values>>,
    /// Parameters of the query by name, with values as in `header`.
    pub query: BTreeMap<String, At<Values>>,
    /// Addresses or networks of clients, such as "10.0.0.0/8". "unix" is a client of a unix: socket.
    pub client: Option<At<OneOrMany<String>>>,
    /// "https" for clients that use TLS, "http" for all others.
    pub scheme: Option<At<Scheme>>,
    /// The subject of the client's certificate, with values as in `header`: true for clients with a
    /// certificate that the site has verified.
    pub client_certificate: Option<At<Values>>,
    /// Conditions that the request must not meet together.
    pub not: Option<Box<At<Table<When>>>>,
}

/// The scheme of a request.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// With TLS.
    Https,
    /// Without TLS.
    Http,
}

/// Any value, none, or one of these.
#[derive(Clone, Debug)]
pub enum Values {
    /// `true` for any value, `false` for none.
    Any(bool),
    /// A value, or several.
    OneOf(OneOrMany<String>),
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValuesVisitor;
        impl<'de> Visitor<'de> for ValuesVisitor {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings, true or false")
            }

            fn visit_bool<E: de::Error>(self, any: bool) -> Result<Values, E> {
                Ok(Values::Any(any))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Values, E> {
                Ok(Values::OneOf(OneOrMany::One(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Values, A::Error> {
                let list = Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                Ok(Values::OneOf(OneOrMany::Many(list)))
            }
        }
        deserializer.deserialize_any(ValuesVisitor)
    }
}

impl JsonSchema for Values {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Values".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "boolean" },
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
        ] })
    }
}
