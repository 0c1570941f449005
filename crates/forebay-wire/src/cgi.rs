//! CGI (RFC 3875): the variables of a request, and the head of the reply that a script writes.
//!
//! A CGI process gets the variables in its environment, a FastCGI application in PARAMS records,
//! and a persistent worker in a [`Block`]. The trait [`Sink`] hides these differences.

mod reply;
mod variables;

pub use reply::{ReplyHead, ReplyParser};
pub use variables::{Block, Request, Sink, requested_port, server_port, variables};

use std::fmt;

/// Rule that the head of a script's reply violated. The application is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgiError {
    /// Header line without a colon or with an invalid name.
    Name,
    /// Header value with a control byte.
    Value,
    /// `Status` that does not start with three digits from 102 to 999.
    Status,
    /// `Content-Length` that is not a number, or that is repeated.
    ContentLength,
    /// The head exceeds the limit of its size or of its number of fields.
    TooLarge,
    /// The output ended before the blank line that ends the head, or before the end of the body.
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
