//! Response heads (RFC 9112 section 4). Backends send them, and so do servers that the load
//! generator measures.

use super::fields::{self, ConnectionOptions, Framing, Lines, connection_lists};
use super::request::parse_version;
use super::{Field, HeadError, Http1Limits, KnownField, Progress, Version};
use crate::Span;

/// Rule for finding the end of a response body (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body, regardless of the fields. This applies to a reply to HEAD, and to status 1xx, 204
    /// and 304.
    #[default]
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body has chunked transfer coding.
    Chunked,
    /// The body ends when the connection closes.
    Close,
}

/// Valid response head. All spans are ranges of the parsed buffer.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// The protocol version.
    pub version: Version,
    /// The status code, 100 to 999.
    pub status: u16,
    /// The reason phrase, which may be empty.
    pub reason: Span,
    /// All field lines in their order.
    pub fields: Vec<Field>,
    /// Rule for finding the end of the body.
    pub framing: ResponseFraming,
    /// Value of `Content-Length`, even if the response has no body.
    pub content_length: Option<u64>,
    /// True if the connection may be reused after the body.
    pub keep_alive: bool,
    /// True if `Connection` contains options other than `close`, `keep-alive` and `upgrade`.
    pub connection_names_fields: bool,
    /// Length of the head in bytes, including the blank line.
    pub len: usize,
}

impl ResponseHead {
    /// Returns true if a `Connection` field lists `name`.
    pub fn connection_lists(&self, name: &[u8], bytes: &[u8]) -> bool {
        connection_lists(&self.fields, name, bytes)
    }
}

/// Parser of a response head from a growing buffer. Each head needs a new parser.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseParser {
    lines: Lines,
    started: bool,
    head_request: bool,
    limits: Http1Limits,
}

impl ResponseParser {
    /// Creates a parser of the response to a request. `head_request` is true if the request's
    /// method was HEAD.
    pub fn new(limits: Http1Limits, head_request: bool) -> Self {
        Self { limits, head_request, ..Self::default() }
    }

    pub(crate) fn limits(&self) -> &Http1Limits {
        &self.limits
    }

    /// Continues to parse a head. `bytes` is everything received since the end of the previous
    /// message. Fails if the head breaks a rule or exceeds a limit.
    pub fn parse(&mut self, bytes: &[u8], head: &mut ResponseHead) -> Result<Progress, HeadError> {
        if !self.started {
            *head =
                ResponseHead { fields: fields::reuse(&mut head.fields), ..ResponseHead::default() };
            let Some(line) = self.lines.next(bytes, self.limits.head)? else {
                return Ok(Progress::Partial);
            };
            parse_status_line(bytes, line, head)?;
            self.started = true;
        }
        let progress = fields::parse(&mut self.lines, bytes, &self.limits, &mut head.fields)?;
        if let Progress::Complete(len) = progress {
            head.len = len;
            finish(bytes, head, self.head_request)?;
        }
        Ok(progress)
    }
}

fn parse_status_line(bytes: &[u8], line: Span, head: &mut ResponseHead) -> Result<(), HeadError> {
    let text = &line.of(bytes)[..line.len() - 2];
    let (version, rest) = text.split_at_checked(8).ok_or(HeadError::StartLine)?;
    head.version = parse_version(version)?;
    let [b' ', a @ b'1'..=b'9', b, c, reason @ ..] = rest else {
        return Err(HeadError::StartLine);
    };
    if !b.is_ascii_digit() || !c.is_ascii_digit() {
        return Err(HeadError::StartLine);
    }
    let digit = |byte: &u8| u16::from(byte - b'0');
    head.status = digit(a) * 100 + digit(b) * 10 + digit(c);
    // A server that omits the reason phrase may also omit the space before it.
    if !(reason.is_empty() || reason[0] == b' ' && super::is_field_value(reason)) {
        return Err(HeadError::StartLine);
    }
    let end = line.end as usize - 2;
    head.reason = Span::new(end - reason.len().saturating_sub(1), end);
    Ok(())
}

fn finish(bytes: &[u8], head: &mut ResponseHead, head_request: bool) -> Result<(), HeadError> {
    let mut framing = Framing::default();
    let mut connection = ConnectionOptions::default();
    for field in &head.fields {
        let value = field.value.of(bytes);
        match field.known {
            KnownField::ContentLength => framing.read_length(value)?,
            KnownField::TransferEncoding => framing.read_coding(value, head.version)?,
            KnownField::Connection => connection.read(value),
            _ => {}
        }
    }
    let (chunked, length) = framing.end()?;
    head.content_length = length;
    // Some responses must not announce a body (RFC 9110 section 8.6, RFC 9112 section 6.1). If the
    // server sends this body, it would be parsed as the head of the next response. An interim
    // response that announces a body is therefore rejected. After a 204 or 304 response that
    // announces a body, the connection is not reused.
    let announces_body = chunked || length.is_some_and(|length| length > 0);
    if head.status < 200 && announces_body {
        return Err(if chunked { HeadError::TransferEncoding } else { HeadError::ContentLength });
    }
    let may_be_followed_by_body = match head.status {
        204 => announces_body,
        304 => chunked && !head_request,
        _ => false,
    };
    let no_body = head_request || head.status < 200 || matches!(head.status, 204 | 304);
    head.framing = match (no_body, chunked, length) {
        (true, ..) => ResponseFraming::None,
        (_, true, _) => ResponseFraming::Chunked,
        (_, _, Some(length)) => ResponseFraming::Length(length),
        _ => ResponseFraming::Close,
    };
    head.keep_alive = connection.keeps_alive(head.version)
        && head.framing != ResponseFraming::Close
        && !may_be_followed_by_body;
    head.connection_names_fields = connection.names_fields;
    Ok(())
}
