//! Heads of requests to backends over HTTP/1.1, and to Forebay's own programs that run applications.
//!
//! `hosts/asgi.py`, which runs ASGI applications, gets a scope line, then an HTTP/1.1 head.
//!
//! The scope line has facts that an HTTP head cannot carry. They are the scheme, the version of
//! HTTP, the address and port of client and server, and the mount point. The program finds the line
//! by its position. If the facts were in a header field, Forebay would have to remove that field
//! from clients' requests.
//!
//! `hosts/rack.rb`, which runs Rack applications, gets the variables of the request instead of HTTP
//! fields. If it got HTTP fields, it would have to compute the variables from them, and would lack
//! some facts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use forebay_net::head::Request;
use forebay_wire::cgi::{self, Block};
use forebay_wire::http1::{Disguises, KnownField, RequestFraming, Version, encode};
use forebay_wire::path;

use super::prefix::{self, BackendView};
use super::rewrite::percent_encode;
use crate::fields::{Changes, append_request_fields};
use crate::mount::{self, parts, request_data, with_params};
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

/// Number of bytes before the variables: the variables' length (4 bytes) and the body's length (8
/// bytes), both big-endian.
const LENGTHS: usize = 12;

/// Settings for the variables of an application's requests.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// The configured mount point.
    pub point: Option<String>,
    /// Variables from the configuration that replace those of requests.
    pub instead: BTreeMap<String, String>,
}

impl Variables {
    /// Appends the lengths and the variables of `request`. Forebay has received the whole body, so
    /// the body's length is known.
    pub fn append_head(&self, out: &mut Vec<u8>, request: &Request) {
        let start = out.len() + LENGTHS;
        out.resize(start, 0);
        let body = content_length(request).unwrap_or(0);
        let mut block = Block(std::mem::take(out));
        self.append(request, &mut block);
        *out = block.0;
        let length = (out.len() - start) as u32;
        out[start - LENGTHS..start - 8].copy_from_slice(&length.to_be_bytes());
        out[start - 8..start].copy_from_slice(&body.to_be_bytes());
    }

    /// Passes the variables of `request` to `sink`. Unlike for CGI, SCRIPT_NAME and PATH_INFO are
    /// percent-encoded, as in Ruby's web servers.
    pub fn append(&self, request: &Request, sink: &mut impl cgi::Sink) {
        let (script_name, path_info) = encoded_parts(request, self.point.as_deref());
        let data = cgi::Request {
            script_name: &script_name,
            path_info: &path_info,
            ..request_data(request, content_length(request))
        };
        if self.instead.is_empty() {
            cgi::variables(&data, sink);
        } else {
            with_params(&self.instead, sink, |sink| cgi::variables(&data, sink));
        }
    }
}

fn content_length(request: &Request) -> Option<u64> {
    match request.head.framing {
        RequestFraming::Length(length) => Some(length),
        RequestFraming::None | RequestFraming::Chunked => None,
    }
}

/// Returns SCRIPT_NAME and PATH_INFO as the client has percent-encoded them. If `fallback_to` has
/// changed the path, percent-encodes the new path.
fn encoded_parts<'a>(request: &'a Request, point: Option<&str>) -> (Cow<'a, [u8]>, Cow<'a, [u8]>) {
    let parts = parts(request, point);
    let target = match parts.path_info {
        // PATH_INFO must contain the client's repeated slashes. Only the original target has these
        // slashes, so use this target.
        Cow::Owned(_) => request.original_target(),
        Cow::Borrowed(_) => request.target(),
    };
    let target = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
    let is_own = matches!(parts.path_info, Cow::Owned(_))
        || target == request.path
        || path::decode(target).is_ok_and(|path| path == request.path);
    match path::strip_prefix(target, parts.script_name).filter(|_| is_own) {
        Some(info) => {
            let (name, info) = target.split_at(target.len() - info.len());
            (Cow::Borrowed(name), Cow::Borrowed(info))
        }
        None => (percent_encode(parts.script_name).into(), percent_encode(&parts.path_info).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use forebay_conf::EncodedSlashes;
    use forebay_wire::http1::{RequestHead, RequestParser};
    use forebay_wire::path::Slashes;

    use super::*;

    #[test]
    fn a_mount_point_stays_one_word_of_the_line() {
        let mut out = Vec::new();
        append_encoded(&mut out, "/caf\u{e9} a%\r\n".as_bytes());
        assert_eq!(out, b"/caf%C3%A9%20a%25%0D%0A");
    }

    fn request(target: &str, rest: usize) -> Request {
        let raw = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n");
        let raw = raw.into_bytes();
        let mut head = RequestHead::default();
        RequestParser::default().parse(&raw, &mut head).unwrap();
        let address: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        let mut request = Request::new(raw, head, address.into(), address);
        request.prepare_path(EncodedSlashes::Pass, Slashes::Merge).unwrap();
        request.rest.start = rest;
        request
    }

    #[test]
    fn the_parts_of_the_path_keep_the_clients_escapes() {
        for (target, rest, name, info) in [
            ("/shop/a%20b%2Fc?d", 6, "/shop", "/a%20b%2Fc"),
            ("/sho%70//a%2520", 6, "/sho%70", "//a%2520"),
            ("/x/../shop/%61", 6, "/shop", "/%61"),
            ("/shop", 5, "/shop", ""),
            ("/", 1, "", "/"),
        ] {
            let request = request(target, rest);
            let parts = encoded_parts(&request, None);
            let parts = [parts.0, parts.1].map(|part| String::from_utf8(part.into()).unwrap());
            assert_eq!(parts, [name, info], "{target}");
        }
        let mut request = request("/shop/none%20here", 6);
        request.reroute(b"/index a".to_vec());
        let (name, info) = encoded_parts(&request, Some("/shop"));
        assert_eq!((&*name, &*info), (&b""[..], &b"/index%20a"[..]));
    }

    #[test]
    fn a_head_has_both_lengths_and_each_variable_once() {
        let instead = BTreeMap::from([("HTTP_HOST".to_owned(), "own".to_owned())]);
        let variables = Variables { point: Some(String::new()), instead };
        let mut out = Vec::new();
        variables.append_head(&mut out, &request("/a?b", 1));
        let (lengths, block) = out.split_at(LENGTHS);
        assert_eq!(lengths[..4], (block.len() as u32).to_be_bytes());
        assert_eq!(lengths[4..], 5u64.to_be_bytes());
        let text = String::from_utf8(block.to_vec()).unwrap();
        for part in ["\0PATH_INFO\0/a\0", "\0HTTP_HOST\0own\0", "\0CONTENT_LENGTH\x005\0"] {
            assert!(text.contains(part), "{text:?}");
        }
        assert_eq!(text.matches("HTTP_HOST").count(), 1);
    }
}
