//! Rules that a peer can violate, and the errors that follow.

use std::fmt;

use crate::http2::HeadRule;
use crate::http2::hpack::HpackError;

/// Error code of HTTP/3 (RFC 9114 section 8.1, RFC 9204 section 6).
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
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(0x202);
}

/// Rule that the peer violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Frame of a type that is not allowed at its position.
    FrameUnexpected,
    /// Frame that is truncated, or whose contents do not match its length.
    Frame,
    /// Field section that cannot be decompressed.
    Compression(HpackError),
    /// Head or trailers that violate the rules of HTTP.
    Head(HeadRule),
    /// The value of `content-length` differs from the sum of all DATA.
    ContentLength,
    /// The stream ends before its head is complete.
    Incomplete,
    /// The heads of all requests that are being answered would exceed a limit together.
    HeldHeads,
    /// The trailers of a request exceed the limit of [`Self::HeldHeads`].
    HeldTrailers,
    /// Trailers above the limits.
    Trailers,
    /// Setting that is repeated or belongs to HTTP/2.
    Settings,
    /// The first frame of the control stream is not SETTINGS.
    MissingSettings,
    /// Second stream of a kind that may exist only once, or a push stream of a client.
    StreamCreation,
    /// End of a stream that must stay open as long as the connection.
    ClosedCriticalStream,
    /// Push that was never promised.
    PushId,
    /// Instruction for the dynamic table. Our settings leave no space for this table.
    EncoderStream,
    /// Acknowledgement of an entry of the dynamic table, although we never sent one.
    DecoderStream,
    /// GOAWAY or MAX_PUSH_ID with a value that must not follow the previous value.
    Order,
    /// More frames than an honest client sends, of a kind that costs us work but does not benefit
    /// the client.
    Abuse,
}

/// Rule that the peer violated, with the consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Error {
    /// Rule that the peer violated.
    pub rule: Rule,
    /// Error code that is sent to the peer.
    pub code: ErrorCode,
    /// True if the error ends the connection, and false if it ends only the stream.
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

    /// Creates the error of a malformed request or reply, which does not affect other streams.
    pub fn malformed(rule: Rule) -> Self {
        Self::stream(rule, ErrorCode::MESSAGE_ERROR)
    }

    /// Creates the error for a head that [`HeldHeads`](crate::http2::HeldHeads) does not admit. The
    /// client may send the request again.
    pub fn held_heads() -> Self {
        Self::stream(Rule::HeldHeads, ErrorCode::REQUEST_REJECTED)
    }

    /// Creates the error for trailers that [`HeldHeads`](crate::http2::HeldHeads) does not admit.
    pub fn held_trailers() -> Self {
        Self::stream(Rule::HeldTrailers, ErrorCode::EXCESSIVE_LOAD)
    }

    /// Creates the error for abuse.
    pub fn abuse() -> Self {
        Self::connection(Rule::Abuse, ErrorCode::EXCESSIVE_LOAD)
    }

    /// Creates the error for a second stream of a kind that may exist only once.
    pub fn repeated_stream() -> Self {
        Self::connection(Rule::StreamCreation, ErrorCode::STREAM_CREATION_ERROR)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_ERROR => "H3_NO_ERROR",
            Self::GENERAL_PROTOCOL_ERROR => "H3_GENERAL_PROTOCOL_ERROR",
            Self::INTERNAL_ERROR => "H3_INTERNAL_ERROR",
            Self::STREAM_CREATION_ERROR => "H3_STREAM_CREATION_ERROR",
            Self::CLOSED_CRITICAL_STREAM => "H3_CLOSED_CRITICAL_STREAM",
            Self::FRAME_UNEXPECTED => "H3_FRAME_UNEXPECTED",
            Self::FRAME_ERROR => "H3_FRAME_ERROR",
            Self::EXCESSIVE_LOAD => "H3_EXCESSIVE_LOAD",
            Self::ID_ERROR => "H3_ID_ERROR",
            Self::SETTINGS_ERROR => "H3_SETTINGS_ERROR",
            Self::MISSING_SETTINGS => "H3_MISSING_SETTINGS",
            Self::REQUEST_REJECTED => "H3_REQUEST_REJECTED",
            Self::REQUEST_CANCELLED => "H3_REQUEST_CANCELLED",
            Self::REQUEST_INCOMPLETE => "H3_REQUEST_INCOMPLETE",
            Self::MESSAGE_ERROR => "H3_MESSAGE_ERROR",
            Self::QPACK_DECOMPRESSION_FAILED => "QPACK_DECOMPRESSION_FAILED",
            Self::QPACK_ENCODER_STREAM_ERROR => "QPACK_ENCODER_STREAM_ERROR",
            Self::QPACK_DECODER_STREAM_ERROR => "QPACK_DECODER_STREAM_ERROR",
            Self(code) => return write!(f, "error {code:#x}"),
        })
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
            Rule::Incomplete => "end of the stream before its head is complete",
            Rule::HeldHeads => "heads of the connection's requests too large together",
            Rule::HeldTrailers => {
                "heads and trailers of the connection's requests too large together"
            }
            Rule::Trailers => "trailers above the limits",
            Rule::Settings => "malformed settings",
            Rule::MissingSettings => "no settings",
            Rule::StreamCreation => "stream that may not be opened",
            Rule::ClosedCriticalStream => "critical stream closed",
            Rule::PushId => "push that was never promised",
            Rule::EncoderStream => "dynamic table larger than allowed",
            Rule::DecoderStream => "acknowledgement of nothing",
            Rule::Order => "identifier that may not follow the one before",
            Rule::Abuse => "too many frames of no use",
        })
    }
}

impl std::error::Error for Http3Error {}
