//! What a route does to its replies and to their fields.

use std::collections::BTreeMap;

use forebay_conf_derive::Table;
use serde_json::json;

use crate::key::{At, OneOrMany, TextOr, Time};

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
    /// Sets the field only if the reply of the application or server has none of this name. For
    /// `set_headers`. Default: false.
    pub if_missing: Option<At<bool>>,
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
