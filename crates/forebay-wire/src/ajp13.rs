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
mod error;
mod forward;
mod packet;
mod reply;
mod request;
mod send;

pub use codes::Attribute;
pub use error::AjpError;
pub use forward::{Attributes, Forward, RequestLine};
pub use packet::{Data, parse_data, parse_pong};
pub use reply::{DecodedPacket, PacketEvent, ReplyDecoder, ReplyHead};
pub use request::{Incoming, RequestHead, parse_request};
pub use send::{SendHeaders, append_body_chunk, append_end, append_get_body_chunk, chunk_header};

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
