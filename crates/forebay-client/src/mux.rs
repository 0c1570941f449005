//! Sessions that carry several exchanges at once.

use std::fmt;
use std::time::{Duration, Instant};

use forebay_wire::{http2, http3};

use crate::{Answer, Malformed, Sink};

/// Client's side of one connection that carries several exchanges at once.
///
/// Each exchange has an index from 0 to N - 1, if the session was created for N exchanges. A
/// session without an active exchange can still have output, such as replies to SETTINGS and PING.
pub trait MuxSession {
    /// Receiver of the parts of replies.
    type Sink: Sink;
    /// Encoded request.
    type Request: Clone;

    /// Replaces the request of an inactive exchange.
    fn set_request(&mut self, exchange: usize, request: &Self::Request);

    /// Resets the session for a new connection. Exchanges that were active on the previous
    /// connection are dropped.
    fn connect(&mut self, now: Instant);

    /// Returns true during the handshake of the session's own protocol, such as QUIC. Handshakes of
    /// TCP and TLS do not count. No exchange can start before the handshake ends.
    fn is_connecting(&self) -> bool {
        false
    }

    /// Returns the duration of the last handshake of the session's own protocol, such as QUIC.
    /// Returns `None` if there was no handshake, or if an earlier call has returned its duration.
    fn take_handshake(&mut self) -> Option<Duration> {
        None
    }

    /// Ends the connection. The output then contains the message for the peer, if there is one.
    fn close(&mut self, _now: Instant) {}

    /// Returns the reason why a QUIC connection has ended. Returns `None` while the connection is
    /// open, and always for other transports, because their caller notices the end.
    fn end(&self) -> Option<&SessionEnd> {
        None
    }

    /// Returns the time at which the caller must call [`MuxSession::expire`]; `None` if the session
    /// does not wait for a time.
    fn timeout(&mut self) -> Option<Instant> {
        None
    }

    /// Handles the timers that are due at `now`. After that, the caller passes input, which may be
    /// empty.
    fn expire(&mut self, _now: Instant) {}

    /// Returns the number of exchanges that may start now.
    fn capacity(&self) -> usize;

    /// Starts an inactive exchange. Returns false if the connection accepts no further exchange.
    fn start(&mut self, exchange: usize, now: Instant) -> bool;

    /// Cancels an exchange.
    fn cancel(&mut self, exchange: usize, now: Instant);

    /// Creates the next output, if the session creates output only on demand (HTTP/3). The caller
    /// calls this method before [`MuxSession::output`].
    fn prepare(&mut self, _now: Instant) {}

    /// Returns the bytes to write next; empty if there is nothing to write.
    fn output(&self) -> &[u8];

    /// Reports that the first `n` bytes of the output were written.
    fn wrote(&mut self, n: usize, now: Instant);

    /// Reports that the input that follows consists of datagrams of this size. Only the last one
    /// may be shorter.
    fn set_datagram_size(&mut self, _size: usize) {}

    /// Returns true if input is accepted now. If not, the caller must write the output first.
    fn takes_input(&self) -> bool;

    /// Processes received bytes. `bytes` begin with the first unconsumed byte.
    ///
    /// Each call ends at most one exchange. If a call ends an exchange, the caller calls again with
    /// the unconsumed bytes. Otherwise, the caller waits for more bytes, and appends them to the
    /// unconsumed bytes.
    fn input(&mut self, bytes: &[u8], now: Instant) -> Result<MuxReceipt, Malformed>;

    /// Returns true if no exchange is active and none can start.
    fn is_finished(&self) -> bool;

    /// Returns the reason that the peer gave in GOAWAY; `None` if the peer has not sent GOAWAY.
    fn farewell(&self) -> Option<String>;

    /// Returns true if the peer's first message has arrived (HTTP/2: SETTINGS).
    fn is_settled(&self) -> bool;

    /// Returns the status of an exchange's reply; 0 before the head is complete.
    fn status(&self, exchange: usize) -> u16;

    /// Returns the receiver of the parts of an exchange's reply.
    fn sink(&mut self, exchange: usize) -> &mut Self::Sink;
}

/// Result of processing received bytes on a connection with several exchanges.
#[derive(Clone, Copy, Debug)]
pub struct MuxReceipt {
    /// Number of bytes that were consumed.
    pub consumed: usize,
    /// The exchange that ended, if any.
    pub ended: Option<Ended>,
}

/// End of one exchange on a connection that carries several.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Index of the exchange.
    pub exchange: usize,
    /// The reply, or the reason why there is none. In both cases the connection remains usable.
    pub result: Result<Answer, StreamError>,
}

/// End of a connection that the session itself notices, for example from a TLS alert or a close
/// frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// Description of the reason.
    pub reason: String,
    /// TLS alert of the peer, if it is the reason.
    pub alert: Option<u8>,
    /// True if a peer may end an idle connection in this way, without an error.
    pub is_orderly: bool,
}

/// Reason why one exchange has no reply although its connection remains usable.
#[derive(Clone, Copy, Debug)]
pub enum StreamError {
    /// The peer reset the stream.
    Reset(http2::ErrorCode),
    /// The peer reset the stream of an HTTP/3 connection.
    ResetHttp3(http3::ErrorCode),
    /// The peer refused the stream before it processed anything.
    Refused,
    /// The reply violated the protocol.
    Malformed(Malformed),
    /// The peer sent GOAWAY and did not process the request. The caller may send the request again
    /// on another connection.
    Unprocessed,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(f, "the server reset the stream ({code})"),
            Self::ResetHttp3(code) => write!(f, "the server reset the stream ({code})"),
            Self::Refused => f.write_str("the server refused the stream (REFUSED_STREAM)"),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Unprocessed => f.write_str(
                "the server closed the connection (GOAWAY) before it processed the request",
            ),
        }
    }
}

impl std::error::Error for StreamError {}
