//! Sans-I/O codecs for HTTP/1, FastCGI, CGI and the PROXY protocol: bytes to heads, body frames and records.
//!
//! Nothing here opens a socket, reads a clock or logs. A parser is given the bytes received so far
//! and answers with ranges ([`Span`]) into them; an encoder appends to a `Vec<u8>` that the caller
//! owns. Both roles of a protocol are here: what the gateway accepts, the load generator sends.
//!
//! What is not here: connection pools, retries, timeouts (`forebay-engine`), and what a request
//! means (`forebay-origin`).
#![forbid(unsafe_code)]

pub mod cgi;
pub mod fastcgi;
pub mod http1;
pub mod path;
pub mod proxy_protocol;
mod span;

pub use span::Span;
