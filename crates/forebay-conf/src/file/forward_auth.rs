//! The keys of `forward_auth`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Time};

/// A server that permits or refuses each request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["to"]))]
pub struct ForwardAuth {
    /// The URL that Forebay requests before it passes a client's request on:
    /// "http://127.0.0.1:4180/oauth2/auth", or "@NAME/verify" for the group [upstream.NAME].
    pub to: Option<At<String>>,
    /// The fields of the server's answer that the application gets as request headers. The client's
    /// own headers with these names are always removed. Default: none.
    pub copy: Option<At<OneOrMany<String>>>,
    /// The field of the server's answer that names the user, for REMOTE_USER, {user} and the log.
    /// Default: none.
    pub user: Option<At<String>>,
    /// The longest time between two reads of the server's answer, including the wait for its head.
    /// Default: "10s".
    pub timeout: Option<Time>,
}

/// The way to combine rules about addresses with other rules about the client.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Satisfy {
    /// A request must meet all rules.
    All,
    /// A request must meet one rule: a permitted address, a password, a token, or the
    /// answer of `forward_auth`.
    Any,
}
