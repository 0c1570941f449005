//! Frames (RFC 9113 sections 4 and 6, RFC 9218 section 7).
//!
//! [`Header::decode`] and [`Header::check`] need only the first nine bytes of a frame, so an
//! invalid frame is rejected before its payload arrives. [`decode`] also reads the payload. The
//! connection decides which frames are allowed in its state.

use super::error::{ErrorCode, Http2Error, Rule};

/// Length of a frame header in bytes.
pub const HEADER_LEN: usize = 9;

/// Maximum length of a payload in bytes, until SETTINGS_MAX_FRAME_SIZE changes it.
pub const DEFAULT_FRAME: usize = 16_384;

/// First bytes that a client sends (section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the frame of that name")]
pub enum Kind {
    Data,
    Headers,
    Priority,
    Reset,
    Settings,
    PushPromise,
    Ping,
    Goaway,
    WindowUpdate,
    Continuation,
    PriorityUpdate,
    /// Any other type. Such frames are ignored.
    Unknown,
}

/// Flags of a frame. Unknown flags are ignored.
pub mod flags {
    /// Marks the last frame of a stream (DATA, HEADERS).
    pub const END_STREAM: u8 = 0x1;
    /// Marks an acknowledgement (SETTINGS, PING).
    pub const ACK: u8 = 0x1;
    /// Marks the last frame of a header block.
    pub const END_HEADERS: u8 = 0x4;
    /// Marks a padded payload (DATA, HEADERS).
    pub const PADDED: u8 = 0x8;
    /// Marks a HEADERS frame with a priority.
    pub const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings.
pub mod settings {
    /// Maximum size of the HPACK table in bytes.
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    /// Permission for server push.
    pub const ENABLE_PUSH: u16 = 0x2;
    /// Maximum number of concurrent streams.
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    /// Initial window of a stream in bytes.
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    /// Maximum length of a frame payload in bytes.
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    /// Maximum size of a list of fields in bytes (advisory).
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// Support for extended CONNECT (RFC 8441).
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    /// Use of RFC 9218 priorities only.
    pub const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// The first nine bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the payload in bytes.
    pub len: usize,
    /// Type of the frame.
    pub kind: Kind,
    /// Flags. Their meaning depends on the type.
    pub flags: u8,
    /// Stream of the frame; zero for the connection.
    pub stream: u32,
}

/// Frame whose payload conforms to its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of RFC 9113 section 6")]
pub enum Frame<'a> {
    Data { stream: u32, data: &'a [u8], end_stream: bool },
    Headers { stream: u32, block: &'a [u8], end_stream: bool, end_headers: bool },
    Priority,
    Reset { stream: u32, code: ErrorCode },
    Settings(Settings<'a>),
    SettingsAck,
    PushPromise,
    Ping { payload: [u8; 8], is_ack: bool },
    Goaway { last: u32, code: ErrorCode, debug: &'a [u8] },
    WindowUpdate { stream: u32, increment: u32 },
    Continuation { stream: u32, block: &'a [u8], end_headers: bool },
    PriorityUpdate { stream: u32, value: &'a [u8] },
    Unknown,
}

/// Pairs of a SETTINGS frame. They are not validated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a>(&'a [u8]);

impl Settings<'_> {
    /// Returns the identifiers and values in the order of the frame.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> {
        let (pairs, _) = self.0.as_chunks::<6>();
        pairs.iter().map(|&[a, b, c, d, e, f]| {
            (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]))
        })
    }
}

/// Decodes the next frame of `input`. Returns the frame and its length, or `None` if the frame is
/// incomplete. `largest` is the maximum length of a payload. Returns an error if the frame is
/// invalid.
pub fn decode(input: &[u8], largest: usize) -> Result<Option<(Frame<'_>, usize)>, Http2Error> {
    let Some(header) = Header::decode(input) else { return Ok(None) };
    header.check(largest)?;
    let end = HEADER_LEN + header.len;
    let Some(payload) = input.get(HEADER_LEN..end) else { return Ok(None) };
    Ok(Some((header.frame(payload)?, end)))
}

impl Header {
    /// Decodes a header. Returns `None` for fewer than nine bytes.
    pub fn decode(input: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, s0, s1, s2, s3] = input.first_chunk::<HEADER_LEN>()?;
        Some(Self {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind: Kind::of(kind),
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        })
    }

    /// Returns an error for a frame whose length or stream is invalid for its type.
    pub fn check(&self, largest: usize) -> Result<(), Http2Error> {
        if self.len > largest {
            return Err(Http2Error::connection(Rule::FrameTooLarge));
        }
        let fits = match self.kind {
            Kind::Priority => self.len == 5,
            Kind::Reset | Kind::WindowUpdate => self.len == 4,
            Kind::Settings if self.has(flags::ACK) => self.len == 0,
            Kind::Settings => self.len.is_multiple_of(6),
            Kind::Ping => self.len == 8,
            Kind::Goaway => self.len >= 8,
            Kind::PriorityUpdate => self.len >= 4,
            Kind::Data => self.len >= self.prefix(),
            Kind::Headers => self.len >= self.prefix(),
            Kind::PushPromise | Kind::Continuation | Kind::Unknown => true,
        };
        if !fits {
            return Err(Http2Error::connection(Rule::FrameLength));
        }
        let is_zero = self.stream == 0;
        match self.kind {
            Kind::Settings | Kind::Ping | Kind::Goaway | Kind::PriorityUpdate if !is_zero => {
                Err(Http2Error::connection(Rule::StreamNotZero))
            }
            Kind::Data | Kind::Headers | Kind::Priority | Kind::Reset | Kind::Continuation
                if is_zero =>
            {
                Err(Http2Error::connection(Rule::StreamZero))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if all of these flags are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Returns the size of the optional fields before the content of DATA and HEADERS: Pad Length
    /// (1 byte) and the priority (5 bytes).
    fn prefix(&self) -> usize {
        let priority = self.kind == Kind::Headers && self.has(flags::PRIORITY);
        usize::from(self.has(flags::PADDED)) + if priority { 5 } else { 0 }
    }

    /// Decodes the complete payload of a frame whose header was checked. Returns an error if the
    /// payload is invalid.
    pub fn frame<'a>(&self, payload: &'a [u8]) -> Result<Frame<'a>, Http2Error> {
        let stream = self.stream;
        let end_stream = self.has(flags::END_STREAM);
        let end_headers = self.has(flags::END_HEADERS);
        let short = || Http2Error::connection(Rule::FrameLength);
        Ok(match self.kind {
            Kind::Data => Frame::Data { stream, data: self.unpadded(payload)?, end_stream },
            Kind::Headers => {
                let mut block = self.unpadded(payload)?;
                if self.has(flags::PRIORITY) {
                    let (priority, rest) = block.split_first_chunk::<5>().ok_or_else(short)?;
                    self.check_dependency(*priority)?;
                    block = rest;
                }
                Frame::Headers { stream, block, end_stream, end_headers }
            }
            Kind::Priority => {
                self.check_dependency(*payload.first_chunk().ok_or_else(short)?)?;
                Frame::Priority
            }
            Kind::Reset => Frame::Reset { stream, code: ErrorCode(first_u32(payload)) },
            Kind::Settings if self.has(flags::ACK) => Frame::SettingsAck,
            Kind::Settings => Frame::Settings(Settings(payload)),
            Kind::PushPromise => Frame::PushPromise,
            Kind::Ping => {
                let payload = *payload.first_chunk().ok_or_else(short)?;
                Frame::Ping { payload, is_ack: self.has(flags::ACK) }
            }
            Kind::Goaway => {
                let (fixed, debug) = payload.split_at_checked(8).ok_or_else(short)?;
                let code = ErrorCode(first_u32(&fixed[4..]));
                Frame::Goaway { last: first_u32(fixed) & 0x7fff_ffff, code, debug }
            }
            Kind::WindowUpdate => {
                Frame::WindowUpdate { stream, increment: first_u32(payload) & 0x7fff_ffff }
            }
            Kind::Continuation => Frame::Continuation { stream, block: payload, end_headers },
            Kind::PriorityUpdate => {
                let (id, value) = payload.split_at_checked(4).ok_or_else(short)?;
                Frame::PriorityUpdate { stream: first_u32(id) & 0x7fff_ffff, value }
            }
            Kind::Unknown => Frame::Unknown,
        })
    }

    fn unpadded<'a>(&self, payload: &'a [u8]) -> Result<&'a [u8], Http2Error> {
        if !self.has(flags::PADDED) {
            return Ok(payload);
        }
        let error = Http2Error::connection(Rule::Padding);
        let (&padding, rest) = payload.split_first().ok_or(error)?;
        let len = rest.len().checked_sub(padding.into()).ok_or(error)?;
        Ok(&rest[..len])
    }

