//! `jwt`: a signed token permits the request (RFC 7519, RFC 8725).
//!
//! Forebay verifies the token of every request, and keeps no result. An expired token therefore
//! never permits a request.

use std::rc::Rc;
use std::sync::Arc;

use forebay_conf::{
    self as conf, RequestChange, RequestField, Template, TemplatePart, TokenSource,
};
use forebay_net::head::Request;
use forebay_net::request_fields::RequestFields;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{decode, decode_header};
use serde_json::{Map, Value};

use super::key_source::KeySource;
use super::token_keys::TokenKeys;

/// Maximum length of a token in bytes.
const LONGEST_TOKEN: usize = 16 * 1024;

type Claims = Map<String, Value>;

/// The reason for the refusal of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The token is missing, invalid or expired. The text describes the error.
    Invalid(&'static str),
    /// The token is valid, but lacks a required claim.
    Insufficient,
    /// No keys were read from the URL yet.
    NoKeys,
}

impl Refused {
    /// Returns the status of the reply (RFC 6750 section 3.1).
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid(_) => 401,
            Self::Insufficient => 403,
            Self::NoKeys => 503,
        }
    }

    /// Returns the value of `WWW-Authenticate`.
    pub fn challenge(self) -> String {
        match self {
            Self::Invalid(why) => {
                format!("Bearer error=\"invalid_token\", error_description=\"{why}\"")
            }
            Self::NoKeys => "Bearer".to_owned(),
            Self::Insufficient => "Bearer error=\"insufficient_scope\"".to_owned(),
        }
    }
}

/// Check of the tokens of a route's requests.
pub struct TokenCheck {
    settings: conf::Jwt,
    keys: Arc<TokenKeys>,
    /// The URL of the keys, if they have one.
    source: Option<Rc<KeySource>>,
}

impl TokenCheck {
    /// Creates a check with these settings and keys.
    pub fn new(settings: conf::Jwt, keys: Arc<TokenKeys>, source: Option<Rc<KeySource>>) -> Self {
        Self { settings, keys, source }
    }

    /// Verifies the token of the request. If the token is valid and has the required claims, sets
    /// the user and the request fields.
    pub fn check(&self, request: &mut Request) -> Result<(), Refused> {
        let claims = self.verify(only_token(request, &self.settings.source)?)?;
        let meets = |(claim, values): &(String, Vec<String>)| {
            find(&claims, claim).is_some_and(|found| has_one(claim, found, values))
        };
        if !self.settings.require.iter().all(meets) {
            return Err(Refused::Insufficient);
        }
        let fields = self.settings.copy.iter().map(|(name, claim)| {
            let text = find(&claims, claim).map_or(Ok(String::new()), text)?;
            let value = Template::of(vec![TemplatePart::Text(text)]);
            Ok(RequestField { name: name.clone(), change: RequestChange::Set(value) })
        });
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        if let Some(claim) = &self.settings.user {
            let user = find(&claims, claim).map_or(Ok(String::new()), text)?;
            if user.is_empty() {
                return Err(Refused::Invalid("the token names no user"));
            }
            request.user = user.into_bytes();
        }
        if let Some(fields) = RequestFields::new(&fields) {
            fields.change(request);
        }
        Ok(())
    }

    fn verify(&self, token: &[u8]) -> Result<Claims, Refused> {
        if token.len() > LONGEST_TOKEN {
            return Err(Refused::Invalid("the token is too long"));
        }
        let header = decode_header(token).map_err(|_| Refused::Invalid("this is not a token"))?;
        // Forebay knows no extension, so it must refuse each one (RFC 7515 section 4.1.11).
        if header.crit.is_some() {
            return Err(Refused::Invalid("the token needs an unknown extension"));
        }
        let keys = self.keys.now();
        let Some(key) = keys.select(&header) else {
            self.source.iter().for_each(KeySource::find_unknown);
            let is_waiting = self.source.is_some() && keys.is_empty();
            return Err(if is_waiting {
                Refused::NoKeys
            } else {
                Refused::Invalid("the key is unknown")
            });
        };
        match decode::<Claims>(token, &key.key, &key.validation) {
            Ok(token) => Ok(token.claims),
            Err(error) => Err(Refused::Invalid(match error.kind() {
                ErrorKind::ExpiredSignature => "the token has expired",
                ErrorKind::ImmatureSignature => "the token is not valid yet",
                ErrorKind::InvalidIssuer => "the issuer is another one",
                ErrorKind::InvalidAudience => "the token is for another audience",
                ErrorKind::InvalidAlgorithm => "the algorithm is not allowed",
                ErrorKind::MissingRequiredClaim(_) => "a claim is missing",
                _ => "the signature or a claim is invalid",
            })),
        }
    }
}

