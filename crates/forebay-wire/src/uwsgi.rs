//! uwsgi (<https://uwsgi-docs.readthedocs.io/en/latest/Protocol.html>). A request is a packet of
//! variables, followed by the body. The reply is HTTP, and ends when the connection closes.
//!
//! [`Packet`] writes the packet of a request, and [`parse`] reads it.

use std::fmt;
use std::ops::Range;

use crate::cgi::Sink;

/// Maximum total size in bytes of a packet's variables with their lengths. The limit exists because
/// the length field has 16 bits. A server would read the rest of a longer packet as the body.
pub const MOST: usize = 65_535;
/// Length of a packet's header in bytes.
pub const HEADER: usize = 4;

/// Rule that a client violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UwsgiError {
    /// The variables have this many bytes, more than [`MOST`].
    TooLarge(usize),
    /// Length that exceeds its packet.
    Truncated,
    /// Variable without a name.
    Name,
}

impl fmt::Display for UwsgiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(length) => {
                write!(f, "variables of {length} bytes, but uwsgi allows at most {MOST}")
            }
            Self::Truncated => f.write_str("a length exceeds the packet"),
            Self::Name => f.write_str("a variable without a name"),
        }
    }
}

impl std::error::Error for UwsgiError {}

/// Encoder that appends variables as a packet. [`Packet::finish`] completes the packet.
#[derive(Debug)]
pub struct Packet<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    has_long: bool,
}

impl<'a> Packet<'a> {
    /// Starts a packet with these modifiers at the end of `out`. `modifier1` is the type of the
    /// application: 0 for WSGI, 5 for PSGI, 6 for Lua and 7 for Rack.
    pub fn new(out: &'a mut Vec<u8>, modifier1: u8, modifier2: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[modifier1, 0, 0, modifier2]);
        Self { out, start, has_long: false }
    }

    /// Completes the packet with its length. The body must follow. If the packet, a name or a value
    /// is too long, removes the packet from the buffer and returns an error.
    pub fn finish(self) -> Result<(), UwsgiError> {
        let length = self.out.len() - self.start - HEADER;
        if self.has_long || length > MOST {
            self.out.truncate(self.start);
            return Err(UwsgiError::TooLarge(length));
        }
        let bytes = (length as u16).to_le_bytes();
        self.out[self.start + 1..self.start + 3].copy_from_slice(&bytes);
        Ok(())
    }
}

impl Sink for Packet<'_> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        for part in [name, value] {
            self.has_long |= part.len() > MOST;
            self.out.extend_from_slice(&(part.len() as u16).to_le_bytes());
            self.out.extend_from_slice(part);
        }
    }
}

/// Parsed packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Type of the requested application.
    pub modifier1: u8,
    /// Further modifier, whose meaning depends on `modifier1`.
    pub modifier2: u8,
    /// Names and values in the order of the packet, as ranges of the input.
    pub variables: Vec<(Range<usize>, Range<usize>)>,
    /// Length of the packet in bytes, including the header. The body follows the packet and has
    /// `CONTENT_LENGTH` bytes.
    pub len: usize,
}

/// Parses the packet at the start of `input`, which is everything received so far. Returns `None`
/// if more input is needed.
pub fn parse(input: &[u8]) -> Result<Option<Parsed>, UwsgiError> {
    let [modifier1, low, high, modifier2, ..] = *input else { return Ok(None) };
    let len = HEADER + usize::from(u16::from_le_bytes([low, high]));
    let Some(packet) = input.get(..len) else { return Ok(None) };
    let mut parsed = Parsed { modifier1, modifier2, variables: Vec::new(), len };
    let mut at = HEADER;
    while at < len {
        let name = part(packet, at)?;
        let value = part(packet, name.end)?;
        if name.is_empty() {
            return Err(UwsgiError::Name);
        }
        at = value.end;
        parsed.variables.push((name, value));
    }
    Ok(Some(parsed))
}

/// Returns the range of the string whose length field is at position `at`.
fn part(packet: &[u8], at: usize) -> Result<Range<usize>, UwsgiError> {
    let [low, high] = *packet.get(at..at + 2).ok_or(UwsgiError::Truncated)? else {
        return Err(UwsgiError::Truncated);
    };
    let range = at + 2..at + 2 + usize::from(u16::from_le_bytes([low, high]));
    if range.end > packet.len() {
        return Err(UwsgiError::Truncated);
    }
    Ok(range)
}
