//! Boundary in a `Content-Type` field.

use crate::http1::is_token;

/// Separator of the parts of a form: 1 to 70 bytes (RFC 2046 section 5.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary(Vec<u8>);

impl Boundary {
    /// Returns the boundary of a `Content-Type` value. Returns `None` for a type other than
    /// `multipart/form-data`, and for a missing, invalid or repeated boundary.
    pub fn of(content_type: &[u8]) -> Option<Self> {
        let end = content_type.iter().position(|&b| b == b';').unwrap_or(content_type.len());
        let (kind, mut rest) = content_type.split_at(end);
        if !kind.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
            return None;
        }
        let mut boundary = None;
        while let Some((name, value, after)) = parameter(rest)? {
            if name.eq_ignore_ascii_case(b"boundary") && boundary.replace(value).is_some() {
                return None;
            }
            rest = after;
        }
        Self::new(&boundary?)
    }

    /// Creates a boundary. Returns `None` if `bytes` is not a valid boundary.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let fits = (1..=70).contains(&bytes.len())
            && bytes.iter().all(|&b| is_boundary_byte(b))
            && bytes.last() != Some(&b' ');
        fits.then(|| Self(bytes.to_vec()))
    }

    /// Returns the bytes of the boundary.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns true if a boundary may contain `byte`. RFC 2046 allows letters, digits and some marks.
/// Clients also use other marks that a token may contain.
fn is_boundary_byte(byte: u8) -> bool {
    matches!(byte, b' ' | b'(' | b')' | b',' | b'/' | b':' | b'=' | b'?') || is_token(&[byte])
}

/// Name of a parameter, its value without quotes, and the text after the parameter.
type Parameter<'a> = (&'a [u8], Vec<u8>, &'a [u8]);

/// Parses `; name=value` at the start of `text`. Returns `Some(None)` if `text` contains no further
/// parameter, and `None` if `text` is malformed.
fn parameter(text: &[u8]) -> Option<Option<Parameter<'_>>> {
    let text = text.trim_ascii();
    if text.is_empty() || text == b";" {
        return Some(None);
    }
    let text = text.strip_prefix(b";")?.trim_ascii_start();
    let equals = text.iter().position(|&b| b == b'=')?;
    let (name, rest) = (&text[..equals], &text[equals + 1..]);
    if !is_token(name) {
        return None;
    }
    let Some(quoted) = rest.strip_prefix(b"\"") else {
        let end = rest.iter().position(|&b| b == b';').unwrap_or(rest.len());
        let value = rest[..end].trim_ascii_end();
        return is_token_or_boundary(value).then(|| Some((name, value.to_vec(), &rest[end..])));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some(Some((name, value, &quoted[at + 1..]))),
            b'\\' => value.push(*bytes.next()?.1),
            byte => value.push(byte),
        }
    }
    None
}

/// Returns true if `value` is accepted without quotes. The standard requires quotes for marks such
/// as `/` and `=`, but clients write boundaries with such marks without quotes.
fn is_token_or_boundary(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|&b| b != b' ' && is_boundary_byte(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries() {
        for (content_type, expected) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("Multipart/Form-Data;BOUNDARY=abc", Some("abc")),
            ("multipart/form-data; charset=utf-8; boundary=abc ;x=y", Some("abc")),
            ("multipart/form-data; boundary=\"a b\"", Some("a b")),
            ("multipart/form-data; boundary=\"a;b\\\"c\"", None),
            ("multipart/form-data; boundary=\"a\\:b\"; x=\"boundary=z\"", Some("a:b")),
            ("multipart/form-data; boundary=a/b=c?d", Some("a/b=c?d")),
            (
                "multipart/form-data; boundary=----WebKitFormBoundaryA1",
                Some("----WebKitFormBoundaryA1"),
            ),
            ("multipart/form-data; boundary=a;", Some("a")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"\"", None),
            ("multipart/form-data; boundary=\"a", None),
            ("multipart/form-data; boundary=\"a \"", None),
            ("multipart/form-data; boundary=a b", None),
            ("multipart/form-data; boundary=a; boundary=b", None),
            ("multipart/form-data; boundary=\u{e9}", None),
            ("multipart/form-data boundary=a", None),
            ("multipart/form-data; boundary =a", None),
            ("multipart/mixed; boundary=a", None),
            ("text/plain; boundary=a", None),
            ("", None),
        ] {
            let found = Boundary::of(content_type.as_bytes());
            let found = found.as_ref().map(|boundary| str::from_utf8(boundary.as_bytes()).unwrap());
            assert_eq!(found, expected, "{content_type}");
        }
        assert!(Boundary::new(&[b'a'; 70]).is_some());
        assert!(Boundary::new(&[b'a'; 71]).is_none());
        assert!(Boundary::new(b"a\r\nb").is_none());
    }
}
