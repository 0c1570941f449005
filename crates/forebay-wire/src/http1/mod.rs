//! HTTP/1.0 and HTTP/1.1 messages (RFC 9110, RFC 9112).
//!
//! [`RequestParser`] and [`ResponseParser`] turn the first bytes of a message into a head of
//! [`Span`](crate::Span)s; [`BodyDecoder`] turns what follows into ranges of payload; [`encode`]
//! writes the framing of messages going out. What RFC 9112 leaves to a lenient recipient is refused
//! here: bare LF, obs-fold, space before the colon, `Content-Length` beside `Transfer-Encoding`.

mod body;
mod chars;
mod claims;
pub mod encode;
mod error;
mod fields;
mod framing;
mod request;
mod response;
mod target;
mod trailer;

pub use body::{BodyDecoder, Step};
pub(crate) use chars::{TOKEN, has_upper_case, is_target, is_tchar};
pub use chars::{eq_ignore_case, is_field_value, is_token, list_has};
pub use claims::{Claims, is_disguised, may_be_request_trailer};
pub use error::{HeadError, HttpError};
pub use fields::{Field, KnownField, Limits};
pub(crate) use fields::{NAMES, is_disguised_framing, parse_length};
pub use request::{RequestFraming, RequestHead, RequestParser};
pub use response::{ResponseFraming, ResponseHead, ResponseParser};
pub(crate) use target::is_host;
pub use target::{TargetForm, host_of};
pub use trailer::may_be_trailer;

/// The protocol version of a message. Anything else is refused as [`HeadError::Version`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: connections close unless keep-alive is asked for.
    Http10,
    /// HTTP/1.1 and what may come after it: connections stay open unless close is asked for.
    #[default]
    Http11,
    /// HTTP/2, of a request whose head was written down as one of HTTP/1.
    Http2,
    /// HTTP/3, likewise.
    Http3,
}

/// Whether a parser has seen the whole head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Partial,
    /// The head is complete and this many bytes long, blank line included.
    Complete(usize),
}
