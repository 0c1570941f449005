//! HTTP/3 (RFC 9114) for servers and clients, without sockets or a clock. The module decodes and
//! encodes the contents of the streams of a QUIC connection.
//!
//! A [`RequestDecoder`] decodes a request, a [`ReplyDecoder`] a reply, and a [`UniDecoder`] a
//! unidirectional stream.
//! [`qpack`] decodes heads into the [`Head`](crate::http2::Head) of HTTP/2, which checks their
//! rules. Field sections refer only to the static table, because the settings allow no dynamic
//! table. No stream therefore waits for another, and no table of a peer occupies memory.
//!
//! There are three reasons not to use the crate `h3`. The crate buffers frames up to the length
//! that the sender announces, and checks limits only afterwards. It does not report when a client
//! abandons a request. It returns fields in a map, which lacks details that our checks need.
//!
//! QUIC, flow control and the processing of requests are outside this module.

mod error;
pub mod qpack;
mod reply;
mod request;
mod uni;

pub use error::{ErrorCode, Http3Error, Rule};
pub use reply::{DecodedReply, ReplyDecoder, ReplyEvent};
pub use request::{
    DecodedFrame, HeadError, RequestDecoder, RequestEvent, read_head, read_trailers,
};
pub use uni::{UniDecoder, UniKind};

use crate::fields::FieldRef;
use crate::http2::RequestPseudo;

/// Settings of RFC 9114 section 7.2.4.1, RFC 9204 section 5 and RFC 9220 section 3.
mod settings {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x07;
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
}

/// Type of the control stream (section 6.2.1).
const CONTROL_STREAM: u64 = 0x00;

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
const CANCEL_PUSH: u64 = 0x03;
const SETTINGS: u64 = 0x04;
const PUSH_PROMISE: u64 = 0x05;
const GOAWAY: u64 = 0x07;
const MAX_PUSH_ID: u64 = 0x0d;
/// Priority update of a request (RFC 9218 section 7.2).
const PRIORITY_UPDATE: u64 = 0xf_0700;
/// Priority update of a push.
const PRIORITY_UPDATE_OF_PUSH: u64 = 0xf_0701;

/// Returns true if a frame of this type belongs to HTTP/2 and is forbidden (section 7.2.8).
fn is_forbidden(kind: u64) -> bool {
    matches!(kind, 0x02 | 0x06 | 0x08 | 0x09)
}

/// Maximum length of a frame header in bytes.
const LARGEST_HEADER: usize = 16;

/// Header of a frame: its type, and the length of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameHeader {
    pub kind: u64,
    pub length: u64,
}

/// Decoder of a frame header that may arrive in pieces.
#[derive(Clone, Debug, Default)]
struct HeaderDecoder {
    bytes: [u8; LARGEST_HEADER],
    len: usize,
}

impl HeaderDecoder {
    /// Returns true if a header has arrived partly.
    pub fn is_partial(&self) -> bool {
        self.len > 0
    }

    /// Consumes bytes of `input` up to the end of the header. Returns `None` until the header is
    /// complete.
    pub fn decode(&mut self, input: &mut &[u8]) -> Option<FrameHeader> {
        while let Some((&byte, rest)) = input.split_first() {
            self.bytes[self.len] = byte;
            self.len += 1;
            *input = rest;
            let mut header = &self.bytes[..self.len];
            if let Some(kind) = decode_varint(&mut header)
                && let Some(length) = decode_varint(&mut header)
            {
                self.len = 0;
                return Some(FrameHeader { kind, length });
            }
        }
        None
    }
}

/// Appends the start of a server's control stream: the stream type and the settings.
/// `largest_section` is the limit of a head, counted as in
/// [`ListLimits`](crate::http2::hpack::ListLimits).
pub fn opening(out: &mut Vec<u8>, largest_section: usize) {
    open_control(out, largest_section, &[(settings::ENABLE_CONNECT_PROTOCOL, 1)]);
}

/// Appends the start of a client's control stream, as [`opening`] does for a server's.
pub fn client_opening(out: &mut Vec<u8>, largest_section: usize) {
    open_control(out, largest_section, &[]);
}

