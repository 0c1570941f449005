//! HTTP/3 with clients (RFC 9114), over QUIC.
//!
//! `listen` accepts QUIC connections, `serve` accepts the streams of one, and `connection` is the
//! state that the streams share. `stream` is one request and its reply; `receive` reads it, `send`
//! writes it, and `send_fairness` lets streams send in turn.

pub mod connection;
pub mod listen;
mod receive;
mod send;
mod send_fairness;
pub mod serve;
pub mod stream;
