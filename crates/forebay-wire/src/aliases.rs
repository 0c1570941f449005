//! Finds parameters and cookies whose name an application may read as another name.
//!
//! Applications decode names differently:
//!
//! - PHP reads `a.b`, `a b` and `a[b` as `a_b`, ignores spaces at the start, and ends a name at a
//!   NUL byte.
//! - PHP, Rack and `qs` of Node.js read `a[]` and `a[x]` as a list or a table with the name `a`.
//! - ASP.NET ignores the case of names. Spring reads `!a` as the default value of `a`.
//! - Perl and older versions of Python also end a parameter at a semicolon.
//! - Some servers also end a cookie at a comma.
//!
//! Forebay does not know how the application decodes. So a rule for a name must apply to every name
//! that some application reads as this name.

use std::borrow::Cow;

use crate::cookies::{self, Cookie};
use crate::forms::{self, Dialect, Pair};

/// Maximum number of parameters that all applications read. Some applications ignore further ones.
const MOST_PARAMETERS: usize = 100;

/// Returns true if the query has more than `MOST_PARAMETERS` parameters. Some applications ignore
/// the parameters after this limit.
pub fn has_too_many(query: &[u8]) -> bool {
    memchr::memchr2_iter(b'&', b';', query).count() >= MOST_PARAMETERS
}

/// Returns true if an application may read the encoded name `given` as `wanted`.
pub fn may_be(given: &[u8], wanted: &[u8]) -> bool {
    if given == wanted {
        return true;
    }
    if given.iter().all(is_plain) {
        return given.len() == wanted.len() && begins_alike(given, wanted);
    }
    readings(given).is_none_or(|readings| {
        readings.iter().any(|name| name.len() == wanted.len() && begins_alike(name, wanted))
    })
}

/// Returns true if an application may read the encoded name `given` as a name that begins with
/// `prefix`.
pub fn may_begin_with(given: &[u8], prefix: &[u8]) -> bool {
    if given.starts_with(prefix) {
        return true;
    }
    if given.iter().all(is_plain) {
        return begins_alike(given, prefix);
    }
    readings(given).is_none_or(|readings| readings.iter().any(|name| begins_alike(name, prefix)))
}

/// Returns the pairs of a query that an application may read as the parameter `name`. If the query
/// contains semicolons, the function splits it a second time, at `;` and `&`. A pair may therefore
/// occur twice: in `a=1;b=2`, the parameter `a` has the values `1;b=2` and `1`.
pub fn parameters<'q>(query: &'q [u8], name: &'q [u8]) -> impl Iterator<Item = Pair<'q>> {
    let parts = memchr::memchr(b';', query).map(|_| named(query, name, b"&;"));
    named(query, name, b"&").chain(parts.into_iter().flatten())
}

fn named<'q>(
    query: &'q [u8],
    name: &'q [u8],
    separators: &'static [u8],
) -> impl Iterator<Item = Pair<'q>> {
    query
        .split(|byte| separators.contains(byte))
        .flat_map(|part| forms::pairs(part, Dialect::Whatwg))
        .filter(move |pair| may_be(pair.name, name))
}

/// Returns the cookies of a `Cookie` field that an application may read as the cookie `name`. If
/// the field contains commas, the function splits it a second time, at `,` and `;`. A cookie may
/// therefore occur twice: in `a=1,b=2`, the cookie `a` has the values `1,b=2` and `1`.
pub fn cookies<'c>(line: &'c [u8], name: &'c [u8]) -> impl Iterator<Item = Cookie<'c>> {
    // A text after a comma is a further cookie only if it has an equals sign. Any other text is a
    // part of the value before the comma.
    let parts = line.split(|byte| b";,".contains(byte)).filter(|part| part.contains(&b'='));
    let parts = memchr::memchr(b',', line).map(|_| parts.flat_map(cookies::cookies));
    let all = cookies::cookies(line).chain(parts.into_iter().flatten());
    // In PHP, a text between semicolons that has no equals sign is a name with an empty value.
    let named = all.map(|cookie| match cookie.name {
        b"" => Cookie { name: cookie.value, value: b"" },
        _ => cookie,
    });
    named.filter(move |cookie| may_be(cookie.name, name))
}

