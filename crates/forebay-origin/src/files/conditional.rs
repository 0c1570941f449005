//! Conditional and partial requests (RFC 9110 sections 13 and 14).

use std::time::UNIX_EPOCH;

use forebay_engine::Request;
use forebay_wire::http1::Known;

use super::cache::Entry;

/// What a request for a file comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it.
    Whole,
    /// A part of it.
    Part(Part),
    /// Two or more parts, in the order in which they were asked for; no two overlap.
    Parts(Vec<Part>),
    /// The client has it already.
    NotModified,
    /// A precondition does not hold.
    Failed,
    /// The range lies behind the end.
    Unsatisfiable,
}

/// `length` bytes from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset of the first byte.
    pub start: u64,
    /// Number of bytes, at least one.
    pub length: u64,
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
            if applies { parts(range, entry.length) } else { Outcome::Whole }
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

/// Ranges in one request. More of them, like those that overlap, are an attack or a mistake, and get
/// the whole file: a reply never holds a byte twice.
const RANGES: usize = 16;

/// The ranges of bytes of a `Range` field. What is malformed is ignored, as RFC 9110 asks.
fn parts(ranges: &[u8], length: u64) -> Outcome {
    let Some(list) = str::from_utf8(ranges).ok().and_then(|text| text.strip_prefix("bytes="))
    else {
        return Outcome::Whole;
    };
    let mut parts = Vec::new();
    for (at, range) in list.split(',').enumerate() {
        match parse_range(range.trim_matches([' ', '\t'])) {
            Some(range) if at < RANGES => parts.extend(part(range, length)),
            _ => return Outcome::Whole,
        }
    }
    match parts[..] {
        [] => Outcome::Unsatisfiable,
        [part] => Outcome::Part(part),
        _ if overlap(&parts) => Outcome::Whole,
        _ => Outcome::Parts(parts),
    }
}

fn overlap(parts: &[Part]) -> bool {
    let mut sorted = parts.to_vec();
    sorted.sort_unstable_by_key(|part| part.start);
    sorted.windows(2).any(|pair| pair[0].start + pair[0].length > pair[1].start)
}

/// What a range has of `length` bytes; `None` where that is nothing.
fn part((first, last): (Option<u64>, Option<u64>), length: u64) -> Option<Part> {
    let (start, end) = match (first, last) {
        (Some(first), last) => {
            (first, last.map_or(length, |last| last.saturating_add(1).min(length)))
        }
        (None, suffix) => (length.saturating_sub(suffix.unwrap_or(0)), length),
    };
    (start < end).then(|| Part { start, length: end - start })
}

/// `first-last`, `first-` or `-suffix`.
fn parse_range(range: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| match text {
        "" => Some(None),
        _ if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok().map(Some),
        _ => None,
    };
    match (number(first)?, number(last)?) {
        (None, None) => None,
        (Some(first), Some(last)) if last < first => None,
        range => Some(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(range: &str) -> Outcome {
        parts(range.as_bytes(), 10)
    }

    #[test]
    fn ranges() {
        let part = |start, length| Outcome::Part(Part { start, length });
        assert_eq!(of("bytes=0-0"), part(0, 1));
        assert_eq!(of("bytes=2-"), part(2, 8));
        assert_eq!(of("bytes=-3"), part(7, 3));
        assert_eq!(of("bytes=-30"), part(0, 10));
        assert_eq!(of("bytes=5-100"), part(5, 5));
        assert_eq!(of("bytes=10-"), Outcome::Unsatisfiable);
        assert_eq!(of("bytes=-0"), Outcome::Unsatisfiable);
        for whole in ["bytes=5-2", "bytes=a-b", "bytes=+1-2", "lines=1-2", "bytes=-", "bytes="] {
            assert_eq!(of(whole), Outcome::Whole, "{whole}");
        }
        assert_eq!(parts(b"bytes=0-", 0), Outcome::Unsatisfiable);
    }

    #[test]
    fn several_ranges() {
        let parts = |list: &[(u64, u64)]| {
            let part = |&(start, length): &(u64, u64)| Part { start, length };
            Outcome::Parts(list.iter().map(part).collect())
        };
        assert_eq!(of("bytes=0-1,3-4"), parts(&[(0, 2), (3, 2)]));
        assert_eq!(of("bytes=-2, 0-0"), parts(&[(8, 2), (0, 1)]));
        assert_eq!(of("bytes=0-1,2-3"), parts(&[(0, 2), (2, 2)]));
        assert_eq!(of("bytes=0-1,99-"), Outcome::Part(Part { start: 0, length: 2 }));
        assert_eq!(of("bytes=10-,99-"), Outcome::Unsatisfiable);
        for whole in ["bytes=0-1,1-2", "bytes=0-,0-", "bytes=0-1,x", "bytes=0-1,,3-4", "bytes=0-1,"]
        {
            assert_eq!(of(whole), Outcome::Whole, "{whole}");
        }
        let many = |n: usize| format!("bytes=0-0{}", ",99-".repeat(n));
        assert_eq!(of(&many(RANGES - 1)), Outcome::Part(Part { start: 0, length: 1 }));
        assert_eq!(of(&many(RANGES)), Outcome::Whole);
    }

    #[test]
    fn entity_tags() {
        assert!(lists(b"\"a\", W/\"b\"", "\"b\"", true));
        assert!(!lists(b"\"a\", W/\"b\"", "\"b\"", false));
        assert!(lists(b"*", "\"b\"", false));
    }
}
