//! FastCGI records (FastCGI specification 1.0), as a web server exchanges them with responders.
//!
//! [`begin`], [`Params`] and [`stdin`] write a request. [`Decoder`] reads the records of the reply.
//! [`get_values`] asks an application for its capabilities, and [`pairs()`] parses the answer.

use std::fmt;
use std::ops::Range;

use crate::cgi::Sink;

/// Length of a record header in bytes.
pub const HEADER: usize = 8;
/// Maximum length of a record's content in bytes.
pub const CONTENT_LIMIT: usize = 65_535;

const VERSION: u8 = 1;

/// Types of records (section 8).
mod kind {
    pub const BEGIN_REQUEST: u8 = 1;
    pub const ABORT_REQUEST: u8 = 2;
    pub const END_REQUEST: u8 = 3;
    pub const PARAMS: u8 = 4;
    pub const STDIN: u8 = 5;
    pub const STDOUT: u8 = 6;
    pub const STDERR: u8 = 7;
    pub const GET_VALUES: u8 = 9;
    pub const VALUES: u8 = 10;
    pub const UNKNOWN: u8 = 11;
}

const ROLE_RESPONDER: u8 = 1;
const FLAG_KEEP_CONN: u8 = 1;

/// Appends a BEGIN_REQUEST record for the responder role.
pub fn begin(out: &mut Vec<u8>, id: u16, keep_connection: bool) {
    header(out, kind::BEGIN_REQUEST, id, 8);
    let flags = if keep_connection { FLAG_KEEP_CONN } else { 0 };
    out.extend_from_slice(&[0, ROLE_RESPONDER, flags, 0, 0, 0, 0, 0]);
}

/// Appends an ABORT_REQUEST record.
pub fn abort(out: &mut Vec<u8>, id: u16) {
    header(out, kind::ABORT_REQUEST, id, 0);
}

/// Records that end a connection, in whatever state it is. They abort request 1, then begin a
/// request that does not keep the connection, and abort that too. The application then closes the
/// connection itself, as after any request without FCGI_KEEP_CONN (section 3.5).
// fastcgi-mono-server4 counts a connection for ever if the web server closes it first.
#[rustfmt::skip]
pub const FAREWELL: [u8; 32] = [
    VERSION, kind::ABORT_REQUEST, 0, 1, 0, 0, 0, 0,
    VERSION, kind::BEGIN_REQUEST, 0xff, 0xff, 0, 8, 0, 0, 0, ROLE_RESPONDER, 0, 0, 0, 0, 0, 0,
    VERSION, kind::ABORT_REQUEST, 0xff, 0xff, 0, 0, 0, 0,
];

/// Appends `data` as STDIN records, without the empty record that ends the stream.
pub fn stdin(out: &mut Vec<u8>, id: u16, data: &[u8]) {
    for piece in data.chunks(CONTENT_LIMIT) {
        header(out, kind::STDIN, id, piece.len() as u16);
        out.extend_from_slice(piece);
    }
}

/// Appends the header of a STDIN record. The caller then sends `length` bytes of content.
pub fn stdin_header(out: &mut Vec<u8>, id: u16, length: u16) {
    header(out, kind::STDIN, id, length);
}

/// Appends the empty STDIN record that ends the stream.
pub fn end_of_stdin(out: &mut Vec<u8>, id: u16) {
    header(out, kind::STDIN, id, 0);
}

/// Appends a GET_VALUES record, which asks for the variables in `names` (section 4.1).
///
/// # Panics
/// Panics if a name is longer than 127 bytes.
pub fn get_values(out: &mut Vec<u8>, names: &[&str]) {
    let length: usize = names.iter().map(|name| name.len() + 2).sum();
    header(out, kind::GET_VALUES, 0, length as u16);
    for name in names {
        assert!(name.len() < 128, "the names of section 4.1 are short");
        out.extend_from_slice(&[name.len() as u8, 0]);
        out.extend_from_slice(name.as_bytes());
    }
}

/// Replaces the request ID in the header of each record.
pub fn set_request_id(mut records: &mut [u8], id: u16) {
    while let Some((header, rest)) = records.split_first_chunk_mut::<HEADER>() {
        header[2..4].copy_from_slice(&id.to_be_bytes());
        let content = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let length = content + usize::from(header[6]);
        records = rest.get_mut(length..).unwrap_or_default();
    }
}

fn header(out: &mut Vec<u8>, kind: u8, id: u16, length: u16) {
    let [id1, id0] = id.to_be_bytes();
    let [length1, length0] = length.to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, id1, id0, length1, length0, 0, 0]);
}

/// Encoder that appends name-value pairs as PARAMS records. [`Params::finish`] ends the stream.
#[derive(Debug)]
pub struct Params<'a> {
    out: &'a mut Vec<u8>,
    id: u16,
    /// Position of the unfinished record's header in the buffer.
    record: usize,
}

impl<'a> Params<'a> {
    /// Starts the stream at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, id: u16) -> Self {
        let record = out.len();
        header(out, kind::PARAMS, id, 0);
        Self { out, id, record }
    }

    /// Ends the stream with an empty record.
    pub fn finish(mut self) {
        self.close_full_records();
        let length = self.out.len() - self.record - HEADER;
        self.set_length(length);
        if length > 0 {
            header(self.out, kind::PARAMS, self.id, 0);
        }
    }

    /// Moves content above the limit of a record to further records. A stream may be divided at any
    /// byte.
    fn close_full_records(&mut self) {
        while self.out.len() - self.record - HEADER > CONTENT_LIMIT {
            let cut = self.record + HEADER + CONTENT_LIMIT;
            self.set_length(CONTENT_LIMIT);
            let rest = self.out.split_off(cut);
            self.record = cut;
            header(self.out, kind::PARAMS, self.id, 0);
            self.out.extend_from_slice(&rest);
        }
    }

    fn set_length(&mut self, length: usize) {
        let bytes = (length as u16).to_be_bytes();
        self.out[self.record + 4..self.record + 6].copy_from_slice(&bytes);
    }

    fn length(&mut self, length: usize) {
        match u8::try_from(length) {
            Ok(short) if short < 128 => self.out.push(short),
            _ => self.out.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
        }
    }
}

impl Sink for Params<'_> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        match (name.len(), value.len()) {
            (name @ 0..128, value @ 0..128) => {
                self.out.extend_from_slice(&[name as u8, value as u8]);
            }
            (name, value) => {
                self.length(name);
                self.length(value);
            }
        }
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(value);
    }
}

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
    /// Names and values, which [`pairs()`](pairs()) parses: the reply to GET_VALUES. Only a
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

/// Returns the names and values in the content of a complete stream or record, as ranges of
/// `content`. Returns `None` if a length exceeds the content.
pub fn pairs(content: &[u8]) -> Option<Vec<(Range<usize>, Range<usize>)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < content.len() {
        let name = length(content, &mut at)?;
        let value = length(content, &mut at)?;
        let middle = at.checked_add(name)?;
        let end = middle.checked_add(value).filter(|&end| end <= content.len())?;
        found.push((at..middle, middle..end));
        at = end;
    }
    Some(found)
}

/// Reads a length of one byte, or of four bytes if the first bit is set, and moves `at` after it.
/// Returns `None` if the content ends too early.
fn length(content: &[u8], at: &mut usize) -> Option<usize> {
    let first = *content.get(*at)?;
    if first < 128 {
        *at += 1;
        return Some(first.into());
    }
    let bytes: [u8; 4] = content.get(*at..*at + 4)?.try_into().ok()?;
    *at += 4;
    usize::try_from(u32::from_be_bytes(bytes) & !(1 << 31)).ok()
}
