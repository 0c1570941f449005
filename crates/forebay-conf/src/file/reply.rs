//! What a route does to its replies and to their fields.

use std::collections::BTreeMap;

use forebay_conf_derive::{Choice, Table};
use serde_json::json;

use crate::key::{At, OneOrMany, Size, TextOr, Time};

/// The replies to store, their lifetimes, and the requests that may share them.
#[derive(Debug, Default, Table)]
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

/// The replies to compress, and the codings to use.
#[derive(Debug, Default, Table)]
pub struct Compress {
    /// The content codings. The preferred coding comes first. Default: ["zstd", "br", "gzip"].
    pub algorithms: Option<At<Vec<At<Coding>>>>,
    /// The media types of replies to compress, such as "text/html", "text/*" or "*+json". Default:
    /// texts, JSON, XML, scripts, SVG, WebAssembly, icons and uncompressed fonts.
    pub types: Option<At<OneOrMany<String>>>,
    /// The length of the smallest reply to compress. Applies only to replies whose length is known
    /// in advance. Default: 512.
    pub min_size: Option<Size>,
    /// The compression level of each coding. Higher levels compress more and need more CPU time.
    pub levels: Option<At<Levels>>,
}

/// The compression level of each coding.
#[derive(Debug, Default, Table)]
pub struct Levels {
    /// The level of gzip, from 1 to 9. Default: 5.
    pub gzip: Option<At<u32>>,
    /// The level of Brotli, from 0 to 6. Default: 4.
    pub br: Option<At<u32>>,
    /// The level of Zstandard, from 1 to 9. Default: 3.
    pub zstd: Option<At<u32>>,
}

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum Coding {
    /// Zstandard.
    Zstd,
    /// Brotli.
    Br,
    /// Gzip.
    Gzip,
}

/// Request fields by name.
pub type RequestFields = BTreeMap<String, At<TextOr<RequestField>>>;

/// Reply fields by name.
pub type ReplyFields = BTreeMap<String, At<TextOr<ReplyField>>>;

/// A request field to set or add.
#[derive(Clone, Debug, Default, Table)]
#[table(extend = json!({ "required": ["value"] }))]
pub struct RequestField {
    /// The value, with placeholders. An empty value removes the client's field. With `add`, the
    /// typed value must not be empty. If replacing the placeholders gives an empty value, Forebay
    /// adds nothing.
    pub value: Option<At<String>>,
    /// Adds the field to the client's fields of this name. With false, the field replaces them.
    /// Default: false.
    pub add: Option<bool>,
}

/// A reply field to set or add.
#[derive(Clone, Debug, Default, Table)]
#[table(extend = json!({ "required": ["value"] }))]
pub struct ReplyField {
    /// The value, with placeholders, or a list of values for several fields of this name.
    pub value: Option<At<OneOrMany<String>>>,
    /// Sets the field also in replies with a status of 400 or more. Default: `always` of the
    /// route.
    pub always: Option<bool>,
}

/// Literal texts to replace in the bodies of replies.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["texts"] }))]
pub struct Replace {
    /// The texts to find, each with its replacement, such as { "http://old" = "https://{host}" }.
    /// Replacements may have placeholders, whose values Forebay escapes for HTML or JSON. If several
    /// texts are found at one place, the longest counts. At most 64 texts of at most 1024 bytes.
    #[key(default)]
    pub texts: BTreeMap<String, At<String>>,
    /// The media types of replies to change, such as "text/html" or "*+json". Default: "text/html".
    pub types: Option<At<OneOrMany<String>>>,
    /// Replaces only the first occurrence of each text in a reply. Default: false.
    pub once: Option<bool>,
    /// Finds texts without regard to the case of ASCII letters. Default: false.
    pub ignore_case: Option<bool>,
    /// Keeps `Last-Modified` of changed replies, and `ETag` as a weak tag. Clients then do not
    /// notice a change of `texts`. Not allowed with placeholders. Default: false.
    pub last_modified: Option<At<bool>>,
}

/// Error pages, by status ("404") or class of statuses ("5xx").
pub type ErrorPages = BTreeMap<String, At<TextOr<ErrorPage>>>;

/// A page for errors.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["file"] }))]
pub struct ErrorPage {
    /// The file of the page.
    pub file: Option<At<String>>,
    /// The status that clients get instead of that of the error, such as 403 for 401. Default: the
    /// status of the error.
    pub status: Option<At<u16>>,
}

/// A page that answers all requests while a site or route is closed.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["page"] }))]
pub struct Maintenance {
    /// The file of the page, with placeholders as in `error_pages`.
    pub page: Option<At<String>>,
    /// The time after which clients should try again (Retry-After). Default: "10m".
    pub retry_after: Option<Time>,
    /// Addresses or networks of clients that may still use the site. Default: none.
    pub except: Option<At<OneOrMany<String>>>,
    /// A file. The site is closed only while this file exists, so that `touch` can close the site.
    /// Forebay checks once a second. Default: the site is always closed.
    pub while_exists: Option<At<String>>,
}

/// The origins whose web pages may use a route, although the route has another origin (the CORS
/// protocol).
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["origins"] }))]
pub struct Cors {
    /// The origins, such as `https://app.example.org` or `https://*.example.org`, or `*` for all.
    pub origins: Option<At<OneOrMany<String>>>,
    /// The methods that pages may use. Default: ["GET", "HEAD", "QUERY", "POST", "PUT", "PATCH",
    /// "DELETE"].
    pub methods: Option<At<OneOrMany<String>>>,
    /// The request headers that pages may send. Default: all that a page asks for.
    pub headers: Option<At<OneOrMany<String>>>,
    /// The reply headers that pages may read, besides those that browsers always allow. Default:
    /// none.
    pub expose: Option<At<OneOrMany<String>>>,
    /// Lets pages send cookies and passwords. Default: false.
    pub credentials: Option<bool>,
    /// The time that browsers may keep the answer to a preflight request. Default: "10m".
    pub max_age: Option<Time>,
}
