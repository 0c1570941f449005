//! HTTP/2 to backends (RFC 9113): shared connections. Prior knowledge (the configuration) or ALPN
//! selects HTTP/2.
//!
//! `pool` holds the connections of one thread to one backend. `connection` holds the state that the
//! streams of a connection share. `config` has the limits and windows of a connection. `run` is the
//! task that reads and writes a connection. `stream` is one request and its reply, and `tunnel` is
//! a stream that carries bytes both ways. `request` builds the requests and passes the replies on.
//!
//! Each connection belongs to one thread. If the backend allows no more streams, the pool opens
//! another connection. Until the backend's settings arrive, a connection carries one request; other
//! requests wait in order of arrival.
//!
//! If later settings allow no streams, the pool opens another connection. If the first settings
//! allow no streams, requests wait for new settings, for at most the connect timeout. After a
//! GOAWAY with an error code, streams without a reply fail at once.
//!
//! A backend has not processed a request if it refuses the stream (REFUSED_STREAM), or if the
//! identifier in its GOAWAY is lower than the stream's. Forebay then resends the request, whatever
//! its method, if the request's body is still available (`upstream/attempts.rs`).
//!
//! While bytes arrive, Forebay sends no PING, because gRPC servers count PINGs. If a reply is late
//! and nothing else arrived on its connection, Forebay sends a PING. Until the answer arrives, the
//! connection gets no requests. After 5 s without an answer, Forebay closes the connection.
//!
//! Tomcat ends connections with too much overhead: it counts small DATA frames that do not end a
//! stream, small window updates, resets and PINGs. So if the length of a body is known, its last
//! DATA frame ends the stream. Forebay updates a window after half of it is used. `:scheme` is
//! `https` only if the backend connection uses TLS, because Tomcat compares scheme and connection.

mod config;
mod connection;
mod pool;
pub mod request;
mod run;
mod stream;
mod tunnel;

pub use pool::{AssignedStream, Http2Pool, Http2Pools};
pub use stream::{Stream, StreamEvent};
pub use tunnel::StreamTunnel;
