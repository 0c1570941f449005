//! Field lines (RFC 9112 section 5). Requests and responses share this part of a head.

use memchr::memchr;

use super::chars::{first_control, has_mark, is_field_value, is_token, list_has, position, trim};
use super::{HeadError, Progress, Version};
use crate::Span;

/// Limits of a message head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http1Limits {
    /// Maximum size of a head in bytes, including the blank line.
    pub head: usize,
    /// Maximum number of field lines.
    pub fields: usize,
    /// Maximum length of a request target in bytes.
    pub target: usize,
    /// True if GET and HEAD may have a body. Such a body has no meaning (RFC 9110 section 9.3.1). A
    /// backend that expects no body mistakes the body for the next request.
    pub get_body: bool,
}

impl Default for Http1Limits {
    fn default() -> Self {
        Self { head: 32 * 1024, fields: 100, target: 8 * 1024, get_body: false }
    }
}

impl Http1Limits {
    /// Returns the limits of replies with heads of this size and number of fields.
    pub fn of_replies(head: usize, fields: usize) -> Self {
        Self { head, fields, ..Self::default() }
    }
}

/// Field line of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name with its original case.
    pub name: Span,
    /// The value without surrounding white space.
    pub value: Span,
    /// The whole line, including CRLF.
    pub line: Span,
    /// Known field name, or [`KnownField::Other`].
    pub known: KnownField,
}

/// Returns an empty list with the memory of `fields`.
pub(super) fn reuse(fields: &mut Vec<Field>) -> Vec<Field> {
    let mut fields = std::mem::take(fields);
    fields.clear();
    fields
}

/// Names of the fields that framing, forwarding and file serving must understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the field of that name")]
pub enum KnownField {
    /// Any other name.
    Other,
    /// Any name, in a field that the gateway itself has set. A peer cannot remove this field with
    /// `Connection`.
    Gateway,
    Accept,
    AcceptEncoding,
    Connection,
    ContentLength,
    ContentLocation,
    ContentType,
    Date,
    Expect,
    Forwarded,
    Host,
    IfMatch,
    IfModifiedSince,
    IfNoneMatch,
    IfRange,
    IfUnmodifiedSince,
    KeepAlive,
    Location,
    Proxy,
    ProxyConnection,
    Range,
    Refresh,
    Server,
    SetCookie,
    Status,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    XForwardedFor,
    XForwardedHost,
    XForwardedProto,
    XRealIp,
}

/// Names of [`KnownField`] in lower case.
pub(crate) const NAMES: &[(&[u8], KnownField)] = &[
    (b"te", KnownField::Te),
    (b"host", KnownField::Host),
    (b"date", KnownField::Date),
    (b"proxy", KnownField::Proxy),
    (b"range", KnownField::Range),
    (b"accept", KnownField::Accept),
    (b"expect", KnownField::Expect),
    (b"server", KnownField::Server),
    (b"status", KnownField::Status),
    (b"refresh", KnownField::Refresh),
    (b"trailer", KnownField::Trailer),
    (b"upgrade", KnownField::Upgrade),
    (b"if-match", KnownField::IfMatch),
    (b"if-range", KnownField::IfRange),
    (b"location", KnownField::Location),
    (b"forwarded", KnownField::Forwarded),
    (b"x-real-ip", KnownField::XRealIp),
    (b"connection", KnownField::Connection),
    (b"set-cookie", KnownField::SetCookie),
    (b"keep-alive", KnownField::KeepAlive),
    (b"content-type", KnownField::ContentType),
    (b"if-none-match", KnownField::IfNoneMatch),
    (b"content-length", KnownField::ContentLength),
    (b"accept-encoding", KnownField::AcceptEncoding),
    (b"x-forwarded-for", KnownField::XForwardedFor),
    (b"content-location", KnownField::ContentLocation),
    (b"proxy-connection", KnownField::ProxyConnection),
    (b"x-forwarded-host", KnownField::XForwardedHost),
    (b"transfer-encoding", KnownField::TransferEncoding),
    (b"if-modified-since", KnownField::IfModifiedSince),
    (b"x-forwarded-proto", KnownField::XForwardedProto),
    (b"if-unmodified-since", KnownField::IfUnmodifiedSince),
];

