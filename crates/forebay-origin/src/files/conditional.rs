//! Conditional and partial requests (RFC 9110 sections 13 and 14).

use std::time::UNIX_EPOCH;

use forebay_net::head::Request;
use forebay_wire::accept::lists_tag;
use forebay_wire::http1::KnownField;
pub use forebay_wire::range::ByteRange;
use forebay_wire::range::{self, Ranges};

use super::cache::CachedFile;

/// Result of a request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole file.
    Whole,
    /// A part of the file.
    Part(ByteRange),
    /// Two or more parts in the requested order, without overlap.
    Parts(Vec<ByteRange>),
    /// The client has the file already.
    NotModified,
    /// A precondition failed.
    Failed,
    /// The range begins after the end.
    Unsatisfiable,
}

/// Evaluates preconditions in the order of RFC 9110 section 13.2.2, then up to `max_ranges` ranges.
pub fn decide(request: &Request, entry: &CachedFile, max_ranges: usize) -> Outcome {
    let asks = |known| {
        matches!(
            known,
            KnownField::IfMatch
                | KnownField::IfUnmodifiedSince
                | KnownField::IfNoneMatch
                | KnownField::IfModifiedSince
                | KnownField::Range
        )
    };
    if !request.head.fields.iter().any(|field| asks(field.known)) {
        return Outcome::Whole;
    }
    let value = |known| request.head.value(known, &request.bytes);
    if let Some(is_listed) = lists(request, KnownField::IfMatch, entry, false) {
        if !is_listed {
            return Outcome::Failed;
        }
    } else if let Some(date) = value(KnownField::IfUnmodifiedSince).and_then(parse_date)
        && entry.time().is_some_and(|time| time > date)
    {
        return Outcome::Failed;
    }
    if let Some(is_listed) = lists(request, KnownField::IfNoneMatch, entry, true) {
        if is_listed {
            return Outcome::NotModified;
        }
    } else if let Some(date) = value(KnownField::IfModifiedSince).and_then(parse_date)
        && entry.time().is_some_and(|time| time <= date)
    {
        return Outcome::NotModified;
    }
    match value(KnownField::Range) {
        Some(range) if request.method() == b"GET" => {
            let applies = value(KnownField::IfRange).is_none_or(|validator| {
                let is_time =
                    || parse_date(validator).is_some_and(|date| entry.time() == Some(date));
                validator == entry.etag.as_bytes() || is_time()
            });
            if applies { parts(range, entry.length, max_ranges) } else { Outcome::Whole }
        }
        _ => Outcome::Whole,
    }
}

/// Returns true if the lines of this field list the tag of `entry`; `None` if there is no such
/// line.
fn lists(request: &Request, known: KnownField, entry: &CachedFile, weak: bool) -> Option<bool> {
    let mut lines = request.head.fields.iter().filter(|field| field.known == known).peekable();
    lines.peek()?;
    Some(lines.any(|field| lists_tag(field.value.of(&request.bytes), entry.etag.as_bytes(), weak)))
}

fn parse_date(value: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(str::from_utf8(value).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

fn parts(ranges: &[u8], length: u64, most: usize) -> Outcome {
    match range::parse(ranges, length, most) {
        Ranges::Whole => Outcome::Whole,
        Ranges::Unsatisfiable => Outcome::Unsatisfiable,
        Ranges::Parts(parts) => match parts[..] {
            [part] => Outcome::Part(part),
            _ => Outcome::Parts(parts),
        },
    }
}
