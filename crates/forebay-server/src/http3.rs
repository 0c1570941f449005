//! HTTP/3 with clients (RFC 9114), over QUIC.
//!
//! `listen` accepts QUIC connections. `serve` accepts the streams of a connection, and `connection`
//! is the state that the streams share. `stream` is one request and its reply: `receive` reads the
//! request, and `send` writes the reply. `send_fairness` lets the streams send in turn. `lingering`
//! waits for acknowledgements. `socket` is the UDP socket of a thread, and `joined_sends` joins its
//! sends.

pub mod connection;
mod held;
mod joined_sends;
mod lingering;
pub mod listen;
mod receive;
mod send;
mod send_fairness;
pub mod serve;
mod socket;
pub mod stream;
