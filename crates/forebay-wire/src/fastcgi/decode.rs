//! Reading the records of a responder's reply.

use std::fmt;
use std::ops::Range;

use super::{HEADER, VERSION, kind};

/// The rule that a responder broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastcgiError {
    /// A record of a version other than 1: most often not FastCGI at all.
    Version(u8),
    /// A record for a request that is not ours.
    RequestId(u16),
    /// A record type that a responder does not send.
    Kind(u8),
    /// END_REQUEST of other than eight bytes.
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
    /// The request ran to its end.
    Complete,
    /// The application does not multiplex requests on one connection.
    CantMultiplex,
    /// The application is out of some resource.
    Overloaded,
    /// The application does not know the role, or an unknown status.
    Refused,
}

/// What a piece of the reply means. Ranges are of the input given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Output of the application.
    Stdout(Range<usize>),
    /// Words for the error log.
    Stderr(Range<usize>),
    /// The request is over; the connection may be used again if that was asked for.
    End {
        /// The exit status that the application gives.
        app_status: u32,
        /// How the request ended.
        status: ProtocolStatus,
    },
    /// Names and values, to be read by [`pairs()`](super::pairs()): the answer to FCGI_GET_VALUES. Only
    /// where requests are multiplexed.
    Values(Range<usize>),
}

/// What one call of [`Decoder::decode`] found; no event asks for more input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// The request that it is about; 0 without an event, or where it is about none.
    pub id: u16,
    /// What was found among them.
    pub event: Option<Event>,
}

/// Decodes the records of one request's reply, or of many on one connection. Content is passed on
/// before its record is whole.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The only request; `None` where there may be many.
    only: Option<u16>,
    id: u16,
    kind: u8,
    content: usize,
    padding: usize,
    ended: bool,
}

impl Decoder {
    /// A decoder for the reply to request `id`.
    pub fn new(id: u16) -> Self {
        Self { only: Some(id), id, kind: 0, content: 0, padding: 0, ended: false }
    }

    /// A decoder for the replies to any number of requests. The caller checks
    /// whether their identifiers are in use.
    pub fn multiplexed() -> Self {
        Self { only: None, id: 0, kind: 0, content: 0, padding: 0, ended: false }
    }

    /// Whether END_REQUEST and its padding have been read, where there is one request.
    pub fn is_done(&self) -> bool {
        self.ended && self.padding == 0
    }

    /// The next event in `input`, which is what came after the last `consumed` byte.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, FastcgiError> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if self.content > 0 {
                let is_wanted_whole = matches!(self.kind, kind::END_REQUEST | kind::VALUES);
                if is_wanted_whole && rest.len() < self.content || rest.is_empty() {
                    return Ok(Step { consumed: at, id: 0, event: None });
                }
                let taken = rest.len().min(self.content);
                self.content -= taken;
                let event = self.event(&rest[..taken], at);
                at += taken;
                if event.is_some() {
                    at += self.skip_padding(&input[at..]);
                    return Ok(Step { consumed: at, id: self.id, event });
                }
            }
            at += self.skip_padding(&input[at..]);
            if self.padding > 0 || self.ended || input.len() - at < HEADER {
                return Ok(Step { consumed: at, id: 0, event: None });
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
            // Management records may come at any time and mean nothing to a request.
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

    fn event(&mut self, content: &[u8], at: usize) -> Option<Event> {
        let range = at..at + content.len();
        match self.kind {
            kind::STDOUT => Some(Event::Stdout(range)),
            kind::STDERR => Some(Event::Stderr(range)),
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
                Some(Event::End { app_status, status })
            }
            kind::VALUES if self.only.is_none() => Some(Event::Values(range)),
            _ => None,
        }
    }
}