    /// Rejects a stream that depends on itself. All other content of RFC 7540 priorities is
    /// ignored.
    fn check_dependency(&self, priority: [u8; 5]) -> Result<(), Http2Error> {
        if first_u32(&priority) & 0x7fff_ffff == self.stream {
            return Err(Http2Error::connection(Rule::SelfDependency));
        }
        Ok(())
    }
}

fn first_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

impl Kind {
    /// Returns the kind of a frame whose type is `byte`, or `Unknown` for all other types.
    fn of(byte: u8) -> Self {
        match byte {
            0x0 => Self::Data,
            0x1 => Self::Headers,
            0x2 => Self::Priority,
            0x3 => Self::Reset,
            0x4 => Self::Settings,
            0x5 => Self::PushPromise,
            0x6 => Self::Ping,
            0x7 => Self::Goaway,
            0x8 => Self::WindowUpdate,
            0x9 => Self::Continuation,
            0x10 => Self::PriorityUpdate,
            _ => Self::Unknown,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::PriorityUpdate => 0x10,
            Self::Unknown => 0xff,
            other => other as u8,
        }
    }
}

/// Appends a frame header.
pub fn header(out: &mut Vec<u8>, len: usize, kind: Kind, flags: u8, stream: u32) {
    out.extend_from_slice(&header_bytes(len, kind, flags, stream));
}