/// Upper bound of the lengths in [`NAMES`], in bytes.
const LONGEST: usize = 24;

/// [`NAMES`] converted with [`lower_case_words`].
static WORDS: [[u64; 3]; NAMES.len()] = {
    let mut words = [[0; 3]; NAMES.len()];
    let mut place = 0;
    while place < NAMES.len() {
        words[place] = lower_case_words(NAMES[place].0);
        place += 1;
    }
    words
};

/// Number of slots in [`BY_WORDS`]. With so many, few names share a slot.
const SLOTS: usize = 256;

/// Hash table of the positions in [`NAMES`], each plus one. Zero marks an empty slot.
static BY_WORDS: [u8; SLOTS] = {
    let mut slots = [0; SLOTS];
    let mut place = 0;
    while place < NAMES.len() {
        let mut slot = slot_of(&WORDS[place]);
        while slots[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        place += 1;
        slots[slot] = place as u8;
    }
    slots
};

const fn slot_of(words: &[u64; 3]) -> usize {
    // This odd number contains the bits of the golden ratio's fraction.
    let product = (words[0] ^ words[2].rotate_left(7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> 56) as usize
}

/// Converts a name of at most [`LONGEST`] bytes to lower case. The result is three words. Known
/// names of equal length have different words. A comparison of words takes a third of the
/// instructions of a comparison of bytes.
const fn lower_case_words(name: &[u8]) -> [u64; 3] {
    let words = match (name.first_chunk(), name.last_chunk(), name.first_chunk(), name.last_chunk())
    {
        (Some(first), Some(last), ..) => {
            let first = u64::from_le_bytes(*first);
            let middle = match name.split_at(8).1.first_chunk() {
                Some(middle) => u64::from_le_bytes(*middle),
                None => first,
            };
            [first, middle, u64::from_le_bytes(*last)]
        }
        (_, _, Some(first), Some(last)) => {
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            [first as u64 | (last as u64) << 32, 0, 0]
        }
        _ => match *name {
            [] => [0; 3],
            [a] => [a as u64, 0, 0],
            [a, b] => [a as u64 | (b as u64) << 8, 0, 0],
            [a, b, c, ..] => [a as u64 | (b as u64) << 8 | (c as u64) << 16, 0, 0],
        },
    };
    [to_lower_case(words[0]), to_lower_case(words[1]), to_lower_case(words[2])]
}

/// Converts the letters in eight bytes to lower case. Some other bytes also change, but only to
/// bytes that no name in [`NAMES`] contains.
const fn to_lower_case(word: u64) -> u64 {
    const LETTER: u64 = u64::MAX / 255 * 0x40;
    word | (word & LETTER) >> 1
}

/// Returns the position in `names` of the name that equals `name` without regard to case. `names`
/// have at most [`LONGEST`] letters, digits and hyphens.
pub(crate) fn position_of_name(names: &[&[u8]], name: &[u8]) -> Option<usize> {
    if name.len() > LONGEST {
        return None;
    }
    let words = lower_case_words(name);
    let is_it = |known: &&[u8]| known.len() == name.len() && lower_case_words(known) == words;
    names.iter().position(is_it)
}

impl KnownField {
    /// Returns the known name that equals `name` without regard to case, or `Other` for all other
    /// names.
    pub fn of(name: &[u8]) -> Self {
        if name.len() > LONGEST {
            return Self::Other;
        }
        let words = lower_case_words(name);
        let mut slot = slot_of(&words);
        loop {
            match BY_WORDS[slot] as usize {
                0 => return Self::Other,
                place if WORDS[place - 1] == words && NAMES[place - 1].0.len() == name.len() => {
                    return NAMES[place - 1].1;
                }
                _ => slot = (slot + 1) % SLOTS,
            }
        }
    }

    /// Returns true if the field concerns only this connection and is never forwarded (RFC 9110
    /// section 7.6.1). The caller must also drop the fields that `Connection` lists.
    pub fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Self::Connection
                | Self::KeepAlive
                | Self::ProxyConnection
                | Self::Te
                | Self::Trailer
                | Self::TransferEncoding
                | Self::Upgrade
        )
    }
}

