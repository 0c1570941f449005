//! Rules of shared caches (RFC 9111). The module contains no store and reads no clock.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::fields::of_lines;
use crate::http1::list_has;

/// Returns true if Forebay knows how caches must treat replies with this status (RFC 9111 section
/// 3). Only the directive `must-understand` depends on the result.
pub fn is_understood(status: u16) -> bool {
    matches!(
        status,
        200 | 203 | 204 | 300 | 301 | 302 | 303 | 307 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// Returns true if a reply with this status may be reused without an explicit lifetime.
///
/// RFC 9110 section 15.1 also allows 405, 414 and 501. A client can cause these statuses with
/// fields that are not part of the cache key. Other clients would then receive the stored error, so
/// these statuses are not included.
pub fn is_heuristic(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300 | 301 | 308 | 404 | 410)
}

/// Returns true if a method is safe (RFC 9110 section 9.2.1, and the registry of methods for QUERY
/// and those of WebDAV). A request with an unsafe method invalidates the stored replies for its
/// target.
pub fn is_safe(method: &[u8]) -> bool {
    matches!(
        method,
        b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"QUERY" | b"PROPFIND" | b"REPORT" | b"SEARCH"
    )
}

/// Returns true if a request with this method may be sent twice (RFC 9110 section 9.2.2).
pub fn is_idempotent(method: &[u8]) -> bool {
    is_safe(method) || matches!(method, b"PUT" | b"DELETE")
}

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

/// Heuristic lifetime of a reply without an explicit lifetime, in percent of the time since the
/// last change. RFC 9111 section 4.2.2 proposes 10 %.
const HEURISTIC_PERCENT: u64 = 10;
/// Maximum heuristic lifetime in seconds.
const LONGEST_HEURISTIC: u64 = 24 * 3600;

/// Times of a request to the origin, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTimes {
    /// Time at which the request was sent.
    pub asked: u64,
    /// Time at which the reply arrived.
    pub arrived: u64,
}

/// Age and lifetime of a stored reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// Age of the reply in seconds when it arrived.
    pub initial_age: u64,
    /// Lifetime in seconds.
    pub lifetime: u64,
    /// True if the reply states its lifetime. Otherwise a default or the time of the last change
    /// determines the lifetime.
    pub is_explicit: bool,
}

impl Freshness {
    /// Returns the age and lifetime of a reply with this status and these field lines. `default`,
    /// if given, is the lifetime in seconds of replies with status 200, 301 or 302 that state no
    /// lifetime. Other replies that state no lifetime get a lifetime from `Last-Modified`, or the
    /// lifetime 0.
    pub fn of(
        control: &ReplyControl,
        (status, lines): (u16, &[u8]),
        times: ReplyTimes,
        default: Option<u64>,
    ) -> Self {
        let date = field(lines, b"date").and_then(parse_date).unwrap_or(times.arrived);
        let initial_age = initial_age(lines, date, times);
        let stated = control.lifetime().or_else(|| {
            let expires = field(lines, b"expires").filter(|_| !control.is_targeted)?;
            // An invalid `Expires` is a time in the past (RFC 9111 section 5.3).
            Some(parse_date(expires).unwrap_or(0).saturating_sub(date))
        });
        if let Some(lifetime) = stated {
            return Self { initial_age, lifetime, is_explicit: true };
        }
        let guessed = || {
            let changed = field(lines, b"last-modified").and_then(parse_date)?;
            let unchanged = date.saturating_sub(changed);
            Some((unchanged * HEURISTIC_PERCENT / 100).min(LONGEST_HEURISTIC))
        };
        let lifetime = match default {
            Some(default) if matches!(status, 200 | 301 | 302) => default,
            _ if is_heuristic(status) || control.directives.public => guessed().unwrap_or(0),
            _ => 0,
        };
        Self { initial_age, lifetime, is_explicit: false }
    }

    /// Returns the age in seconds of a reply that has been stored for `resident` seconds.
    pub fn age(&self, resident: u64) -> u64 {
        self.initial_age.saturating_add(resident)
    }

