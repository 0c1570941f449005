//! HTTP/1.0 and HTTP/1.1 messages (RFC 9110, RFC 9112).
//!
//! [`RequestParser`] and [`ResponseParser`] parse the start of a message into a head of
//! [`Span`](crate::Span)s. [`BodyDecoder`] finds the payload in the bytes that follow. [`encode`]
//! writes the framing of messages. The parsers reject syntax that RFC 9112 permits lenient
//! recipients to accept: bare LF, obs-fold, a space before the colon, and `Content-Length` together
//! with `Transfer-Encoding`. Replies of backends may be mended before they are parsed
//! ([`ReplyReader::read_mending`](crate::reply::ReplyReader::read_mending)).

mod body;
mod chars;
mod claims;
pub mod encode;
mod fields;
mod mend;
mod request;
mod response;
mod target;

pub use body::{BodyDecoder, DecodedBody};
pub(crate) use chars::{TOKEN, has_upper_case, is_target, position};
pub use chars::{eq_ignore_case, has_mark, is_field_value, is_token, list_has};
pub use claims::{Claims, Disguises, may_be_request_trailer, may_be_trailer};
pub use fields::{Field, Http1Limits, KnownField};
pub(crate) use fields::{NAMES, is_disguised_framing, parse_length, position_of_name};
pub(crate) use mend::{HeadSyntax, head_end, mend_head};
pub use request::{RequestFraming, RequestHead, RequestParser};
pub use response::{ResponseFraming, ResponseHead, ResponseParser};
pub(crate) use target::is_host;
pub use target::{TargetForm, host_of};

use std::fmt;

/// Protocol version of a message. Messages with another version are rejected with
/// [`HeadError::Version`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: connections close unless a message requests keep-alive.
    Http10,
    /// HTTP/1.1 and later minor versions: connections stay open unless a message requests a close.
    #[default]
    Http11,
    /// HTTP/2, for a request whose head was converted to HTTP/1.
    Http2,
    /// HTTP/3, for a request whose head was converted to HTTP/1.
    Http3,
}

/// Progress of a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Partial,
    /// The head is complete and has this many bytes, including the blank line.
    Complete(usize),
}

/// Rule that a message head violated. The peer that sent it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// Line that ends with LF without CR.
    BareLineEnd,
    /// Malformed request line or status line.
    StartLine,
    /// The method is not a token.
    Method,
    /// Request target with an invalid byte, or with a form that the method does not allow.
    Target,
    /// HTTP version with a major version other than 1.
    Version,
    /// Field line without a colon, with an invalid name or with a space before the colon. In a
    /// request, also a name that a backend may mistake for `Content-Length` or `Transfer-Encoding`.
    FieldName,
    /// Field value with a control byte.
    FieldValue,
    /// Field that continues on the next line.
    ObsFold,
    /// `Host` that is invalid or repeated, or that is missing in HTTP/1.1.
    Host,
    /// `Content-Length` that is repeated, signed, a list, empty or too large.
    ContentLength,
    /// `Transfer-Encoding` with another value than `chunked`, or in HTTP/1.0.
    TransferEncoding,
    /// Both `Content-Length` and `Transfer-Encoding`.
    AmbiguousLength,
    /// Body of a GET or HEAD request, if the limits do not allow it.
    GetBody,
    /// `Expect` other than `100-continue`.
    Expect,
    /// The request target is longer than the limit.
    TargetTooLong,
    /// The head exceeds the limit of its size or of its number of fields.
    TooLarge,
}

impl HeadError {
    /// Returns the status of the reply if the peer is a client.
    pub fn status(self) -> u16 {
        match self {
            Self::TargetTooLong => 414,
            Self::TooLarge => 431,
            Self::Expect => 417,
            Self::Version => 505,
            _ => 400,
        }
    }
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BareLineEnd => "a line does not end in CRLF",
            Self::StartLine => "malformed first line",
            Self::Method => "malformed method",
            Self::Target => "malformed request target",
            Self::Version => "unsupported HTTP version",
            Self::FieldName => "malformed field name",
            Self::FieldValue => "control byte in a field value",
            Self::ObsFold => "field folded over two lines",
            Self::Host => "missing, repeated or malformed Host",
            Self::ContentLength => "malformed or repeated Content-Length",
            Self::TransferEncoding => "unsupported Transfer-Encoding",
            Self::AmbiguousLength => "both Content-Length and Transfer-Encoding",
            Self::GetBody => "GET or HEAD with a body",
            Self::Expect => "unsupported Expect",
            Self::TargetTooLong => "request target too long",
            Self::TooLarge => "head too large",
        })
    }
}

impl std::error::Error for HeadError {}

/// Rule that a message body violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// Chunk size that is not hexadecimal or is too large.
    ChunkSize,
    /// Chunk extension that is empty, too long, or contains an invalid byte.
    ChunkExtension,
    /// Chunk without CRLF after its data.
    ChunkEnd,
    /// Trailer section that is malformed or too long.
    Trailer,
    /// Trailer of a request that concerns framing or routing.
    ForbiddenTrailer,
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChunkSize => "malformed chunk size",
            Self::ChunkExtension => "malformed chunk extension",
            Self::ChunkEnd => "chunk not followed by CRLF",
            Self::Trailer => "malformed trailer section",
            Self::ForbiddenTrailer => "Content-Length, Transfer-Encoding or Host as a trailer",
        })
    }
}

impl std::error::Error for HttpError {}
