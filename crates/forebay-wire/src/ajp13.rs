//! AJP 1.3 (<https://tomcat.apache.org/connectors-doc/ajp/ajpv13a.html>): the protocol between a
//! web server and a servlet container. A connection transports one request at a time, in packets.
//!
//! The web server writes [`Forward`], [`data_header`] and [`PING`], and reads with [`ReplyDecoder`]
//! and [`parse_pong`]. The container reads with [`parse_request`] and [`parse_data`], and writes
//! [`SendHeaders`], [`append_body_chunk`], [`append_get_body_chunk`], [`append_end`] and [`PONG`].
//!
//! If the length of a body is known, the web server sends the first data packet without a request
//! for it. The container must request all other packets of a body. AJP has no trailers, no interim
//! replies and no upgrade.

mod codes;
mod packet;
mod reply;
mod request;

pub use codes::Attribute;
pub use packet::{Data, parse_data, parse_pong};
pub use reply::{
    DecodedPacket, PacketEvent, ReplyDecoder, ReplyHead, SendHeaders, append_body_chunk,
    append_end, append_get_body_chunk, chunk_header,
};
pub use request::{Attributes, Forward, Incoming, RequestHead, RequestLine, parse_request};

use std::fmt;

/// Length of a packet's header in bytes.
pub const HEADER: usize = 4;
/// Smallest packet size that can be configured, in bytes with the header. Tomcat has the same
/// default.
pub const LEAST_PACKET: usize = 8192;
/// Largest packet size that can be configured, in bytes with the header.
pub const MOST_PACKET: usize = 65_536;
/// Maximum number of fields in the head of a request, as in Tomcat.
pub const MOST_FIELDS: usize = 100;
/// Default maximum number of fields in the head of a reply.
pub const MOST_REPLY_FIELDS: usize = 1000;

/// Packet that tests if a container is alive.
pub const PING: &[u8] = &[0x12, 0x34, 0, 1, kind::CPING];
/// Reply of a container to [`PING`].
pub const PONG: &[u8] = &[b'A', b'B', 0, 1, kind::CPONG];
/// Data packet that ends a body.
pub const END_OF_BODY: &[u8] = &[0x12, 0x34, 0, 0];

/// First bytes of packets from the web server.
const TO_CONTAINER: [u8; 2] = [0x12, 0x34];
/// First bytes of packets from the container.
const TO_FRONT: [u8; 2] = *b"AB";

/// Types of packets: the first byte of a payload. Data packets have no type.
mod kind {
    pub const FORWARD_REQUEST: u8 = 2;
    pub const SEND_BODY_CHUNK: u8 = 3;
    pub const SEND_HEADERS: u8 = 4;
    pub const END_RESPONSE: u8 = 5;
    pub const GET_BODY_CHUNK: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const CPONG: u8 = 9;
    pub const CPING: u8 = 10;
}

/// Returns the maximum number of bytes of a request body in one packet.
pub const fn most_data(packet_size: usize) -> usize {
    packet_size - HEADER - 2
}

/// Returns the maximum number of bytes of a reply body in one packet.
pub const fn most_chunk(packet_size: usize) -> usize {
    packet_size - HEADER - 4
}

/// Returns the header of a data packet with `length` bytes of a request body. `length` is at most
/// [`most_data`].
pub fn data_header(length: usize) -> [u8; 6] {
    debug_assert!(length <= most_data(MOST_PACKET), "a data packet has room for it");
    let [high, low] = (length as u16).to_be_bytes();
    let [whole_high, whole_low] = (length as u16 + 2).to_be_bytes();
    [TO_CONTAINER[0], TO_CONTAINER[1], whole_high, whole_low, high, low]
}

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
