//! The keys of `error_pages`, `maintenance` and `cors`, as the user types them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, TextOr, Time};

/// Error pages, by status ("404") or class of statuses ("5xx").
pub type ErrorPages = BTreeMap<String, At<TextOr<ErrorPage>>>;

/// A page for errors.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["file"]))]
pub struct ErrorPage {
    /// The file of the page.
    pub file: Option<At<String>>,
    /// The status that clients get instead of that of the error, such as 403 for 401. Default: the
    /// status of the error.
    pub status: Option<At<u16>>,
}

/// A page that answers all requests while a site or route is closed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["page"]))]
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
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["origins"]))]
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