/// Returns the token of the request. Refuses a request without a token. Also refuses a request with
/// several tokens, because the origin may read another one of them.
fn only_token<'r>(request: &'r Request, source: &TokenSource) -> Result<&'r [u8], Refused> {
    let name = match source {
        TokenSource::Header(name) => name.as_str(),
        TokenSource::Cookie(_) => "cookie",
    };
    let fields = request.head.fields.iter();
    let values = fields
        .filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(name.as_bytes()))
        .map(|field| field.value.of(&request.bytes));
    let mut tokens: Vec<&[u8]> = match source {
        TokenSource::Header(_) => values.collect(),
        TokenSource::Cookie(wanted) => values
            .flat_map(|value| value.split(|&b| b == b';'))
            .filter_map(|pair| {
                let pair = pair.trim_ascii();
                let (name, value) = pair.split_at(memchr::memchr(b'=', pair)?);
                (name == wanted.as_bytes()).then_some(&value[1..])
            })
            .collect(),
    };
    let token = match (tokens.pop(), tokens.is_empty()) {
        (Some(token), true) => token,
        (Some(_), false) => return Err(Refused::Invalid("there are several tokens")),
        (None, _) => return Err(Refused::Invalid("a token is needed")),
    };
    let bearer = token.get(..7).filter(|start| start.eq_ignore_ascii_case(b"bearer "));
    match bearer {
        Some(_) => Ok(token[7..].trim_ascii()),
        None if source.is_authorization() => Err(Refused::Invalid("a token is needed")),
        None => Ok(token),
    }
}

/// Returns the claim `name`, or `None` if the token lacks it. The name `a.b` means the member `b`
/// of the object `a`, unless the token has a claim `a.b`.
fn find<'c>(claims: &'c Claims, name: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let inner = claims.get(&name[..dot])?.as_object()?;
        find(inner, &name[dot + 1..])
    })
}

/// Returns true if the claim has one of `values`. A list has a value if one of its items does. The
/// claim `scope` is a text of words (RFC 8693 section 4.2), and each word is compared.
fn has_one(claim: &str, found: &Value, values: &[String]) -> bool {
    match found {
        Value::Array(items) => {
            items.iter().any(|item| !item.is_array() && has_one("", item, values))
        }
        Value::String(text) if claim == "scope" => {
            text.split(' ').any(|word| values.iter().any(|value| value == word))
        }
        Value::String(text) => values.contains(text),
        Value::Bool(_) | Value::Number(_) => values.contains(&found.to_string()),
        Value::Null | Value::Object(_) => false,
    }
}

/// Returns the value of a request field for a claim. The items of a list are separated by commas.
/// Refuses an object, a list within a list, a list item with a comma, and a text with control
/// characters.
fn text(claim: &Value) -> Result<String, Refused> {
    const REFUSED: Refused = Refused::Invalid("a claim cannot be passed on");
    let text = match claim {
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) => claim.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items = items.iter().map(|item| match item {
                Value::Array(_) => Err(REFUSED),
                // An item with a comma would become two items.
                item => text(item)
                    .and_then(|text| if text.contains(',') { Err(REFUSED) } else { Ok(text) }),
            });
            items.collect::<Result<Vec<_>, _>>()?.join(",")
        }
        Value::Object(_) => return Err(REFUSED),
    };
    // A control character would end the field, or hide a part of it.
    if text.chars().any(char::is_control) { Err(REFUSED) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
