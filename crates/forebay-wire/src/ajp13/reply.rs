//! Reading replies, as a web server does.

use std::ops::Range;

use super::codes::REPLY_FIELDS;
use super::packet::{Reader, payload};
use super::{AjpError, TO_FRONT, kind};
use crate::Span;
use crate::fields::Fields;
use crate::http1::is_field_value;

/// The head of a reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyHead {
    /// The status, 200 to 999: AJP has no interim replies.
    pub status: u16,
    /// The fields, and the bytes of the message.
    pub fields: Fields,
    /// Length of the body, in bytes, where it is told.
    pub content_length: Option<u64>,
    message: Span,
}

/// What a packet means. Ranges are of the input given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The head has been read.
    Head,
    /// The next piece of the body, never empty.
    Body(Range<usize>),
    /// What has come is to reach the client now.
    Flush,
    /// The container waits for as many bytes of the request's body, or for its end.
    WantsBody(usize),
    /// The reply is over.
    End {
        /// Whether the connection may carry another request.
        reuse: bool,
    },
}

/// What one call of [`ReplyDecoder::decode`] found; no event asks for more input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// What was found among them.
    pub event: Option<Event>,
}

/// Decodes the packets of one reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyDecoder {
    packet_size: usize,
    has_head: bool,
    has_ended: bool,
}

impl ReplyHead {
    /// The reason phrase; empty where the container has put the status itself in its place.
    pub fn reason(&self) -> &[u8] {
        let message = self.message.of(self.fields.bytes());
        if message.iter().all(u8::is_ascii_digit) { b"" } else { message }
    }

    fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), AjpError> {
        self.fields.clear();
        self.status = reader.int()?;
        if !(200..=999).contains(&self.status) {
            return Err(AjpError::Status(self.status));
        }
        let message = reader.text()?.unwrap_or_default();
        if !is_field_value(message) {
            return Err(AjpError::Text);
        }
        self.message = self.fields.append(message.trim_ascii());
        self.content_length = reader.fields(REPLY_FIELDS, &mut self.fields)?;
        Ok(())
    }
}

impl ReplyDecoder {
    /// A decoder for the reply to one request, in packets of `packet_size` bytes at the most.
    pub fn new(packet_size: usize) -> Self {
        Self { packet_size, has_head: false, has_ended: false }
    }

    /// Whether the head has been read.
    pub fn has_head(&self) -> bool {
        self.has_head
    }

    /// The next event in `input`, which is what came after the last `consumed` byte. A head is read
    /// into `head`. What comes behind the reply's end is left alone.
    pub fn decode(&mut self, input: &[u8], head: &mut ReplyHead) -> Result<Step, AjpError> {
        if self.has_ended {
            return Ok(Step { consumed: 0, event: None });
        }
        let Some(payload) = payload(input, TO_FRONT, self.packet_size)? else {
            return Ok(Step { consumed: 0, event: None });
        };
        let consumed = payload.end;
        let mut reader = Reader(&input[payload.clone()]);
        let event = match reader.byte()? {
            kind::SEND_HEADERS if self.has_head => return Err(AjpError::SecondHead),
            kind::SEND_HEADERS => {
                head.read(&mut reader)?;
                self.has_head = true;
                Event::Head
            }
            kind::SEND_BODY_CHUNK => {
                let length = usize::from(reader.int()?);
                // Behind the bytes is a NUL, which some leave out.
                if length > reader.0.len() || reader.0.len() > length + 1 {
                    return Err(AjpError::Length);
                }
                reader.0 = b"";
                match (length, self.has_head) {
                    (0, _) => Event::Flush,
                    (_, false) => return Err(AjpError::NoHead),
                    _ => Event::Body(payload.start + 3..payload.start + 3 + length),
                }
            }
            kind::END_RESPONSE if !self.has_head => return Err(AjpError::NoHead),
            kind::END_RESPONSE => {
                self.has_ended = true;
                Event::End { reuse: reader.byte()? != 0 }
            }
            kind::GET_BODY_CHUNK => Event::WantsBody(usize::from(reader.int()?)),
            other => return Err(AjpError::Kind(other)),
        };
        if !reader.0.is_empty() {
            return Err(AjpError::Length);
        }
        Ok(Step { consumed, event: Some(event) })
    }
}