    /// Returns the remaining lifetime in seconds, which is negative if the reply is stale.
    pub fn remaining(&self, resident: u64) -> i64 {
        let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
        signed(self.lifetime).saturating_sub(signed(self.age(resident)))
    }
}

/// Returns the age in seconds that the reply had when it arrived (`corrected_initial_age` of RFC
/// 9111 section 4.2.3).
fn initial_age(lines: &[u8], date: u64, times: ReplyTimes) -> u64 {
    let apparent = times.arrived.saturating_sub(date);
    let delay = times.arrived.saturating_sub(times.asked);
    apparent.max(stated_age(lines).saturating_add(delay))
}

/// Returns the value of `Age`, or 0 without this field. If the field is malformed or repeated, the
/// real age is unknown. The function then returns the maximum, which makes the reply stale.
fn stated_age(lines: &[u8]) -> u64 {
    let mut ages = of_lines(lines).filter(|field| field.name.eq_ignore_ascii_case(b"age"));
    let Some(first) = ages.next() else { return 0 };
    let number = |value: &[u8]| {
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        is_number.then(|| str::from_utf8(value).ok()?.parse().ok()).flatten()
    };
    match ages.next() {
        None => number(first.value).unwrap_or(u64::MAX),
        Some(_) => u64::MAX,
    }
}

fn field<'a>(lines: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    of_lines(lines).find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}

/// Parses an HTTP date (RFC 9110 section 5.6.7) into seconds since 1970. Returns `None` for an
/// invalid or earlier date.
pub fn parse_date(value: &[u8]) -> Option<u64> {
    let date: SystemTime = httpdate::parse_http_date(str::from_utf8(value).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Circumstances of a request that decide if its reply may be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// True if the request identifies a user, with `Authorization` or by other means.
    pub is_authorized: bool,
    /// True if the request has cookies that may make the reply personal.
    pub is_personal: bool,
    /// True if replies with `Set-Cookie` may be stored.
    pub stores_cookies: bool,
}

impl Circumstances {
    /// Returns true if the request identifies a user, or may get a personal reply.
    pub fn names_user(self) -> bool {
        self.is_authorized || self.is_personal
    }
}

/// Reason not to store a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The status is that of an interim reply (1xx), a partial reply (206) or a validation (304).
    Status,
    /// The reply has `Cache-Control: no-store` or `X-Accel-Expires: 0`.
    NoStore,
    /// The reply has `Cache-Control: private`.
    Private,
    /// The reply has `Cache-Control: must-understand` and an unknown status.
    NotUnderstood,
    /// The reply has `Vary: *`.
    VaryAny,
    /// The request identifies a user, and the reply does not allow shared use.
    Authorized,
    /// The request has cookies, and the reply does not state a lifetime.
    Personal,
    /// The reply sets a cookie.
    SetsCookie,
    /// The reply has neither a usable lifetime nor a validator.
    NoLifetime,
}

impl Refusal {
    /// Returns the reason not to store a reply with this status and these field lines. Returns
    /// `None` if the reply may be stored.
    pub fn of(
        control: &ReplyControl,
        (status, lines): (u16, &[u8]),
        freshness: &Freshness,
        circumstances: Circumstances,
    ) -> Option<Self> {
        let directives = &control.directives;
        let is_for_all = directives.public || directives.s_maxage.is_some();
        let has = |name: &[u8]| of_lines(lines).any(|field| field.name.eq_ignore_ascii_case(name));
        if matches!(status, ..200 | 206 | 304) {
            return Some(Self::Status);
        }
        if directives.must_understand && !is_understood(status) {
            return Some(Self::NotUnderstood);
        }
        // A cache that understands the status ignores `no-store` if `must-understand` is present
        // (RFC 9111 section 5.2.2.3).
        if directives.no_store && !directives.must_understand || control.accel_expires == Some(0) {
            return Some(Self::NoStore);
        }
        if directives.private {
            return Some(Self::Private);
        }
        if varies_by_all(lines) {
            return Some(Self::VaryAny);
        }
        if circumstances.is_authorized && !is_for_all && !directives.must_revalidate {
            return Some(Self::Authorized);
        }
        if circumstances.is_personal && !freshness.is_explicit {
            return Some(Self::Personal);
        }
        if has(b"set-cookie") && !circumstances.stores_cookies && !is_for_all {
            return Some(Self::SetsCookie);
        }
        let is_usable = freshness.lifetime > 0 && !directives.no_cache;
        if !is_usable && !has(b"etag") && !has(b"last-modified") {
            return Some(Self::NoLifetime);
        }
        None
    }

