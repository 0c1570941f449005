//! The keys of `jwt`, as the user types them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Time};

/// A signed token (JWT, RFC 7519) that each request must have.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    { "required": ["key"] },
    { "required": ["secret"] },
    { "required": ["jwks"] },
]))]
pub struct Jwt {
    /// A PEM file with the public key or the certificate of the issuer: RSA, EC (P-256, P-384) or
    /// Ed25519. Forebay reads it at the start and at a reload.
    pub key: Option<At<String>>,
    /// The secret that the issuer shares with Forebay, for HS256, HS384 and HS512. It has at least
    /// 32 bytes. Write it into a separate file: "{file.jwt-secret}".
    pub secret: Option<At<String>>,
    /// The public keys of the issuer (JWK Set, RFC 7517): a file, which Forebay reads at the start
    /// and at a reload. Or a URL: `https://login.example.org/keys`, or `@NAME/keys` for the group
    /// [upstream.NAME]. Forebay reads a URL at the start and after each `refresh`. A token with an
    /// unknown key (`kid`) also makes Forebay read the URL, at most every 30 seconds. If the server
    /// does not answer, the old keys stay. http:// is for servers of this machine only.
    pub jwks: Option<At<String>>,
    /// The time after which Forebay reads the URL in `jwks` again. Default: "1h".
    pub refresh: Option<Time>,
    /// The algorithms that tokens may use, such as "RS256". Default: all algorithms of the key's
    /// type.
    pub algorithms: Option<At<OneOrMany<String>>>,
    /// The issuers whose tokens are valid (claim `iss`). Default: any issuer.
    pub issuer: Option<At<OneOrMany<String>>>,
    /// The names of this service. The claim `aud` of a token must have one of them. Default: tokens
    /// for any audience are valid.
    pub audience: Option<At<OneOrMany<String>>>,
    /// The largest difference between the clock of the issuer and that of this machine. Default:
    /// "60s".
    pub leeway: Option<Time>,
    /// The request header with the token. In "Authorization", the token follows `Bearer`. Default:
    /// "Authorization", unless `cookie` is given.
    pub header: Option<At<String>>,
    /// The cookie with the token. Default: none.
    pub cookie: Option<At<String>>,
    /// Request headers that the application gets, each with the claim whose value it gets, such as
    /// "X-User" = "sub". The client's own headers with these names are always removed. A dot
    /// separates the names of nested claims: "realm_access.roles".
    pub copy: BTreeMap<String, At<String>>,
    /// The claim that names the user, for REMOTE_USER, {user} and the log. Default: none.
    pub user: Option<At<String>>,
    /// Claims and the values that they must have, such as { role = "admin" }. If the claim is a
    /// list, one of its items must have the value. If you list several values for a claim, one of
    /// them is enough.
    pub require: BTreeMap<String, At<OneOrMany<String>>>,
}
