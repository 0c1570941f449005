//! CGI (RFC 3875): the variables of a request, and the head of the reply that a script writes.
//!
//! A CGI process gets the variables in its environment, a FastCGI application in PARAMS records,
//! and a persistent worker in a [`Block`]. The trait [`Sink`] hides these differences.

mod variables;

pub use variables::{Block, Request, Sink, requested_port, server_port, variables};

use std::fmt;

use memchr::memchr;

use crate::Span;
use crate::http1::{
    Field, Http1Limits, KnownField, Progress, has_mark, is_field_value, is_token, position,
};

/// Rule that the head of a script's reply violated. The application is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgiError {
    /// Header line without a colon or with an invalid name.
    Name,
    /// Header value with a control byte.
    Value,
    /// `Status` that does not start with three digits from 102 to 999.
    Status,
    /// `Content-Length` that is not a number, or that is repeated.
    ContentLength,
    /// The head exceeds the limit of its size or of its number of fields.
    TooLarge,
    /// The output ended before the blank line that ends the head, or before the end of the body.
    Premature,
}

impl fmt::Display for CgiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "malformed header line",
            Self::Value => "control byte in a header value",
            Self::Status => "malformed Status",
            Self::ContentLength => "malformed or repeated Content-Length",
            Self::TooLarge => "head too large",
            Self::Premature => "output ended before the end of the header",
        })
    }
}

impl std::error::Error for CgiError {}

/// Head of a script's reply. All spans are ranges of the parsed buffer.
#[derive(Clone, Debug, Default)]
pub struct ReplyHead {
    /// Value of `Status`. Without `Status`, the status is 302 if the reply has `Location`, and 200
    /// otherwise.
    pub status: u16,
    /// Text after the number in `Status`.
    pub reason: Span,
    /// Value of `Location`.
    pub location: Option<Span>,
    /// Value of `Content-Length`.
    pub content_length: Option<u64>,
    /// All field lines, including `Status`.
    pub fields: Vec<Field>,
    /// Length of the head in bytes, including the blank line.
    pub len: usize,
}

impl ReplyHead {
    /// Returns true if `Location` requests an internal redirect. `Location` must be a local path,
    /// and `Status` must be missing (RFC 3875 section 6.2.2).
    pub fn is_local_redirect(&self, bytes: &[u8]) -> bool {
        let local =
            |span: Span| matches!(span.of(bytes), [b'/', rest @ ..] if !rest.starts_with(b"/"));
        self.location.is_some_and(local)
            && !self.fields.iter().any(|field| field.known == KnownField::Status)
    }
}

/// Parser of the head of a CGI reply from a growing buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyParser {
    line: usize,
    searched: usize,
    limits: Http1Limits,
}

