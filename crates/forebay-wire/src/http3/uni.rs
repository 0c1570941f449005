//! Unidirectional streams of a peer: the control stream and the two QPACK streams (RFC 9114
//! section 6.2, RFC 9204 section 4.2).

use super::error::{ErrorCode, Http3Error, Rule};
use super::{FrameHeader, HeaderDecoder};
use crate::http2::budget;

/// Maximum length of a SETTINGS frame in bytes. An honest client sends about ten pairs.
const LARGEST_SETTINGS: u64 = 1024;

/// Kind of a unidirectional stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniKind {
    /// Control stream, which contains frames about the connection.
    Control,
    /// QPACK encoder stream. It adds entries to the dynamic table, but our settings leave no space
    /// for this table.
    Encoder,
    /// QPACK decoder stream, which acknowledges decoded field sections.
    Decoder,
    /// Stream of an unknown type, which is not read.
    Unknown,
}

impl UniKind {
    const PUSH: u64 = 0x01;
    const ENCODER: u64 = 0x02;
    const DECODER: u64 = 0x03;
}

/// Decoder of one unidirectional stream. It accepts input in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct UniDecoder {
    /// True if a server has opened the stream.
    is_of_server: bool,
    kind: Option<UniKind>,
    /// Received bytes of the stream type.
    first: Vec<u8>,
    header: HeaderDecoder,
    /// Frame whose payload is arriving.
    frame: Option<FrameHeader>,
    /// Received part of the frame's payload, if the frame type needs it.
    payload: Vec<u8>,
    has_settings: bool,
    /// Value of the last MAX_PUSH_ID frame.
    max_push: Option<u64>,
    /// Value of the last GOAWAY frame.
    goaway: Option<u64>,
    /// Number of received bytes of an incomplete stream cancellation.
    cancellation: u8,
}

impl UniDecoder {
    /// Creates the decoder of a stream that a server has opened. `default` creates the decoder of a
    /// client's stream.
    pub fn of_server() -> Self {
        Self { is_of_server: true, ..Self::default() }
    }

    /// Returns true if SETTINGS has arrived.
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Returns the value of the last GOAWAY frame, or `None` before the first GOAWAY. A server
    /// processes no request whose stream has this or a higher identifier.
    pub fn goaway(&self) -> Option<u64> {
        self.goaway
    }

    /// Returns the kind of the stream, or `None` if its type has not arrived.
    pub fn kind(&self) -> Option<UniKind> {
        self.kind
    }

    /// Processes received bytes. Returns the price of the frames and instructions in them, which
    /// the caller subtracts from the peer's budget (`http2::budget`). Returns an error if the peer
    /// breaks a rule.
    pub fn receive(&mut self, input: &[u8]) -> Result<u32, Http3Error> {
        let mut input = input;
        let kind = match self.kind {
            Some(kind) => kind,
            None => match self.read_kind(&mut input)? {
                Some(kind) => kind,
                None => return Ok(0),
            },
        };
        match kind {
            UniKind::Control => self.read_frames(input),
            UniKind::Encoder => {
                if input.iter().any(|&byte| byte != SET_CAPACITY_0) {
                    Err(Http3Error::connection(
                        Rule::EncoderStream,
                        ErrorCode::QPACK_ENCODER_STREAM_ERROR,
                    ))
                } else {
                    Ok(budget::USELESS.saturating_mul(input.len() as u32))
                }
            }
            UniKind::Decoder => self.read_cancellations(input),
            UniKind::Unknown => Ok(0),
        }
    }

    /// Handles the end of the stream. Returns the price of a stream whose type is unknown or
    /// missing. The caller subtracts the price from the peer's budget. Fails for the control,
    /// encoder and decoder streams, which must stay open.
    pub fn end(&self) -> Result<u32, Http3Error> {
        match self.kind {
            None | Some(UniKind::Unknown) => Ok(budget::USELESS),
            Some(_) => Err(Http3Error::connection(
                Rule::ClosedCriticalStream,
                ErrorCode::CLOSED_CRITICAL_STREAM,
            )),
        }
    }

