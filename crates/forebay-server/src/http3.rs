//! HTTP/3 with clients (RFC 9114), over QUIC.
//!
//! `listen` accepts QUIC connections, `serve` accepts the streams of one, and `connection` is the
//! state that the streams share. `stream` is one request and its reply; `receive` reads it, `send`
//! writes it, and `room_queue` lets streams send in turn.

pub mod connection;
pub mod listen;
mod receive;
mod room_queue;
mod send;
pub mod serve;
pub mod stream;
