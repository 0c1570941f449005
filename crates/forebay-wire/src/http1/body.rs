//! Decoder of message bodies (RFC 9112 sections 6 and 7). It separates the payload from the
//! framing.

use std::ops::Range;

use memchr::memchr;

use super::fields::{Lines, parse_line};
use super::mend::{self, HeadSyntax, Mended};
use super::{HttpError, KnownField, RequestFraming, ResponseFraming, may_be_trailer};

/// Maximum length of a line with a chunk size, in bytes.
const LINE_LIMIT: usize = 256;
/// Maximum length of a trailer section, in bytes.
const TRAILER_LIMIT: usize = 8 * 1024;

/// Result of one call of [`BodyDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedBody {
    /// Number of consumed bytes of the input, including framing.
    pub consumed: usize,
    /// Position of the payload in the input. The range is empty if more input is needed or the body
    /// has ended.
    pub data: Range<usize>,
    /// True if the body is complete. Bytes after `consumed` then belong to the next message.
    pub done: bool,
}

impl DecodedBody {
    fn framing(consumed: usize) -> Self {
        Self { consumed, data: 0..0, done: false }
    }
}

/// Decoder of one body. The decoder returns ranges of the input, and never copies payload.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: BodyState,
    trailer: usize,
    /// Lines of the trailer section that may be forwarded. `None` if all lines are dropped.
    kept: Option<Vec<u8>>,
    /// True if the body is that of a reply.
    is_reply: bool,
    /// True if a trailer concerns framing or routing.
    has_forbidden_trailer: bool,
    /// Set if oddities of the framing are accepted that leave no doubt. The value is what the last
    /// trailer line was, for a folded line that follows it.
    lenient: Option<Mended>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    Length(u64),
    Close,
    Size,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    Done,
}

impl BodyDecoder {
    /// Creates a decoder of a request body.
    pub fn request(framing: RequestFraming) -> Self {
        Self::new(match framing {
            RequestFraming::None => BodyState::Done,
            RequestFraming::Length(length) => BodyState::Length(length),
            RequestFraming::Chunked => BodyState::Size,
        })
    }

    /// Creates a decoder of a response body.
    pub fn response(framing: ResponseFraming) -> Self {
        let decoder = Self::new(match framing {
            ResponseFraming::None | ResponseFraming::Length(0) => BodyState::Done,
            ResponseFraming::Length(length) => BodyState::Length(length),
            ResponseFraming::Chunked => BodyState::Size,
            ResponseFraming::Close => BodyState::Close,
        });
        Self { is_reply: true, ..decoder }
    }

    fn new(state: BodyState) -> Self {
        Self {
            state,
            trailer: 0,
            kept: None,
            is_reply: false,
            has_forbidden_trailer: false,
            lenient: None,
        }
    }

    /// Makes the decoder accept what nginx accepts from backends, unless `is_strict` is true: lines
    /// that end with LF, blanks after a chunk size, extensions of any form, and trailers that are not
    /// well formed.
    pub fn lenient_unless(self, is_strict: bool) -> Self {
        Self { lenient: (!is_strict).then_some(Mended::Nothing), ..self }
    }

    /// Makes the decoder keep the trailer fields that may be forwarded. [`BodyDecoder::trailers`]
    /// returns them.
    pub fn keeping_trailers(mut self) -> Self {
        self.kept = Some(Vec::new());
        self
    }

    /// Returns the kept trailer fields, as lines that end with CRLF.
    pub fn trailers(&self) -> &[u8] {
        self.kept.as_deref().unwrap_or_default()
    }

    /// Returns true if the reply had a trailer about framing or routing. Such a trailer has no
    /// effect, but the sender may be confused about the end of the message, so the caller should
    /// close the connection.
    pub fn has_forbidden_trailer(&self) -> bool {
        self.has_forbidden_trailer
    }

    /// Returns true if the body is complete.
    pub fn is_done(&self) -> bool {
        self.state == BodyState::Done
    }

    /// Returns true if the body would be complete if the connection closed now.
    pub fn ends_at_close(&self) -> bool {
        matches!(self.state, BodyState::Close | BodyState::Done)
    }

    /// Handles the end of the connection, which may complete the body.
    pub fn close(&mut self) {
        if self.state == BodyState::Close {
            self.state = BodyState::Done;
        }
    }

