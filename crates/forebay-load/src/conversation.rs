//! What a protocol must offer to be loaded.

use std::fmt;

use forebay_wire::http1::{HeadError, HttpError};

/// One connection's talk in some protocol: one request at a time, each with one reply.
pub(crate) trait Conversation {
    /// The bytes of the request.
    fn request(&self) -> &[u8];

    /// Prepares for the reply to the next request.
    fn begin(&mut self);

    /// Reads on. `bytes` are those received but not yet consumed; what this call does not consume
    /// is offered again, with more behind it.
    fn receive(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed>;

    /// The peer closed the connection: the reply, if that is how it ends.
    fn closed(&mut self) -> Option<Answer>;
}

/// What came of received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    /// How many of the bytes are done with.
    pub consumed: usize,
    /// The reply, once it is complete.
    pub answer: Option<Answer>,
}

/// A complete reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// The status, 200 to 999.
    pub status: u16,
    /// Payload bytes.
    pub body: u64,
    /// Whether the connection may carry another request.
    pub reusable: bool,
    /// How the reply differs from what the check asks for, if it does.
    pub mismatch: Option<Mismatch>,
}

/// How a whole, well-formed reply is not the one that the check asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mismatch {
    /// The status should have been this.
    Status(u16),
    /// The body lacks the text.
    Body,
}

/// How a reply broke the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Malformed {
    Head(HeadError),
    Body(HttpError),
    /// 101, which nobody asked for.
    Upgrade,
    /// More interim (1xx) replies than anyone needs.
    Interim,
    /// Bytes behind the end of the reply.
    Surplus,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, "the reply is malformed: {error}"),
            Self::Body(error) => write!(f, "the reply's body is malformed: {error}"),
            Self::Upgrade => f.write_str("the server switched protocols without being asked"),
            Self::Interim => f.write_str("the server sent 1xx replies without end"),
            Self::Surplus => f.write_str("the server sent bytes behind the end of its reply"),
        }
    }
}