    fn read_kind(&mut self, input: &mut &[u8]) -> Result<Option<UniKind>, Http3Error> {
        while let Some((&byte, rest)) = input.split_first() {
            self.first.push(byte);
            *input = rest;
            if let Some(kind) = super::decode_varint(&mut &self.first[..]) {
                let kind = match kind {
                    super::CONTROL_STREAM => UniKind::Control,
                    UniKind::ENCODER => UniKind::Encoder,
                    UniKind::DECODER => UniKind::Decoder,
                    // Our client allows no pushes (section 4.6).
                    UniKind::PUSH if self.is_of_server => return Err(refused_push()),
                    // A client must not open a push stream (RFC 9114 section 6.2.2).
                    UniKind::PUSH => return Err(Http3Error::repeated_stream()),
                    _ => UniKind::Unknown,
                };
                self.kind = Some(kind);
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    /// Reads the decoder stream. Its only valid instruction is stream cancellation (RFC 9204
    /// section 4.4). The other instructions acknowledge entries of the dynamic table, and we never
    /// send such entries. The returned price is only 1 per byte, because each cancelled stream
    /// already has a price of its own.
    fn read_cancellations(&mut self, input: &[u8]) -> Result<u32, Http3Error> {
        let refused = || {
            let code = ErrorCode::QPACK_DECODER_STREAM_ERROR;
            Err(Http3Error::connection(Rule::DecoderStream, code))
        };
        for &byte in input {
            let is_whole = match self.cancellation {
                0 if byte & 0xc0 != CANCELLATION => return refused(),
                0 => byte & 0x3f != 0x3f,
                LONGEST_CANCELLATION.. => return refused(),
                _ => byte & 0x80 == 0,
            };
            self.cancellation = if is_whole { 0 } else { self.cancellation + 1 };
        }
        Ok(input.len() as u32)
    }

    /// Reads the frames of the control stream. Returns the price of all frames except SETTINGS. The
    /// caller subtracts the price from the peer's budget. Fails if a frame breaks a rule.
    fn read_frames(&mut self, mut input: &[u8]) -> Result<u32, Http3Error> {
        let mut price = 0;
        loop {
            let frame = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(header) = self.header.decode(&mut input) else { return Ok(price) };
                    self.begin_frame(header)?;
                    price += match header.kind {
                        super::SETTINGS => 0,
                        super::PRIORITY_UPDATE | super::PRIORITY_UPDATE_OF_PUSH => budget::PRIORITY,
                        _ => budget::USELESS,
                    };
                    header
                }
            };
            let taken = usize::try_from(frame.length).unwrap_or(usize::MAX).min(input.len());
            let (piece, rest) = input.split_at(taken);
            input = rest;
            if is_looked_at(frame.kind) {
                self.payload.extend_from_slice(piece);
            }
            let left = frame.length - taken as u64;
            self.frame = Some(FrameHeader { length: left, ..frame });
            if left > 0 {
                return Ok(price);
            }
            self.frame = None;
            self.end_frame(frame.kind)?;
        }
    }

    /// Checks that a frame with this header is allowed on the control stream.
    fn begin_frame(&mut self, header: FrameHeader) -> Result<(), Http3Error> {
        let is_settings = header.kind == super::SETTINGS;
        if !self.has_settings && !is_settings {
            return Err(Http3Error::connection(Rule::MissingSettings, ErrorCode::MISSING_SETTINGS));
        }
        let is_of_requests =
            matches!(header.kind, super::DATA | super::HEADERS | super::PUSH_PROMISE);
        let is_of_clients = matches!(
            header.kind,
            super::MAX_PUSH_ID | super::PRIORITY_UPDATE | super::PRIORITY_UPDATE_OF_PUSH
        );
        if self.has_settings && is_settings
            || is_of_requests
            || is_of_clients && self.is_of_server
            || super::is_forbidden(header.kind)
        {
            return Err(Http3Error::unexpected());
        }
        self.payload.clear();
        match header.kind {
            super::SETTINGS if header.length > LARGEST_SETTINGS => Err(Http3Error::abuse()),
            super::GOAWAY | super::MAX_PUSH_ID | super::CANCEL_PUSH
                if !(1..=8).contains(&header.length) =>
            {
                Err(Http3Error::frame())
            }
            _ => Ok(()),
        }
    }

    fn end_frame(&mut self, kind: u64) -> Result<(), Http3Error> {
        let mut payload = &self.payload[..];
        match kind {
            super::SETTINGS => {
                self.has_settings = true;
                check_settings(payload)
            }
            // Check the order of the values. The value of MAX_PUSH_ID must not decrease (section
            // 7.2.7), and the value of GOAWAY must not increase (section 5.2).
            super::GOAWAY | super::MAX_PUSH_ID => {
                let value = super::decode_varint(&mut payload).filter(|_| payload.is_empty());
                let value = value.ok_or_else(Http3Error::frame)?;
                let is_in_order = match kind {
                    // A server's GOAWAY names the stream of a request. The identifiers of these
                    // streams are multiples of four.
                    super::GOAWAY if self.is_of_server && !value.is_multiple_of(4) => false,
                    super::GOAWAY => self.goaway.replace(value).is_none_or(|last| value <= last),
                    _ => self.max_push.replace(value).is_none_or(|last| value >= last),
                };
                let refused = || Http3Error::connection(Rule::Order, ErrorCode::ID_ERROR);
                is_in_order.then_some(()).ok_or_else(refused)
            }
            super::CANCEL_PUSH => Err(refused_push()),
            _ => Ok(()),
        }
    }
}

/// Instruction that sets the dynamic table's capacity to zero (RFC 9204 section 4.3.1), which
/// changes nothing.
const SET_CAPACITY_0: u8 = 0x20;

/// First bits of a stream cancellation (RFC 9204 section 4.4.2). Six bits of the stream identifier
/// follow.
const CANCELLATION: u8 = 0x40;
/// Maximum length of a stream cancellation in bytes, because stream identifiers have 62 bits.
const LONGEST_CANCELLATION: u8 = 10;

fn refused_push() -> Http3Error {
    Http3Error::connection(Rule::PushId, ErrorCode::ID_ERROR)
}

fn is_looked_at(kind: u64) -> bool {
    matches!(kind, super::SETTINGS | super::GOAWAY | super::MAX_PUSH_ID | super::CANCEL_PUSH)
}

/// Checks that the settings are valid. Their values are ignored, because no setting of a peer
/// changes our messages.
fn check_settings(mut payload: &[u8]) -> Result<(), Http3Error> {
    let mut seen = Vec::new();
    while !payload.is_empty() {
        let pair = (super::decode_varint(&mut payload), super::decode_varint(&mut payload));
        let (Some(setting), Some(_)) = pair else { return Err(Http3Error::frame()) };
        // These settings belong to HTTP/2 and are forbidden (section 7.2.4.1).
        if matches!(setting, 0x00 | 0x02..=0x05) || seen.contains(&setting) {
            return Err(Http3Error::connection(Rule::Settings, ErrorCode::SETTINGS_ERROR));
        }
        seen.push(setting);
    }
    Ok(())
}
