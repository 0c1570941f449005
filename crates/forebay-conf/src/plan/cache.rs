//! Stored replies of a route.

use std::time::Duration;

use super::Template;

/// Settings for stored replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Lifetime of replies that state none. `None`: the time since the last change decides.
    pub valid: Option<Duration>,
    /// Time that a stale reply is used for while a new one is fetched. Default: none.
    pub stale_while_revalidate: Duration,
    /// Time that a stale reply is used for if the origin fails. Default: none.
    pub stale_if_error: Duration,
    /// Requests with the same key may get the same reply. Default: scheme, host, path and query.
    pub key: Template,
    /// Largest body in bytes.
    pub max_size: usize,
    /// Names of cookies that make a request personal. Default: all.
    pub private_cookies: Vec<CookieName>,
    /// Stores replies that set a cookie. Default: false.
    pub set_cookie: bool,
}

/// Name of a cookie, or the beginning of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CookieName {
    /// This name.
    Exact(String),
    /// Names that begin with this text.
    Prefix(String),
}

impl CookieName {
    /// Returns true if the cookie has the name.
    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == name,
            Self::Prefix(prefix) => name.starts_with(prefix.as_bytes()),
        }
    }
}
