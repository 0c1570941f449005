//! Parser of `Cache-Control` (RFC 9111 section 5.2), `CDN-Cache-Control` (RFC 9213) and
//! `X-Accel-Expires`.

use crate::fields::of_lines;

/// Maximum number of seconds. Larger numbers count as this number (RFC 9111 section 1.2.2).
const MOST_SECONDS: u64 = 1 << 31;

/// Directives of one field, as far as a cache uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// The reply must not be stored.
    pub no_store: bool,
    /// The reply must be validated before each use. Field names in the directive are ignored,
    /// because Forebay does not store parts of heads.
    pub no_cache: bool,
    /// The reply is for one user only. Field names in the directive are ignored.
    pub private: bool,
    /// Every cache may store the reply.
    pub public: bool,
    /// A stale reply must not be used, even if the origin is unreachable. `proxy-revalidate` also
    /// sets this.
    pub must_revalidate: bool,
    /// Only caches that understand the status may store the reply.
    pub must_understand: bool,
    /// Lifetime in seconds. A malformed lifetime counts as 0.
    pub max_age: Option<u64>,
    /// Lifetime in shared caches in seconds. A malformed lifetime counts as 0.
    pub s_maxage: Option<u64>,
    /// Seconds after the lifetime during which a stale reply may be used while it is validated
    /// (RFC 5861).
    pub stale_while_revalidate: Option<u64>,
    /// Seconds after the lifetime during which a stale reply may be used if the origin fails
    /// (RFC 5861).
    pub stale_if_error: Option<u64>,
    /// The client does not want a reply from the origin.
    pub only_if_cached: bool,
}

impl CacheControl {
    /// Returns the directives in `values`, which are the lines of one field. Returns `None` if the
    /// lines contain no directive. If a line has a quotation mark in a wrong place, adds `private`
    /// and `no-store`, because the line may hide such a directive.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut found = None;
        for value in values {
            for directive in directives(value) {
                let found = found.get_or_insert_with(Self::default);
                found.add(directive);
                if !has_closed_quotes(directive) {
                    (found.private, found.no_store) = (true, true);
                }
            }
        }
        found
    }

    fn add(&mut self, directive: &[u8]) {
        let equals = memchr::memchr(b'=', directive);
        let (name, argument) = match equals {
            Some(at) => (&directive[..at], Some(&directive[at + 1..])),
            None => (directive, None),
        };
        // If a directive is repeated, the shortest lifetime counts.
        let shortest = |before: &mut Option<u64>| {
            let seconds = argument.and_then(seconds).unwrap_or(0);
            *before = Some(before.map_or(seconds, |before| before.min(seconds)));
        };
        match name.to_ascii_lowercase().as_slice() {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" | b"proxy-revalidate" => self.must_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => shortest(&mut self.max_age),
            b"s-maxage" => shortest(&mut self.s_maxage),
            b"stale-while-revalidate" => shortest(&mut self.stale_while_revalidate),
            b"stale-if-error" => shortest(&mut self.stale_if_error),
            _ => {}
        }
    }
}

/// Directives of a reply for Forebay's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyControl {
    /// Directives of `CDN-Cache-Control`, or else of `Cache-Control`.
    pub directives: CacheControl,
    /// True if `directives` are those of `CDN-Cache-Control`. `Expires` is then ignored.
    pub is_targeted: bool,
    /// Seconds in `X-Accel-Expires`, which applications send to nginx. With 0, the reply is not
    /// stored.
    pub accel_expires: Option<u64>,
}

impl ReplyControl {
    /// Reads the directives of `CDN-Cache-Control`. If there are none, reads the directives of
    /// `Cache-Control`. Also reads `X-Accel-Expires`.
    pub fn of_lines(lines: &[u8]) -> Self {
        let of = |name: &[u8]| {
            let values = of_lines(lines).filter(|field| field.name.eq_ignore_ascii_case(name));
            CacheControl::parse(values.map(|field| field.value))
        };
        let accel = of_lines(lines).find(|f| f.name.eq_ignore_ascii_case(b"x-accel-expires"));
        let accel_expires = accel.and_then(|field| seconds(field.value));
        match of(b"cdn-cache-control") {
            Some(directives) => Self { directives, is_targeted: true, accel_expires },
            None => {
                let directives = of(b"cache-control").unwrap_or_default();
                Self { directives, is_targeted: false, accel_expires }
            }
        }
    }

    /// Returns the explicit lifetime in seconds. Returns `None` if `Expires` or a default
    /// determines the lifetime.
    pub fn lifetime(&self) -> Option<u64> {
        self.accel_expires.or(self.directives.s_maxage).or(self.directives.max_age)
    }
}

