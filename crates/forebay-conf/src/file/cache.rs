//! The keys of `cache`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size, Time};

/// The replies to store, their lifetimes, and the requests that may share them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// The lifetime of replies with the status 200, 301 or 302 that state no lifetime themselves.
    /// Default: a tenth of the time since Last-Modified, at most a day. Replies without
    /// Last-Modified are then not stored.
    pub valid: Option<Time>,
    /// For this time after its lifetime, a reply is still sent while Forebay fetches a new one. The
    /// reply's own stale-while-revalidate has precedence. Default: "0s".
    pub stale_while_revalidate: Option<Time>,
    /// For this time after its lifetime, a reply is still sent if the application fails. The
    /// reply's own stale-if-error has precedence. Default: "0s".
    pub stale_if_error: Option<Time>,
    /// A text with placeholders. Requests share a stored reply if they have the same text, and the
    /// same values of the headers that the reply names in Vary. Default: "{scheme}{host}{uri}".
    pub key: Option<At<String>>,
    /// The largest reply body that is stored. A body larger than a sixteenth of `cache_memory` is
    /// stored only in `cache_dir`. A body larger than an eighth of `cache_disk` is never stored in
    /// `cache_dir`. Default: "1MiB".
    pub max_size: Option<Size>,
    /// The names of cookies that make a request personal; a `*` at the end matches any text. A
    /// personal request gets a stored reply only if the reply itself states its lifetime. Default:
    /// "*".
    pub private_cookies: Option<At<OneOrMany<String>>>,
    /// Also stores replies that set a cookie. All visitors then get that cookie. With false, such a
    /// reply is stored only if its Cache-Control has public or s-maxage. Default: false.
    pub set_cookie: Option<At<bool>>,
}