/// Returns true if all servers find the same ends of the cookies in a `Cookie` field. Returns false
/// if a semicolon may be within quotes, as in `a="b;c"`: only some servers end the cookie at this
/// semicolon.
pub fn has_clear_quotes(line: &[u8]) -> bool {
    let is_clear = |part: &[u8]| {
        let quotes = part.iter().filter(|&&byte| byte == b'"').count();
        quotes == 0 || quotes % 2 == 0 && !part.contains(&b'\\')
    };
    line.split(|&byte| byte == b';').all(is_clear)
}

/// Error: the query has several values for a name, and applications may read different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguous;

/// Returns the pair of a query whose decoded name is `name`. Returns `None` if no application reads
/// any pair as this parameter. Fails if an application may read a different or a second pair as
/// this parameter.
pub fn only_parameter<'q>(query: &'q [u8], name: &'q [u8]) -> Result<Option<Pair<'q>>, Ambiguous> {
    let only = |separators| {
        let mut pairs = named(query, name, separators);
        match (pairs.next(), pairs.next()) {
            (None, _) => Ok(None),
            (Some(pair), None) if forms::decode(pair.name)[..] == *name => Ok(Some(pair)),
            _ => Err(Ambiguous),
        }
    };
    let pair = only(b"&")?;
    let is_same = memchr::memchr(b';', query).is_none() || only(b"&;")? == pair;
    if is_same { Ok(pair) } else { Err(Ambiguous) }
}

fn is_plain(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(byte)
}

