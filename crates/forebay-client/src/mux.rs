//! Sessions that carry several exchanges at once.

use std::fmt;
use std::time::Instant;

use forebay_wire::http2::ErrorCode;

use crate::{Answer, Malformed, Sink};

/// The client's side of one connection that carries several exchanges at once, each by its number
/// below the number of them that the session was made for.
///
/// There may be output though no exchange is under way: the answers to settings and pings.
pub trait MuxSession {
    /// Takes the parts of replies.
    type Sink: Sink;

    /// Begins a new connection. Exchanges that were under way on the last one are forgotten.
    fn connect(&mut self);

    /// How many exchanges may be started now.
    fn capacity(&self) -> usize;

    /// Starts an exchange that is not under way; false where the connection takes none.
    fn start(&mut self, exchange: usize, now: Instant) -> bool;

    /// Ends an exchange of which nothing more is wanted.
    fn cancel(&mut self, exchange: usize, now: Instant);

    /// The bytes to be written next; none where there is nothing to write.
    fn output(&self) -> &[u8];

    /// The first `n` bytes of the output were written.
    fn wrote(&mut self, n: usize, now: Instant);

    /// Whether input is taken now. If not, output must be written first.
    fn takes_input(&self) -> bool;

    /// Reads on. `bytes` are those received but not yet consumed; to be called again until no
    /// exchange has ended. What is not consumed then is offered again, with more behind it.
    fn input(&mut self, bytes: &[u8], now: Instant) -> Result<MuxReceipt, Malformed>;

    /// Whether no exchange is under way and none can be started any more.
    fn is_finished(&self) -> bool;

    /// The reason in the peer's GOAWAY.
    fn farewell(&self) -> Option<String>;

    /// Whether the peer has begun to speak the protocol.
    fn is_settled(&self) -> bool;

    /// The status of an exchange's reply, once its head has been read; 0 before.
    fn status(&self, exchange: usize) -> u16;

    /// What took the parts of an exchange's reply.
    fn sink(&mut self, exchange: usize) -> &mut Self::Sink;
}

/// What came of bytes received on a connection of several exchanges.
#[derive(Clone, Copy, Debug)]
pub struct MuxReceipt {
    /// How many of the bytes are done with.
    pub consumed: usize,
    /// The exchange that has ended, if one has.
    pub ended: Option<Ended>,
}

/// The end of one exchange of several.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its number.
    pub exchange: usize,
    /// Its reply, or why it has none. The connection goes on.
    pub result: Result<Answer, StreamError>,
}

/// Why one exchange of several has no reply.
#[derive(Clone, Copy, Debug)]
pub enum StreamError {
    /// The peer reset its stream.
    Reset(ErrorCode),
    /// The peer refused its stream before it did anything.
    Refused,
    /// The reply broke the protocol.
    Malformed(Malformed),
    /// The peer goes away and has done nothing: it may be sent again on another connection.
    Unprocessed,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(f, "the server reset the stream ({})", code),
            Self::Refused => f.write_str("the server refused the stream (REFUSED_STREAM)"),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Unprocessed => {
                f.write_str("the server closed the connection (GOAWAY) before it took the request")
            }
        }
    }
}

impl std::error::Error for StreamError {}
