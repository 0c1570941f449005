//! Decoder of `multipart/form-data`: the parts of a form with files. The decoder processes the
//! bytes as they arrive.
//!
//! Specifications: <https://www.rfc-editor.org/rfc/rfc7578>, RFC 2046 section 5.1 for the
//! delimiters, and <https://html.spec.whatwg.org/#multipart-form-data> for the output of browsers.
//!
//! [`FormDecoder::decode`] gets the unconsumed bytes and returns ranges of them. Contents are never
//! copied or stored. The decoder rejects input that two parsers may read differently. Examples are
//! bare LF and folded lines in the heads of parts, delimiters with trailing bytes, and parts with
//! no name or two names.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use memchr::{memchr, memchr2, memmem};

use crate::Span;
use crate::http1::{is_field_value, is_token};

/// Limits of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormLimits {
    /// Maximum number of parts.
    pub parts: usize,
    /// Maximum size of a part's head in bytes, including the blank line. The same limit applies to
    /// the preamble before the first part.
    pub head: usize,
    /// Maximum size of a part's content in bytes.
    pub content: u64,
}

impl Default for FormLimits {
    fn default() -> Self {
        Self { parts: 1000, head: 8 * 1024, content: 1 << 30 }
    }
}

/// Rule that a form violated. The client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultipartError {
    /// Delimiter with invalid bytes after it, which are neither a line end nor `--`.
    Delimiter,
    /// Head of a part with a line that is folded, is not a field, or does not end with CRLF.
    Head,
    /// Part without exactly one `form-data` disposition with a name.
    Disposition,
    /// More parts than the limit.
    Parts,
    /// The head of a part or the preamble exceeds the limit.
    HeadTooLarge,
    /// The content of a part exceeds the limit.
    ContentTooLarge,
    /// The form ended before its last delimiter.
    Premature,
}

impl MultipartError {
    /// Returns the status of the reply.
    pub fn status(self) -> u16 {
        match self {
            Self::Parts | Self::HeadTooLarge | Self::ContentTooLarge => 413,
            _ => 400,
        }
    }
}

impl fmt::Display for MultipartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delimiter => "malformed delimiter between the parts of a form",
            Self::Head => "malformed head of a part of a form",
            Self::Disposition => "a part of a form without a name",
            Self::Parts => "too many parts in a form",
            Self::HeadTooLarge => "the head of a part of a form is too large",
            Self::ContentTooLarge => "a part of a form is too large",
            Self::Premature => "the form ended before its last delimiter",
        })
    }
}

impl std::error::Error for MultipartError {}

/// Result of one call of [`FormDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedPart {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// Event in the consumed bytes.
    pub event: Event,
}

/// Piece of a form. All ranges and spans refer to the input of the call that returned the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The decoder needs more input.
    More,
    /// Start of a part.
    Part(PartHead),
    /// Content of the part.
    Content(Range<usize>),
    /// End of the part.
    PartEnd,
    /// End of the form. All further input must be ignored.
    End,
}

/// Decoder of one form.
#[derive(Clone, Debug)]
pub struct FormDecoder {
    /// CRLF, two hyphens and the boundary.
    delimiter: memmem::Finder<'static>,
    state: State,
    limits: FormLimits,
    /// Number of parts that have begun.
    parts: usize,
    /// Number of examined bytes of the current head or preamble. The bytes of a preamble are
    /// dropped.
    seen: usize,
    /// Number of bytes of the current content so far.
    content: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the start of the form. Here the delimiter needs no CRLF before it.
    Start,
    /// In the preamble before the first delimiter. The preamble is ignored.
    Preamble,
    /// After a delimiter.
    Delimited,
    Head,
    /// Before the blank line that ends a head. If the part has no content, the CRLF of this line
    /// may also begin the next delimiter.
    Blank,
    Content,
    Done,
}

impl FormDecoder {
    /// Creates a decoder of a form with this boundary.
    pub fn new(boundary: &Boundary, limits: FormLimits) -> Self {
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        let delimiter = memmem::Finder::new(&delimiter).into_owned();
        Self { delimiter, state: State::Start, limits, parts: 0, seen: 0, content: 0 }
    }

