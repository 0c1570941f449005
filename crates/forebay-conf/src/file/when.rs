//! The keys of `when`: conditions of a route on parts of a request other than its path.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::shape::{At, OneOrMany, Table};

/// Conditions on a request. The request must meet all of them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// The method, or a list of methods, such as "GET" (which includes HEAD).
    pub method: Option<At<OneOrMany<String>>>,
    /// Request headers by name: a value, a list of values, true if the header must exist, or false
    /// if it must not exist. A value that begins with "~" is a regular expression; with "~*", the
    /// expression ignores case.
    pub header: BTreeMap<String, At<Values>>,
    /// Cookies by name, with values as in `header`.
    pub cookie: BTreeMap<String, At<Values>>,
    /// Parameters of the query by name, with values as in `header`.
    pub query: BTreeMap<String, At<Values>>,
    /// Addresses or networks of clients, such as "10.0.0.0/8". "unix" matches the clients of a
    /// unix: socket.
    pub client: Option<At<OneOrMany<String>>>,
    /// Countries of clients, such as "DE", by the databases in `geo` of `[server]`. An address whose
    /// country is unknown is in none of them.
    pub country: Option<At<OneOrMany<String>>>,
    /// Numbers of the autonomous systems of clients, such as 64496, by the databases in `geo` of
    /// `[server]`.
    pub asn: Option<At<OneOrMany<u32>>>,
    /// "https" for clients that use TLS, "http" for all others.
    pub scheme: Option<At<Scheme>>,
    /// The subject of the client's certificate, with values as in `header`. The value true matches
    /// every client whose certificate the site has verified.
    pub client_certificate: Option<At<Values>>,
    /// Values that are computed as nginx computes its variables of these names: "request_uri",
    /// "args", "arg_NAME", "cookie_NAME" and "http_NAME", with values as in `header`. Nothing is
    /// decoded. The first of several parameters or cookies counts. Several headers are joined with
    /// ", ". A missing value is empty. For configurations that were imported from nginx.
    pub variable: BTreeMap<String, At<Values>>,
    /// Further conditions. The route matches only if the request fails at least one of them.
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

/// A condition on a value: it exists, it does not exist, or it is one of a list.
#[derive(Clone, Debug)]
pub enum Values {
    /// `true` if a value must exist, `false` if it must not exist.
    Any(bool),
    /// The value must be this text, or one of a list of texts. A text that begins with `~` is a
    /// regular expression.
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
