//! HTTP/2 to backends (RFC 9113): shared connections, chosen by prior knowledge or ALPN.
//!
//! `pool` holds the connections of one thread to one backend. `connection` holds the state that the
//! streams of a connection share, `config` its limits and windows. `run` is the task that reads and
//! writes a connection. `stream` is one request and its reply, and `tunnel` is a stream that
//! carries bytes both ways. `request` builds the requests and passes the replies on.
//!
//! Each connection belongs to one thread. If the backend's settings allow no more streams, the pool
//! opens another connection. Until the settings arrive, a connection carries one request, so that
//! the backend refuses none for exceeding an unknown limit. Other requests wait in order of
//! arrival, for at most the connect timeout.
//!
//! If later settings allow no streams, the connection is closed once idle, and another one is
//! opened. If the first settings allow none, the backend may be busy for the moment: requests wait
//! for new settings, for at most the connect timeout. A GOAWAY with an error code fails at once the
//! streams that have no reply yet.
//!
//! A backend has not processed the requests that it refuses (REFUSED_STREAM) or that have a stream
//! id above the last one in its GOAWAY. Such a request is sent again, whatever its method, if its
//! body is still available (`upstream/attempts.rs`).
//!
//! While bytes arrive, no PING is sent, because gRPC servers count them. If a reply is late and
//! nothing else arrived on its connection, the connection is in doubt: it is sent a PING, gets no
//! requests meanwhile, and is closed after 5 s without an answer.
//!
//! Tomcat ends connections that cost more than they bring: it counts small DATA frames that do not
//! end a stream, small window updates, resets and PINGs. So the last DATA frame ends the stream if
//! the length is known, and a window is updated after half of it is used. `:scheme` is that of the
//! transport, because Tomcat compares the two.

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
