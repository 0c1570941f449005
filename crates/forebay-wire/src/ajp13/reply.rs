//! Decoder of replies, as a web server reads them.

use std::ops::Range;

use super::codes::REPLY_FIELDS;
use super::packet::{PayloadReader, Writer, payload};
use super::{AjpError, MOST_PACKET, MOST_REPLY_FIELDS, TO_FRONT, kind, most_chunk};
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

/// Encoder of a reply head. [`Self::finish`] completes the head.
#[derive(Debug)]
pub struct SendHeaders<'a> {
    writer: Writer<'a>,
    /// Position of the field count in the buffer.
    count_at: usize,
    count: usize,
}

impl<'a> SendHeaders<'a> {
    /// Starts the head of a reply at the end of `out`. `message` is mandatory, because mod_jk fails
    /// without a message.
    pub fn new(out: &'a mut Vec<u8>, status: u16, message: &[u8]) -> Self {
        let mut writer = Writer::new(out, TO_FRONT, kind::SEND_HEADERS);
        writer.int(status);
        writer.text(message);
        let count_at = writer.out.len();
        writer.int(0);
        Self { writer, count_at, count: 0 }
    }

    /// Adds a field. The caller guarantees that name and value are valid.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.count += 1;
        self.writer.field(REPLY_FIELDS, name, value);
    }

    /// Completes the head. If the head has a text that is too long, or more than `packet_size`
    /// bytes, removes the head from the buffer and returns an error.
    pub fn finish(mut self, packet_size: usize) -> Result<(), AjpError> {
        // No packet has room for more fields than the number can express.
        self.writer.set_int(self.count_at, self.count as u16);
        self.writer.finish(packet_size)
    }
}

/// Appends a piece of a body in as many packets as needed. An empty piece makes the web server send
/// everything so far to the client.
pub fn append_body_chunk(out: &mut Vec<u8>, mut data: &[u8], packet_size: usize) {
    loop {
        let (piece, rest) = data.split_at(data.len().min(most_chunk(packet_size)));
        out.extend_from_slice(&chunk_header(piece.len()));
        out.extend_from_slice(piece);
        out.push(0);
        if rest.is_empty() {
            return;
        }
        data = rest;
    }
}

/// Returns the bytes that precede `length` bytes of a reply body. `length` is at most
/// [`most_chunk`]. The caller appends a NUL after the body bytes.
pub fn chunk_header(length: usize) -> [u8; 7] {
    debug_assert!(length <= most_chunk(MOST_PACKET), "a packet has room for it");
    let [high, low] = (length as u16).to_be_bytes();
    let [whole_high, whole_low] = (length as u16 + 4).to_be_bytes();
    [TO_FRONT[0], TO_FRONT[1], whole_high, whole_low, kind::SEND_BODY_CHUNK, high, low]
}

/// Appends a packet that requests `length` bytes of the request body, or 65,535 if `length` is
/// larger.
pub fn append_get_body_chunk(out: &mut Vec<u8>, length: usize) {
    let [high, low] = (length.min(usize::from(u16::MAX)) as u16).to_be_bytes();
    out.extend_from_slice(&[TO_FRONT[0], TO_FRONT[1], 0, 3, kind::GET_BODY_CHUNK, high, low]);
}

/// Appends the end of a reply. If `reuse` is true, another request may use the connection.
pub fn append_end(out: &mut Vec<u8>, reuse: bool) {
    out.extend_from_slice(&[TO_FRONT[0], TO_FRONT[1], 0, 2, kind::END_RESPONSE, u8::from(reuse)]);
}
