//! Conditions of a route on parts of a request other than its path.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use forebay_conf_derive::{Choice, Table};
use schemars::{Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::{Clients, Geo, Regex};
use crate::error::Problem;
use crate::key::{
    At, Cx, Form, FromText, Given, Many, Method, Node, Resolution, boolean, is_token, no_control,
    not_empty, regex, text, wrong,
};

/// Conditions on a request. The request must meet all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Table)]
#[table(check = some_condition)]
pub struct When {
    /// The method, or a list of methods, such as "GET" (which includes HEAD).
    #[key(name = "method", default, as = Many<Method>, check = matches_some)]
    pub methods: Vec<String>,
    /// Request headers by name: a value, a list of values, true if the header must exist, or false
    /// if it must not exist. A value that begins with "~" is a regular expression; with "~*", the
    /// expression ignores case.
    #[key(name = "header", default, as = Tests, check = names_headers)]
    pub headers: Vec<(String, ValueTest)>,
    /// Cookies by name, with values as in `header`.
    #[key(name = "cookie", default, as = Tests, check = names_cookies)]
    pub cookies: Vec<(String, ValueTest)>,
    /// Parameters of the query by name, with values as in `header`.
    #[key(default, as = Tests)]
    pub query: Vec<(String, ValueTest)>,
    /// Addresses or networks of clients, such as "10.0.0.0/8". "unix" matches the clients of a
    /// unix: socket.
    #[key(name = "client", default, as = Many<Clients>, check = matches_some)]
    pub clients: Vec<Clients>,
    /// Countries of clients, such as "DE", by the databases in `geo` of `[server]`. An address whose
    /// country is unknown is in none of them.
    #[key(name = "country", default, as = Many<Country>, check = matches_some)]
    pub countries: Vec<[u8; 2]>,
    /// Numbers of the autonomous systems of clients, such as 64496, by the databases in `geo` of
    /// `[server]`.
    #[key(name = "asn", default, as = Many<u32>, check = matches_some)]
    pub asns: Vec<u32>,
    /// The databases of `country` and `asn`.
    #[key(none)]
    pub geo: Option<Arc<Geo>>,
    /// "https" for clients that use TLS, "http" for all others.
    #[key(name = "scheme", as = IsHttps)]
    pub https: Option<bool>,
    /// The subject of the client's certificate, with values as in `header`. The value true matches
    /// every client whose certificate the site has verified.
    #[key(name = "client_certificate")]
    pub certificate: Option<ValueTest>,
    /// Values that are computed as nginx computes its variables of these names: "request_uri",
    /// "args", "arg_NAME", "cookie_NAME" and "http_NAME", with values as in `header`. Nothing is
    /// decoded. The first of several parameters or cookies counts. Several headers are joined with
    /// ", ". A missing value is empty. For configurations that were imported from nginx.
    #[key(name = "variable", default, as = Variables)]
    pub variables: Vec<(Variable, ValueTest)>,
    /// Further conditions. The route matches only if the request fails at least one of them.
    pub not: Option<Arc<When>>,
    /// True if the route restricts access. If applications may read a query in different ways
    /// (`forebay_wire::aliases`), the conditions on parameters then hold if one reading meets them.
    /// For other routes, all readings must meet them.
    #[key(none)]
    pub is_rule: bool,
    /// True if the route refuses every request that it takes.
    #[key(none)]
    pub refuses: bool,
}

/// The scheme of a request.
#[derive(Clone, Copy, Debug, Choice)]
enum Scheme {
    /// With TLS.
    Https,
    /// Without TLS.
    Http,
}

impl When {
    /// Returns true if a client at this address is in one of the countries and in one of the
    /// autonomous systems. False for a client without an address.
    pub fn is_in_place(&self, client: Option<IpAddr>) -> bool {
        let Some(geo) = &self.geo else { return true };
        let Some(client) = client else { return false };
        let has_country = |code| self.countries.contains(&code);
        let has_asn = |number| self.asns.contains(&number);
        (self.countries.is_empty() || geo.country(client).is_some_and(has_country))
            && (self.asns.is_empty() || geo.asn(client).is_some_and(has_asn))
    }
}

/// Completes the databases.
fn some_condition(when: &mut When, given: &Given<'_, '_>) -> Resolution<()> {
    if let Some(span) = given.span("country").or_else(|| given.span("asn")) {
        when.geo = given.cx.names.borrow().geo.clone();
        if when.geo.is_none() {
            return Err(Problem::new(&span, "no database knows where clients are")
                .help("name one in [server]: geo = \"GeoLite2-Country.mmdb\""));
        }
    }
    if let (Some(not), Some(span)) = (&when.not, given.span("not"))
        && not.not.is_some()
    {
        return Err(
            Problem::new(&span, "`not` within `not`").help("write the conditions without either")
        );
    }
    if *when == When::default() {
        return Err(Problem::new(&given.span, "there is no condition here")
            .help("name one, such as method = \"GET\", or leave the key out"));
    }
    Ok(())
}

/// Checks the values of a condition.
pub(crate) fn matches_some<T>(list: &[T], span: &Range<usize>) -> Resolution<()> {
    not_empty(
        list,
        span,
        ", so that no request matches",
        "add what it should match, or leave the key out to match all",
    )
}

fn names_headers(tests: &[(String, ValueTest)], span: &Range<usize>) -> Resolution<()> {
    are_tokens("header", tests, span)
}

fn names_cookies(tests: &[(String, ValueTest)], span: &Range<usize>) -> Resolution<()> {
    are_tokens("cookie", tests, span)
}

fn are_tokens(what: &str, tests: &[(String, ValueTest)], span: &Range<usize>) -> Resolution<()> {
    match tests.iter().find(|(name, _)| !is_token(name)) {
        Some((name, _)) => {
            let message = format!("\"{name}\" cannot be the name of a {what}");
            Err(Problem::new(span, message).help("a name is letters, digits and hyphens"))
        }
        None => Ok(()),
    }
}

/// Conditions on values, by name.
struct Tests;

impl Form<Vec<(String, ValueTest)>> for Tests {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, ValueTest>::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Vec<(String, ValueTest)>> {
        Ok(BTreeMap::read(node, cx)?.into_iter().collect())
    }
}

/// Conditions on variables of nginx, by name.
struct Variables;

impl Form<Vec<(Variable, ValueTest)>> for Variables {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        Tests::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Vec<(Variable, ValueTest)>> {
        let variable = |(name, At { value: test, span }): (String, At<ValueTest>)| {
            let variable = Variable::of(&name).ok_or_else(|| {
                Problem::new(&span, format!("there is no variable \"{name}\"")).help(
                    "name request_uri, args, arg_NAME, cookie_NAME or http_NAME, in lower case and without $; \
                     NAME is letters, digits, `_` and `-`",
                )
            })?;
            match test {
                ValueTest::OneOf(_) => Ok((variable, test)),
                _ => Err(Problem::new(&span, "a variable always has a value, which may be empty")
                    .help("compare it with \"\", or with \"~.\" for any other value")),
            }
        };
        BTreeMap::read(node, cx)?.into_iter().map(variable).collect()
    }
}

/// The code of a country (ISO 3166-1).
struct Country;

impl FromText<[u8; 2]> for Country {
    fn from_text(typed: &str, span: &Range<usize>) -> Resolution<[u8; 2]> {
        let code: Option<[u8; 2]> = typed.to_ascii_uppercase().as_bytes().try_into().ok();
        code.filter(|code| code.iter().all(u8::is_ascii_uppercase)).ok_or_else(|| {
            Problem::new(span, format!("\"{typed}\" is not the code of a country"))
                .help("write two letters, such as \"DE\"")
        })
    }
}

/// A scheme, as true for TLS.
struct IsHttps;

impl Form<bool> for IsHttps {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        Scheme::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<bool> {
        Ok(matches!(Scheme::read(node, cx)?, Scheme::Https))
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

impl Form for ValueTest {
    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "boolean" },
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
        ] })
    }

    /// Reads `true` if a value must exist, `false` if none may exist, or the values of which it must
    /// be one.
    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match (node.get_ref(), boolean(node, cx)) {
            (DeValue::String(_) | DeValue::Array(_), Err(_)) => {
                let patterns = Many::<ValuePattern>::read(node, cx)?;
                matches_some(&patterns, &node.span())?;
                Ok(Self::OneOf(patterns))
            }
            (_, Ok(true)) => Ok(Self::Present),
            (_, Ok(false)) => Ok(Self::Absent),
            _ => Err(wrong(node, "a string, a list of strings, true or false")),
        }
    }
}

impl Form for ValuePattern {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        String::schema(generator)
    }

    fn read(node: &Node<'_>, _: &Cx<'_>) -> Resolution<Self> {
        let value = no_control(text(node)?, &node.span())?;
        if value.starts_with('~') {
            return regex(value, &node.span()).map(Self::Regex);
        }
        Ok(Self::Exact(value.to_owned()))
    }
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