/// Reader of lines from a growing buffer. It examines each byte once, so a peer that sends byte by
/// byte causes no extra work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lines {
    /// Start of the line that is being read.
    pub start: usize,
    /// No LF is between `start` and this offset.
    searched: usize,
    /// True if the name of a field contains a mark other than a hyphen, such as `_`.
    pub has_marks: bool,
}

impl Lines {
    /// Returns the next line with its CRLF, or `None` if the end of the line has not arrived.
    /// Returns an error if a line ends after position `limit`, or with a bare LF.
    pub fn next(&mut self, bytes: &[u8], limit: usize) -> Result<Option<Span>, HeadError> {
        let from = self.searched.max(self.start);
        let window = &bytes[from.min(bytes.len())..bytes.len().min(limit)];
        let Some(offset) = memchr(b'\n', window) else {
            self.searched = from + window.len();
            return if bytes.len() >= limit { Err(HeadError::TooLarge) } else { Ok(None) };
        };
        let line = Span::new(self.start, from + offset + 1);
        if line.len() < 2 || bytes[from + offset - 1] != b'\r' {
            return Err(HeadError::BareLineEnd);
        }
        self.start = line.end as usize;
        self.searched = self.start;
        Ok(Some(line))
    }
}

/// Reads field lines up to and including the blank line. Returns an error if a line is malformed,
/// or if a limit is exceeded.
pub(super) fn parse(
    lines: &mut Lines,
    bytes: &[u8],
    limits: &Http1Limits,
    fields: &mut Vec<Field>,
) -> Result<Progress, HeadError> {
    let window = &bytes[..bytes.len().min(limits.head)];
    // Nearly all lines are plain. Each line is tried once, so that a peer that sends byte by byte
    // causes little work.
    while lines.searched <= lines.start {
        let rest = window.get(lines.start..).unwrap_or_default();
        if rest.starts_with(b"\r\n") {
            return Ok(Progress::Complete(lines.start + 2));
        }
        if fields.len() == limits.fields {
            break;
        }
        let Some(field) = plain_field(rest, lines.start) else { break };
        lines.start = field.line.end as usize;
        fields.push(field);
    }
    while let Some(line) = lines.next(bytes, limits.head)? {
        if line.len() == 2 {
            return Ok(Progress::Complete(line.end as usize));
        }
        if fields.len() == limits.fields {
            return Err(HeadError::TooLarge);
        }
        fields.push(parse_and_note(bytes, line, &mut lines.has_marks)?);
    }
    Ok(Progress::Partial)
}

/// Parses the field line with which `text` begins. `start` is the position of `text` in the buffer.
/// Returns `None` if the line has an oddity, about which [`parse_and_note`] must decide: a mark in
/// the name, not exactly one space before the value, a control byte, or no end yet.
#[inline(always)]
fn plain_field(text: &[u8], start: usize) -> Option<Field> {
    let colon = position(b':', text)?;
    let name = &text[..colon];
    let known = KnownField::of(name);
    if known == KnownField::Other && (name.is_empty() || has_mark(name)) {
        return None;
    }
    let value = text[colon..].strip_prefix(b": ")?;
    let (value, end) = value.split_at(first_control(value)?);
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if !end.starts_with(b"\r\n") || is_space(value.first()) || is_space(value.last()) {
        return None;
    }
    let name = Span::new(start, start + colon);
    let value = Span::new(start + colon + 2, start + colon + 2 + value.len());
    Some(Field { name, value, line: Span { start: name.start, end: value.end + 2 }, known })
}

