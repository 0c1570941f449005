//! Decoder of a request stream. It converts frames to a head, data and trailers (RFC 9114
//! section 4.1).

use std::ops::Range;

use super::error::{ErrorCode, Http3Error, Rule};
use super::{HeaderDecoder, qpack};
use crate::http2::hpack::ListLimits;
use crate::http2::{Head, HeadLimits, HeadRule, budget};

/// Maximum length of a frame of an unknown type in bytes, as in HTTP/2.
const LARGEST_UNKNOWN: u64 = 16 * 1024;

/// Event of a request stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestEvent {
    /// A field section is complete: the head, or the trailers after it.
    Section,
    /// The head is longer than allowed and was not read.
    TooLarge,
    /// Data of the body, as a range of the input.
    Data(Range<usize>),
}

/// Result of one call of [`RequestDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedFrame {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// Event in the consumed bytes; `None` if more input is needed.
    pub event: Option<RequestEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameStage {
    /// The head has not arrived.
    Head,
    /// Data or trailers may arrive.
    Body,
    /// Only frames of unknown types may arrive.
    Ended,
}

/// Decoder of the stream of one request. It accepts input in pieces of any size.
#[derive(Clone, Debug)]
pub struct RequestDecoder {
    stage: FrameStage,
    header: HeaderDecoder,
    /// Type of the frame whose payload is arriving, and its remaining length.
    frame: Option<(u64, u64)>,
    /// Received part of a field section.
    section: Vec<u8>,
    largest_section: usize,
    /// Bytes of `content-length` that have not arrived yet.
    content_left: Option<u64>,
    price: u32,
}

impl RequestDecoder {
    /// Creates a decoder. An encoded field section may have at most `largest_section` bytes.
    pub fn new(largest_section: usize) -> Self {
        Self {
            stage: FrameStage::Head,
            header: HeaderDecoder::default(),
            frame: None,
            section: Vec::new(),
            largest_section,
            content_left: None,
            price: 0,
        }
    }

    /// Sets the length of the body that `content-length` announces, if the head contains this
    /// field.
    pub fn expect_content(&mut self, length: Option<u64>) {
        self.content_left = length;
    }

    /// Expects another head, because the last head belongs to an interim reply.
    pub(super) fn expect_head(&mut self) {
        self.stage = FrameStage::Head;
    }

    /// Returns the number of received bytes of the field section. Returns 0 after
    /// [`Self::take_section`].
    pub fn section_len(&self) -> usize {
        self.section.len()
    }

    /// Takes the field section, which must be complete.
    pub fn take_section(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.section)
    }

    /// Returns the price of the useless frames that have arrived since the last call (see
    /// `http2::budget`). The price includes frames before an error.
    pub fn take_price(&mut self) -> u32 {
        std::mem::take(&mut self.price)
    }

    /// Decodes `input` up to the next event. The caller repeats the call with the unconsumed bytes.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedFrame, Http3Error> {
        let mut rest = input;
        loop {
            let (kind, left) = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(header) = self.header.decode(&mut rest) else { break };
                    self.begin_frame(header.kind, header.length)?;
                    if header.kind == super::HEADERS && self.is_too_large(header.length) {
                        let consumed = input.len() - rest.len();
                        return Ok(DecodedFrame { consumed, event: Some(RequestEvent::TooLarge) });
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
                super::DATA if taken > 0 => Some(RequestEvent::Data(start..start + taken)),
                super::HEADERS => {
                    self.section.extend_from_slice(piece);
                    (left == 0).then_some(RequestEvent::Section)
                }
                _ => None,
            };
            if event.is_some() {
                return Ok(DecodedFrame { consumed: start + taken, event });
            }
            if left > 0 {
                break;
            }
        }
        Ok(DecodedFrame { consumed: input.len(), event: None })
    }

    /// Handles the end of the stream. Fails if the request is incomplete.
    pub fn end(&self) -> Result<(), Http3Error> {
        if self.frame.is_some() || self.header.is_partial() {
            return Err(Http3Error::frame());
        }
        match (self.stage, self.content_left) {
            (FrameStage::Head, _) => {
                Err(Http3Error::stream(Rule::Incomplete, ErrorCode::REQUEST_INCOMPLETE))
            }
            (_, Some(1..)) => Err(Http3Error::malformed(Rule::ContentLength)),
            _ => Ok(()),
        }
    }

    fn is_too_large(&self, length: u64) -> bool {
        length > self.largest_section as u64
    }

    /// Checks that a frame of this type and length may follow, and starts to read it.
    fn begin_frame(&mut self, kind: u64, length: u64) -> Result<(), Http3Error> {
        match (kind, self.stage) {
            (super::HEADERS, FrameStage::Head) => self.stage = FrameStage::Body,
            (super::HEADERS, FrameStage::Body) if self.is_too_large(length) => {
                return Err(Http3Error::malformed(Rule::Trailers));
            }
            (super::HEADERS, FrameStage::Body) => {
                if self.content_left.is_some_and(|left| left > 0) {
                    return Err(Http3Error::malformed(Rule::ContentLength));
                }
                self.stage = FrameStage::Ended;
            }
            (super::DATA, FrameStage::Body) if length == 0 => self.price += budget::EMPTY_DATA,
            (super::DATA, FrameStage::Body) => self.begin_data(length)?,
            (super::DATA | super::HEADERS, _) => return Err(Http3Error::unexpected()),
            (
                super::CANCEL_PUSH
                | super::SETTINGS
                | super::PUSH_PROMISE
                | super::GOAWAY
                | super::MAX_PUSH_ID,
                _,
            ) => return Err(Http3Error::unexpected()),
            _ if super::is_forbidden(kind) => return Err(Http3Error::unexpected()),
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

/// Reason why the head of a request cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// The head violates a rule. `HeadRule::status` decides if the client gets a reply.
    Rule(HeadRule),
    /// The stream or the connection must end with this error.
    Http3(Http3Error),
}

/// Decodes and checks the head of a request.
pub fn read_head(
    section: &[u8],
    list: ListLimits,
    limits: &HeadLimits,
    head: &mut Head,
) -> Result<(), HeadError> {
    head.clear();
    let decoded = qpack::decode(section, list, &mut head.fields);
    let decoded = decoded.map_err(|error| HeadError::Http3(failed(error)))?;
    head.finish_request(decoded, limits).map_err(HeadError::Rule)
}

/// Decodes and checks the trailers of a request or reply.
pub fn read_trailers(section: &[u8], list: ListLimits, head: &mut Head) -> Result<(), Http3Error> {
    head.clear();
    let decoded = qpack::decode(section, list, &mut head.fields).map_err(failed)?;
    head.finish_trailers(decoded).map_err(|rule| Http3Error::malformed(Rule::Head(rule)))
}

pub(super) fn failed(error: crate::http2::hpack::HpackError) -> Http3Error {
    Http3Error::connection(Rule::Compression(error), ErrorCode::QPACK_DECOMPRESSION_FAILED)
}
