//! The keys of `replace` and `ssi`, as the user types them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size};

/// Literal texts to replace in the bodies of replies.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["texts"]))]
pub struct Replace {
    /// The texts to find, each with its replacement, such as { "http://old" = "https://{host}" }.
    /// Replacements may have placeholders, whose values Forebay escapes for HTML or JSON. If several
    /// texts are found at one place, the longest counts. At most 64 texts of at most 1024 bytes.
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

/// Evaluates the commands of pages (server-side includes), such as `<!--#include virtual="/x" -->`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ssi {
    /// The media types of replies to evaluate. Default: "text/html".
    pub types: Option<At<OneOrMany<String>>>,
    /// The largest page with all that it includes, at most "64M". Forebay keeps the page in memory. A
    /// larger page gets 500. Default: "4M".
    pub max_size: Option<Size>,
    /// Keeps `Last-Modified` of evaluated pages, and `ETag` as a weak tag. Clients then do not notice
    /// changes of included documents. Default: false.
    pub last_modified: Option<bool>,
}
