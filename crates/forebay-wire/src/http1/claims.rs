//! Fields that a sender may not use freely: those that must not be trailers, those that are valid only
//! from a trusted proxy, and those whose names CGI programs would mistake for other names.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use super::chars::has_mark;
use super::{Field, KnownField, RequestHead};

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

fn is_claim(name: &[u8]) -> bool {
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

/// Maximum number of different names in a table. It is above the default limit on fields of a head.
/// Each further name is compared with all fields.
const MOST: usize = 128;

/// Number of bytes of a name that are compared with known fields and claims. All of these names are
/// shorter. The beginning of a longer name is enough to recognize `X-Forwarded-`.
const LONGEST: usize = 32;

/// Table of the names of a head. It finds names with marks that are disguises of other names. A
/// mark is a byte other than a letter, a digit or a hyphen.
///
/// CGI and its successors (PSGI, WSGI, Rack) may replace each mark and each hyphen with `_`. These
/// programs would mistake a field with marks in its name for another field. The other field is in
/// the same head, or is one that a gateway writes or must understand.
// A client chooses the number of marked names. Without the table, the comparison of each name with
// all others would take quadratic time.
pub struct Disguises<'h> {
    fields: &'h [Field],
    bytes: &'h [u8],
    names: [Name; MOST],
    count: usize,
    /// False if the head has more names than the table.
    is_whole: bool,
}

/// Spellings of a name that CGI programs cannot distinguish, such as `X_A` and `x-a`.
#[derive(Clone, Copy, Default)]
struct Name {
    hash: u64,
    /// Position of the first field with one of these spellings.
    first: usize,
    /// True if the spellings in the head differ in more than case.
    is_disguised: bool,
}

impl<'h> Disguises<'h> {
    /// Returns the table of a head, or `None` if no name has a mark. The caller should not move the
    /// result, because each move copies 3 KB, even if the result is `None`.
    pub fn of(head: &'h RequestHead, bytes: &'h [u8]) -> Option<Self> {
        if head.has_marks { Some(Self::new(&head.fields, bytes)) } else { None }
    }

    // Few requests need a table, so the compiler must not inline this code into the callers.
    #[cold]
    #[inline(never)]
    fn new(fields: &'h [Field], bytes: &'h [u8]) -> Self {
        let names = [Name::default(); MOST];
        let mut table = Self { fields, bytes, names, count: 0, is_whole: true };
        for (at, field) in fields.iter().enumerate() {
            let name = field.name.of(bytes);
            let hash = hash(name);
            match table.find(name, hash) {
                Some(known) => {
                    let first = fields[table.names[known].first].name.of(bytes);
                    table.names[known].is_disguised |= !first.eq_ignore_ascii_case(name);
                }
                None if table.count < MOST => {
                    table.names[table.count] = Name { hash, first: at, is_disguised: false };
                    table.count += 1;
                }
                None => table.is_whole = false,
            }
        }
        table
    }

    /// Returns true if the name of `field` is a disguise of another name. An example is `X_Real_IP`
    /// instead of `X-Real-IP`. `field` is one of the head's fields.
    pub fn have(&self, field: &Field) -> bool {
        let name = field.name.of(self.bytes);
        if field.known != KnownField::Other || !has_mark(name) {
            return false;
        }
        let mut meant = [0; LONGEST];
        meant.iter_mut().zip(name).for_each(|(to, byte)| *to = fold(*byte));
        let meant = &meant[..name.len().min(LONGEST)];
        if KnownField::of(meant) != KnownField::Other || is_claim(meant) {
            return true;
        }
        match self.find(name, hash(name)) {
            Some(known) => self.names[known].is_disguised,
            None => !self.is_whole && self.fields.iter().any(|other| self.are_alike(other, name)),
        }
    }

    /// Looks up the entry whose spellings CGI programs cannot distinguish from `name`. Returns its
    /// position in the table, or `None` if there is no such entry.
    fn find(&self, name: &[u8], hash: u64) -> Option<usize> {
        self.names[..self.count].iter().position(|known| {
            known.hash == hash && means_same(self.fields[known.first].name.of(self.bytes), name)
        })
    }

