//! Signed tokens of requests (JWT).

use std::path::PathBuf;
use std::time::Duration;

use super::{Proxy, Secret};

/// The algorithms with a shared secret.
pub(crate) const SECRET_ALGORITHMS: [&str; 3] = ["HS256", "HS384", "HS512"];

/// The algorithms with a public key.
pub(crate) const PUBLIC_ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

/// A signed token (RFC 7519) that each request of a route must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// The keys that verify signatures.
    pub keys: JwtKeys,
    /// Names of the algorithms that tokens may use. If empty (the default), all algorithms of the
    /// key's type. Either all of them use a secret, or all use a public key.
    pub algorithms: Vec<String>,
    /// The issuers whose tokens are valid. If empty (the default), any issuer.
    pub issuer: Vec<String>,
    /// The audiences of valid tokens. If empty (the default), any audience.
    pub audience: Vec<String>,
    /// The largest difference between the issuer's clock and the clock of this machine. Default 60
    /// s.
    pub leeway: Duration,
    /// The part of the request that has the token. Default: the field `Authorization`.
    pub source: TokenSource,
    /// Names of request fields that the origin gets, each with its claim.
    pub copy: Vec<(String, String)>,
    /// The claim that names the user.
    pub user: Option<String>,
    /// Claims that a token must have, each with its permitted values.
    pub require: Vec<(String, Vec<String>)>,
}

/// The keys that verify signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwtKeys {
    /// A PEM file with a public key or a certificate. The path is absolute and was a file when the
    /// configuration was loaded.
    Pem(PathBuf),
    /// A secret that the issuer shares with Forebay.
    Secret(Secret),
    /// A file with public keys (JWK Set). The path is absolute and was a file when the
    /// configuration was loaded.
    Set(PathBuf),
    /// A URL with public keys (JWK Set).
    Url(Box<KeyUrl>),
}

/// A URL with public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUrl {
    /// The server.
    pub proxy: Proxy,
    /// Path and query of the URL. The text begins with a slash.
    pub target: String,
    /// The time after which Forebay reads the keys again. Default 1 h.
    pub refresh: Duration,
}

impl Jwt {
    /// Returns the URL of the keys. Returns `None` if the keys are in a file or in the
    /// configuration.
    pub fn url(&self) -> Option<&KeyUrl> {
        match &self.keys {
            JwtKeys::Url(url) => Some(url),
            _ => None,
        }
    }
}

/// The part of a request that has the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A field. In `Authorization`, the token follows `Bearer`.
    Header(String),
    /// A cookie.
    Cookie(String),
}

impl TokenSource {
    /// Returns true if the token is in the field `Authorization`.
    pub fn is_authorization(&self) -> bool {
        matches!(self, Self::Header(name) if name.eq_ignore_ascii_case("authorization"))
    }
}
