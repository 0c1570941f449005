//! Conditions of a route on parts of a request other than its path.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Clients, Geo, Regex};

/// Conditions on a request. The request must meet all of them, and must fail at least one condition
/// of `not`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// The method must be one of these. If empty, any method is accepted. `GET` includes `HEAD`.
    pub methods: Vec<String>,
    /// Conditions on request fields, by name.
    pub headers: Vec<(String, ValueTest)>,
    /// Conditions on cookies, by name.
    pub cookies: Vec<(String, ValueTest)>,
    /// Conditions on parameters of the query, by name.
    pub query: Vec<(String, ValueTest)>,
    /// The client must be one of these. If empty, any client is accepted.
    pub clients: Vec<Clients>,
    /// The client must be in one of these places. `None`: any client is accepted.
    pub places: Option<Places>,
    /// True if the client must use TLS, false if it must not. `None`: both are accepted.
    pub https: Option<bool>,
    /// A condition on the subject of the client's certificate, which the site has verified.
    pub certificate: Option<ValueTest>,
    /// Conditions on values as nginx computes them.
    pub variables: Vec<(Variable, ValueTest)>,
    /// Conditions. The request must fail at least one of them.
    pub not: Option<Box<When>>,
    /// True if the route restricts access. If applications may read a query in different ways
    /// (`forebay_wire::aliases`), the conditions on parameters then hold if one reading meets them.
    /// For other routes, all readings must meet them.
    pub is_rule: bool,
    /// True if the route refuses every request that it takes.
    pub refuses: bool,
}

/// Countries and autonomous systems of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The databases.
    pub geo: Arc<Geo>,
    /// Codes of countries. If empty, any country is accepted.
    pub countries: Vec<[u8; 2]>,
    /// Numbers of autonomous systems. If empty, any number is accepted.
    pub asns: Vec<u32>,
}

impl Places {
    /// Returns true if the address is in one of the countries and in one of the autonomous systems.
    /// False for a client without an address.
    pub fn contain(&self, client: Option<IpAddr>) -> bool {
        let Some(client) = client else { return false };
        let is_in_country = self.countries.is_empty()
            || self.geo.country(client).is_some_and(|code| self.countries.contains(&code));
        is_in_country
            && (self.asns.is_empty()
                || self.geo.asn(client).is_some_and(|number| self.asns.contains(&number)))
    }
}

/// A variable of nginx. Forebay computes the value as nginx does, so a missing value is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `request_uri`: the client's own target, not decoded.
    RequestUri,
    /// `args`: the query, not decoded.
    Args,
    /// `arg_NAME`: the first parameter with this name in any case, not decoded.
    Argument(String),
    /// `http_NAME`: all request fields with this name, joined with a comma and a space.
    Field(String),
    /// `cookie_NAME`: the first cookie with this name in any case.
    Cookie(String),
}

impl Variable {
    /// Returns nginx's variable with this name, such as `request_uri`. `name` has no `$`. Returns
    /// `None` for variables that Forebay does not compute, and for a text of several variables.
    pub fn of(name: &str) -> Option<Self> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !name.bytes().all(is_of_name) {
            return None;
        }
        let named = |start: &str| name.strip_prefix(start).filter(|rest| !rest.is_empty());
        match name {
            "request_uri" => Some(Self::RequestUri),
            "args" | "query_string" => Some(Self::Args),
            _ => named("arg_")
                .map(|name| Self::Argument(name.to_owned()))
                .or_else(|| named("http_").map(|name| Self::Field(name.replace('_', "-"))))
                .or_else(|| named("cookie_").map(|name| Self::Cookie(name.to_owned()))),
        }
    }
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueTest {
    /// A value must exist.
    Present,
    /// No value may exist.
    Absent,
    /// At least one of the values must match one of these patterns.
    OneOf(Vec<ValuePattern>),
}

/// A pattern of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePattern {
    /// Exactly this value.
    Exact(String),
    /// A value that this expression matches.
    Regex(Regex),
}

impl ValueTest {
    /// Returns true if a field, cookie or parameter meets the condition. `values` are all of its
    /// values in the request.
    pub fn holds<V: AsRef<[u8]>>(&self, values: impl IntoIterator<Item = V>) -> bool {
        let mut values = values.into_iter();
        match self {
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
            Self::OneOf(patterns) => values.any(|value| {
                let value = value.as_ref();
                patterns.iter().any(|pattern| match pattern {
                    ValuePattern::Exact(text) => text.as_bytes() == value,
                    ValuePattern::Regex(regex) => regex.is_match(value),
                })
            }),
        }
    }
}