/// Overwrites the first nine bytes of `out` with a frame header.
pub fn set_header(out: &mut [u8], len: usize, kind: Kind, flags: u8, stream: u32) {
    if let Some(place) = out.first_chunk_mut() {
        *place = header_bytes(len, kind, flags, stream);
    }
}

fn header_bytes(len: usize, kind: Kind, flags: u8, stream: u32) -> [u8; HEADER_LEN] {
    let [_, a, b, c] = (len as u32).to_be_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    [a, b, c, kind.byte(), flags, s0, s1, s2, s3]
}

/// Appends SETTINGS.
pub fn settings_frame(out: &mut Vec<u8>, pairs: &[(u16, u32)]) {
    header(out, pairs.len() * 6, Kind::Settings, 0, 0);
    for (id, value) in pairs {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of SETTINGS.
pub fn settings_ack(out: &mut Vec<u8>) {
    header(out, 0, Kind::Settings, flags::ACK, 0);
}

/// Appends PING or its acknowledgement.
pub fn ping(out: &mut Vec<u8>, payload: [u8; 8], is_ack: bool) {
    header(out, 8, Kind::Ping, u8::from(is_ack), 0);
    out.extend_from_slice(&payload);
}

/// Appends GOAWAY.
pub fn goaway(out: &mut Vec<u8>, last: u32, code: ErrorCode, debug: &[u8]) {
    header(out, 8 + debug.len(), Kind::Goaway, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(debug);
}

/// Appends WINDOW_UPDATE.
pub fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    header(out, 4, Kind::WindowUpdate, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Appends RST_STREAM.
pub fn reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    header(out, 4, Kind::Reset, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Appends PRIORITY_UPDATE (RFC 9218 section 7.1).
pub fn priority_update(out: &mut Vec<u8>, stream: u32, value: &[u8]) {
    header(out, 4 + value.len(), Kind::PriorityUpdate, 0, 0);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(value);
}

/// Converts a header block to a HEADERS frame. At position `start`, `out` contains space for the
/// frame header, and then the block. If the block is longer than `largest` bytes, the rest of it
/// becomes CONTINUATION frames.
pub fn finish_block(
    out: &mut Vec<u8>,
    start: usize,
    stream: u32,
    end_stream: bool,
    largest: usize,
) {
    let len = out.len() - start - HEADER_LEN;
    let end_stream = if end_stream { flags::END_STREAM } else { 0 };
    if len <= largest {
        let bits = end_stream | flags::END_HEADERS;
        return set_header(&mut out[start..], len, Kind::Headers, bits, stream);
    }
    let block = out.split_off(start + HEADER_LEN);
    out.truncate(start);
    let pieces = block.chunks(largest);
    let last = pieces.len() - 1;
    for (at, piece) in pieces.enumerate() {
        let kind = if at == 0 { Kind::Headers } else { Kind::Continuation };
        let end_stream = if at == 0 { end_stream } else { 0 };
        let end_headers = if at == last { flags::END_HEADERS } else { 0 };
        header(out, piece.len(), kind, end_stream | end_headers, stream);
        out.extend_from_slice(piece);
    }
}
