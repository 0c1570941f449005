//! What a connection reports to its caller.

use std::ops::Range;

use crate::http2::Head;
use crate::http2::error::{ErrorCode, HeadRule, Rule};

/// What [`Connection::receive`](super::Connection::receive) found.
#[derive(Debug, Default)]
pub struct Step {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// What they meant; `None` when more input is needed.
    pub event: Option<Event>,
}

/// Something that the caller must know.
#[derive(Debug)]
pub enum Event {
    /// A request (server) or a final reply (client).
    Head {
        /// Its stream.
        stream: u32,
        /// The head, to be given back by [`Connection::recycle`](super::Connection::recycle).
        head: Box<Head>,
        /// Nothing follows.
        end: bool,
    },
    /// An interim reply, status 100 to 199 (client).
    Interim {
        /// Its stream.
        stream: u32,
        /// The head, to be given back by [`Connection::recycle`](super::Connection::recycle).
        head: Box<Head>,
    },
    /// A request that is well formed, but that we do not serve: the rule has the status to reply
    /// with (server).
    Unacceptable {
        /// Its stream.
        stream: u32,
        /// What is wrong with it.
        rule: HeadRule,
        /// Nothing follows.
        end: bool,
    },
    /// Data, to be given back by [`Connection::consume`](super::Connection::consume).
    Data {
        /// Its stream.
        stream: u32,
        /// Where it lies in the input that was given to [`Connection::receive`](super::Connection::receive).
        data: Range<usize>,
        /// Nothing follows.
        end: bool,
    },
    /// Trailers, which end the stream.
    Trailers {
        /// Its stream.
        stream: u32,
        /// Their fields, to be given back by [`Connection::recycle`](super::Connection::recycle).
        head: Box<Head>,
    },
    /// The stream is gone.
    Reset {
        /// Its identifier.
        stream: u32,
        /// Why.
        cause: Cause,
    },
    /// A stream that was never announced was refused by us.
    Refused {
        /// Its identifier.
        stream: u32,
        /// The rule that it broke.
        rule: Rule,
    },
    /// The peer opens no more streams, or takes no more. [`Event::Reset`] has come before for each
    /// stream that the peer has not processed.
    Goaway {
        /// Why.
        code: ErrorCode,
    },
    /// The peer's settings have come or changed.
    Settings,
}

/// Why a stream is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer reset it.
    Peer(ErrorCode),
    /// The peer broke this rule, so that we reset it.
    Rule(Rule),
    /// The peer goes away, and has not processed it: it may be sent elsewhere.
    Unprocessed,
}
