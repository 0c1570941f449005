//! Which rule a client broke, and how far the damage goes.

use std::fmt;

use crate::http2::HeadRule;
use crate::http2::hpack::HpackError;

/// An error code as QUIC carries it (RFC 9114 section 8.1, RFC 9204 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs, reason = "each is the code of that name")]
impl ErrorCode {
    pub const NO_ERROR: Self = Self(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    pub const FRAME_ERROR: Self = Self(0x106);
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    pub const ID_ERROR: Self = Self(0x108);
    pub const SETTINGS_ERROR: Self = Self(0x109);
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
}

/// The rule that a client broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A frame of a type that may not stand where it does.
    FrameUnexpected,
    /// A frame that is cut short, or whose contents do not fit its length.
    Frame,
    /// A field section that cannot be decompressed.
    Compression(HpackError),
    /// A head, or trailers, against the rules of HTTP.
    Head(HeadRule),
    /// `content-length` differs from the sum of DATA.
    ContentLength,
    /// The stream ends before its head does.
    Incomplete,
    /// Trailers above the limits.
    Trailers,
    /// Settings that are repeated, or that HTTP/3 does not have.
    Settings,
    /// The control stream begins with another frame than SETTINGS.
    MissingSettings,
    /// A second stream of a kind of which there is one, or a push by a client.
    StreamCreation,
    /// A stream ended that must stay open as long as the connection.
    ClosedCriticalStream,
    /// A push that was never promised.
    PushId,
    /// An entry for the dynamic table, for which there is no room.
    EncoderStream,
    /// More of what costs us and brings the client nothing than an honest one sends.
    Abuse,
}

/// A rule was broken by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Error {
    /// The rule.
    pub rule: Rule,
    /// What the client is told.
    pub code: ErrorCode,
    /// Whether the connection ends, and not the stream alone.
    pub ends_connection: bool,
}

impl Http3Error {
    pub(super) fn connection(rule: Rule, code: ErrorCode) -> Self {
        Self { rule, code, ends_connection: true }
    }

    pub(super) fn stream(rule: Rule, code: ErrorCode) -> Self {
        Self { rule, code, ends_connection: false }
    }

    pub(super) fn unexpected() -> Self {
        Self::connection(Rule::FrameUnexpected, ErrorCode::FRAME_UNEXPECTED)
    }

    pub(super) fn frame() -> Self {
        Self::connection(Rule::Frame, ErrorCode::FRAME_ERROR)
    }

    /// A request that is no good, beside others that may be.
    pub fn malformed(rule: Rule) -> Self {
        Self::stream(rule, ErrorCode::MESSAGE_ERROR)
    }

    /// More of what costs us and brings the client nothing than an honest one sends.
    pub fn abuse() -> Self {
        Self::connection(Rule::Abuse, ErrorCode::EXCESSIVE_LOAD)
    }

    /// A second stream of a kind of which there is one.
    pub fn repeated_stream() -> Self {
        Self::connection(Rule::StreamCreation, ErrorCode::STREAM_CREATION_ERROR)
    }
}

impl fmt::Display for Http3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HTTP/3: ")?;
        f.write_str(match self.rule {
            Rule::FrameUnexpected => "frame out of place",
            Rule::Frame => "malformed frame",
            Rule::Compression(error) => return error.fmt(f),
            Rule::Head(rule) => return rule.fmt(f),
            Rule::ContentLength => "content-length differs from the data",
            Rule::Incomplete => "request without a whole head",
            Rule::Trailers => "trailers above the limits",
            Rule::Settings => "malformed settings",
            Rule::MissingSettings => "no settings",
            Rule::StreamCreation => "stream that may not be opened",
            Rule::ClosedCriticalStream => "critical stream closed",
            Rule::PushId => "push that was never promised",
            Rule::EncoderStream => "dynamic table larger than allowed",
            Rule::Abuse => "too many frames of no use",
        })
    }
}

impl std::error::Error for Http3Error {}
