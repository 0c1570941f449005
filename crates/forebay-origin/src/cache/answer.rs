//! Answers with stored replies: conditions, parts, `Age` and `Cache-Status`.

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::exchange::Exchange;
use forebay_server::reply::{Length, Reply};
use forebay_wire::accept::lists_tag;
use forebay_wire::caching::parse_date;
use forebay_wire::http1::{KnownField, encode};
use forebay_wire::range::{self, ByteRange, Ranges};

use super::stored::{Ages, COMPRESSED_AT_ONCE, Stored, StoredBody};

/// Source of an answer, for `Cache-Status` (RFC 9211).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// A fresh stored reply.
    Hit,
    /// The stored reply to another client's request, after this request has waited for it.
    Collapsed,
    /// A stale reply, while Forebay fetches a new one.
    Stale,
    /// A stale reply, because the origin has failed.
    StaleOnError,
    /// A stored reply that the origin has just confirmed.
    Confirmed,
    /// A reply that the origin has just confirmed, for this request only.
    ConfirmedForOne,
    /// A new reply, after the client's conditions were applied to it.
    Fetched,
}

impl Handled {
    /// Returns the name of this kind of answer for the access log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit | Self::Collapsed => "hit",
            Self::Stale | Self::StaleOnError => "stale",
            Self::Confirmed | Self::ConfirmedForOne => "confirmed",
            Self::Fetched => "miss",
        }
    }

    fn append(self, lines: &mut Vec<u8>, remaining: i64) {
        let text = match self {
            Self::Hit => format!("forebay; hit; ttl={remaining}"),
            Self::Stale => format!("forebay; hit; ttl={remaining}; detail=stale"),
            Self::Collapsed => "forebay; fwd=miss; collapsed".to_owned(),
            Self::StaleOnError => "forebay; fwd=stale; detail=stale-if-error".to_owned(),
            Self::Confirmed => "forebay; fwd=stale; fwd-status=304; stored".to_owned(),
            Self::ConfirmedForOne => "forebay; fwd=stale; fwd-status=304".to_owned(),
            Self::Fetched => "forebay; fwd=miss; stored".to_owned(),
        };
        encode::field(lines, "Cache-Status", text.as_bytes());
    }
}

/// Answer to a request with a stored reply.
enum StoredAnswer {
    Whole,
    Part(ByteRange),
    NotModified,
    Failed,
    Unsatisfiable,
}

/// Buffers a small, fresh reply for sending. Returns false, and does nothing, if the reply must be
/// sent with [`send`].
pub fn send_now(reply: &mut Reply, stored: &Stored, ages: Ages) -> bool {
    let has_body = !matches!(stored.status, 204 | 304);
    let Some(body) = stored.body.in_memory().filter(|_| has_body) else { return false };
    reply.buffer_stored(stored.status, &stored.lines, body, |lines| {
        append_own(lines, ages, Handled::Hit);
    })
}

/// Sends a stored reply. `has_conditions` is true if the request has conditions or asks for a range.
pub async fn send(
    exchange: &mut Exchange,
    stored: &Stored,
    (handled, has_conditions): (Handled, bool),
) -> Result<(), Fault> {
    let Exchange { request, reply, .. } = exchange;
    request.cache = Some(handled.name());
    let length = stored.body.len();
    match decide(request, stored, has_conditions) {
        StoredAnswer::Whole => {
            begin(reply, stored.status, &stored.lines);
            append_own(reply.field_lines(), stored.ages(), handled);
            match &stored.body {
                _ if stored.status == 204 => reply.end_head(Length::None, true),
                StoredBody::Memory(body) if body.len() <= COMPRESSED_AT_ONCE => {
                    reply.end_head_of_whole(body, &stored.copies, true);
                    reply.push_whole(body).await?;
                }
                body => {
                    reply.end_head(Length::Known(length), true);
                    push_part(reply, body, (0, length)).await?;
                }
            }
        }
        StoredAnswer::Part(ByteRange { start, length: part }) => {
            begin(reply, 206, &stored.lines);
            append_own(reply.field_lines(), stored.ages(), handled);
            let range = format!("bytes {start}-{}/{length}", start + part - 1);
            reply.field("Content-Range", range.as_bytes());
            reply.end_head(Length::Known(part), true);
            push_part(reply, &stored.body, (start, part)).await?;
        }
        StoredAnswer::NotModified => {
            begin(reply, 304, &not_modified(&stored.lines));
            append_own(reply.field_lines(), stored.ages(), handled);
            reply.end_head(Length::None, true);
        }
        StoredAnswer::Failed => return Err(Fault::client(412, "a precondition does not hold")),
        StoredAnswer::Unsatisfiable => {
            reply.begin(416, b"");
            reply.field("Content-Range", format!("bytes */{length}").as_bytes());
            reply.end_head(Length::Known(0), false);
        }
    }
    reply.finish().await
}

