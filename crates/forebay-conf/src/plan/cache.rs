//! Stored replies of a route.

use std::path::PathBuf;
use std::time::Duration;

use super::Template;

/// Settings for stored replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The lifetime of replies that state none themselves. `None`: their lifetime depends on the
    /// time since `Last-Modified`.
    pub valid: Option<Duration>,
    /// For this time after its lifetime, a reply is still sent while Forebay fetches a new one.
    /// Default: zero.
    pub stale_while_revalidate: Duration,
    /// For this time after its lifetime, a reply is still sent if the origin fails. Default: zero.
    pub stale_if_error: Duration,
    /// The text that selects a stored reply. Requests with equal texts may get the same reply.
    /// Default: scheme, host, path and query.
    pub key: Template,
    /// The largest reply body that is stored, in bytes.
    pub max_size: usize,
    /// Names of cookies that make a request personal. Default: all.
    pub private_cookies: Vec<CookieName>,
    /// Stores replies that set a cookie. Default: false.
    pub set_cookie: bool,
}

/// Stored replies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDisk {
    /// The directory; an absolute path.
    pub dir: PathBuf,
    /// The maximum size of all files, in bytes.
    pub size: u64,
}

/// Name of a cookie, or the beginning of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CookieName {
    /// Exactly this name.
    Exact(String),
    /// Names that begin with this text.
    Prefix(String),
}
