//! CGI (RFC 3875): the variables of a request and the head of a script's reply.
//!
//! The same variables go to a CGI process as its environment, to FastCGI as PARAMS and to a
//! persistent worker as a block; [`Sink`] is what differs.

mod nph;
mod reply;
mod variables;

pub use nph::{NphHead, NphParser, http_head};
pub use reply::{ReplyHead, ReplyParser};
pub use variables::{Block, Request, Sink, variables};

use std::fmt;

/// The rule that the head of a script's reply broke. The application is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgiError {
    /// A header line without colon, or with a bad name.
    Name,
    /// A header value with a control byte.
    Value,
    /// `Status` that does not start with three digits from 102 to 999.
    Status,
    /// `Content-Length` that is not a number, or is given twice.
    ContentLength,
    /// The head is larger than the limit, or has more fields than it.
    TooLarge,
    /// The output ended before the blank line.
    Premature,
}

impl fmt::Display for CgiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "malformed header line",
            Self::Value => "control byte in a header value",
            Self::Status => "malformed Status",
            Self::ContentLength => "malformed or repeated Content-Length",
            Self::TooLarge => "head too large",
            Self::Premature => "output ended before the end of the header",
        })
    }
}

impl std::error::Error for CgiError {}
