//! HTTP/3 (RFC 9114) for servers and clients, without sockets or a clock. The module decodes and
//! encodes the contents of the streams of a QUIC connection.
//!
//! A [`RequestDecoder`] decodes a request, a [`ReplyDecoder`] a reply, and a [`UniDecoder`] a
//! unidirectional stream.
//! [`qpack`] decodes heads into the [`Head`](crate::http2::Head) of HTTP/2, which checks their
//! rules. Field sections refer only to the static table, because the settings allow no dynamic
//! table. No stream therefore waits for another, and no table of a peer occupies memory.
//!
//! There are three reasons not to use the crate `h3`. The crate buffers frames up to the length
//! that the sender announces, and checks limits only afterwards. It does not report when a client
//! abandons a request. It returns fields in a map, which lacks details that our checks need.
//!
//! QUIC, flow control and the processing of requests are outside this module.

mod error;
mod frame;
pub mod qpack;
mod reply;
mod request;
mod uni;
mod varint;

pub use error::{ErrorCode, Http3Error, Rule};
pub use frame::{client_opening, data_header, goaway, head, opening, request, trailers};
pub use reply::{DecodedReply, ReplyDecoder, ReplyEvent};
pub use request::{
    DecodedFrame, HeadError, RequestDecoder, RequestEvent, read_head, read_trailers,
};
pub use uni::{UniDecoder, UniKind};

/// Settings of RFC 9114 section 7.2.4.1, RFC 9204 section 5 and RFC 9220 section 3.
mod settings {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x07;
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
}
