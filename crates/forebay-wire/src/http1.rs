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
mod disguises;
pub mod encode;
mod error;
mod fields;
mod framing;
mod mend;
mod request;
mod response;
mod target;
mod trailer;

pub use body::{BodyDecoder, DecodedBody};
pub(crate) use chars::{TOKEN, has_upper_case, is_target, position};
pub use chars::{eq_ignore_case, has_mark, is_field_value, is_token, list_has};
pub use claims::{Claims, may_be_request_trailer};
pub use disguises::Disguises;
pub use error::{HeadError, HttpError};
pub use fields::{Field, Http1Limits, KnownField};
pub(crate) use fields::{NAMES, is_disguised_framing, parse_length, position_of_name};
pub(crate) use mend::{HeadSyntax, head_end, mend_head};
pub use request::{RequestFraming, RequestHead, RequestParser};
pub use response::{ResponseFraming, ResponseHead, ResponseParser};
pub(crate) use target::is_host;
pub use target::{TargetForm, host_of};
pub use trailer::may_be_trailer;

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
