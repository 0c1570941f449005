//! The keys of `forward_auth`, as the user types them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::ajp::Ajp;
use super::app_servers::{Fastcgi, Scgi, Uwsgi};
use super::fields::RequestFields;
use super::proxy::HostField;
use super::shape::{At, OneOrMany, Table, TextOr, Time};

/// A server that permits or refuses each request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    { "required": ["to"] },
    { "required": ["fastcgi"] },
    { "required": ["scgi"] },
    { "required": ["uwsgi"] },
    { "required": ["ajp"] },
]))]
pub struct ForwardAuth {
    /// The URL that Forebay requests before it passes a client's request on:
    /// "http://127.0.0.1:4180/oauth2/auth", or "@NAME/verify" for the group [upstream.NAME].
    pub to: Option<At<String>>,
    /// Instead of `to`: a FastCGI server, with the keys of `fastcgi` of a route.
    pub fastcgi: Option<At<Table<Fastcgi>>>,
    /// Instead of `to`: an SCGI server, with the keys of `scgi` of a route.
    pub scgi: Option<At<Table<Scgi>>>,
    /// Instead of `to`: a uwsgi server, with the keys of `uwsgi` of a route.
    pub uwsgi: Option<At<Table<Uwsgi>>>,
    /// Instead of `to`: a servlet container, with the keys of `ajp` of a route.
    pub ajp: Option<At<TextOr<Ajp>>>,
    /// The path and query that a server of `fastcgi`, `scgi`, `uwsgi` or `ajp` gets: "/" without
    /// this key.
    pub path: Option<At<String>>,
    /// Parameters that a server of `fastcgi`, `scgi` or `uwsgi` gets, with values as in
    /// `request_headers`: { X_ORIGINAL_URI = "{uri}" }. They replace parameters of the same name.
    /// Default: none.
    pub params: BTreeMap<String, At<String>>,
    /// The fields of the server's answer that the application gets as request headers: a list of
    /// names. A table renames them: { "Remote-User" = "X-User" } sets `Remote-User` to the answer's
    /// `X-User`. A header `Remote-User` of the client itself is always removed. Default: none.
    pub copy: Option<At<Copied>>,
    /// The field of the server's answer that names the user, for REMOTE_USER, {user} and the log.
    /// Default: none.
    pub user: Option<At<String>>,
    /// The longest time between two reads of the server's answer, including the wait for its head.
    /// Default: "10s".
    pub timeout: Option<Time>,
    /// Request headers that the server gets, with values as in `request_headers` of a
    /// route. They replace the client's own headers with these names. Default: none.
    pub request_headers: RequestFields,
    /// The Host field that the server of `to` gets: "client" for the client's own, "backend" for
    /// the host and port of the URL. Default: "backend". Other servers get the client's own.
    pub host: Option<HostField>,
}

/// The value of `copy`: the fields of the answer that become request fields.
#[derive(Clone, Debug)]
pub enum Copied {
    /// Each request field has the name of the answer's field.
    Named(OneOrMany<String>),
    /// The keys are names of request fields. The values are names of the answer's fields.
    Renamed(BTreeMap<String, At<String>>),
}

impl<'de> Deserialize<'de> for Copied {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CopiedVisitor;
        impl<'de> Visitor<'de> for CopiedVisitor {
            type Value = Copied;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings or a table of strings")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Copied, E> {
                Ok(Copied::Named(OneOrMany::One(name.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Copied, A::Error> {
                let list = Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                Ok(Copied::Named(OneOrMany::Many(list)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Copied, A::Error> {
                BTreeMap::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(Copied::Renamed)
            }
        }
        deserializer.deserialize_any(CopiedVisitor)
    }
}

impl JsonSchema for Copied {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Copied".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
            { "type": "object", "additionalProperties": { "type": "string" } },
        ] })
    }
}

/// The way to combine rules about addresses with other rules about the client.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Satisfy {
    /// A request must meet all rules.
    All,
    /// A request must meet one rule: a permitted address, a password, a token, or the
    /// answer of `forward_auth`.
    Any,
}
