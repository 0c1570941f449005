//! Rules that a peer can violate, and the errors that follow.

use std::fmt;

use super::hpack::HpackError;

/// Error code of RST_STREAM and GOAWAY (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs, reason = "each is the code of that name")]
impl ErrorCode {
    pub const NO_ERROR: Self = Self(0x0);
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    pub const INTERNAL_ERROR: Self = Self(0x2);
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    pub const STREAM_CLOSED: Self = Self(0x5);
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    pub const REFUSED_STREAM: Self = Self(0x7);
    pub const CANCEL: Self = Self(0x8);
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    pub const CONNECT_ERROR: Self = Self(0xa);
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);
}

/// Names of the codes in their order. The first code is 0.
const CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CODES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "code {}", self.0),
        }
    }
}

/// Rule that the peer violated. The peer is always at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The connection does not start with the client preface.
    Preface,
    /// The first frame is not SETTINGS.
    FirstFrame,
    /// Frame larger than the limit that we announced.
    FrameTooLarge,
    /// Frame with a length that its type does not allow.
    FrameLength,
    /// Frame on stream 0 although its type needs a stream.
    StreamZero,
    /// Frame on a stream although its type concerns the connection.
    StreamNotZero,
    /// Padding longer than the frame.
    Padding,
    /// Frame of another kind or stream between HEADERS and the end of its header block.
    ContinuationExpected,
    /// CONTINUATION without a block to continue.
    ContinuationUnexpected,
    /// Setting with an invalid value.
    SettingValue,
    /// Setting or window update that would make a window larger than 2^31-1.
    WindowOverflow,
    /// Window update with increment zero.
    WindowIncrement,
    /// More DATA than the window allows.
    WindowExceeded,
    /// Stream that depends on itself.
    SelfDependency,
    /// PRIORITY_UPDATE from a server, or for a stream that no client can open.
    PriorityUpdate,
    /// PUSH_PROMISE. A server must not send it, because our client disables push, and a client must
    /// never send it.
    Push,
    /// Stream identifier that the peer may not open, or that is smaller than an earlier one.
    StreamId,
    /// Frame on an idle stream (RFC 9113 section 5.1).
    IdleStream,
    /// Frame on a stream that the peer has ended.
    ClosedStream,
    /// More concurrent streams than the limit that we announced.
    TooManyStreams,
    /// The heads of all requests that are being answered would exceed a limit together.
    HeldHeads,
    /// The trailers of a request exceed the limit of [`Self::HeldHeads`].
    HeldTrailers,
    /// Header block that cannot be decompressed.
    Compression(HpackError),
    /// Head or trailers that violate the rules of HTTP.
    Head(HeadRule),
    /// DATA before the head, or DATA in a message that must not have a body.
    UnexpectedData,
    /// The value of `content-length` differs from the sum of all DATA.
    ContentLength,
    /// More frames than an honest peer sends, of a kind that costs us work but does not benefit the
    /// peer.
    Abuse(Abuse),
}

/// Rule that a head violated. The rules are those of RFC 9113 section 8. If the RFC leaves a
/// choice, the rules for HTTP/1.1 apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadRule {
    /// Name that is empty, contains upper case, or contains a byte that no token has. In a request,
    /// also a name that a backend may mistake for `Content-Length` or `Transfer-Encoding`.
    FieldName,
    /// Value with a control byte, or with white space at either end.
    FieldValue,
    /// Pseudo-field that is unknown, repeated or missing, follows a regular field, or is not
    /// allowed in this kind of message.
    PseudoField,
    /// `:method` is not a token.
    Method,
    /// `:scheme` is not a scheme.
    Scheme,
    /// `:path` without a leading slash, or with an invalid byte.
    Path,
    /// The authority is missing, invalid, or differs between `:authority` and `host`.
    Authority,
    /// `:status` is not a number of three digits, or is 101.
    Status,
    /// `:protocol` that is not a token, or that is not allowed. The method must be CONNECT, and
    /// we must have offered extended CONNECT.
    Protocol,
    /// `connection` or another field that concerns an HTTP/1.1 connection.
    ConnectionField,
    /// `te` other than `trailers`.
    Te,
    /// `content-length` that is repeated, signed, a list, empty, too large, or not allowed.
    ContentLength,
    /// `content-length` or `host` in the trailers, because framing and routing depend on them.
    Trailers,
    /// A second head that does not end the stream.
    TrailersEnd,
    /// Body of a GET or HEAD request, if `HeadLimits` do not allow it.
    GetBody,
    /// `expect` other than `100-continue`.
    Expect,
    /// The path is longer than the limit.
    TargetTooLong,
    /// The list of fields exceeds the limit of its size or of its number of fields.
    TooLarge,
}

impl HeadRule {
    /// Returns the status for the reply to an otherwise well-formed request. Returns `None` for a
    /// malformed request, which leads to a reset of the stream.
    pub fn status(self) -> Option<u16> {
        match self {
            Self::Expect => Some(417),
            Self::TargetTooLong => Some(414),
            Self::TooLarge => Some(431),
            // The status is the same as over HTTP/1.1.
            Self::GetBody => Some(400),
            _ => None,
        }
    }
}

