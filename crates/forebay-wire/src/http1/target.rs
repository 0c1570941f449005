//! Request targets (RFC 9112 section 3.2) and the `Host` field.

use std::net::Ipv6Addr;

use crate::Span;

use super::chars::{is_target, position};

/// Form of a request target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`.
    #[default]
    Origin,
    /// `http://authority/path?query`. The authority replaces the `Host` field.
    Absolute {
        /// `host[:port]` of the target.
        authority: Span,
    },
    /// `host:port`, only for CONNECT.
    Authority,
    /// `*`, only for OPTIONS.
    Asterisk,
}

/// Parts of a well-formed target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedTarget {
    pub form: TargetForm,
    /// Path and query. The path of an absolute target may be empty, which means `/`.
    pub path_and_query: Span,
}

/// Classifies the request target at `span`. Returns `None` if the target contains an invalid byte,
/// or has a form that the method does not allow.
pub(super) fn parse(bytes: &[u8], span: Span, method: &[u8]) -> Option<ParsedTarget> {
    let target = span.of(bytes);
    if target.is_empty() || !is_target(target) {
        return None;
    }
    if method == b"CONNECT" {
        let form = TargetForm::Authority;
        // The port of a CONNECT request is mandatory (RFC 9110 section 9.3.6).
        let has_port = target.last().is_some_and(u8::is_ascii_digit) && target.contains(&b':');
        let fits = has_port && is_host(target);
        return fits.then_some(ParsedTarget { form, path_and_query: Span::default() });
    }
    if target[0] == b'/' {
        return Some(ParsedTarget { form: TargetForm::Origin, path_and_query: span });
    }
    if target == b"*" {
        let form = TargetForm::Asterisk;
        return (method == b"OPTIONS").then_some(ParsedTarget { form, path_and_query: span });
    }
    let scheme = if starts_with_ignore_case(target, b"http://") {
        7
    } else if starts_with_ignore_case(target, b"https://") {
        8
    } else {
        return None;
    };
    let rest = &target[scheme..];
    let length = rest.iter().position(|&b| b == b'/' || b == b'?').unwrap_or(rest.len());
    if length == 0 || !is_host(&rest[..length]) {
        return None;
    }
    let start = span.start as usize + scheme;
    Some(ParsedTarget {
        form: TargetForm::Absolute { authority: Span::new(start, start + length) },
        path_and_query: Span::new(start + length, span.end as usize),
    })
}