/// Returns the elements of a comma-separated list. A comma within quotes does not separate. Empty
/// elements are skipped.
pub fn directives(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = value.split(move |&byte| {
        let is_comma = byte == b',' && !is_quoted;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        is_comma
    });
    parts.map(<[u8]>::trim_ascii).filter(|part| !part.is_empty())
}

/// Returns true if `directive` contains no quotation mark, or if its argument is a whole quoted
/// string.
fn has_closed_quotes(directive: &[u8]) -> bool {
    let Some(first) = memchr::memchr(b'"', directive) else { return true };
    let follows_equals = directive[..first].trim_ascii_end().ends_with(b"=");
    let mut rest = directive[first + 1..].iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => return follows_equals && rest.as_slice().is_empty(),
            b'\\' => _ = rest.next(),
            _ => {}
        }
    }
    false
}

/// Parses a number of seconds, which may be in quotes (RFC 9111 section 5.2). Returns at most
/// [`MOST_SECONDS`], and `None` if the argument is not a number.
fn seconds(argument: &[u8]) -> Option<u64> {
    let bare = argument.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let digits = bare.unwrap_or(argument);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let seconds = str::from_utf8(digits).ok()?.parse().unwrap_or(MOST_SECONDS);
    Some(seconds.min(MOST_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(value: &str) -> CacheControl {
        CacheControl::parse([value.as_bytes()]).unwrap_or_default()
    }

    #[test]
    fn lifetimes_are_numbers_or_count_as_zero() {
        for (value, expected) in [
            ("max-age=3600", Some(3600)),
            ("MaX-aGe=3600", Some(3600)),
            ("max-age=003600", Some(3600)),
            ("max-age=\"3600\"", Some(3600)),
            ("max-age='3600'", Some(0)),
            ("max-age=-1", Some(0)),
            ("max-age=1.5", Some(0)),
            ("max-age", Some(0)),
            ("max-age=", Some(0)),
            ("max-age = 3600", None),
            ("max-age=99999999999999999999", Some(MOST_SECONDS)),
            ("max-age=7200, max-age=1", Some(1)),
            ("extension=\"max-age=3600\"", None),
            ("extension=\"a, max-age=3600, b\", max-age=1", Some(1)),
            ("extension=\"a\\\", max-age=3600\"", None),
            ("", None),
        ] {
            assert_eq!(control(value).max_age, expected, "{value}");
        }
    }

    #[test]
    fn a_line_with_a_wrong_quotation_mark_may_hide_private() {
        for value in [
            "max-age=60, foo=\"a, private",
            "max-age=60, foo=\"a\\\", private",
            "max-age=60, foo\"a, private\"",
            "max-age=60, foo=\"a\"b, private\"",
            "max-age=60, foo=a\"b, private\"",
            "\"max-age=60, private\"",
            "max-age=60, \"",
            "max-age=\"60",
            "max-age=60, foo=\"a\\",
        ] {
            let found = control(value);
            assert!(found.private && found.no_store, "{value}");
        }
        let lines = [&b"max-age=60, foo=\"a"[..], b"private\""];
        assert!(CacheControl::parse(lines).unwrap().private);
        for value in
            ["max-age=60, foo=\"a, private\"", "foo = \"\", max-age=60", "foo=\"\\\"\", max-age=60"]
        {
            let found = control(value);
            assert!(!found.private && !found.no_store && found.max_age == Some(60), "{value}");
        }
    }

    #[test]
    fn directives_of_several_lines_count_together() {
        let found = CacheControl::parse([&b"max-age=10"[..], b" , no-STORE,"]).unwrap();
        assert_eq!((found.max_age, found.no_store), (Some(10), true));
        assert_eq!(CacheControl::parse([&b""[..], b" , "]), None);
        assert!(control("private=\"Set-Cookie\"").private);
        assert!(control("proxy-revalidate").must_revalidate);
    }

    #[test]
    fn the_field_for_gateways_replaces_the_general_one() {
        let lines = b"Cache-Control: no-store\r\nCDN-Cache-Control: max-age=5\r\n";
        let control = ReplyControl::of_lines(lines);
        assert!(control.is_targeted && !control.directives.no_store);
        assert_eq!(control.lifetime(), Some(5));
        let lines = b"Cache-Control: max-age=5\r\nX-Accel-Expires: 0\r\n";
        assert_eq!(ReplyControl::of_lines(lines).lifetime(), Some(0));
    }
}
