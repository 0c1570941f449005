//! The keys of `when`: conditions of a route on parts of a request other than its path.

use std::collections::BTreeMap;

use forebay_conf_derive::{Choice, Table};
use schemars::{Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use crate::key::{At, Cx, Form, Node, OneOrMany, Resolution, boolean, wrong};

/// Conditions on a request. The request must meet all of them.
#[derive(Debug, Default, Table)]
pub struct When {
    /// The method, or a list of methods, such as "GET" (which includes HEAD).
    pub method: Option<At<OneOrMany<String>>>,
    /// Request headers by name: a value, a list of values, true if the header must exist, or false
    /// if it must not exist. A value that begins with "~" is a regular expression; with "~*", the
    /// expression ignores case.
    #[key(default)]
    pub header: BTreeMap<String, At<Values>>,
    /// Cookies by name, with values as in `header`.
    #[key(default)]
    pub cookie: BTreeMap<String, At<Values>>,
    /// Parameters of the query by name, with values as in `header`.
    #[key(default)]
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
    #[key(default)]
    pub variable: BTreeMap<String, At<Values>>,
    /// Further conditions. The route matches only if the request fails at least one of them.
    pub not: Option<Box<At<When>>>,
}

/// The scheme of a request.
#[derive(Clone, Copy, Debug, Choice)]
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

impl Form for Values {
    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "boolean" },
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
        ] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match (node.get_ref(), boolean(node, cx)) {
            (DeValue::String(_) | DeValue::Array(_), Err(_)) => {
                OneOrMany::read(node, cx).map(Self::OneOf)
            }
            (_, Ok(any)) => Ok(Self::Any(any)),
            _ => Err(wrong(node, "a string, a list of strings, true or false")),
        }
    }
}