impl ReplyParser {
    /// Creates a parser with these limits. The limit of request targets is not used.
    pub fn new(limits: Http1Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(crate) fn limits(&self) -> &Http1Limits {
        &self.limits
    }

    /// Continues to parse a head. `bytes` is everything that the script has written so far.
    pub fn parse(&mut self, bytes: &[u8], head: &mut ReplyHead) -> Result<Progress, CgiError> {
        if self.searched == 0 {
            head.fields.clear();
            *head = ReplyHead { fields: std::mem::take(&mut head.fields), ..Default::default() };
        }
        loop {
            let window = &bytes[self.searched..bytes.len().min(self.limits.head)];
            let Some(offset) = memchr(b'\n', window) else {
                self.searched += window.len();
                let full = bytes.len() >= self.limits.head;
                return if full { Err(CgiError::TooLarge) } else { Ok(Progress::Partial) };
            };
            let end = self.searched + offset + 1;
            let line = Span::new(self.line, end);
            self.line = end;
            self.searched = end;
            let text = trim_line_end(line.of(bytes));
            if text.is_empty() {
                head.len = end;
                finish(bytes, head)?;
                return Ok(Progress::Complete(end));
            }
            if text.starts_with(COMMENT) {
                continue;
            }
            if head.fields.len() == self.limits.fields {
                return Err(CgiError::TooLarge);
            }
            head.fields.push(parse_line(text, line)?);
        }
    }
}

/// Start of an error page of Python's cgitb. Cgitb begins the page with this comment, so that the
/// page is visible after any other output of the script. Within a head, a line that starts with the
/// comment is skipped.
const COMMENT: &[u8] = b"<!--:";

fn trim_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Parses a field line. White space around the value is removed.
fn parse_line(text: &[u8], line: Span) -> Result<Field, CgiError> {
    let colon = position(b':', text).ok_or(CgiError::Name)?;
    let name = &text[..colon];
    let known = KnownField::of(name);
    // Known names are tokens, and so are names without marks.
    if known == KnownField::Other && (colon == 0 || has_mark(name)) && !is_token(name) {
        return Err(CgiError::Name);
    }
    let value = text[colon + 1..].trim_ascii_start();
    let base = line.start as usize;
    let start = base + text.len() - value.len();
    let value = value.trim_ascii_end();
    if !is_field_value(value) {
        return Err(CgiError::Value);
    }
    Ok(Field {
        name: Span::new(base, base + colon),
        value: Span::new(start, start + value.len()),
        line,
        known,
    })
}

/// Fills the members of `head` from its fields, and rejects invalid values.
fn finish(bytes: &[u8], head: &mut ReplyHead) -> Result<(), CgiError> {
    let mut status = None;
    for field in &head.fields {
        let value = field.value.of(bytes);
        match field.known {
            KnownField::Status => {
                status = Some(parse_status(value)?);
                let words = value.get(4..).map_or(0, <[u8]>::len);
                let end = field.value.end as usize;
                head.reason = Span::new(end - words, end);
            }
            KnownField::Location => head.location = Some(field.value),
            KnownField::ContentLength => {
                let digits = std::str::from_utf8(value).ok().filter(|_| !value.starts_with(b"+"));
                let length = digits.and_then(|digits| digits.parse().ok());
                if head.content_length.is_some() || length.is_none() {
                    return Err(CgiError::ContentLength);
                }
                head.content_length = length;
            }
            _ => {}
        }
    }
    head.status = status.unwrap_or(if head.location.is_some() { 302 } else { 200 });
    Ok(())
}

/// Parses `Status`. 100 and 101 are rejected, because they only concern an HTTP connection. All
/// other statuses below 200 are interim replies.
fn parse_status(value: &[u8]) -> Result<u16, CgiError> {
    match value {
        [a @ b'1'..=b'9', b, c, rest @ ..]
            if b.is_ascii_digit()
                && c.is_ascii_digit()
                && !matches!((a, b, c), (b'1', b'0', b'0' | b'1'))
                && rest.first().is_none_or(|&next| next == b' ') =>
        {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Ok(digit(a) * 100 + digit(b) * 10 + digit(c))
        }
        _ => Err(CgiError::Status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(raw: &str) -> Result<(ReplyHead, Progress), CgiError> {
        let mut head = ReplyHead::default();
        let progress = ReplyParser::default().parse(raw.as_bytes(), &mut head)?;
        Ok((head, progress))
    }

    #[test]
    fn both_line_ends_are_read() {
        for raw in ["Content-Type: a/b\n\nbody", "Content-Type: a/b\r\n\r\nbody"] {
            let (head, progress) = parse(raw).unwrap();
            assert_eq!(progress, Progress::Complete(raw.len() - 4));
            assert_eq!(head.status, 200);
            assert_eq!(head.fields[0].value.of(raw.as_bytes()), b"a/b");
        }
    }

    #[test]
    fn status_and_location() {
        let raw = "Status: 404 Not Here\nX: y\n\n";
        let (head, _) = parse(raw).unwrap();
        assert_eq!((head.status, head.reason.of(raw.as_bytes())), (404, &b"Not Here"[..]));
        let raw = "Location: http://a/\n\n";
        let (head, _) = parse(raw).unwrap();
        assert_eq!((head.status, head.is_local_redirect(raw.as_bytes())), (302, false));
        let raw = "Location: /x?y\n\n";
        assert!(parse(raw).unwrap().0.is_local_redirect(raw.as_bytes()));
        let raw = "Status: 303\nLocation: /x?y\n\n";
        let (head, _) = parse(raw).unwrap();
        assert_eq!((head.status, head.is_local_redirect(raw.as_bytes())), (303, false));
        assert!(head.reason.is_empty());
    }

    #[test]
    fn the_comment_before_a_traceback_of_python_is_left_out() {
        let raw = "<!--: spam\nContent-Type: text/html\n\n<body>";
        let (head, progress) = parse(raw).unwrap();
        assert_eq!(progress, Progress::Complete(raw.len() - 6));
        assert_eq!(head.fields.len(), 1);
        assert_eq!(parse("<!-- spam\n\n").err(), Some(CgiError::Name));
    }

    #[test]
    fn rule_violations_are_refused() {
        for (raw, error) in [
            ("hello world\n\n", CgiError::Name),
            ("a b: c\n\n", CgiError::Name),
            (" folded: c\n\n", CgiError::Name),
            ("a: b\rc\n\n", CgiError::Value),
            ("a: b\0\n\n", CgiError::Value),
            ("Status: OK\n\n", CgiError::Status),
            ("Status: 2000\n\n", CgiError::Status),
            ("Status: 100 Continue\n\n", CgiError::Status),
            ("Status: 101 Switching Protocols\n\n", CgiError::Status),
            ("Content-Length: +1\n\n", CgiError::ContentLength),
            ("Content-Length: 1\nContent-Length: 1\n\n", CgiError::ContentLength),
        ] {
            assert_eq!(parse(raw).err(), Some(error), "{raw:?}");
        }
        assert_eq!(parse(&format!("a: {}", "b".repeat(40_000))).err(), Some(CgiError::TooLarge));
        assert_eq!(parse("a: b\n").unwrap().1, Progress::Partial);
    }

    #[test]
    fn drip_fed_heads_parse_alike() {
        let raw = "Status: 201 Made\r\nContent-Length: 3\n\nabc";
        let whole = format!("{:?}", parse(raw).unwrap().0);
        let mut parser = ReplyParser::default();
        let mut head = ReplyHead::default();
        let end = (1..=raw.len()).find(|&end| {
            parser.parse(&raw.as_bytes()[..end], &mut head).unwrap() != Progress::Partial
        });
        assert_eq!(end, Some(raw.len() - 3));
        assert_eq!(format!("{head:?}"), whole);
    }
}
