//! SCGI (<https://python.ca/scgi/protocol.txt>). A request is a netstring of NUL-separated
//! variables, followed by the body. The reply is that of a CGI script or HTTP, and ends when the
//! connection ends.
//!
//! [`Head`] writes the head of a request; [`parse`] reads it.

mod decode;
mod encode;

pub use decode::{Parsed, ScgiError, parse};
pub use encode::Head;
