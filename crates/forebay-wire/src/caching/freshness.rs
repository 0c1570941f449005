//! Age and lifetime of a stored reply (RFC 9111 section 4.2).

use std::time::{SystemTime, UNIX_EPOCH};

use super::control::ReplyControl;
use super::is_heuristic;
use crate::fields::of_lines;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