fn open_control(out: &mut Vec<u8>, largest_section: usize, more: &[(u64, u64)]) {
    let pairs = [
        (settings::QPACK_MAX_TABLE_CAPACITY, 0),
        (settings::QPACK_BLOCKED_STREAMS, 0),
        (settings::MAX_FIELD_SECTION_SIZE, largest_section as u64),
    ];
    let pairs = pairs.iter().chain(more).copied();
    let mut payload = Vec::new();
    for (setting, value) in pairs {
        encode_varint(&mut payload, setting);
        encode_varint(&mut payload, value);
    }
    encode_varint(out, CONTROL_STREAM);
    frame(out, SETTINGS, &payload);
}

/// Appends GOAWAY. The server does not process requests on `stream` or later streams. With `None`,
/// the server still processes all requests, but the client should send no more.
pub fn goaway(out: &mut Vec<u8>, stream: Option<u64>) {
    let mut payload = Vec::new();
    // With `None`, the value is the highest stream that a client can open.
    encode_varint(&mut payload, stream.unwrap_or(MAX_VARINT - 3));
    frame(out, GOAWAY, &payload);
}

/// Appends the header of a DATA frame.
pub fn data_header(out: &mut Vec<u8>, length: u64) {
    encode_varint(out, DATA);
    encode_varint(out, length);
}

/// Appends the head of a request. `pseudo.protocol` must be empty, because HTTP/3 requests with an
/// extended CONNECT are not supported.
pub fn request<'a>(
    out: &mut Vec<u8>,
    pseudo: &RequestPseudo<'_>,
    fields: impl IntoIterator<Item = FieldRef<'a>>,
) {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    qpack::request(&mut section, pseudo);
    finish_section(out, section, fields);
}

/// Appends the head of a reply.
pub fn head<'a>(out: &mut Vec<u8>, status: u16, fields: impl IntoIterator<Item = FieldRef<'a>>) {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    qpack::status(&mut section, status);
    finish_section(out, section, fields);
}

/// Appends the trailers of a reply.
pub fn trailers<'a>(out: &mut Vec<u8>, fields: impl IntoIterator<Item = FieldRef<'a>>) {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    finish_section(out, section, fields);
}

fn finish_section<'a>(
    out: &mut Vec<u8>,
    mut section: Vec<u8>,
    fields: impl IntoIterator<Item = FieldRef<'a>>,
) {
    let kept = fields.into_iter().filter(|field| !field.is_http1_only());
    kept.for_each(|field| qpack::field(&mut section, field));
    frame(out, HEADERS, &section);
}

fn frame(out: &mut Vec<u8>, kind: u64, payload: &[u8]) {
    encode_varint(out, kind);
    encode_varint(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

// Variable-length integers of QUIC (RFC 9000 section 16).

/// Largest integer that can be encoded.
const MAX_VARINT: u64 = (1 << 62) - 1;

/// Decodes the integer at the start of `input`, and advances `input`. Returns `None` if the integer
/// is truncated.
fn decode_varint(input: &mut &[u8]) -> Option<u64> {
    let first = *input.first()?;
    let length = 1usize << (first >> 6);
    let (bytes, rest) = input.split_at_checked(length)?;
    *input = rest;
    let value = u64::from(first & 0x3f);
    Some(bytes[1..].iter().fold(value, |value, &byte| value << 8 | u64::from(byte)))
}

/// Appends `value` in as few bytes as possible. `value` must be at most [`MAX_VARINT`].
fn encode_varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x3f => out.push(value as u8),
        0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => {
            out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes());
        }
        _ => out.extend_from_slice(&(value.min(MAX_VARINT) | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_rfc_9000_appendix_a_1() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(decode_varint(&mut &*bytes), Some(value));
            let mut out = Vec::new();
            encode_varint(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(decode_varint(&mut &bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(decode_varint(&mut &[0x40, 0x25][..]), Some(37));
    }

    #[test]
    fn integers_come_back_as_they_went_in() {
        for shift in 0..62 {
            for value in [(1u64 << shift) - 1, 1 << shift, MAX_VARINT] {
                let mut out = vec![];
                encode_varint(&mut out, value);
                out.push(9);
                let mut input = &out[..];
                assert_eq!(decode_varint(&mut input), Some(value));
                assert_eq!(input, [9]);
            }
        }
    }
}
