//! Sans-I/O codecs for HTTP/1, HTTP/2, HTTP/3, WebSocket, FastCGI, SCGI, uwsgi, AJP, CGI, forms,
//! the PROXY protocol, the Redis protocol, and the first message of TLS.
//!
//! No function opens a socket, reads a clock or logs. A parser gets the bytes received so far and
//! returns ranges ([`Span`]) of them. An encoder appends to a `Vec<u8>` of the caller. Most
//! protocols have both roles, because the load generator sends the messages that the gateway
//! receives.
//!
//! Sockets and timeouts are in `forebay-net`. Connection pools and retries are in
//! `forebay-upstream`. The code that answers requests is in `forebay-server`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod accept;
pub mod ajp13;
pub mod aliases;
pub mod caching;
pub mod cgi;
pub mod client_hello;
pub mod cookies;
pub mod fastcgi;
pub mod fields;
pub mod forms;
pub mod forwarded;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod message_bounds;
pub mod multipart;
pub mod path;
pub mod proxy_protocol;
pub mod range;
pub mod reply;
pub mod resp;
pub mod scgi;
pub mod sendfile;
pub mod trace_context;
pub mod uwsgi;
pub mod websocket;

pub use forwarded::ClientAddress;

/// Range `start..end` of the buffer from which a head was parsed, in bytes.
///
/// With spans, a head neither borrows the buffer nor copies strings from it. A span has a meaning
/// only together with the parsed buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Creates the span `start..end`. Heads are limited to far less than 4 GiB, so offsets fit into
    /// 32 bits.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Returns the bytes of the span in `bytes`. The result is empty if the span exceeds `bytes`.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Returns the length in bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Returns true if the span is empty.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

// The tests compile and run the examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