    /// Decodes the next piece of payload in `input`, which starts with the first unconsumed byte.
    ///
    /// If the result contains no data and the body is not complete, the caller must provide more
    /// input. Fails if the chunked encoding or a trailer breaks a rule.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedBody, HttpError> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let mut step = match self.state {
                BodyState::Done => return Ok(DecodedBody { consumed: at, data: 0..0, done: true }),
                BodyState::Close => {
                    DecodedBody { consumed: rest.len(), data: 0..rest.len(), done: false }
                }
                BodyState::Length(left) => {
                    self.payload(rest, left, BodyState::Length, BodyState::Done)
                }
                BodyState::Chunk(left) => {
                    self.payload(rest, left, BodyState::Chunk, BodyState::ChunkEnd)
                }
                BodyState::Size => self.size(rest)?,
                BodyState::ChunkEnd => self.chunk_end(rest)?,
                BodyState::Trailer => self.trailer_line(rest)?,
            };
            let stalled = step.consumed == 0 && self.state != BodyState::Done;
            step.data = step.data.start + at..step.data.end + at;
            at += step.consumed;
            if stalled || !step.data.is_empty() {
                step.consumed = at;
                step.done = self.state == BodyState::Done;
                return Ok(step);
            }
        }
    }

    fn payload(
        &mut self,
        rest: &[u8],
        left: u64,
        go_on: fn(u64) -> BodyState,
        end: BodyState,
    ) -> DecodedBody {
        let taken = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - taken as u64;
        self.state = if left == 0 { end } else { go_on(left) };
        DecodedBody { consumed: taken, data: 0..taken, done: false }
    }

    fn size(&mut self, rest: &[u8]) -> Result<DecodedBody, HttpError> {
        let window = &rest[..rest.len().min(LINE_LIMIT)];
        let Some(lf) = memchr(b'\n', window) else {
            check_partial_size(window)?;
            let full = window.len() == LINE_LIMIT;
            return if full { Err(HttpError::ChunkExtension) } else { Ok(DecodedBody::framing(0)) };
        };
        let line = match rest[..lf].strip_suffix(b"\r") {
            Some(line) => line,
            None if self.lenient.is_some() => &rest[..lf],
            None => return Err(HttpError::ChunkSize),
        };
        let size = parse_size(if self.lenient.is_some() { size_of_line(line)? } else { line })?;
        self.state = if size == 0 { BodyState::Trailer } else { BodyState::Chunk(size) };
        Ok(DecodedBody::framing(lf + 1))
    }

    fn chunk_end(&mut self, rest: &[u8]) -> Result<DecodedBody, HttpError> {
        match rest {
            [b'\r', b'\n', ..] => {
                self.state = BodyState::Size;
                Ok(DecodedBody::framing(2))
            }
            [b'\n', ..] if self.lenient.is_some() => {
                self.state = BodyState::Size;
                Ok(DecodedBody::framing(1))
            }
            [] | [b'\r'] => Ok(DecodedBody::framing(0)),
            _ => Err(HttpError::ChunkEnd),
        }
    }

    /// Checks one trailer line. The line is then kept if it may be forwarded, and dropped
    /// otherwise. Fields of requests that concern framing or routing are rejected (RFC 9110 section
    /// 6.5.1).
    fn trailer_line(&mut self, rest: &[u8]) -> Result<DecodedBody, HttpError> {
        if let Some(last) = self.lenient {
            return self.lenient_trailer_line(rest, last);
        }
        let room = TRAILER_LIMIT - self.trailer;
        let line = Lines::default().next(rest, room).map_err(|_| HttpError::Trailer)?;
        let Some(line) = line else { return Ok(DecodedBody::framing(0)) };
        if line.len() == 2 {
            self.state = BodyState::Done;
        } else {
            let field = parse_line(rest, line).map_err(|_| HttpError::Trailer)?;
            if is_forbidden(field.known) {
                if !self.is_reply {
                    return Err(HttpError::ForbiddenTrailer);
                }
                self.has_forbidden_trailer = true;
            }
            if let Some(kept) = self.kept.as_mut().filter(|_| may_be_trailer(field.name.of(rest))) {
                kept.extend_from_slice(line.of(rest));
            }
        }
        self.trailer += line.len();
        Ok(DecodedBody::framing(line.len()))
    }
}

