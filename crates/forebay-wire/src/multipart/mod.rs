//! `multipart/form-data`: the parts of a form with files, as its bytes come.
//!
//! Specifications: <https://www.rfc-editor.org/rfc/rfc7578>, RFC 2046 section 5.1 for the
//! delimiters, and <https://html.spec.whatwg.org/#multipart-form-data> for what browsers write.
//!
//! [`Decoder::decode`] is given what has come and not yet been used, and names what it found as
//! ranges of that; contents are never copied or kept. What is refused is what two readers may take
//! differently: bare LF and folded lines in the heads of parts, delimiters with something behind
//! them, parts without a name or with two.

mod boundary;
mod disposition;

pub use boundary::Boundary;
pub use disposition::{Part, plain};

use std::fmt;
use std::ops::Range;

use memchr::{memchr, memmem};

/// Limits on a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most parts.
    pub parts: usize,
    /// Largest head of a part, in bytes, blank line included; also how much may stand before the
    /// first part.
    pub head: usize,
    /// Largest content of a part, in bytes.
    pub content: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { parts: 1000, head: 8 * 1024, content: 1 << 30 }
    }
}

/// The rule that a form broke. The client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultipartError {
    /// A delimiter with something else behind it than the end of its line or `--`.
    Delimiter,
    /// The head of a part has a line that is no field, does not end in CRLF or goes on in the next.
    Head,
    /// A part that does not say once that it is `form-data`, and what its name is.
    Disposition,
    /// More parts than the limit.
    Parts,
    /// The head of a part, or what stands before the first, is larger than the limit.
    HeadTooLarge,
    /// The content of a part is larger than the limit.
    ContentTooLarge,
    /// The form ended before its last delimiter.
    Premature,
}

impl MultipartError {
    /// The status to answer with.
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
            Self::Disposition => "a part of a form without its name",
            Self::Parts => "too many parts in a form",
            Self::HeadTooLarge => "the head of a part of a form is too large",
            Self::ContentTooLarge => "a part of a form is too large",
            Self::Premature => "the form ended before its last delimiter",
        })
    }
}

impl std::error::Error for MultipartError {}

/// What one call of [`Decoder::decode`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// What they hold.
    pub event: Event,
}

/// A piece of a form. Ranges and spans are of the input of the call that found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing yet: more input is needed.
    More,
    /// A part begins.
    Part(Part),
    /// Some of its content.
    Content(Range<usize>),
    /// The part is complete.
    PartEnd,
    /// The form is complete; what follows is to be ignored.
    End,
}

/// Decodes one form.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// CRLF and the delimiter.
    delimiter: memmem::Finder<'static>,
    state: State,
    limits: Limits,
    /// Parts that have begun.
    parts: usize,
    /// How much of the present head or preamble has been looked at and, for a preamble, dropped.
    seen: usize,
    /// Length of the present content so far.
    content: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the very start, where the delimiter needs no CRLF before it.
    Start,
    /// What stands before the first delimiter, and means nothing.
    Preamble,
    /// Behind a delimiter.
    Delimited,
    Head,
    /// Before the CRLF of the blank line, which may be that of the delimiter.
    Blank,
    Content,
    Done,
}

impl Decoder {
    /// A decoder of a form with this boundary.
    pub fn new(boundary: &Boundary, limits: Limits) -> Self {
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        let delimiter = memmem::Finder::new(&delimiter).into_owned();
        Self { delimiter, state: State::Start, limits, parts: 0, seen: 0, content: 0 }
    }

    /// The next piece of the form in `input`, which is what came after the last `consumed` byte.
    ///
    /// [`Event::More`] with all input that there is means that more is to be read. What is held back
    /// is at most a head within its limit, or the beginning of a delimiter.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, MultipartError> {
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

    /// Whether the form is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The input has ended: an error where the form has not.
    pub fn finish(&self) -> Result<(), MultipartError> {
        if self.is_done() { Ok(()) } else { Err(MultipartError::Premature) }
    }

