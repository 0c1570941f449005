//! Decoder of the records of a responder's reply.

use std::fmt;
use std::ops::Range;

use super::{HEADER, VERSION, kind};

/// Rule that a responder violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastcgiError {
    /// Record version other than 1, usually because the peer does not speak FastCGI.
    Version(u8),
    /// Record for another request.
    RequestId(u16),
    /// Record type that a responder does not send.
    Kind(u8),
    /// END_REQUEST whose length is not eight bytes.
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

/// `protocolStatus` of END_REQUEST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStatus {
    /// The request was completed.
    Complete,
    /// The application does not multiplex requests on one connection.
    CantMultiplex,
    /// The application lacks a resource.
    Overloaded,
    /// The application does not support the role, or sent an unknown status.
    Refused,
}

/// Meaning of a piece of the reply. Ranges refer to the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordEvent {
    /// Output of the application.
    Stdout(Range<usize>),
    /// Text for the error log.
    Stderr(Range<usize>),
    /// The request is complete. The connection may be reused if the request asked for that.
    End {
        /// The application's exit status.
        app_status: u32,
        /// Outcome of the request.
        status: ProtocolStatus,
    },
    /// Names and values for [`pairs()`](super::pairs()): the reply to FCGI_GET_VALUES. Only a
    /// multiplexed decoder returns this event.
    Values(Range<usize>),
}

/// Result of one call of [`Decoder::decode`]. No event asks for more input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedRecord {
    /// Number of consumed bytes of the input.
    pub consumed: usize,
    /// Request ID of the event; 0 without an event, or for an event of the connection.
    pub id: u16,
    /// Event in the consumed bytes.
    pub event: Option<RecordEvent>,
}

/// Decoder of the records of one request's reply, or of several on one connection. Content is
/// returned before its record is complete.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// ID of the only request; `None` if there may be several.
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

    /// Creates a decoder of the replies to several requests. The caller checks that the IDs are in
    /// use.
    pub fn multiplexed() -> Self {
        Self { only: None, id: 0, kind: 0, content: 0, padding: 0, ended: false }
    }

    /// Returns true if END_REQUEST of the only request and its padding have been read.
    pub fn is_done(&self) -> bool {
        self.ended && self.padding == 0
    }

    /// Decodes the next event in `input`, which starts with the first unconsumed byte.
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
            // Management records may arrive at any time and do not concern a request.
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