/// Kind of abuse. Each kind has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abuse {
    /// Streams that the peer opened and then reset.
    Resets,
    /// Streams that the peer made us reset.
    ProvokedResets,
    /// Streams above the limit of concurrent streams.
    RefusedStreams,
    /// CONTINUATION frames, or a header block that does not end.
    Continuation,
    /// Header lists above the limit.
    HeaderLists,
    /// SETTINGS frames.
    Settings,
    /// PING frames.
    Pings,
    /// DATA frames without data.
    EmptyData,
    /// Window updates of a few bytes.
    WindowUpdates,
    /// PRIORITY and PRIORITY_UPDATE frames.
    Priorities,
    /// Frames of unknown types, and other frames without an effect.
    UselessFrames,
}

impl Rule {
    /// Returns the error code that is sent to the peer.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::FrameTooLarge | Self::FrameLength => ErrorCode::FRAME_SIZE_ERROR,
            Self::WindowOverflow | Self::WindowExceeded => ErrorCode::FLOW_CONTROL_ERROR,
            Self::ClosedStream => ErrorCode::STREAM_CLOSED,
            Self::TooManyStreams | Self::HeldHeads => ErrorCode::REFUSED_STREAM,
            Self::Compression(_) => ErrorCode::COMPRESSION_ERROR,
            Self::Abuse(_) | Self::HeldTrailers => ErrorCode::ENHANCE_YOUR_CALM,
            _ => ErrorCode::PROTOCOL_ERROR,
        }
    }
}

/// Part of a connection that an error ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole connection: GOAWAY was written, and no more input is read.
    Connection,
    /// A single stream: RST_STREAM was written for it.
    Stream(u32),
}

/// Rule that the peer violated, with the scope of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Error {
    /// Rule that the peer violated.
    pub rule: Rule,
    /// Part of the connection that the error ends.
    pub scope: Scope,
}

impl Http2Error {
    /// Creates an error that ends the connection.
    pub fn connection(rule: Rule) -> Self {
        Self { rule, scope: Scope::Connection }
    }

    /// Creates an error that ends one stream.
    pub fn stream(stream: u32, rule: Rule) -> Self {
        Self { rule, scope: Scope::Stream(stream) }
    }
}

impl fmt::Display for Http2Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Scope::Stream(stream) = self.scope {
            write!(f, "HTTP/2 stream {stream}: ")?;
        }
        self.rule.fmt(f)
    }
}

impl std::error::Error for Http2Error {}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Preface => "malformed connection preface",
            Self::FirstFrame => "first frame is not SETTINGS",
            Self::FrameTooLarge => "frame too large",
            Self::FrameLength => "frame of a length that its type does not allow",
            Self::StreamZero => "frame without a stream",
            Self::StreamNotZero => "frame of the connection on a stream",
            Self::Padding => "padding longer than the frame",
            Self::ContinuationExpected => "frame within a header block",
            Self::ContinuationUnexpected => "CONTINUATION without a header block",
            Self::SettingValue => "setting out of range",
            Self::WindowOverflow => "window larger than 2^31-1",
            Self::WindowIncrement => "window update by zero",
            Self::WindowExceeded => "more data than the window allows",
            Self::SelfDependency => "stream depends on itself",
            Self::PriorityUpdate => "misplaced PRIORITY_UPDATE",
            Self::Push => "unexpected PUSH_PROMISE",
            Self::StreamId => "unexpected stream identifier",
            Self::IdleStream => "frame on an idle stream",
            Self::ClosedStream => "frame on a closed stream",
            Self::TooManyStreams => "too many streams at once",
            Self::HeldHeads => "heads of the connection's requests too large together",
            Self::HeldTrailers => {
                "heads and trailers of the connection's requests too large together"
            }
            Self::Compression(error) => return error.fmt(f),
            Self::Head(rule) => return rule.fmt(f),
            Self::UnexpectedData => "DATA where no body may be",
            Self::ContentLength => "content-length differs from the body",
            Self::Abuse(abuse) => return abuse.fmt(f),
        })
    }
}

impl fmt::Display for HeadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FieldName => "malformed field name",
            Self::FieldValue => "malformed field value",
            Self::PseudoField => "pseudo-field missing, repeated or out of place",
            Self::Method => "malformed method",
            Self::Scheme => "malformed scheme",
            Self::Path => "malformed path",
            Self::Authority => "missing, malformed or contradicting authority",
            Self::Status => "malformed status",
            Self::Protocol => "unexpected or malformed :protocol",
            Self::ConnectionField => "field of an HTTP/1.1 connection",
            Self::Te => "te other than trailers",
            Self::ContentLength => "malformed, repeated or misplaced content-length",
            Self::Trailers => "field that trailers may not have",
            Self::TrailersEnd => "second head that does not end the stream",
            Self::GetBody => "GET or HEAD with a body",
            Self::Expect => "unsupported expect",
            Self::TargetTooLong => "path too long",
            Self::TooLarge => "head too large",
        })
    }
}

impl Abuse {
    /// Returns a short name, which labels a counter.
    pub fn label(self) -> &'static str {
        match self {
            Self::Resets => "resets",
            Self::ProvokedResets => "provoked_resets",
            Self::RefusedStreams => "refused_streams",
            Self::Continuation => "continuation",
            Self::HeaderLists => "header_lists",
            Self::Settings => "settings",
            Self::Pings => "pings",
            Self::EmptyData => "empty_data",
            Self::WindowUpdates => "window_updates",
            Self::Priorities => "priorities",
            Self::UselessFrames => "useless_frames",
        }
    }
}

impl fmt::Display for Abuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "too many frames of no use: {}", self.label())
    }
}
