//! SCGI (<https://python.ca/scgi/protocol.txt>). A request is a netstring of NUL-separated
//! variables, followed by the body. The reply has the format of CGI or HTTP, and ends when the
//! connection closes.
//!
//! [`Head`] writes the head of a request, and [`parse`] reads it.

mod decode;
mod encode;

pub use decode::{Parsed, ScgiError, parse};
pub use encode::Head;
