//! Protocol violations.

use std::fmt;

/// Rule that the peer violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AjpError {
    /// Wrong first byte of a packet, usually because the peer does not speak AJP.
    Magic(u8),
    /// Length of a packet including its header, which exceeds the limit in the second value.
    TooLarge(usize, usize),
    /// Packet type that the peer may not send, or not now.
    Kind(u8),
    /// Shutdown request from the web server.
    Shutdown,
    /// Length that exceeds its packet, or a packet that is longer than its content.
    Length,
    /// String without a final NUL, with an embedded NUL, or missing although required.
    Text,
    /// Missing method, or a method that is not a token.
    Method,
    /// Target with an invalid byte.
    Target,
    /// Code without a field.
    FieldCode(u16),
    /// Field with a name that is not a token, or a value with control bytes.
    Field,
    /// Invalid length, or two different lengths.
    ContentLength,
    /// More fields than [`super::MOST_FIELDS`].
    Fields(usize),
    /// Attribute with an unknown code, and therefore unknown length, or a repeated attribute.
    Attribute(u8),
    /// Invalid status of a reply.
    Status(u16),
    /// Second head of one reply.
    SecondHead,
    /// Body or end of a reply without a head.
    NoHead,
}

impl fmt::Display for AjpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(byte) => write!(f, "packet that begins with the byte {byte:#04x}"),
            Self::TooLarge(length, most) => {
                write!(f, "packet of {length} bytes, but packet_size is {most}")
            }
            Self::Kind(kind) => write!(f, "packet of unexpected type {kind}"),
            Self::Shutdown => f.write_str("a request to shut down"),
            Self::Length => f.write_str("a length does not fit its packet"),
            Self::Text => f.write_str("a malformed string"),
            Self::Method => f.write_str("a malformed method"),
            Self::Target => f.write_str("a malformed target"),
            Self::FieldCode(code) => write!(f, "unknown field number {code:#06x}"),
            Self::Field => f.write_str("a malformed field"),
            Self::ContentLength => f.write_str("a malformed Content-Length"),
            Self::Fields(count) => {
                write!(f, "{count} fields, where {} are allowed", super::MOST_FIELDS)
            }
            Self::Attribute(code) => write!(f, "unknown or repeated attribute {code:#04x}"),
            Self::Status(status) => write!(f, "the status {status}"),
            Self::SecondHead => f.write_str("a second head of one reply"),
            Self::NoHead => f.write_str("a reply without head"),
        }
    }
}

impl std::error::Error for AjpError {}
