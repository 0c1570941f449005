//! The keys of a site's or route's `log`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::At;

/// An access log of a site or route.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogFile {
    /// The file of the log: a path, "stdout" or "off". Default: that of `[log]`.
    pub access: Option<At<String>>,
    /// The format of the log, with the values of `format` in `[log]`. Default: that of `[log]`.
    pub format: Option<At<String>>,
}
