//! Decoder of replies, as a web server reads them.

use std::ops::Range;

use super::codes::REPLY_FIELDS;
use super::packet::{PayloadReader, payload};
use super::{AjpError, MOST_REPLY_FIELDS, TO_FRONT, kind};
use crate::Span;
use crate::fields::Fields;
use crate::http1::is_field_value;

/// Head of a reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyHead {
    /// The status, from 200 to 999. AJP has no interim replies.
    pub status: u16,
    /// Fields of the reply. Their buffer also contains the reason phrase.
    pub fields: Fields,
    /// Length of the body in bytes, if `Content-Length` states it.
    pub content_length: Option<u64>,
    message: Span,
}

/// Meaning of a packet. All ranges refer to the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketEvent {
    /// The head was read.
    Head,
    /// The next piece of the body; never empty.
    Body(Range<usize>),
    /// Everything that has arrived so far must be sent to the client now.
    Flush,
    /// The container waits for this many bytes of the request body, or for the end of the body.
    WantsBody(usize),
    /// The reply is complete.
    End {
        /// True if the connection may transport another request.
        reuse: bool,
    },
}

/// Result of one call of [`ReplyDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedPacket {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// Event in the consumed bytes. `None` if more input is needed, or if the reply has ended.
    pub event: Option<PacketEvent>,
}

/// Decoder of the packets of one reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyDecoder {
    packet_size: usize,
    most_fields: usize,
    has_head: bool,
    has_ended: bool,
}

impl ReplyHead {
    /// Returns the reason phrase. Some containers send the status code instead of a phrase, so a
    /// phrase that consists only of digits is returned as empty.
    pub fn reason(&self) -> &[u8] {
        let message = self.message.of(self.fields.bytes());
        if message.iter().all(u8::is_ascii_digit) { b"" } else { message }
    }

    fn read(&mut self, reader: &mut PayloadReader<'_>, most_fields: usize) -> Result<(), AjpError> {
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
        self.content_length = reader.fields(REPLY_FIELDS, &mut self.fields, most_fields)?;
        Ok(())
    }
}

impl ReplyDecoder {
    /// Creates a decoder for the reply to one request. Packets may have at most `packet_size`
    /// bytes.
    pub fn new(packet_size: usize) -> Self {
        Self { packet_size, most_fields: MOST_REPLY_FIELDS, has_head: false, has_ended: false }
    }

    /// Allows this many fields in the head, instead of [`MOST_REPLY_FIELDS`].
    #[must_use]
    pub fn with_most_fields(self, most_fields: usize) -> Self {
        Self { most_fields, ..self }
    }

    /// Returns true if the head was read.
    pub fn has_head(&self) -> bool {
        self.has_head
    }

    /// Decodes the next event in `input`, which starts with the first unconsumed byte. A head is
    /// written to `head`. The result contains no event if more input is needed or the reply has
    /// ended. Bytes after the end of the reply are not read. Fails if a packet breaks a rule.
    pub fn decode(
        &mut self,
        input: &[u8],
        head: &mut ReplyHead,
    ) -> Result<DecodedPacket, AjpError> {
        if self.has_ended {
            return Ok(DecodedPacket { consumed: 0, event: None });
        }
        let Some(payload) = payload(input, TO_FRONT, self.packet_size)? else {
            return Ok(DecodedPacket { consumed: 0, event: None });
        };
        let consumed = payload.end;
        let mut reader = PayloadReader(&input[payload.clone()]);
        let event = match reader.byte()? {
            kind::SEND_HEADERS if self.has_head => return Err(AjpError::SecondHead),
            kind::SEND_HEADERS => {
                head.read(&mut reader, self.most_fields)?;
                self.has_head = true;
                PacketEvent::Head
            }
            kind::SEND_BODY_CHUNK => {
                let length = usize::from(reader.int()?);
                // A NUL should follow the bytes, but some containers omit it.
                if length > reader.0.len() || reader.0.len() > length + 1 {
                    return Err(AjpError::Length);
                }
                reader.0 = b"";
                match (length, self.has_head) {
                    (0, _) => PacketEvent::Flush,
                    (_, false) => return Err(AjpError::NoHead),
                    _ => PacketEvent::Body(payload.start + 3..payload.start + 3 + length),
                }
            }
            kind::END_RESPONSE if !self.has_head => return Err(AjpError::NoHead),
            kind::END_RESPONSE => {
                self.has_ended = true;
                PacketEvent::End { reuse: reader.byte()? != 0 }
            }
            kind::GET_BODY_CHUNK => PacketEvent::WantsBody(usize::from(reader.int()?)),
            other => return Err(AjpError::Kind(other)),
        };
        if !reader.0.is_empty() {
            return Err(AjpError::Length);
        }
        Ok(DecodedPacket { consumed, event: Some(event) })
    }
}