    /// Decodes the next piece of the form in `input`, which starts with the first unconsumed byte.
    ///
    /// [`Event::More`] asks for more input. The caller keeps the unconsumed bytes and passes them
    /// again, followed by new ones. These bytes are at most an incomplete head or delimiter.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedPart, MultipartError> {
        let mut at = 0;
        loop {
            let state = self.state;
            let mut step = self.step(&input[at..])?;
            let has_moved = step.consumed > 0 || self.state != state;
            if has_moved && step.event == Event::More {
                at += step.consumed;
                continue;
            }
            step.shift(at);
            return Ok(step);
        }
    }

    /// Returns true if the form is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Handles the end of the input. Fails if the form is incomplete.
    pub fn finish(&self) -> Result<(), MultipartError> {
        if self.is_done() { Ok(()) } else { Err(MultipartError::Premature) }
    }

    fn step(&mut self, input: &[u8]) -> Result<DecodedPart, MultipartError> {
        match self.state {
            State::Start => Ok(self.start(input)),
            State::Preamble => self.preamble(input),
            State::Delimited => self.delimited(input),
            State::Head => self.head(input),
            State::Blank => Ok(self.blank(input)),
            State::Content => self.content(input),
            State::Done => Ok(DecodedPart { consumed: 0, event: Event::End }),
        }
    }

    fn start(&mut self, input: &[u8]) -> DecodedPart {
        let dashes = &self.delimiter.needle()[2..];
        if input.starts_with(dashes) {
            let consumed = dashes.len();
            self.state = State::Delimited;
            return DecodedPart { consumed, event: Event::More };
        }
        if !dashes.starts_with(input) {
            self.state = State::Preamble;
        }
        DecodedPart { consumed: 0, event: Event::More }
    }

    fn preamble(&mut self, input: &[u8]) -> Result<DecodedPart, MultipartError> {
        let (consumed, is_found) = match self.delimiter.find(input) {
            Some(at) => (at + self.delimiter.needle().len(), true),
            None => (input.len() - self.held(input), false),
        };
        self.seen += consumed;
        if self.seen > self.limits.head + self.delimiter.needle().len() {
            return Err(MultipartError::HeadTooLarge);
        }
        if is_found {
            self.state = State::Delimited;
        }
        Ok(DecodedPart { consumed, event: Event::More })
    }

    /// Handles the bytes after a delimiter. `--` ends the form, and a line end starts a part. White
    /// space may precede the line end. Fails for other bytes, and for too many parts.
    fn delimited(&mut self, input: &[u8]) -> Result<DecodedPart, MultipartError> {
        if input.starts_with(b"--") {
            self.state = State::Done;
            return Ok(DecodedPart { consumed: 2, event: Event::End });
        }
        let padding = input.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        if padding > PADDING {
            return Err(MultipartError::Delimiter);
        }
        match &input[padding..] {
            [b'\r', b'\n', ..] if self.parts == self.limits.parts => Err(MultipartError::Parts),
            [b'\r', b'\n', ..] => {
                self.parts += 1;
                self.seen = 0;
                self.state = State::Head;
                Ok(DecodedPart { consumed: padding + 2, event: Event::More })
            }
            [] | [b'\r'] => Ok(DecodedPart { consumed: 0, event: Event::More }),
            [b'-'] if padding == 0 => Ok(DecodedPart { consumed: 0, event: Event::More }),
            _ => Err(MultipartError::Delimiter),
        }
    }

    /// Reads a complete head. The CRLF of the blank line after the fields stays unconsumed. Returns
    /// [`Event::More`] if the head is incomplete. Fails if the head is malformed or too large.
    fn head(&mut self, input: &[u8]) -> Result<DecodedPart, MultipartError> {
        let window = &input[..input.len().min(self.limits.head)];
        while let Some(found) = memchr(b'\n', &window[self.seen..]) {
            let line_end = self.seen + found;
            if line_end == 0 || window[line_end - 1] != b'\r' {
                return Err(MultipartError::Head);
            }
            let is_blank = line_end == 1 || window[..line_end - 1].ends_with(b"\r\n");
            self.seen = line_end + 1;
            if is_blank {
                let end = line_end - 1;
                let part = parse(&window[..end])?;
                (self.content, self.state) = (0, State::Blank);
                return Ok(DecodedPart { consumed: end, event: Event::Part(part) });
            }
        }
        if input.len() >= self.limits.head {
            return Err(MultipartError::HeadTooLarge);
        }
        self.seen = window.len();
        Ok(DecodedPart { consumed: 0, event: Event::More })
    }

    /// Handles the blank line after a head. The content starts after the blank line. If the part
    /// has no content, the CRLF of the blank line may be the beginning of the delimiter (RFC 2046
    /// section 5.1.1). The part then ends.
    fn blank(&mut self, input: &[u8]) -> DecodedPart {
        let delimiter = self.delimiter.needle();
        if input.starts_with(delimiter) {
            let consumed = delimiter.len();
            self.state = State::Delimited;
            return DecodedPart { consumed, event: Event::PartEnd };
        }
        if delimiter.starts_with(input) {
            return DecodedPart { consumed: 0, event: Event::More };
        }
        self.state = State::Content;
        DecodedPart { consumed: 2, event: Event::More }
    }

    /// Returns the next piece of a part's content, or the end of the part. Holds back bytes that
    /// may begin a delimiter. Returns [`Event::More`] if `input` contains no other bytes.
    fn content(&mut self, input: &[u8]) -> Result<DecodedPart, MultipartError> {
        let found = self.delimiter.find(input);
        let length = found.unwrap_or_else(|| input.len() - self.held(input));
        if length > 0 {
            self.content += length as u64;
            if self.content > self.limits.content {
                return Err(MultipartError::ContentTooLarge);
            }
            return Ok(DecodedPart { consumed: length, event: Event::Content(0..length) });
        }
        if found.is_none() {
            return Ok(DecodedPart { consumed: 0, event: Event::More });
        }
        self.state = State::Delimited;
        Ok(DecodedPart { consumed: self.delimiter.needle().len(), event: Event::PartEnd })
    }

    /// Returns the number of bytes at the end of `input` that may be the start of a delimiter.
    fn held(&self, input: &[u8]) -> usize {
        let delimiter = self.delimiter.needle();
        let tail = &input[input.len().saturating_sub(delimiter.len() - 1)..];
        let mut starts = memchr::memchr_iter(b'\r', tail);
        starts.find(|&at| delimiter.starts_with(&tail[at..])).map_or(0, |at| tail.len() - at)
    }
}

