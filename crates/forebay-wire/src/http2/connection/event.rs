//! Events that a connection reports to its caller.

use std::ops::Range;

use crate::http2::Head;
use crate::http2::error::{ErrorCode, HeadRule, Rule};

/// Result of [`Connection::receive`](super::Connection::receive).
#[derive(Debug, Default)]
pub struct ReceivedEvent {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// Event in the consumed bytes. `None` if the caller must first provide more input, or write
    /// output.
    pub event: Option<Event>,
}

/// Event that a connection reports.
#[derive(Debug)]
pub enum Event {
    /// A request (server) or a final reply (client).
    Head {
        /// Stream of the head.
        stream: u32,
        /// The head, which the caller returns with
        /// [`Connection::recycle`](super::Connection::recycle). A server's caller releases it when
        /// the request has been answered
        /// ([`Connection::release_heads`](super::Connection::release_heads)).
        head: Box<Head>,
        /// True if the stream ends with the head.
        end: bool,
    },
    /// An interim reply, status 100 to 199 (client).
    Interim {
        /// Stream of the head.
        stream: u32,
        /// The head, which the caller returns with
        /// [`Connection::recycle`](super::Connection::recycle).
        head: Box<Head>,
    },
    /// A well-formed request that is not supported (server). `rule` determines the status of the
    /// reply.
    Unacceptable {
        /// Stream of the request.
        stream: u32,
        /// The head as far as it was read, which the caller returns with
        /// [`Connection::recycle`](super::Connection::recycle).
        head: Box<Head>,
        /// The violated rule.
        rule: HeadRule,
        /// True if the stream ends with the head.
        end: bool,
    },
    /// Data of a message. The caller reopens the window with
    /// [`Connection::consume`](super::Connection::consume).
    Data {
        /// Stream of the data.
        stream: u32,
        /// Position of the data in the input of
        /// [`Connection::receive`](super::Connection::receive).
        data: Range<usize>,
        /// True if the stream ends with this data.
        end: bool,
    },
    /// Trailers, which end the stream.
    Trailers {
        /// Stream of the trailers.
        stream: u32,
        /// The fields, which the caller returns and releases as the head.
        head: Box<Head>,
    },
    /// The stream was reset.
    Reset {
        /// Identifier of the stream.
        stream: u32,
        /// Cause of the reset.
        cause: Cause,
    },
    /// We refused a stream for which no event was reported before.
    Refused {
        /// Identifier of the stream.
        stream: u32,
        /// The violated rule.
        rule: Rule,
    },
    /// The peer sent GOAWAY: it opens or accepts no more streams. For each stream that the peer has
    /// not processed, an [`Event::Reset`] precedes this event.
    Goaway {
        /// Error code in the GOAWAY frame.
        code: ErrorCode,
    },
    /// The peer's settings have arrived or changed.
    Settings,
}

/// Cause of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer reset the stream.
    Peer(ErrorCode),
    /// The peer violated this rule, so we reset the stream.
    Rule(Rule),
    /// The peer sent GOAWAY and has not processed the stream. The caller may resend the request on
    /// another connection.
    Unprocessed,
}
