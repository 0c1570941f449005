//! Streams that a client sends on and does not read from: control, and those of QPACK (RFC 9114 section
//! 6.2, RFC 9204 section 4.2).

use super::error::{ErrorCode, Http3Error, Rule};
use super::frame::{self, FrameHeader, HeaderDecoder};
use super::varint;
use crate::http2::budget;

/// Largest SETTINGS frame, in bytes: an honest one has ten pairs.
const LARGEST_SETTINGS: u64 = 1024;

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniKind {
    /// Frames about the connection.
    Control,
    /// Entries for the dynamic table, which has no room for any.
    Encoder,
    /// What the client has decoded.
    Decoder,
    /// Something that we do not know, and do not read.
    Unknown,
}

impl UniKind {
    pub(super) const CONTROL: u64 = 0x00;
    const PUSH: u64 = 0x01;
    const ENCODER: u64 = 0x02;
    const DECODER: u64 = 0x03;
}

/// Reads one such stream, in whatever pieces it comes.
#[derive(Clone, Debug, Default)]
pub struct UniDecoder {
    kind: Option<UniKind>,
    /// Bytes of the type so far.
    first: Vec<u8>,
    header: HeaderDecoder,
    /// The frame whose payload comes.
    frame: Option<FrameHeader>,
    /// What has come of a payload that is looked at.
    payload: Vec<u8>,
    has_settings: bool,
}

impl UniDecoder {
    /// What the stream is for, once that has come.
    pub fn kind(&self) -> Option<UniKind> {
        self.kind
    }

    /// Takes in what has come; what of it brings nothing costs so much (`http2::budget`).
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
            UniKind::Encoder => match input.iter().any(|&byte| byte != SET_CAPACITY_0) {
                true => Err(Http3Error::connection(
                    Rule::EncoderStream,
                    ErrorCode::QPACK_ENCODER_STREAM_ERROR,
                )),
                false => Ok(budget::USELESS.saturating_mul(input.len() as u32)),
            },
            // Streams that were cancelled, each of which has its price already. Nothing of ours waits
            // for what the client has decoded.
            UniKind::Decoder => Ok(input.len() as u32),
            UniKind::Unknown => Ok(0),
        }
    }

    /// The stream has ended; what it costs where it was of no use.
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
            if let Some(kind) = varint::decode(&mut &self.first[..]) {
                let kind = match kind {
                    UniKind::CONTROL => UniKind::Control,
                    UniKind::ENCODER => UniKind::Encoder,
                    UniKind::DECODER => UniKind::Decoder,
                    // Only servers push.
                    UniKind::PUSH => return Err(Http3Error::repeated_stream()),
                    _ => UniKind::Unknown,
                };
                self.kind = Some(kind);
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    fn read_frames(&mut self, mut input: &[u8]) -> Result<u32, Http3Error> {
        let mut price = 0;
        loop {
            let frame = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(header) = self.header.decode(&mut input) else { return Ok(price) };
                    self.begin_frame(header)?;
                    price += match header.kind {
                        frame::SETTINGS => 0,
                        frame::PRIORITY_UPDATE | frame::PRIORITY_UPDATE_OF_PUSH => budget::PRIORITY,
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

    fn begin_frame(&mut self, header: FrameHeader) -> Result<(), Http3Error> {
        let is_settings = header.kind == frame::SETTINGS;
        if !self.has_settings && !is_settings {
            return Err(Http3Error::connection(Rule::MissingSettings, ErrorCode::MISSING_SETTINGS));
        }
        let is_of_requests =
            matches!(header.kind, frame::DATA | frame::HEADERS | frame::PUSH_PROMISE);
        if self.has_settings && is_settings || is_of_requests || frame::is_forbidden(header.kind) {
            return Err(Http3Error::unexpected());
        }
        self.payload.clear();
        match header.kind {
            frame::SETTINGS if header.length > LARGEST_SETTINGS => Err(Http3Error::abuse()),
            frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH
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
            frame::SETTINGS => {
                self.has_settings = true;
                check_settings(payload)
            }
            // Nothing is pushed, so that neither has a meaning (section 7.2).
            frame::GOAWAY | frame::MAX_PUSH_ID => match varint::decode(&mut payload) {
                Some(_) if payload.is_empty() => Ok(()),
                _ => Err(Http3Error::frame()),
            },
            frame::CANCEL_PUSH => Err(Http3Error::connection(Rule::PushId, ErrorCode::ID_ERROR)),
            _ => Ok(()),
        }
    }
}

/// The instruction that gives the dynamic table no room (RFC 9204 section 4.3.1), which is as before.
const SET_CAPACITY_0: u8 = 0x20;

fn is_looked_at(kind: u64) -> bool {
    matches!(kind, frame::SETTINGS | frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH)
}

/// Nothing that a client's settings say changes what it is sent; they must be some, though.
fn check_settings(mut payload: &[u8]) -> Result<(), Http3Error> {
    let mut seen = Vec::new();
    while !payload.is_empty() {
        let pair = (varint::decode(&mut payload), varint::decode(&mut payload));
        let (Some(setting), Some(_)) = pair else { return Err(Http3Error::frame()) };
        // Those of HTTP/2 (section 7.2.4.1).
        if matches!(setting, 0x00 | 0x02..=0x05) || seen.contains(&setting) {
            return Err(Http3Error::connection(Rule::Settings, ErrorCode::SETTINGS_ERROR));
        }
        seen.push(setting);
    }
    Ok(())
}