    /// Returns true if `name` and the name of `other` differ in more than case, but CGI programs
    /// cannot distinguish them.
    fn are_alike(&self, other: &Field, name: &[u8]) -> bool {
        let other = other.name.of(self.bytes);
        means_same(other, name) && !other.eq_ignore_ascii_case(name)
    }
}

/// Returns true if the names differ at most in case and in marks. CGI programs cannot distinguish
/// such names.
fn means_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().map(|&b| fold(b)).eq(other.iter().map(|&b| fold(b)))
}

/// Returns a hash that is equal for names that differ only in case and in marks. The key of the
/// hash is random, so that no client can choose other names with equal hashes.
fn hash(name: &[u8]) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    let mut hasher = KEY.get_or_init(RandomState::new).build_hasher();
    let mut folded = [0; LONGEST];
    for part in name.chunks(LONGEST) {
        folded.iter_mut().zip(part).for_each(|(to, byte)| *to = fold(*byte));
        hasher.write(&folded[..part.len()]);
    }
    hasher.finish()
}

/// Returns a letter in lower case, a digit unchanged, and a hyphen for any other byte.
fn fold(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{Http1Limits, RequestParser};

    fn head(fields: &str) -> (Vec<u8>, RequestHead) {
        let raw = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        let limits = Http1Limits { fields: 1000, head: 100_000, ..Http1Limits::default() };
        RequestParser::new(limits).parse(&raw, &mut head).unwrap();
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

    fn found(fields: &str) -> Vec<bool> {
        let (raw, head) = head(fields);
        let disguises = Disguises::of(&head, &raw).unwrap();
        head.fields[1..].iter().map(|field| disguises.have(field)).collect()
    }

    #[test]
    fn names_that_fold_onto_others_are_disguised() {
        let found = found(
            "X_Forwarded_For: 1\r\nx.real.ip: 1\r\nX-Forwarded_Ssl: 1\r\nAccept_Encoding: 1\r\n\
             X_Own: 1\r\nX-Own: 1\r\nX-Plain: 1\r\nX_Api_Key: 1\r\nX_Two: 1\r\nx.two: 2\r\n\
             X_Same: 1\r\nx_same: 2\r\n",
        );
        let expected =
            [true, true, true, true, true, false, false, false, true, true, false, false];
        assert_eq!(found, expected);
        let (raw, plain) = head("X-Own: 1\r\n");
        assert!(Disguises::of(&plain, &raw).is_none());
    }

    #[test]
    fn long_names_are_compared_whole() {
        let long = "a".repeat(100);
        let name = |start: &str, end: &str| format!("{start}{long}{end}: 1\r\n");
        let fields = [
            name("X_", "b"),
            name("X-", "b"),
            name("X_", "c"),
            name("X-", "d"),
            name("X_Forwarded_", ""),
        ];
        assert_eq!(found(&fields.concat()), [true, false, false, false, true]);
    }

    #[test]
    fn any_number_of_marked_names_is_judged_as_if_each_were_compared_with_each() {
        // (names that differ, spellings of each)
        for (names, spellings) in
            [(1, 1), (1, 100), (50, 2), (100, 1), (130, 1), (150, 2), (400, 1)]
        {
            let name = |n: usize, spelling: usize| {
                let marks = ["_", ".", "-", "~"];
                format!("X{}Name{}{n}: 1\r\n", marks[spelling % 4], marks[spelling / 4 % 4])
            };
            let all = (0..names).flat_map(|n| (0..spellings).map(move |spelling| (n, spelling)));
            let fields: String = all.map(|(n, spelling)| name(n, spelling)).collect();
            let (raw, head) = head(&fields);
            let disguises = Disguises::of(&head, &raw).unwrap();
            for field in &head.fields {
                let name = field.name.of(&raw);
                let is_marked = field.known == KnownField::Other && has_mark(name);
                let expected =
                    is_marked && head.fields.iter().any(|other| disguises.are_alike(other, name));
                assert_eq!(disguises.have(field), expected, "{names} {spellings} {name:?}");
            }
        }
    }
}
