//! A server that gets copies of requests.

use std::time::Duration;

use super::Proxy;

/// A server that gets a copy of each request of a route. Its replies are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The server.
    pub proxy: Proxy,
    /// The number of requests in a million that are copied. Default: all.
    pub per_million: u32,
    /// The largest body of a copied request in bytes. Default: 64 KiB.
    pub max_body: usize,
    /// The largest number of copies at the same time. Default: 64.
    pub max_requests: usize,
    /// The longest time of a copy, including its reply. Default: 10 s.
    pub timeout: Duration,
    /// True if the copy has the client's credentials. Default: false.
    pub credentials: bool,
}
