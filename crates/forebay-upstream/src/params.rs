//! CGI variables of a request, and variables of a route's `params` that replace them.

use std::collections::BTreeMap;

use forebay_net::head::Request;
use forebay_wire::cgi::{self, Sink};

/// Returns the data for the CGI variables of `request`. The caller adds the names and paths of the
/// script.
pub fn request_data(request: &Request, content_length: Option<u64>) -> cgi::Request<'_> {
    cgi::Request {
        head: &request.head,
        bytes: &request.bytes,
        request_uri: request.original_target(),
        script_name: b"",
        script_filename: b"",
        path_info: b"",
        document_root: b"",
        document_uri: &request.path,
        content_length,
        client: request.client,
        server: request.server,
        https: request.https,
        connection: request.connection_variables(),
        claims: request.claims(),
        user: &request.user,
    }
}

/// Passes the variables of `append` to `sink`, except variables whose name occurs in `params`. Then
/// passes the variables of `params`.
pub fn with_params<S: Sink>(
    params: &BTreeMap<String, String>,
    sink: &mut S,
    append: impl FnOnce(&mut Replaced<'_, S>),
) {
    // Pass each name only once. SCGI forbids repeated names. Of two values, some applications would
    // use the first, and others the second.
    append(&mut Replaced { sink, by: params });
    for (name, value) in params {
        sink.variable(name.as_bytes(), value.as_bytes());
    }
}

/// A sink that drops variables whose names are in `by`.
pub struct Replaced<'a, S> {
    sink: &'a mut S,
    by: &'a BTreeMap<String, String>,
}

impl<S: Sink> Sink for Replaced<'_, S> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        let is_replaced = !self.by.is_empty()
            && str::from_utf8(name).is_ok_and(|name| self.by.contains_key(name));
        if !is_replaced {
            self.sink.variable(name, value);
        }
    }
}
