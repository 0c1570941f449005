//! SCGI (<https://python.ca/scgi/protocol.txt>). A request is a netstring of NUL-separated
//! variables, followed by the body. The reply has the format of CGI or HTTP, and ends when the
//! connection closes.
//!
//! [`Head`] writes the head of a request, and [`parse`] reads it.

use std::fmt;
use std::ops::Range;

use memchr::memchr;

use crate::cgi::Sink;
use crate::http1::encode::decimal;

/// Encoder that appends variables as a netstring. [`Head::finish`] completes the netstring with its
/// length.
///
/// `CONTENT_LENGTH` and `SCGI` are written first, as the specification requires. Later variables
/// with these names are skipped, because a name may occur only once.
#[derive(Debug)]
pub struct Head<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Head<'a> {
    /// Starts the head of a request at the end of `out`. The body of the request has
    /// `content_length` bytes.
    pub fn new(out: &'a mut Vec<u8>, content_length: u64) -> Self {
        let start = out.len();
        out.extend_from_slice(b"CONTENT_LENGTH\0");
        decimal(out, content_length);
        out.extend_from_slice(b"\0SCGI\x001\0");
        Self { out, start }
    }

    /// Completes the netstring. The body must follow.
    pub fn finish(self) {
        let mut length = Vec::with_capacity(8);
        decimal(&mut length, (self.out.len() - self.start) as u64);
        length.push(b':');
        self.out.splice(self.start..self.start, length);
        self.out.push(b',');
    }
}

impl Sink for Head<'_> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        if matches!(name, b"CONTENT_LENGTH" | b"SCGI") {
            return;
        }
        for part in [name, value] {
            self.out.extend_from_slice(part);
            self.out.push(0);
        }
    }
}

/// Rule that a client violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScgiError {
    /// Length before the head that is not a number, or that has a leading zero.
    Length,
    /// Head that is longer than this limit in bytes.
    TooLarge(usize),
    /// Head without a comma after the variables.
    Comma,
    /// Name that is empty or has no value.
    Pairs,
    /// Head whose first variable is not `CONTENT_LENGTH` with a number.
    ContentLength,
    /// `SCGI` that is missing or not "1".
    Version,
    /// Repeated name.
    Repeated,
}

impl fmt::Display for ScgiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("malformed length of the head"),
            Self::TooLarge(most) => write!(f, "head of more than {most} bytes"),
            Self::Comma => f.write_str("no comma after the head"),
            Self::Pairs => f.write_str("variables that are not pairs of name and value"),
            Self::ContentLength => f.write_str("CONTENT_LENGTH is not the first variable"),
            Self::Version => f.write_str("no variable SCGI with the value 1"),
            Self::Repeated => f.write_str("a repeated variable"),
        }
    }
}

impl std::error::Error for ScgiError {}

/// Parsed head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Names and values in the order of the head, as ranges of the input.
    pub variables: Vec<(Range<usize>, Range<usize>)>,
    /// Length in bytes of the body that follows the head.
    pub content_length: u64,
    /// Length of the head in bytes, including the comma.
    pub len: usize,
}

/// Parses the head at the start of `input`, which is everything received so far. Returns `None` if
/// more input is needed. Rejects a netstring of more than `most` bytes.
pub fn parse(input: &[u8], most: usize) -> Result<Option<Parsed>, ScgiError> {
    let Some((start, length)) = netstring(input, most)? else { return Ok(None) };
    let end = start + length;
    match input.get(end) {
        None => return Ok(None),
        Some(b',') => {}
        Some(_) => return Err(ScgiError::Comma),
    }
    let mut parsed = Parsed { len: end + 1, ..Parsed::default() };
    let mut at = start;
    while at < end {
        let name = field(input, at, end)?;
        let value = field(input, name.end + 1, end)?;
        if name.is_empty() {
            return Err(ScgiError::Pairs);
        }
        at = value.end + 1;
        parsed.variables.push((name, value));
    }
    check(input, &mut parsed)?;
    Ok(Some(parsed))
}

/// Returns the start and the length of the netstring's content, or `None` if the length has not
/// arrived.
fn netstring(input: &[u8], most: usize) -> Result<Option<(usize, usize)>, ScgiError> {
    let digits = input.iter().take_while(|b| b.is_ascii_digit()).count();
    // No limit has more than ten digits, so reject a longer length before its end arrives.
    if digits > 10 || digits > 1 && input[0] == b'0' {
        return Err(ScgiError::Length);
    }
    match input.get(digits) {
        None => return Ok(None),
        Some(b':') if digits > 0 => {}
        Some(_) => return Err(ScgiError::Length),
    }
    let length = number(&input[..digits]).ok_or(ScgiError::Length)?;
    match usize::try_from(length) {
        Ok(length) if length <= most => Ok(Some((digits + 1, length))),
        _ => Err(ScgiError::TooLarge(most)),
    }
}

/// Returns the range from position `at` to the next NUL.
fn field(input: &[u8], at: usize, end: usize) -> Result<Range<usize>, ScgiError> {
    let rest = input.get(at..end).ok_or(ScgiError::Pairs)?;
    let length = memchr(0, rest).ok_or(ScgiError::Pairs)?;
    Ok(at..at + length)
}

/// Checks the variables of a complete head, and stores the length of the body.
fn check(input: &[u8], parsed: &mut Parsed) -> Result<(), ScgiError> {
    let of = |range: &Range<usize>| &input[range.clone()];
    let first = parsed.variables.first().ok_or(ScgiError::ContentLength)?;
    if of(&first.0) != b"CONTENT_LENGTH" {
        return Err(ScgiError::ContentLength);
    }
    parsed.content_length = number(of(&first.1)).ok_or(ScgiError::ContentLength)?;
    let is_version = |(name, value): &(_, _)| of(name) == b"SCGI" && of(value) == b"1";
    if !parsed.variables.iter().any(is_version) {
        return Err(ScgiError::Version);
    }
    let mut names: Vec<_> = parsed.variables.iter().map(|(name, _)| of(name)).collect();
    names.sort_unstable();
    let is_repeated = names.windows(2).any(|pair| pair[0] == pair[1]);
    if is_repeated { Err(ScgiError::Repeated) } else { Ok(()) }
}

/// Parses a number that consists only of decimal digits. Returns `None` for other text, or if the
/// number is too large. Signs and spaces are rejected, because parsers read them differently, and
/// such differences enable request smuggling.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
