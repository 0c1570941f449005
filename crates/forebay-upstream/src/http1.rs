//! HTTP/1.1 to backends (RFC 9112).

pub mod head;
pub mod stream;
