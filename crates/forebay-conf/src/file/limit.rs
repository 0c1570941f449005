//! Limits on the number of requests, as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::At;

/// A limit on the number of requests that equal each other in a key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimit {
    /// The number of requests in a time, such as "10/s", "100/m", "1000/h" or "5/10s".
    pub rate: Option<At<String>>,
    /// The number of requests that may come at once, beyond the next one. Default: the number of
    /// `rate` less one.
    pub burst: Option<At<u32>>,
    /// Requests with the same key are counted together; requests with an empty key are not limited.
    /// Placeholders are filled in. {client} counts the addresses of an IPv6 network (/64) together.
    /// Default: "{client}".
    pub key: Option<At<String>>,
    /// Lets the requests of a burst wait, so that they reach the application at the rate. Default:
    /// false.
    pub delay: Option<At<bool>>,
}
