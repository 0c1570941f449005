//! Which rule a message broke.

use std::fmt;

/// The rule that a message head broke. The peer that sent it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// A line ends in LF without CR, or CR stands alone.
    BareLineEnd,
    /// The request line or status line is not of the form the RFC gives.
    StartLine,
    /// The method is not a token.
    Method,
    /// The request target has a byte that may not stand there, or a form its method does not allow.
    Target,
    /// Another major version than 1.
    Version,
    /// A field line without colon, with a bad name or with space before the colon; in a request
    /// also a name that a backend may take for `Content-Length` or `Transfer-Encoding`.
    FieldName,
    /// A field value with a control byte.
    FieldValue,
    /// A field continued on the next line.
    ObsFold,
    /// No `Host` in HTTP/1.1, more than one, or one that is not a host.
    Host,
    /// `Content-Length` that is repeated, signed, listed, empty or too large.
    ContentLength,
    /// `Transfer-Encoding` other than exactly `chunked`, or in HTTP/1.0.
    TransferEncoding,
    /// Both `Content-Length` and `Transfer-Encoding`.
    AmbiguousLength,
    /// A body of GET or HEAD, where the limits do not allow it.
    GetBody,
    /// `Expect` other than `100-continue`.
    Expect,
    /// The request target is longer than the limit.
    TargetTooLong,
    /// The head is larger than the limit, or has more fields than it.
    TooLarge,
}

impl HeadError {
    /// The status to answer with when the peer is a client.
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

/// The rule that a message body broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// A chunk size that is not bare hexadecimal digits, or too large.
    ChunkSize,
    /// A chunk extension with a byte that may not stand there, an empty or an over-long one.
    ChunkExtension,
    /// A chunk is not followed by CRLF.
    ChunkEnd,
    /// A malformed or over-long trailer section.
    Trailer,
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChunkSize => "malformed chunk size",
            Self::ChunkExtension => "malformed chunk extension",
            Self::ChunkEnd => "chunk not followed by CRLF",
            Self::Trailer => "malformed trailer section",
        })
    }
}

impl std::error::Error for HttpError {}
