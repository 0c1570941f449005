//! `cache` as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size, Time};

/// Stored replies: their lifetimes, and the requests that may share them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// The lifetime of replies with the status 200, 301 or 302 that state none. Default: a tenth of
    /// the time since Last-Modified, at most a day; without that field, they are not stored.
    pub valid: Option<Time>,
    /// The time that a stale reply is used for while a new one is fetched. The reply's own
    /// stale-while-revalidate has precedence. Default: "0s".
    pub stale_while_revalidate: Option<Time>,
    /// The time that a stale reply is used for if the application fails. The reply's own
    /// stale-if-error has precedence. Default: "0s".
    pub stale_if_error: Option<Time>,
    /// Requests with the same key may get the same reply. Placeholders are filled in. Header fields
    /// that a reply names in Vary count, too. Default: "{scheme}{host}{uri}".
    pub key: Option<At<String>>,
    /// The largest body that is stored, at most a sixteenth of `cache_memory`. Default:
    /// "1MiB".
    pub max_size: Option<Size>,
    /// The names of cookies that make a request personal; a `*` at the end matches any rest.
    /// Personal requests only share replies that state a lifetime, not those with the lifetime of
    /// `valid`. Default: "*".
    pub private_cookies: Option<At<OneOrMany<String>>>,
    /// Also stores replies that set a cookie, which all visitors then get. Otherwise, such a reply
    /// is only stored if it says public or s-maxage. Default: false.
    pub set_cookie: Option<At<bool>>,
}
