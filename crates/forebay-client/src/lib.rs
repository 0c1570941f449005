//! A protocol's client role on one connection: requests become bytes to write, bytes that were read
//! become replies. No sockets, no clock.
//!
//! A [`Session`] is driven by whoever has the connection. [`Http1`] speaks HTTP/1.1, [`Fastcgi`]
//! FastCGI as its web server, [`AppServer`] SCGI and uwsgi, [`Ajp`] AJP. What a reply holds goes to a [`Sink`].
//! A [`MuxSession`] carries several exchanges at once: [`Http2`]. They are two traits so that those
//! of one exchange neither look exchanges up nor read the clock.
#![forbid(unsafe_code)]

mod ajp;
mod app_server;
mod fastcgi;
mod http1;
mod http2;
mod mux;
mod request;
mod script;

use std::fmt;

use forebay_wire::ajp13::AjpError;
use forebay_wire::cgi::CgiError;
use forebay_wire::fastcgi::FastcgiError;
use forebay_wire::http1::{HeadError, HttpError};
use forebay_wire::http2::Rule;

pub use ajp::{Ajp, AjpRequest};
pub use app_server::AppServer;
pub use fastcgi::Fastcgi;
pub use http1::{Http1, ReplyReader};
pub use http2::{Http2, Http2Request};
pub use mux::{Ended, MuxReceipt, MuxSession, StreamError};
pub use request::{Gateway, ajp_request, fastcgi_request, scgi_request, uwsgi_request};

/// The client's side of one connection, for one exchange at a time.
pub trait Session {
    /// Takes the parts of replies.
    type Sink: Sink;

    /// Starts the next exchange, or the same one anew over another connection.
    fn start(&mut self);

    /// The bytes to be written next; none where there is nothing to write.
    fn output(&self) -> &[u8];

    /// The first `n` bytes of the output were written.
    fn wrote(&mut self, n: usize);

    /// Reads on. `bytes` are those received but not yet consumed; what this call does not consume
    /// is offered again, with more behind it.
    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed>;

    /// The peer closed the connection: the end of the reply, if that is how it ends.
    fn closed(&mut self) -> Option<Answer>;

    /// The status of the reply, once its head has been read; 0 before.
    fn status(&self) -> u16;

    /// What took the parts of the reply.
    fn sink(&mut self) -> &mut Self::Sink;
}

/// Takes the parts of a reply as they are read.
pub trait Sink {
    /// A reply begins.
    fn begin(&mut self);
    /// A field of the head.
    fn field(&mut self, name: &[u8], value: &[u8]);
    /// Whether [`Sink::field`] is wanted. Where not, a head that came before is not looked at again.
    fn wants_fields(&self) -> bool {
        true
    }
    /// The next piece of the body.
    fn body(&mut self, piece: &[u8]);
}

/// What came of received bytes.
#[derive(Clone, Copy, Debug)]
pub struct Receipt {
    /// How many of the bytes are done with.
    pub consumed: usize,
    /// The end of the reply, once it is complete.
    pub answer: Option<Answer>,
}

/// A complete reply.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The status, 200 to 999.
    pub status: u16,
    /// Whether the connection may carry another exchange.
    pub reusable: bool,
}

/// How a reply broke the protocol.
#[derive(Clone, Copy, Debug)]
pub enum Malformed {
    /// A head of HTTP.
    Head(HeadError),
    /// A body of HTTP.
    Body(HttpError),
    /// The head of a script's reply.
    Script(CgiError),
    /// A record of FastCGI.
    Record(FastcgiError),
    /// A packet of AJP.
    Packet(AjpError),
    /// A body of another length than its head tells.
    Length,
    /// A FastCGI application refused the request; why.
    Refused(&'static str),
    /// 101 to a request without `Upgrade`.
    Upgrade,
    /// More interim (1xx) replies than anyone needs.
    Interim,
    /// Bytes behind the end of the reply.
    Surplus,
    /// A rule of HTTP/2.
    Http2(Rule),
    /// HTTP/1.1 where HTTP/2 was to be spoken.
    NotHttp2,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, "the reply is malformed: {error}"),
            Self::Body(error) => write!(f, "the reply's body is malformed: {error}"),
            Self::Script(error) => write!(f, "the reply of the script is malformed: {error}"),
            Self::Record(error) => write!(f, "the reply is no FastCGI: {error}"),
            Self::Packet(error) => write!(f, "the reply is malformed AJP: {error}"),
            Self::Length => f.write_str("the reply's body is not as long as its Content-Length"),
            Self::Refused(why) => write!(f, "the application {why}"),
            Self::Upgrade => f.write_str("the server switched protocols without being asked"),
            Self::Interim => f.write_str("the server sent 1xx replies without end"),
            Self::Surplus => f.write_str("the server sent bytes behind the end of its reply"),
            Self::Http2(rule) => write!(f, "the reply is malformed HTTP/2: {rule}"),
            Self::NotHttp2 => f.write_str(
                "the server speaks HTTP/1.1, not HTTP/2 by prior knowledge: use http:// without \
                 --http2",
            ),
        }
    }
}

impl std::error::Error for Malformed {}
