//! Clients of several protocols, each for one connection. They convert requests to bytes to write,
//! and received bytes to replies. They use neither sockets nor a clock.
//!
//! The caller owns the socket and drives a [`Session`], which carries one exchange (a request and
//! its reply) at a time: [`Http1`] for HTTP/1.1, [`FastcgiClient`] for FastCGI, [`AppServer`] for
//! SCGI and uwsgi, [`AjpClient`] for AJP, [`WebSocket`] for WebSocket, [`Raw`] for fixed bytes. A
//! [`Sink`] receives the parts of a reply. A [`MuxSession`] ([`Http2`], [`Http3`], [`FastcgiMux`])
//! carries several exchanges at once.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ajp;
mod app_server;
mod fastcgi;
mod fastcgi_mux;
mod http1;
mod http2;
mod http3;
mod mux;
mod raw;
mod request;
mod script;
mod websocket;

use std::fmt;

use forebay_wire::ajp13::AjpError;
use forebay_wire::cgi::CgiError;
use forebay_wire::fastcgi::FastcgiError;
use forebay_wire::http1::{HeadError, HttpError};
use forebay_wire::http2::Rule;
use forebay_wire::http3::Http3Error;
use forebay_wire::websocket::FrameError;

pub use ajp::{AjpClient, AjpRequest};
pub use app_server::AppServer;
pub use fastcgi::FastcgiClient;
pub use fastcgi_mux::FastcgiMux;
pub use http1::{Http1, HttpRequest, ReplyReader};
pub use http2::{Http2, Http2Request};
pub use http3::{Http3, Http3Config, Http3Request};
pub use mux::{Ended, MuxReceipt, MuxSession, SessionEnd, StreamError};
pub use raw::{Raw, ReplyEnd};
pub use request::{
    EncodeError, Gateway, ajp_request, fastcgi_request, scgi_request, uwsgi_request,
};
pub use websocket::{WEBSOCKET_KEY, WebSocket, WebSocketRequest};

/// Client's side of one connection that carries one exchange at a time.
pub trait Session {
    /// Receiver of the parts of replies.
    type Sink: Sink;
    /// Encoded request.
    type Request: Clone;

    /// Replaces the request that the following exchanges send.
    fn set_request(&mut self, request: &Self::Request);

    /// Resets the session for a new connection. The caller then calls [`Session::start`].
    fn connect(&mut self) {}

    /// Starts the next exchange, or repeats the current exchange on a new connection.
    fn start(&mut self);

    /// Returns the bytes to write next; empty if there is nothing to write.
    fn output(&self) -> &[u8];

    /// Reports that the first `n` bytes of the output were written.
    fn wrote(&mut self, n: usize);

    /// Returns true if output remains to be written although the reply is complete. The connection
    /// can carry another exchange after that output.
    fn has_late_output(&self) -> bool {
        false
    }

    /// Returns true if a part of the request waits for `100 Continue`. The caller waits for a
    /// limited time, and then calls [`Session::release_output`].
    fn holds_output(&self) -> bool {
        false
    }

    /// Adds the part of the request that waits to the output.
    fn release_output(&mut self) {}

    /// Processes received bytes. `bytes` begin with the first unconsumed byte: the bytes that the
    /// last call did not consume are passed again, followed by newly received bytes. Fails if the
    /// reply violates the protocol.
    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed>;

    /// Reports that the peer closed the connection. Returns the reply if this close is a valid end
    /// of the reply. Returns `None` if the reply is incomplete.
    fn closed(&mut self) -> Option<Answer>;

    /// Returns the status of the reply; 0 before the head is complete.
    fn status(&self) -> u16;

    /// Returns the receiver of the parts of the reply.
    fn sink(&mut self) -> &mut Self::Sink;
}

