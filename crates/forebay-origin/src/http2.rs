//! HTTP/2 to backends (RFC 9113): connections that requests share, by prior knowledge or by ALPN.
//!
//! `pool` has the connections of one thread to a backend, `connection` is what the streams of one
//! share, `config` its limits and windows, `run` is the task that reads and writes it, `stream` one
//! request and its reply, `tunnel` a stream that has become one of bytes both ways. What a proxy sends
//! and passes on is not here (`proxy/http2.rs`).
//!
//! A connection is a thread's. Another one is opened when the backend's settings allow no more streams;
//! until they have come it carries one request, so that none is refused for ignorance of them, and the
//! others wait in the order in which they came, as long as connecting may take.
//!
//! A connection whose settings allow no streams any more is closed once it is idle, and another one is opened.
//! A new connection that allows none from the start may be the backend's state of the moment, so that requests
//! wait for other settings, as long as connecting may take. A GOAWAY with an error code fails the streams without a
//! reply at once.
//!
//! Requests that a backend refuses (REFUSED_STREAM) or leaves (above the last stream of its GOAWAY)
//! were not acted on, so they go again whatever their method, as long as the body is in hand
//! (`upstream/attempts.rs`).
//!
//! No PING is sent as long as something comes, as servers of gRPC count them. A reply that does not come
//! in time casts doubt on its connection if nothing else came by it either: it is sent a PING, gets no
//! requests meanwhile, and is given up after 5 s.
//!
//! Tomcat ends connections that cost it more than they bring: it counts small DATA that does not end its
//! stream, small window updates, resets and PINGs. So the last DATA ends the stream where the length is
//! known, windows open by halves, and `:scheme` is the transport's, with which it is compared.

mod config;
mod connection;
mod pool;
mod run;
mod stream;
mod tunnel;

pub use pool::{Http2Pool, Http2Pools, Place};
pub use stream::{Stream, StreamEvent};
pub use tunnel::StreamTunnel;
