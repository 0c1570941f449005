//! HTTP/2 with clients (RFC 9113).
//!
//! `serve` is the task that reads and writes a connection, `connection` the state that its streams
//! share, and `stream` one request and its reply.

pub mod connection;
pub mod serve;
pub mod stream;
