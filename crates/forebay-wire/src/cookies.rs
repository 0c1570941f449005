//! The `Cookie` field as a server reads it (RFC 6265 sections 4.2 and 5.4, and its successor's
//! nameless cookies).
//!
//! Specification: <https://www.rfc-editor.org/rfc/rfc6265>
//!
//! Nothing is decoded and nothing is refused: what a cookie's value means is between the server
//! that set it and itself, and a browser sends along what other servers of the domain have set.

/// One cookie of a `Cookie` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie<'a> {
    /// The name, which case matters in; empty where there is no equals sign.
    pub name: &'a [u8],
    /// The value as it came, without white space around it.
    pub value: &'a [u8],
}

impl<'a> Cookie<'a> {
    /// The value without the quotes around it, where it has some. They are a part of the value by
    /// the RFC; servers that write them take them off when reading.
    pub fn unquoted(self) -> &'a [u8] {
        match self.value {
            [b'"', inner @ .., b'"'] => inner,
            value => value,
        }
    }
}

/// The cookies of a field's value in their order, repeated names included.
pub fn cookies(value: &[u8]) -> impl Iterator<Item = Cookie<'_>> {
    value.split(|&b| b == b';').map(trim).filter(|pair| !pair.is_empty()).map(|pair| {
        match memchr::memchr(b'=', pair) {
            Some(at) => Cookie { name: trim(&pair[..at]), value: trim(&pair[at + 1..]) },
            None => Cookie { name: b"", value: pair },
        }
    })
}

/// The first cookie of that name, which is the one whose path fits best: browsers send the cookies
/// with longer paths first.
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
            // A semicolon ends a value even in quotes, as browsers never send one inside.
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
