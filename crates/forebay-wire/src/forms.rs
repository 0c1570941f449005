//! `application/x-www-form-urlencoded`: the name-value pairs of a form or a query.
//!
//! Specification: <https://url.spec.whatwg.org/#application/x-www-form-urlencoded>
//!
//! [`pairs`] finds the pairs without copies. [`decode`] copies only if the text contains an escape.
//! Neither function rejects a text: an invalid escape stays unchanged. The code that reads the body
//! limits the size of a form.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// Rules for splitting a form into pairs. Applications of different languages expect different
/// rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// The rules of browsers: `&` separates pairs, and empty pairs are skipped.
    #[default]
    Whatwg,
    /// The rules of Plack with `WWW::Form::UrlEncoded`: `;` also separates pairs. One space at the
    /// start or after a separator is skipped. An empty pair is not skipped: its name and value are
    /// empty.
    Plack,
}

/// Pair in its encoded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The encoded name.
    pub name: &'a [u8],
    /// The encoded value. It is empty if the pair has no equals sign.
    pub value: &'a [u8],
}

/// Returns the pairs of `form` in their original order. Repeated names are included.
pub fn pairs(form: &[u8], dialect: Dialect) -> Pairs<'_> {
    // In both dialects, an empty form has no pairs.
    Pairs { rest: (!form.is_empty()).then_some(form), dialect }
}

/// Iterator over pairs, which [`pairs`] returns.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    rest: Option<&'a [u8]>,
    dialect: Dialect,
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        loop {
            let rest = self.rest?;
            let (text, equals) = match self.dialect {
                Dialect::Whatwg => self.until(rest, memchr(b'&', rest)),
                Dialect::Plack => {
                    let rest = rest.strip_prefix(b" ").unwrap_or(rest);
                    self.until(rest, memchr2(b'&', b';', rest))
                }
            };
            match equals {
                Some(at) => return Some(Pair { name: &text[..at], value: &text[at + 1..] }),
                None if text.is_empty() && self.dialect == Dialect::Whatwg => {}
                None => return Some(Pair { name: text, value: b"" }),
            }
        }
    }
}

impl<'a> Pairs<'a> {
    /// Takes the text up to the separator, or all of `rest` if there is no separator. Returns the
    /// text and the position of the first equals sign in the text.
    fn until(&mut self, rest: &'a [u8], separator: Option<usize>) -> (&'a [u8], Option<usize>) {
        let end = separator.unwrap_or(rest.len());
        self.rest = separator.map(|at| &rest[at + 1..]);
        (&rest[..end], memchr(b'=', &rest[..end]))
    }
}

/// Decodes a name or value: `+` is a space, and `%` with two hexadecimal digits is a byte. A `%`
/// without two such digits remains.
pub fn decode(encoded: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr2(b'+', b'%', encoded) else { return Cow::Borrowed(encoded) };
    let mut out = Vec::with_capacity(encoded.len());
    out.extend_from_slice(&encoded[..first]);
    let mut at = first;
    while let Some(&byte) = encoded.get(at) {
        at += 1;
        out.push(match byte {
            b'+' => b' ',
            b'%' => match encoded.get(at..at + 2).and_then(escaped) {
                Some(byte) => {
                    at += 2;
                    byte
                }
                None => b'%',
            },
            byte => byte,
        });
    }
    Cow::Owned(out)
}

/// Decodes a text and replaces invalid UTF-8 with U+FFFD, as the WHATWG specification requires.
/// For a Plack application, use [`decode`] instead, because Plack keeps invalid UTF-8.
pub fn text(encoded: &[u8]) -> Cow<'_, str> {
    match decode(encoded) {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
    }
}

/// Appends a pair as browsers write it. If `out` is not empty, a `&` precedes the pair.
pub fn encode(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if !out.is_empty() {
        out.push(b'&');
    }
    encode_part(out, name);
    out.push(b'=');
    encode_part(out, value);
}

fn encode_part(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' => out.push(byte),
            b' ' => out.push(b'+'),
            _ => {
                let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value)];
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
}

fn escaped(digits: &[u8]) -> Option<u8> {
    let (high, low) = (HEX[usize::from(digits[0])], HEX[usize::from(digits[1])]);
    (high < 16 && low < 16).then_some(high << 4 | low)
}

/// Value of each hexadecimal digit; 255 for other bytes.
const HEX: [u8; 256] = {
    let mut table = [255; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        table[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    table
};
