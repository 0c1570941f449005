//! A server that permits or refuses each request.

use std::sync::Arc;

use super::{Action, RequestField, Template, Upstream};

/// The field in which the host of mod_perl names the user of a permitted request.
const GATE_USER: &str = "Forebay-User";

/// A server, or an application with handlers of mod_perl, that permits or refuses each request of a
/// route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The server: a proxy, FastCGI, SCGI, uwsgi or AJP; or the application of `perl_gate`.
    pub server: Action,
    /// The path and query that Forebay requests from the server. The text begins with a slash. Empty
    /// for an application, which gets those of the client.
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
    /// Returns what lets an application of kind `mod-perl` decide.
    pub fn of_app(name: String) -> Self {
        Self {
            server: Action::App(name),
            target: String::new(),
            copy: Vec::new(),
            user: Some(GATE_USER.to_owned()),
            params: Vec::new(),
            request_headers: Vec::new(),
        }
    }

    /// The name of the application that decides, unless it is a server.
    pub fn app(&self) -> Option<&str> {
        match &self.server {
            Action::App(name) => Some(name),
            _ => None,
        }
    }

    /// The addresses of the server; an application has none.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.server.upstream()
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
