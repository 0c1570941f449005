//! Trailer fields (RFC 9110 section 6.5) and the rules for forwarding them.

use super::KnownField;

/// Fields that must not be trailers. They concern routing, conditions, authentication, caching or
/// the control of a gateway. Either a recipient needs them before the body, or a trailer could
/// bypass a check of the head.
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

/// Prefixes of further names that must not be trailers.
const FORBIDDEN_FAMILIES: &[&[u8]] =
    &[b"access-control-", b"content-", b"if-", b"x-accel-", b"x-forwarded-"];

/// Digests of the content. They may be trailers, because a sender knows them only after the content
/// (RFC 9530 section 6).
const DIGESTS: &[&[u8]] = &[b"content-digest", b"content-md5"];

/// Returns true if a field with this name may be forwarded as a trailer.
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
