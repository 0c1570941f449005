//! The head of a request for `hosts/asgi.py`, Forebay's program that runs ASGI applications: a
//! scope line, then an HTTP/1.1 head.
//!
//! The scope line has facts that an HTTP head cannot carry. They are the scheme, the version of
//! HTTP, the address and port of client and server, and the mount point. The program finds the line
//! by its position. If the facts were in a header field, Forebay would have to remove that field
//! from clients' requests.

use std::net::IpAddr;

use forebay_net::head::Request;
use forebay_wire::http1::{Disguises, KnownField, Version, encode};

use crate::http::prefix::BackendView;
use crate::http1::head::{append_end, append_request_line};
use crate::mount;

/// Settings of the scope line.
#[derive(Clone, Debug, Default)]
pub struct ScopeLine {
    /// The configured mount point.
    pub point: Option<String>,
}

impl ScopeLine {
    /// Appends the scope line and the HTTP/1.1 head.
    pub fn append_head(&self, out: &mut Vec<u8>, request: &Request, is_upgrade: bool) {
        append_scope_line(out, request, self.point.as_deref());
        append_request_line(out, request, BackendView::default());
        append_fields(out, request);
        append_end(out, request, is_upgrade);
    }
}

fn append_scope_line(out: &mut Vec<u8>, request: &Request, point: Option<&str>) {
    out.extend_from_slice(if request.https { b"https " } else { b"http " });
    out.extend_from_slice(match request.head.version {
        Version::Http10 => b"1.0 ",
        Version::Http11 => b"1.1 ",
        Version::Http2 => b"2 ",
        Version::Http3 => b"3 ",
    });
    append_address(out, request.client.ip(), request.client.port());
    append_address(out, Some(request.server.ip()), request.server.port());
    let (mount, _) = mount::split(&request.path, request.rest.start, point);
    append_encoded(out, mount);
    out.extend_from_slice(b"\r\n");
}

fn append_address(out: &mut Vec<u8>, ip: Option<IpAddr>, port: u16) {
    match ip {
        Some(ip) => encode::address(out, ip),
        None => out.push(b'-'),
    }
    out.push(b' ');
    encode::decimal(out, u64::from(port));
    out.push(b' ');
}

/// Appends `path`. Percent-encodes `%`, and each byte that is not visible ASCII, such as a space or
/// a line end.
fn append_encoded(out: &mut Vec<u8>, path: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        if byte.is_ascii_graphic() && byte != b'%' {
            out.push(byte);
        } else {
            let [high, low] = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
            out.extend_from_slice(&[b'%', high, low]);
        }
    }
}

/// Appends the client's end-to-end fields. Drops forwarding fields, such as `X-Forwarded-For`, that
/// did not come from a trusted proxy.
fn append_fields(out: &mut Vec<u8>, request: &Request) {
    let bytes = &request.bytes;
    let authority = request.head.authority.map(|span| span.of(bytes));
    encode::field(out, "Host", authority.unwrap_or_default());
    let claims = request.claims();
    let disguises = Disguises::of(&request.head, bytes);
    encode::forward_request_fields(out, &request.head, bytes, |field| {
        use KnownField::{ContentLength, Expect, Host, Proxy};
        matches!(field.known, ContentLength | Expect | Host | Proxy)
            || claims.are_forged(field, &request.head, bytes)
            || disguises.as_ref().is_some_and(|disguises| disguises.have(field))
    });
    out.extend_from_slice(request.subject_field.as_deref().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::append_encoded;

    #[test]
    fn a_mount_point_stays_one_word_of_the_line() {
        let mut out = Vec::new();
        append_encoded(&mut out, "/caf\u{e9} a%\r\n".as_bytes());
        assert_eq!(out, b"/caf%C3%A9%20a%25%0D%0A");
    }
}
