//! HTTP/3 (RFC 9114), the server's role, without sockets or clock: what stands on the streams of a
//! QUIC connection.
//!
//! A [`RequestDecoder`] takes the bytes of a request stream apart, a [`UniDecoder`] those of a stream
//! that goes one way; heads are decoded by [`qpack`] into the same [`Head`](crate::http2::Head) as
//! HTTP/2's, which refuses what breaks a rule. Field sections refer to the static table alone: the
//! settings allow no other, so that no stream waits for another and nothing is kept of a peer.
//!
//! The crate `h3` is not used: it gathers a HEADERS frame, or one of unknown type, in memory as long
//! as its sender says it is, and looks at limits behind that; it gives no sign of a client that has
//! given a request up; and it hands fields over in a map, in which what our checks look at is gone.
//!
//! What is not here: QUIC, flow control, and what a request means.

mod error;
mod frame;
pub mod qpack;
mod request;
mod uni;
mod varint;

pub use error::{ErrorCode, Http3Error, Rule};
pub use frame::{data_header, goaway, head, opening, trailers};
pub use request::{Event, RequestDecoder, Step, read_head, read_trailers};
pub use uni::{UniDecoder, UniKind};

/// Settings of RFC 9114 section 7.2.4.1, RFC 9204 section 5 and RFC 9220 section 3.
mod settings {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x07;
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
}
