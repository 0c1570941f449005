//! Fields that depend on the backend: `X-Forwarded-Prefix`, if a prefix is removed from the path,
//! and the `Destination` of WebDAV's MOVE and COPY (RFC 4918 section 10.3), which must name the
//! resource as the backend sees it.

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_wire::http1::{Claims, encode};
use forebay_wire::path::{Slashes, canonical, normalize, strip_prefix};

use super::rewrite::{eq_authority, percent_encode, split_scheme};
use crate::fields::{DESTINATION, PREFIX, claimed_value, has_destination};

/// How a backend sees the resources that the client names.
#[derive(Clone, Copy, Default)]
pub struct BackendView<'a> {
    /// Prefix that is removed from the path.
    pub strip_prefix: Option<&'a str>,
    /// True if the path is decoded and encoded again.
    pub decodes_path: bool,
    /// Host that replaces the client's host.
    pub host: Option<&'a str>,
    /// True if the backend is reached by TLS.
    pub https: bool,
}

/// Returns a fault if the request has a `Destination` that cannot be rewritten for a backend.
pub fn check(request: &Request, strip_prefix: Option<&str>) -> Result<(), Fault> {
    if !has_destination(request) {
        return Ok(());
    }
    destination(request, BackendView { strip_prefix, ..BackendView::default() }).map(drop)
}

/// Appends `X-Forwarded-Prefix`: the prefix that a trusted proxy has removed, followed by the prefix
/// that is removed here. For MOVE and COPY, also appends the `Destination` as the backend sees it.
pub fn append_fields(out: &mut Vec<u8>, request: &Request, view: BackendView<'_>) {
    let prefix = view.strip_prefix.unwrap_or_default().trim_end_matches('/');
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
        && let Ok(Some(destination)) = destination(request, view)
    {
        encode::field(out, "Destination", &destination);
    }
}

/// Returns the `Destination` as the backend sees it. Its scheme is the scheme of the connection to
/// the backend, because many servers compare the scheme with their own and refuse any other. A
/// `Destination` on another server does not change. Returns `None` if the request has no
/// `Destination`. Fails if the request has several, or if the path is malformed or outside the
/// prefix.
fn destination(request: &Request, view: BackendView<'_>) -> Result<Option<Vec<u8>>, Fault> {
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
    let path = match view.strip_prefix {
        Some(prefix) => without_prefix(path, prefix)?,
        None => path.to_vec(),
    };
    if authority.is_empty() {
        return Ok(Some(path));
    }
    // The backend compares the authority with the `Host` that it gets.
    let authority = view.host.map_or(own, str::as_bytes);
    let scheme: &[u8] = match scheme {
        [] => b"",
        _ if view.https => b"https:",
        _ => b"http:",
    };
    Ok(Some([scheme, b"//", authority, &path].concat()))
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

    fn sent(fields: &str, view: BackendView<'_>) -> Result<Option<String>, u16> {
        let raw = format!("MOVE /dav/a HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        RequestParser::default().parse(&raw, &mut head).unwrap();
        let address: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        let request = Request::new(raw, head, address.into(), address);
        assert!(has_destination(&request));
        let sent = destination(&request, view);
        sent.map(|sent| sent.map(|sent| String::from_utf8(sent).unwrap()))
            .map_err(|fault| fault.status)
    }

    const DAV: BackendView<'_> =
        BackendView { strip_prefix: Some("/dav/"), decodes_path: false, host: None, https: false };

    #[test]
    fn a_destination_names_the_resource_as_the_backend_sees_it() {
        for (value, expected) in [
            ("http://h/dav/b%20c", "http://h/b%20c"),
            ("HTTP://H:80/dav/b", "http://h/b"),
            ("https://h:443/d%61v", "http://h/"),
            ("https://h/dav/b", "http://h/b"),
            ("/dav/b", "/b"),
            ("/dav/x/../b", "/b"),
            ("//dav/b", "//dav/b"),
            ("http://other/dav/b", "http://other/dav/b"),
        ] {
            let found = sent(&format!("Destination: {value}\r\n"), DAV);
            assert_eq!(found, Ok(Some(expected.to_owned())), "{value}");
        }
        for (view, expected) in [
            (BackendView { host: Some("10.0.0.1:80"), ..DAV }, "http://10.0.0.1:80/b"),
            (BackendView { https: true, ..DAV }, "https://h/b"),
            (BackendView { strip_prefix: None, ..DAV }, "http://h/dav/b"),
        ] {
            for scheme in ["http", "https"] {
                let found = sent(&format!("destination: {scheme}://h/dav/b\r\n"), view);
                assert_eq!(found, Ok(Some(expected.to_owned())));
            }
        }
        assert_eq!(sent("", DAV), Ok(None));
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
            assert_eq!(sent(&format!("Destination: {value}\r\n"), DAV), Err(status), "{value}");
        }
        assert_eq!(sent("Destination: /dav/b\r\nDestination: /dav/c\r\n", DAV), Err(400));
    }
}
