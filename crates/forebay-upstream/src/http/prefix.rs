//! Fields that change if a prefix is removed from the path: `X-Forwarded-Prefix`, and the
//! `Destination` of WebDAV's MOVE and COPY (RFC 4918 section 10.3).

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_wire::http1::{Claims, encode};
use forebay_wire::path::{Slashes, canonical, normalize, strip_prefix};

use super::rewrite::{eq_authority, percent_encode, split_scheme};
use crate::fields::{DESTINATION, PREFIX, claimed_value, has_destination};

/// Returns a fault if the request has a `Destination` from which `prefix` cannot be removed.
pub fn check(request: &Request, prefix: &str) -> Result<(), Fault> {
    if !has_destination(request) {
        return Ok(());
    }
    destination(request, prefix, None).map(drop)
}

/// Appends `X-Forwarded-Prefix`: the prefix that a trusted proxy has removed, followed by `prefix`.
/// For MOVE and COPY, also appends the `Destination` without `prefix`. In this field, `host`, if
/// given, replaces the client's host.
pub fn append_fields(out: &mut Vec<u8>, request: &Request, prefix: &str, host: Option<&str>) {
    let prefix = prefix.trim_end_matches('/');
    let is_removed =
        !prefix.is_empty() && strip_prefix(request.target(), prefix.as_bytes()).is_some();
    if is_removed && !request.is_changed(PREFIX) {
        let is_trusted = request.claims() == Claims::XForwarded;
        let outer = claimed_value(request, PREFIX).filter(|_| is_trusted).unwrap_or_default();
        let outer = outer.strip_suffix(b"/").unwrap_or(outer);
        encode::field(
            out,
            "X-Forwarded-Prefix",
            &[outer, &percent_encode(prefix.as_bytes())].concat(),
        );
    }
    if has_destination(request)
        && let Ok(Some(destination)) = destination(request, prefix, host)
    {
        encode::field(out, "Destination", &destination);
    }
}

/// Returns the `Destination` without `prefix`. `host`, if given, replaces the client's host. A
/// `Destination` on another server does not change. Returns `None` if the request has no
/// `Destination`. Fails if the request has several, or if the path is malformed or outside
/// `prefix`.
fn destination(
    request: &Request,
    prefix: &str,
    host: Option<&str>,
) -> Result<Option<Vec<u8>>, Fault> {
    let mut fields = request.head.fields.iter().map(|field| (field.name, field.value));
    let mut fields = fields
        .by_ref()
        .filter(|(name, _)| name.of(&request.bytes).eq_ignore_ascii_case(DESTINATION));
    let Some((_, value)) = fields.next() else { return Ok(None) };
    if fields.next().is_some() {
        return Err(Fault::client(400, "more than one Destination"));
    }
    let value = value.of(&request.bytes);
    let (scheme, rest) = split_scheme(value);
    let (authority, path) = match rest {
        Some(rest) => {
            let end = rest.iter().position(|b| b"/?#\\".contains(b)).unwrap_or(rest.len());
            rest.split_at(end)
        }
        None => (&value[..0], value),
    };
    let own = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
    if !authority.is_empty() && !eq_authority(authority, own, scheme) {
        // The destination is on another server. Let the backend refuse the request with 502.
        return Ok(Some(value.to_vec()));
    }
    let path = without_prefix(path, prefix)?;
    let authority = host.filter(|_| !authority.is_empty()).map_or(authority, str::as_bytes);
    let origin =
        if authority.is_empty() { Vec::new() } else { [scheme, b"//", authority].concat() };
    Ok(Some([origin, path].concat()))
}

fn without_prefix(path: &[u8], prefix: &str) -> Result<Vec<u8>, Fault> {
    let malformed = |_| Fault::client(400, "malformed Destination");
    normalize(path, &mut Vec::new()).map_err(malformed)?;
    let clean = canonical(path, Slashes::Merge).unwrap_or_else(|| path.to_vec());
    match strip_prefix(&clean, prefix.trim_end_matches('/').as_bytes()) {
        Some([]) => Ok(b"/".to_vec()),
        Some(below) if below.starts_with(b"/") => Ok(below.to_vec()),
        _ => Err(Fault::client(403, "the Destination is outside `strip_prefix` of the route")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use forebay_wire::http1::{RequestHead, RequestParser};

    use super::*;

    fn sent(fields: &str, host: Option<&str>) -> Result<Option<String>, u16> {
        let raw = format!("MOVE /dav/a HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        RequestParser::default().parse(&raw, &mut head).unwrap();
        let address: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        let request = Request::new(raw, head, address.into(), address);
        assert!(has_destination(&request));
        let sent = destination(&request, "/dav/", host);
        sent.map(|sent| sent.map(|sent| String::from_utf8(sent).unwrap()))
            .map_err(|fault| fault.status)
    }

    #[test]
    fn a_destination_loses_the_prefix_that_the_path_loses() {
        for (value, expected) in [
            ("http://h/dav/b%20c", "http://h/b%20c"),
            ("HTTP://H:80/dav/b", "HTTP://H:80/b"),
            ("https://h:443/d%61v", "https://h:443/"),
            ("/dav/b", "/b"),
            ("/dav/x/../b", "/b"),
            ("//dav/b", "//dav/b"),
            ("http://other/dav/b", "http://other/dav/b"),
        ] {
            let found = sent(&format!("Destination: {value}\r\n"), None);
            assert_eq!(found, Ok(Some(expected.to_owned())), "{value}");
        }
        let named = sent("destination: http://h/dav/b\r\n", Some("10.0.0.1:80"));
        assert_eq!(named, Ok(Some("http://10.0.0.1:80/b".to_owned())));
        assert_eq!(sent("", None), Ok(None));
    }

    #[test]
    fn a_destination_that_the_backend_would_take_for_another_is_refused() {
        for (value, status) in [
            ("http://h/other/b", 403),
            ("/davs/b", 403),
            ("/dav/../other", 403),
            ("dav/b", 400),
            ("/dav/../../b", 400),
            ("/dav/%zz", 400),
        ] {
            assert_eq!(sent(&format!("Destination: {value}\r\n"), None), Err(status), "{value}");
        }
        assert_eq!(sent("Destination: /dav/b\r\nDestination: /dav/c\r\n", None), Err(400));
    }
}
