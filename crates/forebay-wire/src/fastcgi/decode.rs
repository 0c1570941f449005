//! Decoder of the records in a responder's reply.

use std::fmt;
use std::ops::Range;

use super::{HEADER, VERSION, kind};

/// Rule that a responder violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastcgiError {
    /// Record with this version instead of 1, usually because the peer does not speak FastCGI.
    Version(u8),
    /// Record with this request ID, which is not the ID of an active request.
    RequestId(u16),
    /// Record of a type that a responder must not send.
    Kind(u8),
    /// END_REQUEST record with this length instead of eight bytes.
    EndLength(u16),
}

impl fmt::Display for FastcgiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "record of FastCGI version {version}"),
            Self::RequestId(id) => write!(f, "record for request {id}, which is not running"),
            Self::Kind(kind) => write!(f, "record of unexpected type {kind}"),
            Self::EndLength(length) => write!(f, "END_REQUEST of {length} bytes"),
        }
    }
}

impl std::error::Error for FastcgiError {}

/// Field `protocolStatus` of END_REQUEST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStatus {
    /// The request was completed.
    Complete,
    /// The application does not multiplex requests on one connection.
    CantMultiplex,
    /// The application lacks a resource.
    Overloaded,
    /// The application does not support the role, or it sent an unknown status.
    Refused,
}

/// Meaning of a piece of the reply. All ranges refer to the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordEvent {
    /// Output of the application.
    Stdout(Range<usize>),
    /// Text for the error log.
    Stderr(Range<usize>),
    /// The request is complete. The connection may be reused if BEGIN_REQUEST asked for that.
    End {
        /// The application's exit status.
        app_status: u32,
        /// Result of the request.
        status: ProtocolStatus,
    },
    /// Names and values, which [`pairs()`](super::pairs()) parses: the reply to GET_VALUES. Only a
    /// multiplexed decoder returns this event.
    Values(Range<usize>),
}

/// Result of one call of [`Decoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedRecord {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// ID of the request that the event concerns. 0 without an event, and for an event of the
    /// connection.
    pub id: u16,
    /// Event in the consumed bytes. `None` if more input is needed.
    pub event: Option<RecordEvent>,
}

/// Decoder of the replies on one connection, to one request or to several. The decoder returns
/// output before its record is complete.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// ID of the only request, or `None` if several requests may be active.
    only: Option<u16>,
    id: u16,
    kind: u8,
    content: usize,
    padding: usize,
    ended: bool,
}

impl Decoder {
    /// Creates a decoder of the reply to request `id`.
    pub fn new(id: u16) -> Self {
        Self { only: Some(id), id, kind: 0, content: 0, padding: 0, ended: false }
    }

    /// Creates a decoder of the replies to several requests. The caller must check that the ID of
    /// each event belongs to an active request.
    pub fn multiplexed() -> Self {
        Self { only: None, id: 0, kind: 0, content: 0, padding: 0, ended: false }
    }

    /// Returns true after END_REQUEST and its padding were read. Always returns false if the
    /// decoder is for several requests.
    pub fn is_done(&self) -> bool {
        self.ended && self.padding == 0
    }

    /// Decodes the next event in `input`, which starts with the first unconsumed byte. The result
    /// contains no event if more input is needed, or if the only request has ended.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedRecord, FastcgiError> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if self.content > 0 {
                let is_wanted_whole = matches!(self.kind, kind::END_REQUEST | kind::VALUES);
                if is_wanted_whole && rest.len() < self.content || rest.is_empty() {
                    return Ok(DecodedRecord { consumed: at, id: 0, event: None });
                }
                let taken = rest.len().min(self.content);
                self.content -= taken;
                let event = self.event(&rest[..taken], at);
                at += taken;
                if event.is_some() {
                    at += self.skip_padding(&input[at..]);
                    return Ok(DecodedRecord { consumed: at, id: self.id, event });
                }
            }
            at += self.skip_padding(&input[at..]);
            if self.padding > 0 || self.ended || input.len() - at < HEADER {
                return Ok(DecodedRecord { consumed: at, id: 0, event: None });
            }
            self.header(&input[at..at + HEADER])?;
            at += HEADER;
        }
    }

    fn skip_padding(&mut self, rest: &[u8]) -> usize {
        if self.content > 0 {
            return 0;
        }
        let skipped = rest.len().min(self.padding);
        self.padding -= skipped;
        skipped
    }

    fn header(&mut self, bytes: &[u8]) -> Result<(), FastcgiError> {
        if bytes[0] != VERSION {
            return Err(FastcgiError::Version(bytes[0]));
        }
        let id = u16::from_be_bytes([bytes[2], bytes[3]]);
        let length = u16::from_be_bytes([bytes[4], bytes[5]]);
        self.kind = bytes[1];
        let is_expected = self.only.map_or(id != 0, |only| id == only);
        self.id = id;
        match self.kind {
            kind::STDOUT | kind::STDERR if is_expected => {}
            kind::END_REQUEST if is_expected && length == 8 => {}
            kind::END_REQUEST if is_expected => return Err(FastcgiError::EndLength(length)),
            // Management records may arrive at any time. They do not concern a request.
            _ if id == 0 && (kind::GET_VALUES..=kind::UNKNOWN).contains(&self.kind) => {}
            kind::STDOUT | kind::STDERR | kind::END_REQUEST => {
                return Err(FastcgiError::RequestId(id));
            }
            other => return Err(FastcgiError::Kind(other)),
        }
        self.content = usize::from(length);
        self.padding = usize::from(bytes[6]);
        Ok(())
    }

    /// Returns the event for `content`, a piece of the current record. `at` is the position of
    /// `content` in the input. Returns `None` if the record causes no event.
    fn event(&mut self, content: &[u8], at: usize) -> Option<RecordEvent> {
        let range = at..at + content.len();
        match self.kind {
            kind::STDOUT => Some(RecordEvent::Stdout(range)),
            kind::STDERR => Some(RecordEvent::Stderr(range)),
            kind::END_REQUEST => {
                self.ended = self.only.is_some();
                let app_status =
                    u32::from_be_bytes([content[0], content[1], content[2], content[3]]);
                let status = match content[4] {
                    0 => ProtocolStatus::Complete,
                    1 => ProtocolStatus::CantMultiplex,
                    2 => ProtocolStatus::Overloaded,
                    _ => ProtocolStatus::Refused,
                };
                Some(RecordEvent::End { app_status, status })
            }
            kind::VALUES if self.only.is_none() => Some(RecordEvent::Values(range)),
            _ => None,
        }
    }
}