/// Returns true if `name` begins with `prefix`. Ignores case, and reads `.`, `[`, `]` and a space
/// as `_`.
fn begins_alike(name: &[u8], prefix: &[u8]) -> bool {
    let fold = |byte: &u8| match byte {
        b'.' | b' ' | b'[' | b']' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    let start = name.get(..prefix.len());
    start.is_some_and(|start| start.iter().map(fold).eq(prefix.iter().map(fold)))
}

/// Returns the two names that applications may read for `given`. For `a[b]`, these are `a` and
/// `a[b]`. Returns `None` if the decoded name still contains a percent sign: an application may
/// decode it again, and so read any name.
fn readings(given: &[u8]) -> Option<[Vec<u8>; 2]> {
    let decoded = forms::decode(given);
    if decoded.contains(&b'%') {
        return None;
    }
    let end = memchr::memchr(0, &decoded).unwrap_or(decoded.len());
    let mut name: Cow<'_, [u8]> = Cow::Borrowed(&decoded[..end]);
    if !name.is_ascii() {
        // Some letters beyond ASCII, such as the Kelvin sign, become ASCII when their case changes.
        let text = String::from_utf8_lossy(&name);
        let folded = text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
        name = Cow::Owned(folded.collect::<String>().into_bytes());
    }
    let is_skipped = |byte: &u8| byte.is_ascii_whitespace() || b"!?\x0b".contains(byte);
    let start = name.iter().position(|byte| !is_skipped(byte)).unwrap_or(name.len());
    let whole = name[start..].trim_ascii_end();
    let is_bracket = |byte: &u8| b"[]".contains(byte);
    let inner = whole.iter().position(|byte| !is_bracket(byte)).unwrap_or(whole.len());
    let before = whole[inner..].split(is_bracket).next().unwrap_or_default();
    Some([before.trim_ascii_end().to_vec(), whole.to_vec()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_its_own_alias() {
        for name in ["s%3Aid", "a+b", "!a", "?a", "a[b]", "[a", " a", "%"].map(str::as_bytes) {
            assert!(may_be(name, name) && may_begin_with(name, name), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn a_name_has_the_aliases_of_all_applications() {
        for given in [
            "a_b",
            "a.b",
            "A_B",
            "a+b",
            "a%20b",
            "a%2eb",
            "%61_b",
            "a[b",
            "a%5Bb",
            "a_b[]",
            "a_b%5b%5D",
            "a.b[x][y]",
            "+a_b",
            "%20a.b",
            "[a_b]",
            "a_b%00x",
            "a_b+",
            "!a_b",
            "?a_b",
            "a%5fb%zz",
            "%2561_b",
            "%u0061_b",
            "a_b[",
            "[[a.b",
        ] {
            assert!(may_be(given.as_bytes(), b"a_b"), "{given}");
        }
        for given in ["", "ab", "a-b", "a_bc", "a_b_", "x[a_b]", "a_", "b", "_a_b", "\u{e4}_b"] {
            assert!(!may_be(given.as_bytes(), b"a_b"), "{given}");
        }
        assert!(may_be("\u{212a}ey".as_bytes(), b"key") && may_be(b"a.b", b"A.b"));
        assert!(may_be("%C5%BFid".as_bytes(), b"sid"));
    }

    #[test]
    fn a_prefix_has_aliases_too() {
        for given in ["wp-postpass_x", "wp-postpass.x", "WP-PostPass%5Fx", "wp-postpass[x", "%"] {
            assert!(may_begin_with(given.as_bytes(), b"wp-postpass_"), "{given}");
        }
        assert!(!may_begin_with(b"wp-postpas", b"wp-postpass_"));
        assert!(!may_begin_with(b"x+wp-postpass_", b"wp-postpass_"));
        assert!(may_begin_with(b"", b"") && may_begin_with(b"x y", b""));
    }

    #[test]
    fn cookies_have_aliases_too() {
        let values = |line| {
            let found = cookies(line, b"a_b").map(|cookie| cookie.value);
            found.map(|value| str::from_utf8(value).unwrap()).collect::<Vec<_>>()
        };
        for (line, expected) in [
            ("a_b=1; a.b=2; a b=3; a[b=4; A_B=5; a_b[x]=6", &["1", "2", "3", "4", "5", "6"][..]),
            ("a%5fb=1; a%255fb=2", &["1", "2"]),
            ("a_b", &[""]),
            ("x=1,a_b=2", &["2"]),
            ("a_b=1,x=2", &["1,x=2", "1"]),
            ("x=1,a_b; x=%25,y%25", &[]),
            ("ab=1; a-b=2; xa_b=3", &[]),
        ] {
            assert_eq!(values(line.as_bytes()), expected, "{line}");
        }
        assert!(has_clear_quotes(b"a=\"b\"; c=d"));
        for line in ["a=\"b; c=d\"", "a=\"b\\\"; c=d\"", "a=\""] {
            assert!(!has_clear_quotes(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn only_one_parameter_is_clear() {
        let value = |query| only_parameter(query, b"page").map(|pair| pair.map(|pair| pair.value));
        for (query, expected) in [
            ("", Ok(None)),
            ("x=1;y=2", Ok(None)),
            ("x=1;y=2&page=3", Ok(Some("3"))),
            ("page", Ok(Some(""))),
            ("a&page=1&b", Ok(Some("1"))),
            ("p%61ge=%31", Ok(Some("%31"))),
            ("page=1&page=1", Err(Ambiguous)),
            ("page=1&page[]=2", Err(Ambiguous)),
            ("page[]=2", Err(Ambiguous)),
            ("Page=2", Err(Ambiguous)),
            ("x=1;page=2", Err(Ambiguous)),
            ("page=1;x", Err(Ambiguous)),
            ("page=1&x;page=2", Err(Ambiguous)),
        ] {
            assert_eq!(value(query.as_bytes()), expected.map(|v| v.map(str::as_bytes)), "{query}");
        }
    }
}