impl DecodedPart {
    /// Adjusts all positions to an input that starts `by` bytes earlier.
    fn shift(&mut self, by: usize) {
        self.consumed += by;
        match &mut self.event {
            Event::Content(range) => *range = range.start + by..range.end + by,
            Event::Part(part) => part.shift(by),
            Event::More | Event::PartEnd | Event::End => {}
        }
    }
}

/// Maximum number of bytes of white space between a delimiter and the end of its line. RFC 2046
/// allows the space because old gateways padded lines.
const PADDING: usize = 64;

// Boundary in a `Content-Type` field.

/// Separator of the parts of a form: 1 to 70 bytes (RFC 2046 section 5.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary(Vec<u8>);

impl Boundary {
    /// Returns the boundary of a `Content-Type` value. Returns `None` for a type other than
    /// `multipart/form-data`, and for a missing, invalid or repeated boundary.
    pub fn of(content_type: &[u8]) -> Option<Self> {
        let end = content_type.iter().position(|&b| b == b';').unwrap_or(content_type.len());
        let (kind, mut rest) = content_type.split_at(end);
        if !kind.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
            return None;
        }
        let mut boundary = None;
        while let Some((name, value, after)) = parameter(rest)? {
            if name.eq_ignore_ascii_case(b"boundary") && boundary.replace(value).is_some() {
                return None;
            }
            rest = after;
        }
        Self::new(&boundary?)
    }

    /// Creates a boundary. Returns `None` if `bytes` is not a valid boundary.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let fits = (1..=70).contains(&bytes.len())
            && bytes.iter().all(|&b| is_boundary_byte(b))
            && bytes.last() != Some(&b' ');
        fits.then(|| Self(bytes.to_vec()))
    }

    /// Returns the bytes of the boundary.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns true if a boundary may contain `byte`. RFC 2046 allows letters, digits and some marks.
/// Clients also use other marks that a token may contain.
fn is_boundary_byte(byte: u8) -> bool {
    matches!(byte, b' ' | b'(' | b')' | b',' | b'/' | b':' | b'=' | b'?') || is_token(&[byte])
}