fn starts_with_ignore_case(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// Returns true if `host` is a valid `Host` value: a registered name, an IPv4 address or a
/// bracketed IPv6 address, with an optional port (RFC 9110 section 7.2).
///
/// User information, an empty name and empty labels, such as in `..`, are rejected. RFC 3986 allows
/// empty labels, but no site can have such a name, and applications use hosts as file names.
pub(crate) fn is_host(host: &[u8]) -> bool {
    let (name, port) = match host.first() {
        Some(b'[') => match host.iter().position(|&b| b == b']') {
            Some(end) => (&host[..=end], &host[end + 1..]),
            None => return false,
        },
        _ => host.split_at(position(b':', host).unwrap_or(host.len())),
    };
    let name_fits = match name {
        [b'[', inner @ .., b']'] => is_ipv6(inner),
        _ => is_registered_name(name),
    };
    let port_fits = match port {
        [] => true,
        [b':', digits @ ..] => is_port(digits),
        _ => false,
    };
    name_fits && port_fits
}

/// Returns the host of `host[:port]`, without the final dot of a fully qualified name.
pub fn host_of(authority: &[u8]) -> &[u8] {
    let without_port = match memchr::memrchr(b':', authority) {
        Some(at) if authority[at + 1..].iter().all(u8::is_ascii_digit) => &authority[..at],
        _ => authority,
    };
    without_port.strip_suffix(b".").unwrap_or(without_port)
}

fn is_ipv6(address: &[u8]) -> bool {
    str::from_utf8(address).is_ok_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// Returns true if `digits` is a 16-bit number or empty.
fn is_port(digits: &[u8]) -> bool {
    let number = |digits: &[u8]| digits.iter().fold(0, |sum, b| sum * 10 + u32::from(b - b'0'));
    digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit) && number(digits) <= 65_535
}

/// Returns true if `name` consists of valid labels with dots between them. One dot may follow the
/// last label.
fn is_registered_name(name: &[u8]) -> bool {
    // The loop has no branch per byte. It collects the properties of all bytes as bits.
    let (mut seen, mut repeated, mut previous) = (0, 0, DOT);
    for &byte in name {
        let kind = HOST[byte as usize];
        seen |= kind;
        repeated |= kind & previous;
        previous = kind;
    }
    let is_escape =
        |at| name.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    !name.is_empty()
        && seen & BAD == 0
        && repeated & DOT == 0
        && (seen & ESCAPE == 0
            || name.iter().enumerate().all(|(at, &byte)| byte != b'%' || is_escape(at)))
}

/// Property of each byte in a registered name. The value is 0 for `unreserved` (including `_`) and
/// `sub-delims` of RFC 3986, except for the dot.
const HOST: [u8; 256] = {
    let mut table = [BAD; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'.' => DOT,
            b'%' => ESCAPE,
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'~' => 0,
            b'!' | b'$' | b'&'..=b',' | b';' | b'=' => 0,
            _ => BAD,
        };
        byte += 1;
    }
    table
};
const DOT: u8 = 1;
const ESCAPE: u8 = 2;
const BAD: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for good in
            ["a.", "a", "a:", "a.example:80", "127.0.0.1", "[::1]", "[::1]:8080", "a_b", "%c3%B1"]
        {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "", ".", "..", "../..", ".a", "a..b", "a..", "a/b", "a b", "u@h", "[::1", "[]", "a:b",
            "a:1:2", ":80", "[::1]x", "a?b",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
        for bad in
            ["a:65536", "a:99999", "[:::]", "[1.2.3.4]", "[fe80::1%eth0]", "a%", "a%2", "%zz"]
        {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn hosts_of_authorities() {
        for (authority, host) in [
            ("a", "a"),
            ("a:80", "a"),
            ("a.:80", "a"),
            ("a.b.", "a.b"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
            ("a:", "a"),
            ("", ""),
        ] {
            assert_eq!(host_of(authority.as_bytes()), host.as_bytes(), "{authority}");
        }
    }

    #[test]
    fn forms() {
        let form = |method: &str, target: &str| {
            parse(target.as_bytes(), Span::new(0, target.len()), method.as_bytes())
        };
        assert_eq!(form("GET", "/a?b").unwrap().form, TargetForm::Origin);
        let absolute = form("GET", "http://h:1/p?q").unwrap();
        assert_eq!(absolute.form, TargetForm::Absolute { authority: Span::new(7, 10) });
        assert_eq!(absolute.path_and_query, Span::new(10, 14));
        let without_path = form("GET", "http://h:1?q").unwrap();
        assert_eq!(without_path.form, TargetForm::Absolute { authority: Span::new(7, 10) });
        assert_eq!(without_path.path_and_query, Span::new(10, 12));
        assert_eq!(form("OPTIONS", "*").unwrap().form, TargetForm::Asterisk);
        assert_eq!(form("CONNECT", "h:1").unwrap().form, TargetForm::Authority);
        for (method, target) in
            [("GET", "*"), ("GET", "a"), ("GET", "h:1"), ("GET", "/a#b"), ("GET", "ftp://h/")]
                .into_iter()
                .chain([
                    ("CONNECT", "h"),
                    ("CONNECT", "h:"),
                    ("CONNECT", "[::1]"),
                    ("CONNECT", ":1"),
                ])
        {
            assert_eq!(form(method, target), None, "{method} {target}");
        }
    }
}
