//! A server that decides about each request.

use super::Proxy;

/// A server that decides about each request of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The server.
    pub proxy: Proxy,
    /// Path and query that it is asked for; begins with a slash.
    pub target: String,
    /// Fields of its answer that the origin gets. Default: none.
    pub copy: Vec<String>,
    /// Field of its answer that names the user. Default: none.
    pub user: Option<String>,
}

/// The combination of the rules about a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Satisfy {
    /// A request must meet all rules.
    #[default]
    All,
    /// A request must meet one rule: a permitted address, a password, or the server's answer.
    Any,
}