    fn step(&mut self, input: &[u8]) -> Result<Step, MultipartError> {
        match self.state {
            State::Start => Ok(self.start(input)),
            State::Preamble => self.preamble(input),
            State::Delimited => self.delimited(input),
            State::Head => self.head(input),
            State::Blank => Ok(self.blank(input)),
            State::Content => self.content(input),
            State::Done => Ok(Step { consumed: 0, event: Event::End }),
        }
    }

    fn start(&mut self, input: &[u8]) -> Step {
        let dashes = &self.delimiter.needle()[2..];
        if input.starts_with(dashes) {
            let consumed = dashes.len();
            self.state = State::Delimited;
            return Step { consumed, event: Event::More };
        }
        if !dashes.starts_with(input) {
            self.state = State::Preamble;
        }
        Step { consumed: 0, event: Event::More }
    }

    fn preamble(&mut self, input: &[u8]) -> Result<Step, MultipartError> {
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
        Ok(Step { consumed, event: Event::More })
    }

    /// `--` ends the form, a line end begins a part. White space may stand before the latter.
    fn delimited(&mut self, input: &[u8]) -> Result<Step, MultipartError> {
        if input.starts_with(b"--") {
            self.state = State::Done;
            return Ok(Step { consumed: 2, event: Event::End });
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
                Ok(Step { consumed: padding + 2, event: Event::More })
            }
            [] | [b'\r'] => Ok(Step { consumed: 0, event: Event::More }),
            [b'-'] if padding == 0 => Ok(Step { consumed: 0, event: Event::More }),
            _ => Err(MultipartError::Delimiter),
        }
    }

    /// A whole head, without the CRLF of its blank line.
    fn head(&mut self, input: &[u8]) -> Result<Step, MultipartError> {
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
                return Ok(Step { consumed: end, event: Event::Part(part) });
            }
        }
        if input.len() >= self.limits.head {
            return Err(MultipartError::HeadTooLarge);
        }
        self.seen = window.len();
        Ok(Step { consumed: 0, event: Event::More })
    }

    /// Where a part has no content its delimiter may follow at once: the blank line's CRLF is then
    /// the delimiter's (RFC 2046 section 5.1.1). Else content begins behind it.
    fn blank(&mut self, input: &[u8]) -> Step {
        let delimiter = self.delimiter.needle();
        if input.starts_with(delimiter) {
            let consumed = delimiter.len();
            self.state = State::Delimited;
            return Step { consumed, event: Event::PartEnd };
        }
        if delimiter.starts_with(input) {
            return Step { consumed: 0, event: Event::More };
        }
        self.state = State::Content;
        Step { consumed: 2, event: Event::More }
    }

    fn content(&mut self, input: &[u8]) -> Result<Step, MultipartError> {
        let found = self.delimiter.find(input);
        let length = found.unwrap_or_else(|| input.len() - self.held(input));
        if length > 0 {
            self.content += length as u64;
            if self.content > self.limits.content {
                return Err(MultipartError::ContentTooLarge);
            }
            return Ok(Step { consumed: length, event: Event::Content(0..length) });
        }
        if found.is_none() {
            return Ok(Step { consumed: 0, event: Event::More });
        }
        self.state = State::Delimited;
        Ok(Step { consumed: self.delimiter.needle().len(), event: Event::PartEnd })
    }

    /// How many bytes at the end of `input` may be the beginning of a delimiter.
    fn held(&self, input: &[u8]) -> usize {
        let delimiter = self.delimiter.needle();
        let tail = &input[input.len().saturating_sub(delimiter.len() - 1)..];
        let mut starts = memchr::memchr_iter(b'\r', tail);
        starts.find(|&at| delimiter.starts_with(&tail[at..])).map_or(0, |at| tail.len() - at)
    }
}

impl Step {
    /// Names the same bytes in an input that begins `by` bytes earlier.
    fn shift(&mut self, by: usize) {
        self.consumed += by;
        match &mut self.event {
            Event::Content(range) => *range = range.start + by..range.end + by,
            Event::Part(part) => part.shift(by),
            Event::More | Event::PartEnd | Event::End => {}
        }
    }
}

/// Most white space between a delimiter and the end of its line, in bytes. It is there for gateways
/// of long ago that padded lines.
const PADDING: usize = 64;
