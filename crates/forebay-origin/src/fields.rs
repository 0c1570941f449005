//! What a proxy tells a backend about the client.

use std::io::Write;

use forebay_engine::Request;
use forebay_wire::http1::{Field, Known, encode};

/// Appends the end-to-end fields of `request` and those that name the client. What the client
/// itself says about who it is would be a lie for the asking, so it is replaced.
pub fn append_request_fields(out: &mut Vec<u8>, request: &Request) {
    let bytes = &request.bytes;
    out.extend_from_slice(b"Host: ");
    out.extend_from_slice(request.head.authority.map(|span| span.of(bytes)).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
    encode::forward_request_fields(out, &request.head, bytes, is_replaced);
    let _ = write!(out, "X-Forwarded-For: {}\r\n", request.client.ip().to_canonical());
    encode::field(out, "X-Forwarded-Proto", if request.https { b"https" } else { b"http" });
    if let Some(authority) = request.head.authority {
        encode::field(out, "X-Forwarded-Host", authority.of(bytes));
    }
}

fn is_replaced(field: &Field) -> bool {
    matches!(
        field.known,
        Known::Host
            | Known::ContentLength
            | Known::Expect
            | Known::Forwarded
            | Known::Proxy
            | Known::XForwardedFor
            | Known::XForwardedHost
            | Known::XForwardedProto
            | Known::XRealIp
    )
}