/// Sends `length` bytes of a body from `start` on.
async fn push_part(
    reply: &mut Reply,
    body: &StoredBody,
    (start, length): (u64, u64),
) -> Result<(), Fault> {
    match body {
        StoredBody::Memory(bytes) => {
            reply.push(&bytes[start as usize..(start + length) as usize]).await
        }
        StoredBody::File(body) => reply.send_file(&body.file, body.offset + start, length).await,
        StoredBody::Named(_) => Err(Fault::us(500, "a stored body was not opened")),
    }
}

fn begin(reply: &mut Reply, status: u16, lines: &[u8]) {
    reply.begin(status, b"");
    reply.field_lines().extend_from_slice(lines);
}

fn append_own(lines: &mut Vec<u8>, Ages { age, remaining }: Ages, handled: Handled) {
    encode::field_number(lines, "Age", age);
    if handled == Handled::Hit {
        lines.extend_from_slice(b"Cache-Status: forebay; hit; ttl=");
        encode::decimal(lines, remaining.unsigned_abs());
        lines.extend_from_slice(b"\r\n");
        return;
    }
    handled.append(lines, remaining);
}

/// Returns the field lines of a 304. Leaves out the lines that describe the representation, because
/// the client has it (RFC 9110 section 15.4.5).
fn not_modified(lines: &[u8]) -> Vec<u8> {
    let is_kept = |line: &&[u8]| {
        let name = line.split(|&b| b == b':').next().unwrap_or_default().to_ascii_lowercase();
        !name.starts_with(b"content-")
            || matches!(&name[..], b"content-location")
            || name == b"content-security-policy"
    };
    lines.split_inclusive(|&b| b == b'\n').filter(is_kept).flatten().copied().collect()
}

/// Decides the answer of a stored reply: evaluates preconditions in the order of RFC 9110 section
/// 13.2.2, then a range. Only replies with status 200 have preconditions and ranges.
fn decide(request: &Request, stored: &Stored, has_conditions: bool) -> StoredAnswer {
    if stored.status != 200 || !has_conditions {
        return StoredAnswer::Whole;
    }
    let value = |known| request.head.value(known, &request.bytes);
    let strong = stored.etag.as_deref().filter(|etag| !etag.starts_with(b"W/"));
    if let Some(is_listed) = lists(request, KnownField::IfMatch, strong, false) {
        if !is_listed {
            return StoredAnswer::Failed;
        }
    } else if let Some(date) = value(KnownField::IfUnmodifiedSince).and_then(parse_date)
        && stored.modified.is_some_and(|modified| modified > date)
    {
        return StoredAnswer::Failed;
    }
    let weak = stored.etag.as_deref().map(|etag| etag.strip_prefix(b"W/").unwrap_or(etag));
    if let Some(is_listed) = lists(request, KnownField::IfNoneMatch, weak, true) {
        if is_listed {
            return StoredAnswer::NotModified;
        }
    } else if let Some(date) = value(KnownField::IfModifiedSince).and_then(parse_date)
        && modified_or_date(stored).is_some_and(|modified| modified <= date)
    {
        return StoredAnswer::NotModified;
    }
    match value(KnownField::Range) {
        Some(range) if request.method() == b"GET" => {
            let applies = value(KnownField::IfRange).is_none_or(|validator| {
                Some(validator) == strong
                    || stored.modified.is_some() && parse_date(validator) == stored.modified
            });
            if applies { part(range, stored.body.len()) } else { StoredAnswer::Whole }
        }
        _ => StoredAnswer::Whole,
    }
}

/// Returns the time of `Last-Modified`, or else the time in `Date` (RFC 9111 section 4.3.2).
/// Returns `None` if the reply has neither.
fn modified_or_date(stored: &Stored) -> Option<u64> {
    let date = || {
        let mut fields = forebay_wire::fields::of_lines(&stored.lines);
        fields.find(|field| field.name.eq_ignore_ascii_case(b"date"))
    };
    stored.modified.or_else(|| parse_date(date()?.value))
}

/// Returns true if the lines of the field `known` contain `tag` or `*`. Returns `None` if the
/// request has no such field.
fn lists(request: &Request, known: KnownField, tag: Option<&[u8]>, weak: bool) -> Option<bool> {
    let mut lines = request.head.fields.iter().filter(|field| field.known == known).peekable();
    lines.peek()?;
    Some(lines.any(|field| {
        let value = field.value.of(&request.bytes);
        value == b"*" || tag.is_some_and(|tag| lists_tag(value, tag, weak))
    }))
}

/// Returns the answer to a request for a range. A request for several ranges gets the whole body.
fn part(value: &[u8], length: u64) -> StoredAnswer {
    match range::parse(value, length, 1) {
        Ranges::Whole => StoredAnswer::Whole,
        Ranges::Unsatisfiable => StoredAnswer::Unsatisfiable,
        Ranges::Parts(parts) => match parts[..] {
            [part] => StoredAnswer::Part(part),
            _ => StoredAnswer::Whole,
        },
    }
}
