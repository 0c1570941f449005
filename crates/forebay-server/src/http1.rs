//! HTTP/1.1 with clients (RFC 9112).

pub mod connection;
pub mod stream;
