//! Byte ranges (RFC 9110 section 14): the parts of a representation that a `Range` field requests.

/// Range of `length` bytes that starts at `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Number of bytes, at least one.
    pub length: u64,
}

/// Meaning of a `Range` field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// The reply contains the whole representation, because the field is ignored. RFC 9110 requires
    /// this for a malformed field and for another unit. Forebay also ignores a field with too many
    /// or overlapping ranges.
    Whole,
    /// At least one part. The parts are in the order of the request and do not overlap.
    Parts(Vec<ByteRange>),
    /// No requested byte exists.
    Unsatisfiable,
}

/// Parses the value of a `Range` field for a representation of `length` bytes.
///
/// Returns [`Ranges::Whole`] for a malformed value, for more than `most` ranges, and for ranges
/// that overlap. So a reply never contains a byte twice.
pub fn parse(value: &[u8], length: u64, most: usize) -> Ranges {
    let Some(list) = str::from_utf8(value).ok().and_then(|text| text.strip_prefix("bytes=")) else {
        return Ranges::Whole;
    };
    let mut parts = Vec::new();
    for (at, range) in list.split(',').enumerate() {
        match parse_range(range.trim_matches([' ', '\t'])) {
            Some(range) if at < most => parts.extend(part(range, length)),
            _ => return Ranges::Whole,
        }
    }
    if parts.is_empty() {
        Ranges::Unsatisfiable
    } else if overlap(&parts) {
        Ranges::Whole
    } else {
        Ranges::Parts(parts)
    }
}

fn overlap(parts: &[ByteRange]) -> bool {
    let mut sorted = parts.to_vec();
    sorted.sort_unstable_by_key(|part| part.start);
    sorted.windows(2).any(|pair| pair[0].start + pair[0].length > pair[1].start)
}

/// Returns the part of a range that exists in a representation of `length` bytes, or `None` if no
/// byte of the range exists.
fn part((first, last): (Option<u64>, Option<u64>), length: u64) -> Option<ByteRange> {
    let (start, end) = match (first, last) {
        (Some(first), last) => {
            (first, last.map_or(length, |last| last.saturating_add(1).min(length)))
        }
        (None, suffix) => (length.saturating_sub(suffix.unwrap_or(0)), length),
    };
    (start < end).then(|| ByteRange { start, length: end - start })
}

/// Parses `first-last`, `first-` or `-suffix`. Returns `None` if `range` has another form, or if
/// `last` is less than `first`.
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

    const MOST: usize = 16;

    fn of(range: &str) -> Ranges {
        parse(range.as_bytes(), 10, MOST)
    }

    fn parts(list: &[(u64, u64)]) -> Ranges {
        Ranges::Parts(list.iter().map(|&(start, length)| ByteRange { start, length }).collect())
    }

    #[test]
    fn one_range() {
        for (range, start, length) in [
            ("bytes=0-0", 0, 1),
            ("bytes=2-", 2, 8),
            ("bytes=-3", 7, 3),
            ("bytes=-30", 0, 10),
            ("bytes=5-100", 5, 5),
            ("bytes=5-18446744073709551615", 5, 5),
        ] {
            assert_eq!(of(range), parts(&[(start, length)]), "{range}");
        }
        assert_eq!(of("bytes=10-"), Ranges::Unsatisfiable);
        assert_eq!(of("bytes=-0"), Ranges::Unsatisfiable);
        for whole in ["bytes=5-2", "bytes=a-b", "bytes=+1-2", "lines=1-2", "bytes=-", "bytes="] {
            assert_eq!(of(whole), Ranges::Whole, "{whole}");
        }
        assert_eq!(of("bytes=0-18446744073709551616"), Ranges::Whole);
        assert_eq!(parse(b"bytes=0-", 0, MOST), Ranges::Unsatisfiable);
    }

    #[test]
    fn several_ranges() {
        assert_eq!(of("bytes=0-1,3-4"), parts(&[(0, 2), (3, 2)]));
        assert_eq!(of("bytes=-2, 0-0"), parts(&[(8, 2), (0, 1)]));
        assert_eq!(of("bytes=0-1,2-3"), parts(&[(0, 2), (2, 2)]));
        assert_eq!(of("bytes=0-1,99-"), parts(&[(0, 2)]));
        assert_eq!(of("bytes=10-,99-"), Ranges::Unsatisfiable);
        for whole in ["bytes=0-1,1-2", "bytes=0-,0-", "bytes=0-1,x", "bytes=0-1,,3-4", "bytes=0-1,"]
        {
            assert_eq!(of(whole), Ranges::Whole, "{whole}");
        }
        let many = |n: usize| format!("bytes=0-0{}", ",99-".repeat(n));
        assert_eq!(of(&many(MOST - 1)), parts(&[(0, 1)]));
        assert_eq!(of(&many(MOST)), Ranges::Whole);
    }
}
