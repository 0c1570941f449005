//! The rules that a peer may break.

use std::fmt;

/// The rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AjpError {
    /// A packet that begins with another byte: most often not AJP at all.
    Magic(u8),
    /// A packet of this many bytes, header included, which is more than the limit behind it.
    TooLarge(usize, usize),
    /// A packet of a type that the peer does not send, or not now.
    Kind(u8),
    /// The web server asks the container to end.
    Shutdown,
    /// A length leads past the end of its packet, or a packet is longer than what it holds.
    Length,
    /// A string without NUL behind it, or with one in it, or none where there has to be one.
    Text,
    /// A method without name, or one that is no token.
    Method,
    /// A target with bytes that no target has.
    Target,
    /// A number that stands for no field.
    FieldCode(u16),
    /// A field whose name is no token or whose value has control bytes.
    Field,
    /// A length that is no number, or two that differ.
    ContentLength,
    /// More fields than [`super::MOST_FIELDS`].
    Fields(usize),
    /// An attribute of unknown number, whose length nobody knows, or one given twice.
    Attribute(u8),
    /// A status that no reply has.
    Status(u16),
    /// A second head of one reply.
    SecondHead,
    /// Body, or the reply's end, before its head.
    NoHead,
}

impl fmt::Display for AjpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(byte) => write!(f, "packet that begins with the byte {byte:#04x}"),
            Self::TooLarge(length, most) => {
                write!(f, "packet of {length} bytes, where packet_size is {most}")
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