    /// Returns true if the reply was refused only because it is for the client of this request. A
    /// reply that was stored earlier for other clients may then remain stored.
    pub fn is_of_request(self) -> bool {
        matches!(self, Self::Authorized | Self::Personal | Self::SetsCookie)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status => "replies with this status are never stored",
            Self::NoStore => "the reply says no-store",
            Self::Private => "the reply says private",
            Self::NotUnderstood => "the reply says must-understand, and its status is unknown",
            Self::VaryAny => "the reply says Vary: *",
            Self::Authorized => "the request names a user, and the reply is not public",
            Self::Personal => "the request has cookies, and the reply states no lifetime",
            Self::SetsCookie => "the reply sets a cookie and is not public",
            Self::NoLifetime => "the reply has neither a lifetime nor a validator",
        })
    }
}

fn varies_by_all(lines: &[u8]) -> bool {
    of_lines(lines)
        .any(|field| field.name.eq_ignore_ascii_case(b"vary") && list_has(field.value, b"*"))
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

    const NOW: u64 = 1_000_000_000;
    const DATE: &str = "Date: Sun, 09 Sep 2001 01:46:40 GMT\r\n";
    const HOUR_LATER: &str = "Sun, 09 Sep 2001 02:46:40 GMT";

    fn of(status: u16, lines: &str, default: Option<u64>) -> Freshness {
        let lines = format!("{DATE}{lines}");
        let control = ReplyControl::of_lines(lines.as_bytes());
        let times = ReplyTimes { asked: NOW, arrived: NOW };
        Freshness::of(&control, (status, lines.as_bytes()), times, default)
    }

    #[test]
    fn lifetimes() {
        for (status, lines, default, (lifetime, is_explicit)) in [
            (200, "Cache-Control: max-age=60\r\n".to_owned(), None, (60, true)),
            (200, format!("Expires: {HOUR_LATER}\r\n"), None, (3600, true)),
            (
                200,
                format!("Expires: {HOUR_LATER}\r\nCache-Control: max-age=1\r\n"),
                None,
                (1, true),
            ),
            (200, "Expires: 0\r\n".to_owned(), Some(60), (0, true)),
            (
                200,
                format!("Expires: {HOUR_LATER}\r\nCDN-Cache-Control: public\r\n"),
                None,
                (0, false),
            ),
            (200, String::new(), Some(60), (60, false)),
            (500, String::new(), Some(60), (0, false)),
            (200, String::new(), None, (0, false)),
            (
                200,
                "Last-Modified: Sun, 09 Sep 2001 00:46:40 GMT\r\n".to_owned(),
                None,
                (360, false),
            ),
            (
                200,
                "Last-Modified: Sun, 09 Sep 1990 00:46:40 GMT\r\n".to_owned(),
                None,
                (86400, false),
            ),
            (500, "Last-Modified: Sun, 09 Sep 2001 00:46:40 GMT\r\n".to_owned(), None, (0, false)),
        ] {
            let found = of(status, &lines, default);
            assert_eq!((found.lifetime, found.is_explicit), (lifetime, is_explicit), "{lines}");
        }
    }

    #[test]
    fn an_unclear_age_makes_a_reply_stale() {
        for (lines, age) in [
            ("", 0),
            ("Age: 10\r\n", 10),
            ("Age: 0, 0\r\n", u64::MAX),
            ("Age: 0\r\nAge: 0\r\n", u64::MAX),
            ("Age: -1\r\n", u64::MAX),
            ("Age: 1.5\r\n", u64::MAX),
            ("Age: 99999999999999999999999\r\n", u64::MAX),
        ] {
            assert_eq!(of(200, lines, None).initial_age, age, "{lines}");
        }
        let stale = of(200, "Age: x\r\nCache-Control: max-age=60\r\n", None);
        assert!(stale.remaining(0) < 0);
    }

    #[test]
    fn the_age_counts_the_request_and_the_clock_of_the_origin() {
        let lines = format!("{DATE}Age: 5\r\n");
        let control = ReplyControl::default();
        let age = |asked, arrived| {
            let times = ReplyTimes { asked, arrived };
            Freshness::of(&control, (200, lines.as_bytes()), times, None).initial_age
        };
        assert_eq!(age(NOW, NOW + 2), 7);
        assert_eq!(age(NOW + 100, NOW + 100), 100);
        assert_eq!(age(NOW - 100, NOW - 100), 5);
    }

    const AUTHORIZED: Circumstances =
        Circumstances { is_authorized: true, is_personal: false, stores_cookies: false };
    const PERSONAL: Circumstances =
        Circumstances { is_authorized: false, is_personal: true, stores_cookies: false };
    const STORES_COOKIES: Circumstances =
        Circumstances { is_authorized: false, is_personal: false, stores_cookies: true };

    fn refusal(status: u16, lines: &str, circumstances: Circumstances) -> Option<Refusal> {
        let control = ReplyControl::of_lines(lines.as_bytes());
        let reply = (status, lines.as_bytes());
        let times = ReplyTimes { asked: 1_000_000, arrived: 1_000_000 };
        let freshness = Freshness::of(&control, reply, times, Some(60));
        Refusal::of(&control, reply, &freshness, circumstances)
    }

    #[test]
    fn replies_that_are_not_stored() {
        let nobody = Circumstances::default();
        for (status, control, circumstances, expected) in [
            (200, "max-age=1", nobody, None),
            (599, "max-age=1", nobody, None),
            (200, "", nobody, None),
            (404, "", nobody, Some(Refusal::NoLifetime)),
            (404, "no-cache\r\nETag: \"a\"", nobody, None),
            (206, "max-age=1", nobody, Some(Refusal::Status)),
            (304, "max-age=1", nobody, Some(Refusal::Status)),
            (200, "max-age=1, No-Store", nobody, Some(Refusal::NoStore)),
            (200, "max-age=1\r\nX-Accel-Expires: 0", nobody, Some(Refusal::NoStore)),
            (200, "max-age=1, no-store, must-understand", nobody, None),
            (599, "max-age=1, must-understand", nobody, Some(Refusal::NotUnderstood)),
            (200, "max-age=1, private", nobody, Some(Refusal::Private)),
            (200, "max-age=1\r\nVary: a, *", nobody, Some(Refusal::VaryAny)),
            (200, "max-age=1", AUTHORIZED, Some(Refusal::Authorized)),
            (200, "max-age=1, public", AUTHORIZED, None),
            (200, "s-maxage=1", AUTHORIZED, None),
            (200, "max-age=1, must-revalidate", AUTHORIZED, None),
            (200, "", PERSONAL, Some(Refusal::Personal)),
            (200, "max-age=1", PERSONAL, None),
            (200, "max-age=1\r\nSet-Cookie: a=b", nobody, Some(Refusal::SetsCookie)),
            (200, "max-age=1\r\nSet-Cookie: a=b", STORES_COOKIES, None),
            (200, "max-age=1, public\r\nSet-Cookie: a=b", nobody, None),
        ] {
            let lines = format!("Cache-Control: {control}\r\n");
            assert_eq!(refusal(status, &lines, circumstances), expected, "{status} {control}");
        }
    }
}
