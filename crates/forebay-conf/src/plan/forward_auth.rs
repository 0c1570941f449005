//! A server that permits or refuses each request.

use std::sync::Arc;

use super::{Action, RequestField, Template, Upstream};

/// A server that permits or refuses each request of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The server: a proxy, FastCGI, SCGI, uwsgi or AJP.
    pub server: Action,
    /// The path and query that Forebay requests from the server. The text begins with a slash.
    pub target: String,
    /// Names of request fields that the origin gets, each with the name of the answer's field.
    /// Default: none.
    pub copy: Vec<(String, String)>,
    /// The field of the server's answer that names the user. Default: none.
    pub user: Option<String>,
    /// Parameters of the request to a server of FastCGI, SCGI or uwsgi. They replace those of
    /// `server`. Default: none.
    pub params: Vec<(String, Template)>,
    /// Changes to the fields of the request to this server.
    pub request_headers: Vec<RequestField>,
}

impl ForwardAuth {
    /// The addresses of the server.
    pub fn upstream(&self) -> &Arc<Upstream> {
        self.server.upstream().expect("a server has addresses")
    }
}

/// The way to combine the access rules of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Satisfy {
    /// A request must meet all rules.
    #[default]
    All,
    /// A request must meet one rule: a permitted address, a password, a token, or the server's
    /// answer.
    Any,
}