/// Parses a field line, which ends with CRLF. White space around the value is removed.
#[inline(always)]
pub(super) fn parse_line(bytes: &[u8], line: Span) -> Result<Field, HeadError> {
    parse_and_note(bytes, line, &mut false)
}

/// Parses a field line as [`parse_line`] does. Sets `has_marks` to true if the name contains a mark
/// other than a hyphen.
#[inline(always)]
fn parse_and_note(bytes: &[u8], line: Span, has_marks: &mut bool) -> Result<Field, HeadError> {
    let text = &line.of(bytes)[..line.len() - 2];
    let colon = position(b':', text).unwrap_or(0);
    let name = &text[..colon];
    let known = KnownField::of(name);
    // Known names contain only letters and hyphens.
    if known == KnownField::Other && (colon == 0 || has_mark(name)) {
        if !is_token(name) {
            let folded = matches!(text.first(), Some(b' ' | b'\t'));
            return Err(if folded { HeadError::ObsFold } else { HeadError::FieldName });
        }
        *has_marks = true;
    }
    let mut start = colon + 1;
    let mut end = text.len();
    while start < end && matches!(text[start], b' ' | b'\t') {
        start += 1;
    }
    while end > start && matches!(text[end - 1], b' ' | b'\t') {
        end -= 1;
    }
    if !is_field_value(&text[start..end]) {
        return Err(HeadError::FieldValue);
    }
    let base = line.start as usize;
    Ok(Field {
        name: Span::new(base, base + colon),
        value: Span::new(base + start, base + end),
        line,
        known,
    })
}

/// Returns true if a backend may mistake `name` for `Content-Length` or `Transfer-Encoding`.
///
/// Some backends treat a mark such as `_` as a hyphen. For example, both `Transfer_Encoding` and
/// `Transfer-Encoding` become the variable `HTTP_TRANSFER_ENCODING`. Such a backend would find
/// another end of the body than Forebay.
pub(crate) fn is_disguised_framing(name: &[u8]) -> bool {
    const FRAMING: [&[u8]; 2] = [b"contentlength", b"transferencoding"];
    let letters = || name.iter().filter(|byte| byte.is_ascii_alphanumeric());
    name.len() > FRAMING[0].len()
        && FRAMING.iter().any(|framing| {
            name.len() > framing.len()
                && letters().map(u8::to_ascii_lowercase).eq(framing.iter().copied())
        })
}

/// Parses a `Content-Length` value: only digits, at most 2^63-1 (RFC 9110 section 8.6). Returns
/// `None` for any other text.
pub(crate) fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = value.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    (length <= i64::MAX as u64).then_some(length)
}

/// `Content-Length` and `Transfer-Encoding` of one message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Framing {
    length: Option<u64>,
    chunked: bool,
}

impl Framing {
    /// Reads the value of `Content-Length`. Rejects a second `Content-Length`.
    pub fn read_length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        let parsed = parse_length(value).ok_or(HeadError::ContentLength)?;
        match self.length.replace(parsed) {
            Some(_) => Err(HeadError::ContentLength),
            None => Ok(()),
        }
    }

    /// Reads the value of `Transfer-Encoding`. Rejects a value other than `chunked`, a second
    /// `Transfer-Encoding`, and a message of HTTP/1.0.
    pub fn read_coding(&mut self, value: &[u8], version: Version) -> Result<(), HeadError> {
        let fits = version == Version::Http11 && !self.chunked;
        if !fits || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError::TransferEncoding);
        }
        self.chunked = true;
        Ok(())
    }

    /// Returns two values: true if the body is chunked, and the value of `Content-Length`. Rejects
    /// a chunked message with a `Content-Length`.
    pub fn end(self) -> Result<(bool, Option<u64>), HeadError> {
        if self.chunked && self.length.is_some() {
            return Err(HeadError::AmbiguousLength);
        }
        Ok((self.chunked, self.length))
    }
}

