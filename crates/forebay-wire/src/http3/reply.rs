//! Decoder of the stream of one reply (RFC 9114 section 4.1): interim heads, the final head, data
//! and trailers.

use std::ops::Range;

use super::error::{ErrorCode, Http3Error, Rule};
use super::qpack;
use super::request::{RequestDecoder, RequestEvent, failed, read_trailers};
use crate::http2::hpack::ListLimits;
use crate::http2::{Head, HeadRule};

/// Event of the stream of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    /// The head of an interim (1xx) reply.
    Interim,
    /// The final head.
    Head,
    /// Data of the body, as a range of the input.
    Data(Range<usize>),
    /// The trailers.
    Trailers,
}

/// Result of one call of [`ReplyDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedReply {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// Event in the consumed bytes; `None` if more input is needed.
    pub event: Option<ReplyEvent>,
}

/// Decoder of the stream of one reply. It accepts input in pieces of any size.
#[derive(Clone, Debug)]
pub struct ReplyDecoder {
    stream: RequestDecoder,
    limits: ListLimits,
    /// True if the reply answers a HEAD request, so that it has no body.
    to_head: bool,
    has_head: bool,
}

impl ReplyDecoder {
    /// Creates a decoder of the reply to a request. `to_head` is true if the method is HEAD.
    pub fn new(limits: ListLimits, to_head: bool) -> Self {
        // The limit of a decoded list also suits the encoded section. The section is never longer,
        // because the size of a list counts 32 extra bytes per field.
        let stream = RequestDecoder::new(limits.size);
        Self { stream, limits, to_head, has_head: false }
    }

    /// Decodes `input` up to the next event. A head or trailers are written to `head`. The caller
    /// repeats the call with the unconsumed bytes.
    ///
    /// # Errors
    /// Fails if the server violates the protocol. The error says if only this stream ends, or the
    /// connection.
    pub fn decode(&mut self, input: &[u8], head: &mut Head) -> Result<DecodedReply, Http3Error> {
        let step = self.stream.decode(input);
        // Only servers limit useless frames. A client's exchange ends at its time limit.
        self.stream.take_price();
        let step = step?;
        let event = match step.event {
            None => None,
            Some(RequestEvent::Data(range)) => Some(ReplyEvent::Data(range)),
            Some(RequestEvent::Section) => Some(self.read_section(head)?),
            Some(RequestEvent::TooLarge) => {
                return Err(Http3Error::malformed(Rule::Head(HeadRule::TooLarge)));
            }
        };
        Ok(DecodedReply { consumed: step.consumed, event })
    }

    /// Handles the end of the stream. Fails if the reply is incomplete.
    pub fn end(&self) -> Result<(), Http3Error> {
        let error = |error: Http3Error| match error.code {
            // This code is only for servers (RFC 9114 section 8.1). For a client, the reply is
            // malformed.
            ErrorCode::REQUEST_INCOMPLETE => Http3Error::malformed(error.rule),
            _ => error,
        };
        self.stream.end().map_err(error)
    }

    /// Decodes a complete section of fields: an interim head, the head, or the trailers.
    fn read_section(&mut self, head: &mut Head) -> Result<ReplyEvent, Http3Error> {
        let section = self.stream.take_section();
        if self.has_head {
            return read_trailers(&section, self.limits, head).map(|()| ReplyEvent::Trailers);
        }
        head.clear();
        let decoded = qpack::decode(&section, self.limits, &mut head.fields).map_err(failed)?;
        let checked = head.finish_reply(decoded);
        checked.map_err(|rule| Http3Error::malformed(Rule::Head(rule)))?;
        if head.status < 200 {
            self.stream.expect_head();
            return Ok(ReplyEvent::Interim);
        }
        self.has_head = true;
        let has_no_body = self.to_head || matches!(head.status, 204 | 304);
        self.stream.expect_content(if has_no_body { Some(0) } else { head.content_length });
        Ok(ReplyEvent::Head)
    }
}
