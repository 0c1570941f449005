//! Parser of the `Cookie` field, as servers read it (RFC 6265 sections 4.2 and 5.4). A cookie may
//! have no name, as in the draft that succeeds this RFC.
//!
//! Specification: <https://www.rfc-editor.org/rfc/rfc6265>
//!
//! Nothing is decoded or rejected. Only the server that set a cookie knows its encoding, and a
//! browser also sends cookies of other servers in the same domain.

/// Cookie of a `Cookie` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie<'a> {
    /// Name, which is case-sensitive. It is empty if the cookie has no equals sign.
    pub name: &'a [u8],
    /// Value without surrounding white space.
    pub value: &'a [u8],
}

impl<'a> Cookie<'a> {
    /// Returns the value without surrounding quotes. In the RFC, the quotes are a part of the
    /// value. But a server that writes a quoted value removes the quotes when it reads the cookie.
    pub fn unquoted(self) -> &'a [u8] {
        match self.value {
            [b'"', inner @ .., b'"'] => inner,
            value => value,
        }
    }
}

/// Returns the cookies of a field's value in their order. Repeated names are included. A cookie
/// without an equals sign has an empty name.
pub fn cookies(value: &[u8]) -> impl Iterator<Item = Cookie<'_>> {
    value.split(|&b| b == b';').map(trim).filter(|pair| !pair.is_empty()).map(|pair| {
        match memchr::memchr(b'=', pair) {
            Some(at) => Cookie { name: trim(&pair[..at]), value: trim(&pair[at + 1..]) },
            None => Cookie { name: b"", value: pair },
        }
    })
}

/// Returns the first cookie with this name, or `None`. The first cookie has the most specific path,
/// because browsers send cookies with longer paths first.
pub fn find<'a>(value: &'a [u8], name: &[u8]) -> Option<Cookie<'a>> {
    cookies(value).find(|cookie| cookie.name == name)
}

fn trim(bytes: &[u8]) -> &[u8] {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t');
    let start = bytes.iter().position(|b| !is_space(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !is_space(b)).map_or(start, |at| at + 1);
    &bytes[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_named_in_their_order() {
        for (value, expected) in [
            ("", &[][..]),
            ("a=b", &[("a", "b")]),
            ("a=b; c=d", &[("a", "b"), ("c", "d")]),
            ("a=b;c=d", &[("a", "b"), ("c", "d")]),
            (" a = b ;\tc =d", &[("a", "b"), ("c", "d")]),
            ("a=1; a=2; A=3", &[("a", "1"), ("a", "2"), ("A", "3")]),
            ("a=", &[("a", "")]),
            ("=b", &[("", "b")]),
            ("b", &[("", "b")]),
            ("; ;a=b;;", &[("a", "b")]),
            ("a=b=c==", &[("a", "b=c==")]),
            ("a=\"b c\"; d=e", &[("a", "\"b c\""), ("d", "e")]),
            // A semicolon ends a value even within quotes, because browsers never send a semicolon
            // inside a value.
            ("a=\"b;c\"", &[("a", "\"b"), ("", "c\"")]),
            ("a=b, c=d", &[("a", "b, c=d")]),
            ("a=%20+\\\"", &[("a", "%20+\\\"")]),
            ("$Version=1; a=b; $Path=/", &[("$Version", "1"), ("a", "b"), ("$Path", "/")]),
            ("na\u{ef}ve=caf\u{e9}", &[("na\u{ef}ve", "caf\u{e9}")]),
            ("a\0=b", &[("a\0", "b")]),
        ] {
            let found: Vec<_> = cookies(value.as_bytes())
                .map(|cookie| (str::from_utf8(cookie.name), str::from_utf8(cookie.value)))
                .map(|(name, value)| (name.unwrap(), value.unwrap()))
                .collect();
            assert_eq!(found, expected, "{value:?}");
        }
    }

    #[test]
    fn the_first_of_a_name_is_found() {
        assert_eq!(find(b"a=1; b=2; b=3", b"b").map(|cookie| cookie.value), Some(&b"2"[..]));
        assert_eq!(find(b"ab=1; b", b"b"), None);
    }

    #[test]
    fn quotes_come_off_in_pairs() {
        for (value, expected) in
            [("\"a\"", "a"), ("\"\"", ""), ("\"", "\""), ("\"a", "\"a"), ("a\"", "a\""), ("a", "a")]
        {
            let cookie = Cookie { name: b"n", value: value.as_bytes() };
            assert_eq!(cookie.unquoted(), expected.as_bytes(), "{value}");
        }
    }
}
