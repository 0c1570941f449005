//! What turns a connection into requests and replies, a protocol each.

pub mod http1;
