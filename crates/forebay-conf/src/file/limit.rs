//! The keys of `rate_limit` and other limits, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, Size, Time};

/// A limit on the number of requests with the same key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimit {
    /// The largest number of requests in a period, such as "10/s", "100/m", "1000/h" or "5/10s".
    pub rate: Option<At<String>>,
    /// The number of requests that may arrive earlier than the rate allows. Default: the number in
    /// `rate` minus one.
    pub burst: Option<At<u32>>,
    /// A text with placeholders. Requests with the same text are counted together, and requests
    /// with an empty text are not limited. {client} counts all addresses of an IPv6 network (/64)
    /// as one client. Default: "{client}".
    pub key: Option<At<String>>,
    /// Delays requests that arrive earlier than the rate allows, so that they reach the application
    /// at the rate. Default: false.
    pub delay: Option<At<bool>>,
}

/// A limit on the number of requests with the same key that run at once.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["max"]))]
pub struct ConcurrencyLimit {
    /// The largest number of requests that run at once, from their admission to the last byte of
    /// the reply. A WebSocket counts while it is open.
    pub max: Option<At<u32>>,
    /// A text with placeholders. Requests with the same text are counted together, and requests
    /// with an empty text are not limited. {client} counts all addresses of an IPv6 network (/64)
    /// as one client. Default: "{client}".
    pub key: Option<At<String>>,
}

/// A limit on the speed of replies.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["rate"]))]
pub struct BandwidthLimit {
    /// The largest number of body bytes per second, such as "100k".
    pub rate: Option<Size>,
    /// The number of bytes at the start of each reply that are sent without a limit. Default: "0".
    pub after: Option<Size>,
}

/// Time limits of a route for slow clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RouteTimeouts {
    /// The longest time between two reads of a request body. Default: `body_idle` of
    /// [server.timeouts].
    pub body_idle: Option<Time>,
    /// The longest time that a write waits because the client reads nothing. Default: `write` of
    /// [server.timeouts].
    pub write: Option<Time>,
}