/// Name of a parameter, its value without quotes, and the text after the parameter.
type Parameter<'a> = (&'a [u8], Vec<u8>, &'a [u8]);

/// Parses `; name=value` at the start of `text`. Returns `Some(None)` if `text` contains no further
/// parameter, and `None` if `text` is malformed.
fn parameter(text: &[u8]) -> Option<Option<Parameter<'_>>> {
    let text = text.trim_ascii();
    if text.is_empty() || text == b";" {
        return Some(None);
    }
    let text = text.strip_prefix(b";")?.trim_ascii_start();
    let equals = text.iter().position(|&b| b == b'=')?;
    let (name, rest) = (&text[..equals], &text[equals + 1..]);
    if !is_token(name) {
        return None;
    }
    let Some(quoted) = rest.strip_prefix(b"\"") else {
        let end = rest.iter().position(|&b| b == b';').unwrap_or(rest.len());
        let value = rest[..end].trim_ascii_end();
        return is_token_or_boundary(value).then(|| Some((name, value.to_vec(), &rest[end..])));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some(Some((name, value, &quoted[at + 1..]))),
            b'\\' => value.push(*bytes.next()?.1),
            byte => value.push(byte),
        }
    }
    None
}

/// Returns true if `value` is accepted without quotes. The standard requires quotes for marks such
/// as `/` and `=`, but clients write boundaries with such marks without quotes.
fn is_token_or_boundary(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|&b| b != b' ' && is_boundary_byte(b))
}

// Head of a part: the name of the part, its file name and its type.

/// Head of a part. All spans are ranges of the decoder's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// Name of the form's field, as written between the quotes. [`plain`] removes the backslashes
    /// before quotes.
    pub name: Span,
    /// File name, as written between the quotes, if the part is a file. The client chose this name,
    /// so a path in it has no meaning here.
    pub filename: Option<Span>,
    /// Value of `Content-Type`, if the part has this field.
    pub content_type: Option<Span>,
    /// The whole head, without the blank line.
    pub head: Span,
}

impl PartHead {
    fn shift(&mut self, by: usize) {
        let spans = [Some(&mut self.name), self.filename.as_mut(), self.content_type.as_mut()];
        for span in spans.into_iter().flatten().chain([&mut self.head]) {
            *span = Span::new(span.start as usize + by, span.end as usize + by);
        }
    }
}

/// Returns `name` without the backslashes that old browsers put before quotes.
///
/// Current browsers write a quote as `%22`, and also leave a typed `%22` unchanged. The two cannot
/// be distinguished, so percent escapes stay. Other backslashes also stay, because Windows paths
/// contain them.
pub fn plain(name: &[u8]) -> Cow<'_, [u8]> {
    if memmem::find(name, b"\\\"").is_none() {
        return Cow::Borrowed(name);
    }
    let mut out = Vec::with_capacity(name.len());
    for (at, &byte) in name.iter().enumerate() {
        if byte != b'\\' || name.get(at + 1) != Some(&b'"') {
            out.push(byte);
        }
    }
    Cow::Owned(out)
}

/// Parses a head. Each line is a field and ends with CRLF.
fn parse(head: &[u8]) -> Result<PartHead, MultipartError> {
    let mut disposition = None;
    let mut content_type = None;
    let mut start = 0;
    while let Some(length) = memchr(b'\n', &head[start..]) {
        let line = Span::new(start, start + length - 1);
        start += length + 1;
        let (name, value) = field(head, line)?;
        let known = match name.of(head) {
            name if name.eq_ignore_ascii_case(b"content-disposition") => &mut disposition,
            name if name.eq_ignore_ascii_case(b"content-type") => &mut content_type,
            _ => continue,
        };
        if known.replace(value).is_some() {
            return Err(MultipartError::Disposition);
        }
    }
    let disposition = disposition.ok_or(MultipartError::Disposition)?;
    let (name, filename) = names(head, disposition).ok_or(MultipartError::Disposition)?;
    Ok(PartHead { name, filename, content_type, head: Span::new(0, head.len()) })
}

fn field(head: &[u8], line: Span) -> Result<(Span, Span), MultipartError> {
    let text = line.of(head);
    let colon = memchr(b':', text).ok_or(MultipartError::Head)?;
    let value = &text[colon + 1..];
    if !is_token(&text[..colon]) || !is_field_value(value) {
        return Err(MultipartError::Head);
    }
    let start = line.start as usize;
    let before = value.len() - value.trim_ascii_start().len();
    let value_start = start + colon + 1 + before;
    let value = Span::new(value_start, value_start + value.trim_ascii().len());
    Ok((Span::new(start, start + colon), value))
}

