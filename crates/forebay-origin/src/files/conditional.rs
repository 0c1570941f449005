//! Conditional and partial requests (RFC 9110 sections 13 and 14).

use std::time::UNIX_EPOCH;

use forebay_engine::Request;
use forebay_wire::http1::Known;

use super::cache::Entry;

/// What a request for a file comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it.
    Whole,
    /// `length` bytes from `start` on.
    Part {
        /// Offset of the first byte.
        start: u64,
        /// Number of bytes, at least one.
        length: u64,
    },
    /// The client has it already.
    NotModified,
    /// A precondition does not hold.
    Failed,
    /// The range lies behind the end.
    Unsatisfiable,
}

/// Evaluates preconditions in the order of RFC 9110 section 13.2.2, then the range.
pub fn decide(request: &Request, entry: &Entry) -> Outcome {
    let value = |known| request.head.value(known, &request.bytes);
    if let Some(tags) = value(Known::IfMatch) {
        if !lists(tags, &entry.etag, false) {
            return Outcome::Failed;
        }
    } else if let Some(date) = value(Known::IfUnmodifiedSince).and_then(parse_date)
        && entry.modified > date
    {
        return Outcome::Failed;
    }
    if let Some(tags) = value(Known::IfNoneMatch) {
        if lists(tags, &entry.etag, true) {
            return Outcome::NotModified;
        }
    } else if let Some(date) = value(Known::IfModifiedSince).and_then(parse_date)
        && entry.modified <= date
    {
        return Outcome::NotModified;
    }
    match value(Known::Range) {
        Some(range) if request.method() == b"GET" => {
            let applies = value(Known::IfRange).is_none_or(|validator| {
                validator == entry.etag.as_bytes() || parse_date(validator) == Some(entry.modified)
            });
            if applies { part(range, entry.length) } else { Outcome::Whole }
        }
        _ => Outcome::Whole,
    }
}

/// Whether a list of entity tags has `etag`, or is `*`.
fn lists(tags: &[u8], etag: &str, weak: bool) -> bool {
    tags == b"*"
        || tags.split(|&b| b == b',').map(<[u8]>::trim_ascii).any(|tag| {
            let tag = if weak { tag.strip_prefix(b"W/").unwrap_or(tag) } else { tag };
            tag == etag.as_bytes()
        })
}

fn parse_date(value: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(str::from_utf8(value).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// One range of bytes. Several, and what is malformed, get the whole file, as a server may.
fn part(range: &[u8], length: u64) -> Outcome {
    let Some((first, last)) = parse_range(range) else { return Outcome::Whole };
    let (start, end) = match (first, last) {
        (Some(first), last) => {
            (first, last.map_or(length, |last| last.saturating_add(1).min(length)))
        }
        (None, Some(0)) => return Outcome::Unsatisfiable,
        (None, Some(suffix)) => (length.saturating_sub(suffix), length),
        (None, None) => return Outcome::Whole,
    };
    if start >= length {
        return Outcome::Unsatisfiable;
    }
    Outcome::Part { start, length: end - start }
}

fn parse_range(range: &[u8]) -> Option<(Option<u64>, Option<u64>)> {
    let range = str::from_utf8(range).ok()?.strip_prefix("bytes=")?.trim();
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| match text {
        "" => Some(None),
        _ if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok().map(Some),
        _ => None,
    };
    let (first, last) = (number(first)?, number(last)?);
    let reversed = matches!((first, last), (Some(first), Some(last)) if last < first);
    (!reversed).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let part_of = |range: &str| part(range.as_bytes(), 10);
        assert_eq!(part_of("bytes=0-0"), Outcome::Part { start: 0, length: 1 });
        assert_eq!(part_of("bytes=2-"), Outcome::Part { start: 2, length: 8 });
        assert_eq!(part_of("bytes=-3"), Outcome::Part { start: 7, length: 3 });
        assert_eq!(part_of("bytes=-30"), Outcome::Part { start: 0, length: 10 });
        assert_eq!(part_of("bytes=5-100"), Outcome::Part { start: 5, length: 5 });
        assert_eq!(part_of("bytes=10-"), Outcome::Unsatisfiable);
        assert_eq!(part_of("bytes=-0"), Outcome::Unsatisfiable);
        for whole in
            ["bytes=5-2", "bytes=a-b", "bytes=+1-2", "lines=1-2", "bytes=0-1,3-4", "bytes=-"]
        {
            assert_eq!(part_of(whole), Outcome::Whole, "{whole}");
        }
        assert_eq!(part(b"bytes=0-", 0), Outcome::Unsatisfiable);
    }

    #[test]
    fn entity_tags() {
        assert!(lists(b"\"a\", W/\"b\"", "\"b\"", true));
        assert!(!lists(b"\"a\", W/\"b\"", "\"b\"", false));
        assert!(lists(b"*", "\"b\"", false));
    }
}
