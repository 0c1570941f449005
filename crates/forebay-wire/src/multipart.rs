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

mod boundary;
mod disposition;

pub use boundary::Boundary;
pub use disposition::{PartHead, plain};

use std::fmt;
use std::ops::Range;

use memchr::{memchr, memmem};

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
                let part = disposition::parse(&window[..end])?;
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
