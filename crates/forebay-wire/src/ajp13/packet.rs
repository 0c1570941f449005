//! Parser and encoder of packets.

use std::ops::Range;

use memchr::memchr;

use super::codes::{field, is_field_code};
use super::{AjpError, HEADER, TO_CONTAINER, TO_FRONT, kind};
use crate::fields::Fields;
use crate::http1::{KnownField, is_field_value, is_token, parse_length};

/// Returns the position of the payload of the packet at the start of `input`, or `None` if more
/// input is needed. The packet must begin with `magic` and have at most `packet_size` bytes. The
/// packet ends at the end of the payload.
pub(super) fn payload(
    input: &[u8],
    magic: [u8; 2],
    packet_size: usize,
) -> Result<Option<Range<usize>>, AjpError> {
    if let Some((byte, _)) = input.iter().zip(magic).find(|(byte, wanted)| **byte != *wanted) {
        return Err(AjpError::Magic(*byte));
    }
    let [_, _, high, low, ..] = *input else { return Ok(None) };
    let end = HEADER + usize::from(u16::from_be_bytes([high, low]));
    if end > packet_size {
        return Err(AjpError::TooLarge(end, packet_size));
    }
    Ok((input.len() >= end).then_some(HEADER..end))
}

/// Piece of a request body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// Position of the piece in the input. The range is empty at the end of the body.
    pub range: Range<usize>,
    /// Length of the packet in bytes, including its header.
    pub len: usize,
}

/// Parses the data packet at the start of `input`, as a container does. Returns `None` if more
/// input is needed.
pub fn parse_data(input: &[u8], packet_size: usize) -> Result<Option<Data>, AjpError> {
    let Some(payload) = payload(input, TO_CONTAINER, packet_size)? else { return Ok(None) };
    let len = payload.end;
    let [high, low, ref data @ ..] = input[payload.clone()] else {
        // mod_jk ends a body with an empty packet, and mod_proxy_ajp with a length of 0.
        let is_end = payload.is_empty();
        return if is_end {
            Ok(Some(Data { range: len..len, len }))
        } else {
            Err(AjpError::Length)
        };
    };
    if data.len() != usize::from(u16::from_be_bytes([high, low])) {
        return Err(AjpError::Length);
    }
    Ok(Some(Data { range: payload.start + 2..len, len }))
}

/// Parses the reply to a ping at the start of `input`. Returns the length of the reply, or `None`
/// if more input is needed.
pub fn parse_pong(input: &[u8]) -> Result<Option<usize>, AjpError> {
    let Some(payload) = payload(input, TO_FRONT, super::MOST_PACKET)? else { return Ok(None) };
    match input[payload.clone()] {
        [kind::CPONG] => Ok(Some(payload.end)),
        [] | [kind::CPONG, ..] => Err(AjpError::Length),
        [other, ..] => Err(AjpError::Kind(other)),
    }
}

/// Parser of the payload of a packet.
pub(super) struct PayloadReader<'a>(pub &'a [u8]);

impl<'a> PayloadReader<'a> {
    pub fn byte(&mut self) -> Result<u8, AjpError> {
        let (&byte, rest) = self.0.split_first().ok_or(AjpError::Length)?;
        self.0 = rest;
        Ok(byte)
    }

    pub fn int(&mut self) -> Result<u16, AjpError> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// Reads a string. Returns `None` for null.
    pub fn text(&mut self) -> Result<Option<&'a [u8]>, AjpError> {
        let length = self.int()?;
        self.text_of(length)
    }

    pub fn required_text(&mut self) -> Result<&'a [u8], AjpError> {
        self.text()?.ok_or(AjpError::Text)
    }

    fn text_of(&mut self, length: u16) -> Result<Option<&'a [u8]>, AjpError> {
        if length == u16::MAX {
            return Ok(None);
        }
        let (text, rest) = self.0.split_at_checked(usize::from(length)).ok_or(AjpError::Length)?;
        let Some((0, rest)) = rest.split_first() else { return Err(AjpError::Text) };
        if memchr(0, text).is_some() {
            return Err(AjpError::Text);
        }
        self.0 = rest;
        Ok(Some(text))
    }

    /// Reads at most `most` fields. A name may be a code of `table`. Returns the value of `Content-Length`, or
    /// `None` without this field.
    pub fn fields(
        &mut self,
        table: &'static [&'static [u8]],
        fields: &mut Fields,
        most: usize,
    ) -> Result<Option<u64>, AjpError> {
        let mut content_length = None;
        let count = usize::from(self.int()?);
        if count > most {
            return Err(AjpError::Fields(count, most));
        }
        for _ in 0..count {
            let code = self.int()?;
            let name = if is_field_code(code) {
                field(table, code).ok_or(AjpError::FieldCode(code))?
            } else {
                self.text_of(code)?.ok_or(AjpError::Text)?
            };
            // A container may send null as the value of an empty field.
            let value = self.text()?.unwrap_or_default();
            if !is_token(name) || !is_field_value(value) {
                return Err(AjpError::Field);
            }
            let (known, value) = (KnownField::of(name), value.trim_ascii());
            if known == KnownField::ContentLength {
                let length = parse_length(value).ok_or(AjpError::ContentLength)?;
                if content_length.replace(length).is_some_and(|other| other != length) {
                    return Err(AjpError::ContentLength);
                }
            }
            fields.push_known(known, name, value);
        }
        Ok(content_length)
    }
}

/// Encoder that appends one packet to a buffer. [`Self::finish`] completes it.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub out: &'a mut Vec<u8>,
    start: usize,
    has_long: bool,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>, magic: [u8; 2], kind: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[magic[0], magic[1], 0, 0, kind]);
        Self { out, start, has_long: false }
    }

    /// Returns the position of the packet in the buffer.
    pub fn start(&self) -> usize {
        self.start
    }

    pub fn byte(&mut self, byte: u8) {
        self.out.push(byte);
    }

    pub fn int(&mut self, int: u16) {
        self.out.extend_from_slice(&int.to_be_bytes());
    }

    /// Appends a string. [`Self::finish`] rejects the packet if the string has 65,535 bytes or more:
    /// AJP13 uses the length 65,535 for null.
    pub fn text(&mut self, text: &[u8]) {
        self.has_long |= text.len() >= usize::from(u16::MAX);
        self.int(text.len() as u16);
        self.out.extend_from_slice(text);
        self.out.push(0);
    }

    /// Appends a field. If `table` has a code for the name, the code replaces the name. Otherwise,
    /// [`Self::finish`] rejects the packet if the length of the name could be taken for a code.
    pub fn field(&mut self, table: &[&[u8]], name: &[u8], value: &[u8]) {
        match super::codes::field_code(table, name) {
            Some(code) => self.int(code),
            None => {
                self.has_long |= name.len() >= super::codes::FIRST_FIELD;
                self.text(name);
            }
        }
        self.text(value);
    }

    /// Overwrites the number at position `at`.
    pub fn set_int(&mut self, at: usize, int: u16) {
        self.out[at..at + 2].copy_from_slice(&int.to_be_bytes());
    }

    /// Completes the packet with its length. If the packet or one of its texts is too long, removes
    /// the packet from the buffer and returns an error.
    pub fn finish(self, packet_size: usize) -> Result<(), AjpError> {
        let length = self.out.len() - self.start;
        if self.has_long || length > packet_size {
            self.out.truncate(self.start);
            return Err(AjpError::TooLarge(length, packet_size));
        }
        let payload = ((length - HEADER) as u16).to_be_bytes();
        self.out[self.start + 2..self.start + HEADER].copy_from_slice(&payload);
        Ok(())
    }
}
