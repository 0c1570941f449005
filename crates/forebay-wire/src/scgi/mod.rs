//! SCGI (<https://python.ca/scgi/protocol.txt>): a request is one netstring of NUL-separated
//! variables, then the body; the reply is that of a CGI script, or HTTP, and ends with the
//! connection.
//!
//! [`Head`] writes the head of a request; [`parse`] reads it.

mod decode;
mod encode;

pub use decode::{Parsed, ScgiError, parse};
pub use encode::Head;
