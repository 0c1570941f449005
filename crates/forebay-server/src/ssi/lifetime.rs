//! The lifetime of a page in caches. A page may be cached no longer than any reply that it
//! includes.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay_wire::caching::{CacheControl, Freshness, ReplyControl, ReplyTimes, directives};
use forebay_wire::http1::encode;

use crate::filter::{fields, is, is_targeted};

/// Directives of `Cache-Control` that extend the time in caches.
const EXTENDING: [&[u8]; 5] =
    [b"max-age", b"s-maxage", b"stale-while-revalidate", b"stale-if-error", b"immutable"];

/// Returns the remaining lifetime of a reply in seconds. If the fields state no lifetime,
/// `Last-Modified` determines one. Without this field, the lifetime is 0.
pub fn of(lines: &[u8], status: u16) -> u64 {
    let control = ReplyControl::of_lines(lines);
    let freshness = freshness(&control, lines, status);
    // Browsers use `max-age`, but shared caches may use `s-maxage`. The shorter lifetime counts.
    let of_browsers = control.directives.max_age.unwrap_or(u64::MAX);
    freshness.lifetime.min(of_browsers).saturating_sub(freshness.initial_age)
}

/// Changes the field lines of a page so that caches store the page for at most `seconds`. Does
/// nothing if the lines already limit the lifetime to `seconds` or less.
pub fn limit(lines: &mut Vec<u8>, status: u16, seconds: u64) {
    if longest(lines, status) <= seconds {
        return;
    }
    let before = std::mem::take(lines);
    let mut kept: Vec<&[u8]> = Vec::new();
    for line in before.split_inclusive(|&b| b == b'\n') {
        let Some((name, value)) = fields(line).next() else { continue };
        if is(name, b"cache-control") {
            kept.extend(directives(value).filter(|directive| !extends(directive)));
        } else if !is_targeted(name) && !is(name, b"expires") {
            lines.extend_from_slice(line);
        }
    }
    let limit = format!("max-age={seconds}");
    kept.push(limit.as_bytes());
    encode::field(lines, "Cache-Control", &kept.join(&b", "[..]));
}

/// Returns the longest lifetime in seconds in these field lines, including fields such as
/// `CDN-Cache-Control`.
fn longest(lines: &[u8], status: u16) -> u64 {
    let control = ReplyControl::of_lines(lines);
    let of_forebay = freshness(&control, lines, status).lifetime;
    let of_fields = fields(lines).map(|(name, value)| {
        if !is(name, b"cache-control") && !is_targeted(name) {
            return 0;
        }
        let control = CacheControl::parse([value]).unwrap_or_default();
        control.max_age.max(control.s_maxage).unwrap_or(0)
    });
    of_fields.fold(of_forebay, u64::max)
}

fn freshness(control: &ReplyControl, lines: &[u8], status: u16) -> Freshness {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Freshness::of(control, (status, lines), ReplyTimes { asked: now, arrived: now }, None)
}

fn extends(directive: &[u8]) -> bool {
    let name = directive.split(|&b| b == b'=').next().unwrap_or_default().trim_ascii();
    EXTENDING.iter().any(|other| is(name, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(lines: &str, seconds: u64) -> String {
        let mut lines = lines.as_bytes().to_vec();
        limit(&mut lines, 200, seconds);
        String::from_utf8(lines).unwrap()
    }

    #[test]
    fn no_cache_reads_more_than_the_limit() {
        for unchanged in [
            "X: y\r\n",
            "Cache-Control: max-age=60\r\n",
            "Cache-Control: no-store, s-maxage=9\r\nCDN-Cache-Control: max-age=60\r\n",
            "Expires: 0\r\n",
        ] {
            assert_eq!(limited(unchanged, 60), unchanged);
        }
        for (lines, expected) in [
            ("Cache-Control: max-age=61\r\nX: y\r\n", "X: y\r\nCache-Control: max-age=60\r\n"),
            (
                "Cache-Control: public, s-maxage=\"99\", x=\"max-age=9,\"\r\ncache-control: \
                 max-age=3, immutable, stale-if-error=99\r\n",
                "Cache-Control: public, x=\"max-age=9,\", max-age=60\r\n",
            ),
            (
                "Cache-Control: max-age=1\r\nSurrogate-Control: max-age=99\r\n",
                "Cache-Control: max-age=60\r\n",
            ),
            ("Expires: Fri, 31 Dec 9999 23:59:59 GMT\r\n", "Cache-Control: max-age=60\r\n"),
            ("X-Accel-Expires: 99\r\n", "Cache-Control: max-age=60\r\n"),
            (
                "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
                "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\nCache-Control: max-age=60\r\n",
            ),
        ] {
            assert_eq!(limited(lines, 60), expected, "{lines}");
        }
    }

    #[test]
    fn a_reply_that_states_no_lifetime_has_none() {
        for (lines, seconds) in [
            ("", 0),
            ("Cache-Control: max-age=9, s-maxage=99\r\n", 9),
            ("Cache-Control: max-age=9\r\nAge: 4\r\n", 5),
            ("Cache-Control: max-age=9\r\nAge: x\r\n", 0),
            ("Cache-Control: max-age=x\r\n", 0),
            ("Expires: 0\r\n", 0),
            ("Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n", 24 * 3600),
        ] {
            assert_eq!(of(lines.as_bytes(), 200), seconds, "{lines}");
        }
    }
}