/// Parses `form-data; name="..."; filename="..."`. Other parameters are ignored. These include
/// `filename*`, which RFC 7578 section 4.2 forbids and browsers do not write. Returns `None` for
/// another type, a syntax error, a missing name, or a repeated `name` or `filename`.
fn names(head: &[u8], value: Span) -> Option<(Span, Option<Span>)> {
    let text = value.of(head);
    let end = memchr(b';', text).unwrap_or(text.len());
    if !text[..end].trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (mut name, mut filename) = (None, None);
    let mut at = end;
    while at < text.len() {
        // `at` is the position of a semicolon.
        at += 1 + leading_space(&text[at + 1..]);
        if at == text.len() {
            break;
        }
        let equals = at + memchr(b'=', &text[at..])?;
        let key = &text[at..equals];
        let (inner, after) = parameter_value(text, equals + 1)?;
        let known = match key {
            key if key.eq_ignore_ascii_case(b"name") => &mut name,
            key if key.eq_ignore_ascii_case(b"filename") => &mut filename,
            key if is_token(key) => &mut None,
            _ => return None,
        };
        let start = value.start as usize;
        if known
            .replace(Span::new(start + inner.start as usize, start + inner.end as usize))
            .is_some()
        {
            return None;
        }
        at = after + leading_space(&text[after..]);
        if at < text.len() && text[at] != b';' {
            return None;
        }
    }
    Some((name?, filename))
}

/// Returns the value at position `start` without its quotes, and the position after the value.
/// Returns `None` if the value is not valid.
///
/// A quotation mark after a backslash does not end the value. So `"a\"` has no end and is rejected,
/// because some parsers would read the name `a\`.
fn parameter_value(text: &[u8], start: usize) -> Option<(Span, usize)> {
    if text.get(start) != Some(&b'"') {
        let length = text[start..].iter().position(|b| matches!(b, b';' | b' ' | b'\t'));
        let end = start + length.unwrap_or(text.len() - start);
        return is_token(&text[start..end]).then(|| (Span::new(start, end), end));
    }
    let mut at = start + 1;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some((Span::new(start + 1, at), at + 1));
        }
        at += 2;
    }
}

fn leading_space(text: &[u8]) -> usize {
    text.iter().take_while(|b| matches!(b, b' ' | b'\t')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries() {
        for (content_type, expected) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("Multipart/Form-Data;BOUNDARY=abc", Some("abc")),
            ("multipart/form-data; charset=utf-8; boundary=abc ;x=y", Some("abc")),
            ("multipart/form-data; boundary=\"a b\"", Some("a b")),
            ("multipart/form-data; boundary=\"a;b\\\"c\"", None),
            ("multipart/form-data; boundary=\"a\\:b\"; x=\"boundary=z\"", Some("a:b")),
            ("multipart/form-data; boundary=a/b=c?d", Some("a/b=c?d")),
            (
                "multipart/form-data; boundary=----WebKitFormBoundaryA1",
                Some("----WebKitFormBoundaryA1"),
            ),
            ("multipart/form-data; boundary=a;", Some("a")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"\"", None),
            ("multipart/form-data; boundary=\"a", None),
            ("multipart/form-data; boundary=\"a \"", None),
            ("multipart/form-data; boundary=a b", None),
            ("multipart/form-data; boundary=a; boundary=b", None),
            ("multipart/form-data; boundary=\u{e9}", None),
            ("multipart/form-data boundary=a", None),
            ("multipart/form-data; boundary =a", None),
            ("multipart/mixed; boundary=a", None),
            ("text/plain; boundary=a", None),
            ("", None),
        ] {
            let found = Boundary::of(content_type.as_bytes());
            let found = found.as_ref().map(|boundary| str::from_utf8(boundary.as_bytes()).unwrap());
            assert_eq!(found, expected, "{content_type}");
        }
        assert!(Boundary::new(&[b'a'; 70]).is_some());
        assert!(Boundary::new(&[b'a'; 71]).is_none());
        assert!(Boundary::new(b"a\r\nb").is_none());
    }
}
