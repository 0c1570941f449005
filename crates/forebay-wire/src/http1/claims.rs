//! Request fields that are valid only from a trusted proxy, and field names with marks.

use super::chars::has_mark;
use super::{Field, KnownField, RequestHead, may_be_trailer};

/// Fields about the client and the requested URL that a trusted proxy has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claims {
    /// No trusted proxy has set such fields, so the client may have written all of them.
    #[default]
    Nobodys,
    /// The trusted proxy has set `X-Forwarded-*` and similar fields.
    XForwarded,
    /// The trusted proxy has set `Forwarded`.
    Forwarded,
}

impl Claims {
    /// Returns true if `field` of `head` describes the client or the requested URL, and the client
    /// may have forged the field.
    ///
    /// Some applications use the path in `X-Original-URL` or `X-Rewrite-URL` instead of the
    /// requested path. Few proxies remove these fields from a client's request. Such a field
    /// therefore counts as forged if its path differs from the requested path, even if a trusted
    /// proxy sent the request.
    #[inline]
    pub fn are_forged(self, field: &Field, head: &RequestHead, bytes: &[u8]) -> bool {
        match field.known {
            KnownField::Forwarded => self != Self::Forwarded,
            KnownField::Gateway => false,
            _ => {
                let name = field.name.of(bytes);
                may_be_claim(name) && self.is_forged(name, field, head, bytes)
            }
        }
    }

    fn is_forged(self, name: &[u8], field: &Field, head: &RequestHead, bytes: &[u8]) -> bool {
        match self {
            Self::XForwarded => {
                URLS.iter().any(|url| url.eq_ignore_ascii_case(name))
                    && without_host(field.value.of(bytes)) != without_host(head.target.of(bytes))
            }
            Self::Nobodys | Self::Forwarded => is_claim(name),
        }
    }
}

/// Fields besides `X-Forwarded-*` from which applications learn the client, the scheme or the
/// requested path.
const CLAIMS: [&[u8]; 5] =
    [b"x-real-ip", b"x-scheme", b"x-original-url", b"x-rewrite-url", b"front-end-https"];

/// Names in [`CLAIMS`] of fields that replace the requested URL in some applications.
const URLS: [&[u8]; 2] = [b"x-original-url", b"x-rewrite-url"];

/// Returns the path and query of `url`. For an absolute URL, this is the part after the host.
fn without_host(url: &[u8]) -> &[u8] {
    let Some(at) = memchr::memmem::find(url, b"://").filter(|_| !url.starts_with(b"/")) else {
        return url;
    };
    let rest = &url[at + 3..];
    &rest[memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len())..]
}

/// Returns false for nearly all names that are no claims, by their first letter.
#[inline]
fn may_be_claim(name: &[u8]) -> bool {
    matches!(name.first(), Some(b'x' | b'X' | b'f' | b'F'))
}

pub(super) fn is_claim(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    may_be_claim(name)
        && (name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
            || CLAIMS.iter().any(|claim| claim.eq_ignore_ascii_case(name)))
}

/// Fields of W3C Trace Context. The head of a request names the trace, and a trailer must not name
/// another one.
const TRACE: [&[u8]; 2] = [b"traceparent", b"tracestate"];

/// Returns true if a trailer of a request may be forwarded. The field must meet the conditions of
/// [`may_be_trailer`]. It must not describe the client, the requested URL or the trace. Its name
/// must contain only letters, digits and hyphens, because a backend could mistake any other name
/// for the name of another field.
pub fn may_be_request_trailer(name: &[u8]) -> bool {
    let is_trace = TRACE.iter().any(|trace| trace.eq_ignore_ascii_case(name));
    !has_mark(name) && may_be_trailer(name) && !is_claim(name) && !is_trace
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{RequestHead, RequestParser};

    fn head(fields: &str) -> (Vec<u8>, RequestHead) {
        let raw = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        RequestParser::default().parse(&raw, &mut head).unwrap();
        (raw, head)
    }

    #[test]
    fn trailers_of_a_request_claim_nothing_about_the_client_in_no_disguise() {
        for name in ["X-Sum", "grpc-status", "Content-Digest"] {
            assert!(may_be_request_trailer(name.as_bytes()), "{name}");
        }
        for name in [
            "X-Forwarded-For",
            "x_forwarded_for",
            "X_Api_Key",
            "X-Real-IP",
            "x.real.ip",
            "X-Original-URL",
            "Front_End_Https",
            "Forwarded",
            "Content_Length",
            "transfer_encoding",
            "Authorization",
            "proxy",
            "Host",
            "traceparent",
            "TraceState",
        ] {
            assert!(!may_be_request_trailer(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn claims_are_those_of_whom_a_site_trusts() {
        let (raw, head) =
            head("x-forwarded-PORT: 1\r\nX-Original-URL: /\r\nForwarded: for=_x\r\nX-F: 1\r\n");
        let forged = |claims: Claims| {
            let forged = head.fields[1..].iter().map(|field| claims.are_forged(field, &head, &raw));
            forged.collect::<Vec<_>>()
        };
        assert_eq!(forged(Claims::Nobodys), [true, true, true, false]);
        assert_eq!(forged(Claims::XForwarded), [false, false, true, false]);
        assert_eq!(forged(Claims::Forwarded), [true, true, false, false]);
    }

    #[test]
    fn a_trusted_proxy_may_name_only_the_requested_url() {
        let forged = |target: &str, name: &str, value: &str| {
            let raw = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{name}: {value}\r\n\r\n");
            let mut head = RequestHead::default();
            RequestParser::default().parse(raw.as_bytes(), &mut head).unwrap();
            Claims::XForwarded.are_forged(&head.fields[1], &head, raw.as_bytes())
        };
        for name in ["X-Original-URL", "x-rewrite-url"] {
            for (target, value, expected) in [
                ("/a?b", "/a?b", false),
                ("/a?b", "https://a.example/a?b", false),
                ("http://h/a?b", "/a?b", false),
                ("/a?b", "/a", true),
                ("/a", "/admin", true),
                ("/a", "http://h/admin", true),
                ("/a", "", true),
                ("/a?b=http://h/admin", "/admin", true),
            ] {
                assert_eq!(forged(target, name, value), expected, "{target} {value}");
            }
        }
        assert!(!forged("/a", "X-Forwarded-Prefix", "/b"));
    }
}
