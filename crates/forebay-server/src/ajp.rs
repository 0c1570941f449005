//! AJP 1.3 with web servers that forward their clients' requests.

pub mod connection;
mod request;
pub mod stream;