impl BodyDecoder {
    /// Reads a trailer line of any form. What is no field is dropped, because trailers decide
    /// nothing.
    fn lenient_trailer_line(
        &mut self,
        rest: &[u8],
        last: Mended,
    ) -> Result<DecodedBody, HttpError> {
        let window = &rest[..rest.len().min(TRAILER_LIMIT - self.trailer)];
        let Some(lf) = memchr(b'\n', window) else {
            let is_full = window.len() < rest.len();
            return if is_full { Err(HttpError::Trailer) } else { Ok(DecodedBody::framing(0)) };
        };
        self.trailer += lf + 1;
        let line = rest[..lf].strip_suffix(b"\r").unwrap_or(&rest[..lf]);
        if line.is_empty() {
            self.state = BodyState::Done;
            return Ok(DecodedBody::framing(lf + 1));
        }
        let mut unused = Vec::new();
        let kept = self.kept.as_mut().unwrap_or(&mut unused);
        let start = kept.len();
        let is_folded = matches!(line, [b' ' | b'\t', ..]);
        let mended = if is_folded {
            mend::continue_line(line, last, kept).map(|()| last)
        } else {
            mend::mend_line(line, HeadSyntax::Http, kept)
        };
        let mended = mended.unwrap_or(Mended::Nothing);
        if !is_folded {
            let name = &line[..memchr(b':', line).unwrap_or(line.len())];
            let name = name.trim_ascii();
            self.has_forbidden_trailer |=
                mend::is_framing(name) || is_forbidden(KnownField::of(name));
            if mended != Mended::Field || !may_be_trailer(name) {
                kept.truncate(start);
                self.lenient = Some(Mended::Nothing);
                return Ok(DecodedBody::framing(lf + 1));
            }
        }
        self.lenient = Some(mended);
        Ok(DecodedBody::framing(lf + 1))
    }
}

fn is_forbidden(known: KnownField) -> bool {
    matches!(known, KnownField::ContentLength | KnownField::TransferEncoding | KnownField::Host)
}

/// Rejects a size line as soon as its first byte is invalid.
fn check_partial_size(line: &[u8]) -> Result<(), HttpError> {
    match line.first() {
        Some(byte) if !byte.is_ascii_hexdigit() => Err(HttpError::ChunkSize),
        _ => Ok(()),
    }
}

/// Parses `1*HEXDIG [ chunk-ext ]`. The limit of 2^60-1 bytes prevents an overflow when offsets are
/// added.
fn parse_size(line: &[u8]) -> Result<u64, HttpError> {
    let end = line.iter().position(|b| !b.is_ascii_hexdigit()).unwrap_or(line.len());
    if end == 0 || end > 15 {
        return Err(HttpError::ChunkSize);
    }
    let size = line[..end].iter().fold(0u64, |size, &digit| size << 4 | hex(digit));
    match &line[end..] {
        [] => Ok(size),
        extension => check_extension(extension).map(|()| size),
    }
}

/// Returns the digits of a line with a chunk size. Zeros before them, blanks after them and
/// extensions of any form are accepted, as by nginx.
fn size_of_line(line: &[u8]) -> Result<&[u8], HttpError> {
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t' | b';')).unwrap_or(line.len());
    let (digits, extension) = line.split_at(end);
    if extension.contains(&b'\r') {
        return Err(HttpError::ChunkExtension);
    }
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    Ok(&digits[zeros.min(digits.len().saturating_sub(1))..])
}

fn hex(digit: u8) -> u64 {
    (digit as char).to_digit(16).map_or(0, u64::from)
}

/// Checks `*( ";" name [ "=" value ] )` with tokens or quoted strings. White space is rejected,
/// because RFC 9110 section 5.6.3 forbids senders to write it here. Valid extensions are ignored.
fn check_extension(mut rest: &[u8]) -> Result<(), HttpError> {
    while let Some((b';', after)) = rest.split_first() {
        rest = skip_token(after)?;
        if let Some((b'=', value)) = rest.split_first() {
            rest = match value.first() {
                Some(b'"') => skip_quoted(value)?,
                _ => skip_token(value)?,
            };
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(HttpError::ChunkExtension) }
}

fn skip_token(bytes: &[u8]) -> Result<&[u8], HttpError> {
    let end = bytes.iter().position(|&b| !super::chars::is_tchar(b)).unwrap_or(bytes.len());
    if end == 0 { Err(HttpError::ChunkExtension) } else { Ok(&bytes[end..]) }
}

fn skip_quoted(bytes: &[u8]) -> Result<&[u8], HttpError> {
    if !super::is_field_value(bytes) {
        return Err(HttpError::ChunkExtension);
    }
    let mut escaped = false;
    for (at, &byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok(&bytes[at + 1..]),
            _ => {}
        }
    }
    Err(HttpError::ChunkExtension)
}
