//! Rules of AJP that a peer can violate.

use std::fmt;

/// Rule that the peer violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AjpError {
    /// Packet with this byte instead of one of the two expected first bytes. Usually, the peer does
    /// not speak AJP.
    Magic(u8),
    /// Packet above the limit. The values are the length of the packet, including its header, and
    /// the limit.
    TooLarge(usize, usize),
    /// Packet of a type that the peer may not send, or may not send now.
    Kind(u8),
    /// Request of a web server to shut down.
    Shutdown,
    /// Length that exceeds its packet, or packet that is longer than its content.
    Length,
    /// String without a final NUL, string with an embedded NUL, or missing string.
    Text,
    /// Method that is missing or not a token.
    Method,
    /// Target that is empty or has an invalid byte.
    Target,
    /// Code of a field that does not exist.
    FieldCode(u16),
    /// Field with a name that is not a token, or with a value that contains control bytes.
    Field,
    /// `Content-Length` that is invalid, or that occurs with two different values.
    ContentLength,
    /// Number of fields, and the largest number that is allowed.
    Fields(usize, usize),
    /// Attribute with this code, which is repeated or unknown. An unknown attribute cannot be
    /// skipped, because its length is unknown.
    Attribute(u8),
    /// Reply with this invalid status.
    Status(u16),
    /// Second head in one reply.
    SecondHead,
    /// Body or end of a reply before its head.
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
            Self::Fields(count, most) => {
                write!(f, "{count} fields, where {most} are allowed")
            }
            Self::Attribute(code) => write!(f, "unknown or repeated attribute {code:#04x}"),
            Self::Status(status) => write!(f, "the status {status}"),
            Self::SecondHead => f.write_str("a second head of one reply"),
            Self::NoHead => f.write_str("a reply without head"),
        }
    }
}

impl std::error::Error for AjpError {}
