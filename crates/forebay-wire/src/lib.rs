//! Sans-I/O codecs for HTTP/1, HTTP/2, HTTP/3, FastCGI, SCGI, uwsgi, AJP, CGI, forms and the PROXY
//! protocol: bytes to heads, body frames, records, packets, pairs and parts.
//!
//! Nothing here opens a socket, reads a clock or logs. A parser is given the bytes received so far
//! and answers with ranges ([`Span`]) into them; an encoder appends to a `Vec<u8>` that the caller
//! owns. Both roles of a protocol are here: what the gateway accepts, the load generator sends.
//!
//! What is not here: connection pools, retries, timeouts (`forebay-engine`), and what a request
//! means (`forebay-origin`).
#![forbid(unsafe_code)]

pub mod accept;
pub mod ajp13;
pub mod cgi;
mod client_address;
pub mod cookies;
pub mod fastcgi;
pub mod fields;
pub mod forms;
pub mod forwarded;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod multipart;
pub mod path;
pub mod proxy_protocol;
pub mod range;
pub mod reply;
pub mod scgi;
pub mod sendfile;
mod span;
pub mod uwsgi;
pub mod x_forwarded_for;

pub use client_address::ClientAddress;
pub use span::Span;
