//! Trailer fields (RFC 9110 section 6.5): which of them may be passed on.

use super::KnownField;

/// Fields that a recipient needs before the body, or that a trailer could smuggle past what looked
/// at the head: routing, conditions, authentication, caching and control of a gateway.
const FORBIDDEN: &[&[u8]] = &[
    b"age",
    b"authorization",
    b"cache-control",
    b"cookie",
    b"expires",
    b"max-forwards",
    b"pragma",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"retry-after",
    b"set-cookie",
    b"strict-transport-security",
    b"vary",
    b"warning",
    b"www-authenticate",
    b"x-sendfile",
];

/// Beginnings of further such names.
const FORBIDDEN_FAMILIES: &[&[u8]] =
    &[b"access-control-", b"content-", b"if-", b"x-accel-", b"x-forwarded-"];

/// Digests of the content, which are known only behind it (RFC 9530 section 6).
const DIGESTS: &[&[u8]] = &[b"content-digest", b"content-md5"];

/// Whether a field of this name may be passed on as a trailer.
pub fn may_be_trailer(name: &[u8]) -> bool {
    let is_in = |list: &[&[u8]]| list.iter().any(|other| name.eq_ignore_ascii_case(other));
    let begins = |family: &&[u8]| {
        name.get(..family.len()).is_some_and(|start| start.eq_ignore_ascii_case(family))
    };
    KnownField::of(name) == KnownField::Other
        && !is_in(FORBIDDEN)
        && (is_in(DIGESTS) || !FORBIDDEN_FAMILIES.iter().any(begins))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_neither_frame_nor_route_nor_authenticate() {
        for name in ["Grpc-Status", "Digest", "Server-Timing", "X-Checksum", "Content-Digest"] {
            assert!(may_be_trailer(name.as_bytes()), "{name}");
        }
        for name in [
            "Transfer-Encoding",
            "Content-Type",
            "content-encoding",
            "Host",
            "Set-Cookie",
            "WWW-Authenticate",
            "X-Accel-Redirect",
            "X-Sendfile",
            "If-Foo",
            "Location",
            "Trailer",
            "Connection",
            "Date",
        ] {
            assert!(!may_be_trailer(name.as_bytes()), "{name}");
        }
    }
}
