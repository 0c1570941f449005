//! The stream of a request: frames to a head, data and trailers (RFC 9114 section 4.1).

use std::ops::Range;

use super::error::{ErrorCode, Http3Error, Rule};
use super::frame::{self, HeaderDecoder};
use super::qpack;
use crate::http2::hpack::ListLimits;
use crate::http2::{Head, HeadLimits, HeadRule, budget};

/// Largest frame of an unknown type, in bytes, as by HTTP/2.
const LARGEST_UNKNOWN: u64 = 16 * 1024;

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A field section is whole: the head, or behind it the trailers.
    Section,
    /// The head is longer than allowed, and has not been read.
    TooLarge,
    /// Data of the body, as a range of the input.
    Data(Range<usize>),
}

/// What a call of [`RequestDecoder::decode`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How much of the input has been read.
    pub consumed: usize,
    /// What has come; `None`: all was read, and more is needed.
    pub event: Option<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The head is to come.
    Head,
    /// Data may come, or trailers.
    Body,
    /// Nothing may come but frames of unknown types.
    Ended,
}

/// Reads the stream of one request, in whatever pieces it comes.
#[derive(Clone, Debug)]
pub struct RequestDecoder {
    stage: Stage,
    header: HeaderDecoder,
    /// The type of the frame whose payload comes, and how much of it is left.
    frame: Option<(u64, u64)>,
    /// The field section that comes.
    section: Vec<u8>,
    largest_section: usize,
    /// What `content-length` leaves.
    content_left: Option<u64>,
    price: u32,
}

impl RequestDecoder {
    /// Field sections may have so many bytes as they are sent.
    pub fn new(largest_section: usize) -> Self {
        Self {
            stage: Stage::Head,
            header: HeaderDecoder::default(),
            frame: None,
            section: Vec::new(),
            largest_section,
            content_left: None,
            price: 0,
        }
    }

    /// The body has as many bytes as the head says, where it does.
    pub fn expect_content(&mut self, length: Option<u64>) {
        self.content_left = length;
    }

    /// How long what has come of a field section that was not taken is, in bytes.
    pub fn section_len(&self) -> usize {
        self.section.len()
    }

    /// Takes the field section that has just come.
    pub fn take_section(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.section)
    }

    /// What frames that bring nothing have cost since this was last asked (`http2::budget`), also where
    /// what came behind them is an error.
    pub fn take_price(&mut self) -> u32 {
        std::mem::take(&mut self.price)
    }

    /// Reads on until something has come. To be called again with what was not consumed.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, Http3Error> {
        let mut rest = input;
        loop {
            let (kind, left) = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(header) = self.header.decode(&mut rest) else { break };
                    self.begin_frame(header.kind, header.length)?;
                    if header.kind == frame::HEADERS && self.is_too_large(header.length) {
                        let consumed = input.len() - rest.len();
                        return Ok(Step { consumed, event: Some(Event::TooLarge) });
                    }
                    (header.kind, header.length)
                }
            };
            let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            let start = input.len() - rest.len();
            let (piece, behind) = rest.split_at(taken);
            rest = behind;
            let left = left - taken as u64;
            self.frame = (left > 0).then_some((kind, left));
            let event = match kind {
                frame::DATA if taken > 0 => Some(Event::Data(start..start + taken)),
                frame::HEADERS => {
                    self.section.extend_from_slice(piece);
                    (left == 0).then_some(Event::Section)
                }
                _ => None,
            };
            if event.is_some() {
                return Ok(Step { consumed: start + taken, event });
            }
            if left > 0 {
                break;
            }
        }
        Ok(Step { consumed: input.len(), event: None })
    }

    /// The stream has ended; fails where the request has not.
    pub fn end(&self) -> Result<(), Http3Error> {
        if self.frame.is_some() || self.header.is_partial() {
            return Err(Http3Error::frame());
        }
        match (self.stage, self.content_left) {
            (Stage::Head, _) => {
                Err(Http3Error::stream(Rule::Incomplete, ErrorCode::REQUEST_INCOMPLETE))
            }
            (_, Some(1..)) => Err(Http3Error::malformed(Rule::ContentLength)),
            _ => Ok(()),
        }
    }

    fn is_too_large(&self, length: u64) -> bool {
        length > self.largest_section as u64
    }

    fn begin_frame(&mut self, kind: u64, length: u64) -> Result<(), Http3Error> {
        match (kind, self.stage) {
            (frame::HEADERS, Stage::Head) => self.stage = Stage::Body,
            (frame::HEADERS, Stage::Body) if self.is_too_large(length) => {
                return Err(Http3Error::malformed(Rule::Trailers));
            }
            (frame::HEADERS, Stage::Body) => {
                if self.content_left.is_some_and(|left| left > 0) {
                    return Err(Http3Error::malformed(Rule::ContentLength));
                }
                self.stage = Stage::Ended;
            }
            (frame::DATA, Stage::Body) if length == 0 => self.price += budget::EMPTY_DATA,
            (frame::DATA, Stage::Body) => self.begin_data(length)?,
            (frame::DATA | frame::HEADERS, _) => return Err(Http3Error::unexpected()),
            (
                frame::CANCEL_PUSH
                | frame::SETTINGS
                | frame::PUSH_PROMISE
                | frame::GOAWAY
                | frame::MAX_PUSH_ID,
                _,
            ) => return Err(Http3Error::unexpected()),
            _ if frame::is_forbidden(kind) => return Err(Http3Error::unexpected()),
            _ if length > LARGEST_UNKNOWN => return Err(Http3Error::abuse()),
            _ => self.price += budget::USELESS,
        }
        self.frame = Some((kind, length));
        Ok(())
    }

    fn begin_data(&mut self, length: u64) -> Result<(), Http3Error> {
        if let Some(left) = self.content_left {
            let left = left.checked_sub(length);
            self.content_left = Some(left.ok_or(Http3Error::malformed(Rule::ContentLength))?);
        }
        Ok(())
    }
}

/// Reads a request's head; the rule that it breaks, where that is one of heads.
pub fn read_head(
    section: &[u8],
    list: ListLimits,
    limits: &HeadLimits,
    head: &mut Head,
) -> Result<Result<(), HeadRule>, Http3Error> {
    head.clear();
    let decoded = qpack::decode(section, list, &mut head.fields).map_err(failed)?;
    Ok(head.finish_request(decoded, limits))
}

/// Reads trailers.
pub fn read_trailers(section: &[u8], list: ListLimits, head: &mut Head) -> Result<(), Http3Error> {
    head.clear();
    let decoded = qpack::decode(section, list, &mut head.fields).map_err(failed)?;
    head.finish_trailers(decoded).map_err(|rule| Http3Error::malformed(Rule::Head(rule)))
}

fn failed(error: crate::http2::hpack::HpackError) -> Http3Error {
    Http3Error::connection(Rule::Compression(error), ErrorCode::QPACK_DECOMPRESSION_FAILED)
}