/// Options in the `Connection` fields of a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionOptions {
    close: bool,
    keep_alive: bool,
    pub upgrade: bool,
    pub names_fields: bool,
}

impl ConnectionOptions {
    /// Adds the options in the value of one `Connection` field.
    pub fn read(&mut self, value: &[u8]) {
        // The usual value has a fast path.
        if value == b"keep-alive" {
            self.keep_alive = true;
            return;
        }
        for option in value.split(|&b| b == b',').map(trim) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if !option.is_empty() {
                self.names_fields = true;
            }
        }
    }

    /// Returns true if the connection may be reused after the message.
    pub fn keeps_alive(self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }
}

/// Returns true if a `Connection` field in `fields` lists `name`.
pub fn connection_lists(fields: &[Field], name: &[u8], bytes: &[u8]) -> bool {
    let mut connection = fields.iter().filter(|field| field.known == KnownField::Connection);
    connection.any(|field| list_has(field.value.of(bytes), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_found_in_any_case() {
        for (name, known) in NAMES {
            assert_eq!(KnownField::of(&name.to_ascii_uppercase()), *known);
        }
        assert_eq!(KnownField::of(b"x-other"), KnownField::Other);
        assert_eq!(KnownField::of(&[b'a'; 100]), KnownField::Other);
        assert_eq!(KnownField::of(b""), KnownField::Other);
    }

    #[test]
    fn a_name_with_another_byte_at_any_place_is_another_name() {
        for (name, known) in NAMES {
            for (place, byte) in
                (0..name.len()).flat_map(|place| (0..=255).map(move |b| (place, b)))
            {
                let mut other = name.to_vec();
                other[place] = byte;
                let is_same = other.eq_ignore_ascii_case(name);
                assert_eq!(KnownField::of(&other) == *known, is_same, "{other:?}");
            }
        }
    }

    #[test]
    fn a_line_is_judged_alike_at_once_and_in_pieces() {
        let limits = Http1Limits::default();
        let plain = b"Content-Typ: text/html of some length\r\nX-A:1\r\n\r\n";
        for (place, byte) in (0..plain.len()).flat_map(|place| (0..=255).map(move |b| (place, b))) {
            let mut text = plain.to_vec();
            text[place] = byte;
            let parsed = |pieces: &[usize]| {
                let (mut lines, mut fields) = (Lines::default(), Vec::new());
                let mut result = Ok(Progress::Partial);
                for &piece in pieces {
                    if result == Ok(Progress::Partial) {
                        result = parse(&mut lines, &text[..piece], &limits, &mut fields);
                    }
                }
                (result, fields, lines.has_marks)
            };
            let ends: Vec<_> = (1..=text.len()).collect();
            assert_eq!(parsed(&[text.len()]), parsed(&ends), "{byte:#x} at {place}");
        }
    }

    #[test]
    fn names_that_a_backend_may_take_for_framing_are_known() {
        for name in ["Content_Length", "transfer--encoding", "_Transfer-Encoding", "Content.Length"]
        {
            assert!(is_disguised_framing(name.as_bytes()), "{name}");
        }
        for name in ["ContentLength", "Content-Length-X", "X-Content-Length", "Content", ""] {
            assert!(!is_disguised_framing(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn lengths() {
        assert_eq!(parse_length(b"0"), Some(0));
        assert_eq!(parse_length(b"9223372036854775807"), Some(i64::MAX as u64));
        for bad in
            ["", "+1", "-1", "1 ", "0x1", "1,1", "9223372036854775808", "99999999999999999999"]
        {
            assert_eq!(parse_length(bad.as_bytes()), None, "{bad}");
        }
    }
}
