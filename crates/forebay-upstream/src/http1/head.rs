//! The head of a request to a backend over HTTP/1.1.

use forebay_net::head::Request;
use forebay_wire::http1::{KnownField, RequestFraming, encode};
use forebay_wire::path;

use crate::fields::{Changes, append_request_fields};
use crate::http::prefix::{self, BackendView};
use crate::upgrade;

/// Appends the head for a backend that sees the request's resource as `view` says.
pub fn append_head(out: &mut Vec<u8>, request: &Request, view: BackendView<'_>, is_upgrade: bool) {
    append_request_line(out, request, view);
    let changes = Changes { host: view.host, skips_prefix: view.strip_prefix.is_some() };
    append_request_fields(out, request, changes);
    prefix::append_fields(out, request, view);
    append_end(out, request, is_upgrade);
}

/// Appends the fields about connection and body, and the end of the head.
pub fn append_end(out: &mut Vec<u8>, request: &Request, is_upgrade: bool) {
    if is_upgrade {
        upgrade::append_fields(out, &request.head.fields, &request.bytes);
    } else if request.takes_trailers() {
        out.extend_from_slice(b"TE: trailers\r\nConnection: TE\r\n");
    }
    match request.head.framing {
        // An empty request must say so if its method gives content a meaning (RFC 9110, 8.6).
        RequestFraming::None
            if request.head.value(KnownField::ContentLength, &request.bytes).is_some()
                || matches!(request.method(), b"POST" | b"PUT" | b"PATCH" | b"QUERY")
                    && !is_upgrade =>
        {
            encode::field_number(out, "Content-Length", 0);
        }
        RequestFraming::None => {}
        RequestFraming::Length(length) => encode::field_number(out, "Content-Length", length),
        RequestFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the request line for the backend.
pub fn append_request_line(out: &mut Vec<u8>, request: &Request, view: BackendView<'_>) {
    out.extend_from_slice(request.method());
    out.push(b' ');
    append_target(out, request, view);
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Appends the request target for the backend.
pub fn append_target(out: &mut Vec<u8>, request: &Request, view: BackendView<'_>) {
    let target = request.target();
    let stripped = view
        .strip_prefix
        .map(|prefix| prefix.trim_end_matches('/').as_bytes())
        .and_then(|prefix| path::strip_prefix(target, prefix))
        .unwrap_or(target);
    if !stripped.starts_with(b"/") && stripped != b"*" {
        out.push(b'/');
    }
    if view.decodes_path {
        let decoded = path::reencode(stripped);
        // After a prefix, the decoded rest may begin with another slash.
        let is_repeated = out.ends_with(b"/") && decoded.starts_with(b"/");
        out.extend_from_slice(&decoded[usize::from(is_repeated)..]);
    } else {
        out.extend_from_slice(stripped);
    }
}
