//! A combination of the values in `[matrix]`.

use serde::{Deserialize, Serialize};

/// Combination of values. A value replaces the key of `[load]` with the same name, and `None` keeps
/// that key's value. `placeholders` has the values for the configurations.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Cell {
    /// Values of the combination as text, which becomes part of configuration names.
    pub label: String,
    /// Concurrent connections.
    pub connections: Option<u32>,
    /// Path of the request.
    pub path: Option<String>,
    /// Requests per second at a fixed rate (open loop); 0 for a closed loop.
    pub rate: Option<u32>,
    /// Concurrent HTTP/2 or HTTP/3 requests per connection.
    pub streams: Option<u32>,
    /// Sends requests over HTTP/2.
    pub http2: Option<bool>,
    /// Sends requests over HTTP/3.
    pub http3: Option<bool>,
    /// Sends further requests over an open connection.
    pub keepalive: Option<bool>,
    /// Length of the request body in bytes.
    pub body_bytes: Option<u32>,
    /// Names and values of placeholders in the configurations.
    pub placeholders: Vec<(String, String)>,
}
