//! Values that a request has by name: parameters of the query, cookies and fields.
//!
//! If a request has a name twice, or an alias of the name (`forebay_wire::aliases`), applications
//! read different values. A key of stored replies then accepts no such request, and a rate limit
//! counts each value.

use std::borrow::Cow;
use std::cell::RefCell;

use forebay_conf::{CookieName, Placeholder, Template};
use forebay_net::head::{Request, is_alike};
use forebay_wire::aliases::{self, Ambiguous, has_clear_quotes};
use forebay_wire::cookies::{Cookie, cookies};
use forebay_wire::forms;

/// A value of a request that has a name: a parameter, a cookie or a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedValue {
    /// A parameter of the query.
    Parameter(String),
    /// A cookie.
    Cookie(String),
    /// A field.
    Field(String),
}

/// The only value with a name, as the client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only<'r> {
    /// The encoded name.
    pub name: &'r [u8],
    /// The encoded value.
    pub value: &'r [u8],
}

impl NamedValue {
    /// Returns the named value that a placeholder inserts, or `None` for other placeholders.
    pub fn of(value: &Placeholder) -> Option<Self> {
        match value {
            Placeholder::Parameter(name) => Some(Self::Parameter(name.clone())),
            Placeholder::Cookie(name) => Some(Self::Cookie(name.clone())),
            Placeholder::Header(name) => Some(Self::Field(name.clone())),
            _ => None,
        }
    }

    /// Returns the named values that a template depends on, also through tables [map.NAME].
    pub fn all_of(template: &Template) -> Vec<Self> {
        let found = RefCell::new(Vec::new());
        template.depends_on(&|value| {
            let mut found = found.borrow_mut();
            if let Some(named) = Self::of(value).filter(|named| !found.contains(named)) {
                found.push(named);
            }
            false
        });
        found.into_inner()
    }

    /// Returns the only value of this name; `None` if the request has no value of this name.
    /// Returns an error if applications may read different values.
    pub fn only<'r>(&'r self, request: &'r Request) -> Result<Option<Only<'r>>, Ambiguous> {
        match self {
            Self::Parameter(name) => only_parameter(request.query().unwrap_or_default(), name),
            Self::Cookie(name) => only_cookie(request, name),
            Self::Field(name) => only_field(request, name),
        }
    }

    /// Returns up to `most` different values that an application may read for this name. If there
    /// is no value, returns an empty value.
    pub fn values(&self, request: &Request, most: usize) -> Vec<Vec<u8>> {
        let mut values = Vec::new();
        let mut add = |value: Cow<'_, [u8]>| {
            if values.len() < most && !values.iter().any(|known| *known == *value) {
                values.push(value.into_owned());
            }
        };
        match self {
            Self::Parameter(name) => {
                let query = request.query().unwrap_or_default();
                let pairs = aliases::parameters(query, name.as_bytes());
                pairs.for_each(|pair| add(forms::decode(pair.value)));
            }
            Self::Cookie(name) => {
                let is_meant =
                    |cookie: &Cookie<'_>| aliases::may_be(name_of(cookie), name.as_bytes());
                let by_semicolon = cookie_lines(request).flat_map(cookies);
                for cookie in by_semicolon.chain(all_cookies(request)).filter(is_meant) {
                    add(cookie.unquoted().into());
                    // PHP decodes the values of cookies.
                    add(forms::decode(cookie.unquoted()));
                }
            }
            Self::Field(name) => {
                fields(request, name).for_each(|only| add(only.value.into()));
                add(request.joined_field(name));
            }
        }
        if values.is_empty() {
            values.push(Vec::new());
        }
        values
    }
}

/// Returns true if the request has a cookie that `private` lists, so that its reply may be
/// personal.
pub fn is_personal(request: &Request, private: &[CookieName]) -> bool {
    let is_private = |cookie: Cookie<'_>| {
        private.iter().any(|name| match name {
            CookieName::Exact(exact) => aliases::may_be(name_of(&cookie), exact.as_bytes()),
            CookieName::Prefix(prefix) => {
                aliases::may_begin_with(name_of(&cookie), prefix.as_bytes())
            }
        })
    };
    all_cookies(request).any(is_private)
}

fn only_parameter<'q>(query: &'q [u8], name: &'q str) -> Result<Option<Only<'q>>, Ambiguous> {
    let Some(pair) = aliases::only_parameter(query, name.as_bytes())? else {
        // Even a query with too many parameters is unambiguous if it lacks this parameter.
        return Ok(None);
    };
    // Some applications distinguish `?page` from `?page=`, so refuse a parameter without `=`.
    let has_equals = !query.split(|&byte| byte == b'&').any(|part| part == pair.name);
    if aliases::has_too_many(query) || !has_equals {
        return Err(Ambiguous);
    }
    Ok(Some(Only { name: pair.name, value: pair.value }))
}

fn only_cookie<'r>(request: &'r Request, name: &str) -> Result<Option<Only<'r>>, Ambiguous> {
    if cookie_lines(request).nth(1).is_some() || !cookie_lines(request).all(has_clear_quotes) {
        return Err(Ambiguous);
    }
    let is_meant = |cookie: &Cookie<'_>| aliases::may_be(name_of(cookie), name.as_bytes());
    let mut found = all_cookies(request).filter(is_meant);
    let cookie = match (found.next(), found.next()) {
        (None, _) => return Ok(None),
        (Some(cookie), None) if cookie.name == name.as_bytes() => cookie,
        _ => return Err(Ambiguous),
    };
    // `all_cookies` also splits at commas. A server that splits only at semicolons must find the
    // same cookie.
    if !cookie_lines(request).flat_map(cookies).any(|other| other == cookie) {
        return Err(Ambiguous);
    }
    Ok(Some(Only { name: cookie.name, value: cookie.value }))
}

fn only_field<'r>(request: &'r Request, name: &'r str) -> Result<Option<Only<'r>>, Ambiguous> {
    let mut found = fields(request, name);
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some(only), None) if only.name.eq_ignore_ascii_case(name.as_bytes()) => {
            let authority = request.head.authority.map(|span| span.of(&request.bytes));
            let is_host = name.eq_ignore_ascii_case("host");
            // An absolute target replaces the field `Host`.
            if is_host && authority != Some(only.value) { Err(Ambiguous) } else { Ok(Some(only)) }
        }
        _ => Err(Ambiguous),
    }
}

/// Returns the fields whose names a backend may mistake for `name`, such as `X_User` for `X-User`.
fn fields<'r>(request: &'r Request, name: &'r str) -> impl Iterator<Item = Only<'r>> {
    let fields = request.head.fields.iter();
    let fields = fields.map(|field| Only {
        name: field.name.of(&request.bytes),
        value: field.value.of(&request.bytes),
    });
    fields.filter(move |field| is_alike(field.name, name))
}

fn cookie_lines(request: &Request) -> impl Iterator<Item = &[u8]> {
    let fields = request.head.fields.iter();
    fields
        .filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(b"cookie"))
        .map(|field| field.value.of(&request.bytes))
}

/// Returns all cookies of a request. Also splits cookies at commas, as some servers do.
fn all_cookies(request: &Request) -> impl Iterator<Item = Cookie<'_>> {
    cookie_lines(request).flat_map(|line| line.split(|byte| b";,".contains(byte))).flat_map(cookies)
}

/// Returns the name of a cookie. For a text without an equals sign, the whole text is the name, as
/// in PHP.
fn name_of<'c>(cookie: &Cookie<'c>) -> &'c [u8] {
    if cookie.name.is_empty() { cookie.value } else { cookie.name }
}