/// Receiver of the parts of a reply as they are read.
pub trait Sink {
    /// Begins a reply.
    fn begin(&mut self);
    /// Receives a field of the head.
    fn field(&mut self, name: &[u8], value: &[u8]);
    /// Returns true if the sink needs [`Sink::field`]. If false, a session may skip these calls.
    fn wants_fields(&self) -> bool {
        true
    }
    /// Receives a field of the trailers, if the sink needs fields and the protocol is HTTP/2.
    fn trailer(&mut self, _name: &[u8], _value: &[u8]) {}
    /// Receives the next piece of the body.
    fn body(&mut self, piece: &[u8]);
}

/// Result of processing received bytes.
#[derive(Clone, Copy, Debug)]
pub struct Receipt {
    /// Number of bytes that were consumed.
    pub consumed: usize,
    /// The reply, if it is complete.
    pub answer: Option<Answer>,
}

/// Complete reply.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The status: 101 for a message over WebSocket, 0 for raw bytes, else 200 to 999.
    pub status: u16,
    /// True if the connection may carry another exchange.
    pub reusable: bool,
}

/// Protocol violation in a reply.
#[derive(Clone, Copy, Debug)]
pub enum Malformed {
    /// Invalid HTTP head.
    Head(HeadError),
    /// Invalid HTTP body.
    Body(HttpError),
    /// Invalid head of a CGI script's reply.
    Script(CgiError),
    /// Invalid FastCGI record.
    Record(FastcgiError),
    /// Invalid AJP packet.
    Packet(AjpError),
    /// The length of the body differs from `Content-Length`.
    Length,
    /// Invalid list of a FastCGI application's capabilities.
    Values,
    /// A FastCGI application does not take several requests on a connection.
    NotMultiplexed,
    /// A FastCGI application refused the request for this reason.
    Refused(&'static str),
    /// Status 101 although the request had no `Upgrade`.
    Upgrade,
    /// Too many interim (1xx) replies.
    Interim,
    /// Reply to a WebSocket handshake with a wrong or missing `Sec-WebSocket-Accept`.
    Accept,
    /// Invalid WebSocket frame.
    Frame(FrameError),
    /// The server closed the WebSocket connection with this code.
    Closed(u16),
    /// Bytes after the end of the reply.
    Surplus,
    /// Violation of an HTTP/2 rule.
    Http2(Rule),
    /// Violation of an HTTP/3 rule.
    Http3(Http3Error),
    /// HTTP/1.1 reply on a connection that should use HTTP/2.
    NotHttp2,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, "the reply is malformed: {error}"),
            Self::Body(error) => write!(f, "the reply's body is malformed: {error}"),
            Self::Script(error) => write!(f, "the reply of the script is malformed: {error}"),
            Self::Record(error) => write!(f, "the reply is not valid FastCGI: {error}"),
            Self::Packet(error) => write!(f, "the reply is malformed AJP: {error}"),
            Self::Length => f.write_str("the reply's body is not as long as its Content-Length"),
            Self::Values => f.write_str("the reply to FCGI_GET_VALUES is malformed"),
            Self::NotMultiplexed => {
                f.write_str("the application says so: its FCGI_MPXS_CONNS is not 1")
            }
            Self::Refused(why) => write!(f, "the application {why}"),
            Self::Upgrade => {
                f.write_str("the server switched protocols without a request to do so")
            }
            Self::Accept => f.write_str(
                "the reply to the WebSocket handshake has no valid Sec-WebSocket-Accept",
            ),
            Self::Frame(error) => write!(f, "the reply is not valid WebSocket: {error}"),
            Self::Closed(code) => write!(f, "the server closed the WebSocket with the code {code}"),
            Self::Interim => f.write_str("the server sent too many 1xx replies"),
            Self::Surplus => f.write_str("the server sent bytes after the end of its reply"),
            Self::Http2(rule) => write!(f, "the reply is malformed HTTP/2: {rule}"),
            Self::Http3(error) => write!(f, "the reply is malformed: {error}"),
            Self::NotHttp2 => f.write_str(
                "the server speaks HTTP/1.1, not HTTP/2 with prior knowledge: use http:// without \
                 --http2",
            ),
        }
    }
}

impl std::error::Error for Malformed {}
