//! Frames (RFC 9114 section 7): a decoder of frame headers, and encoders of the frames that servers
//! and clients send.

use super::{qpack, settings, varint};
use crate::fields::FieldRef;
use crate::http2::RequestPseudo;

/// Type of the control stream (section 6.2.1).
pub const CONTROL_STREAM: u64 = 0x00;

pub const DATA: u64 = 0x00;
pub const HEADERS: u64 = 0x01;
pub const CANCEL_PUSH: u64 = 0x03;
pub const SETTINGS: u64 = 0x04;
pub const PUSH_PROMISE: u64 = 0x05;
pub const GOAWAY: u64 = 0x07;
pub const MAX_PUSH_ID: u64 = 0x0d;
/// Priority update of a request (RFC 9218 section 7.2).
pub const PRIORITY_UPDATE: u64 = 0xf_0700;
/// Priority update of a push.
pub const PRIORITY_UPDATE_OF_PUSH: u64 = 0xf_0701;

/// Returns true if a frame of this type belongs to HTTP/2 and is forbidden (section 7.2.8).
pub fn is_forbidden(kind: u64) -> bool {
    matches!(kind, 0x02 | 0x06 | 0x08 | 0x09)
}

/// Maximum length of a frame header in bytes.
const LARGEST_HEADER: usize = 16;

/// Header of a frame: its type, and the length of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: u64,
    pub length: u64,
}

/// Decoder of a frame header that may arrive in pieces.
#[derive(Clone, Debug, Default)]
pub struct HeaderDecoder {
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
            if let Some(kind) = varint::decode(&mut header)
                && let Some(length) = varint::decode(&mut header)
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
        varint::encode(&mut payload, setting);
        varint::encode(&mut payload, value);
    }
    varint::encode(out, CONTROL_STREAM);
    frame(out, SETTINGS, &payload);
}

/// Appends GOAWAY. The server does not process requests on `stream` or later streams. With `None`,
/// the server still processes all requests, but the client should send no more.
pub fn goaway(out: &mut Vec<u8>, stream: Option<u64>) {
    let mut payload = Vec::new();
    // With `None`, the value is the highest stream that a client can open.
    varint::encode(&mut payload, stream.unwrap_or(varint::LARGEST - 3));
    frame(out, GOAWAY, &payload);
}

/// Appends the header of a DATA frame.
pub fn data_header(out: &mut Vec<u8>, length: u64) {
    varint::encode(out, DATA);
    varint::encode(out, length);
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
    varint::encode(out, kind);
    varint::encode(out, payload.len() as u64);
    out.extend_from_slice(payload);
}
