//! HTTP/3 with clients (RFC 9114), over QUIC.
//!
//! `listen` accepts QUIC connections. `serve` accepts the streams of a connection, and `connection`
//! is the state that the streams share. `stream` is one request and its reply: `receive` reads the
//! request, and `send` writes the reply. `send_fairness` lets the streams send by turns.

pub mod connection;
mod held;
pub mod listen;
mod receive;
mod send;
mod send_fairness;
pub mod serve;
pub mod stream;
