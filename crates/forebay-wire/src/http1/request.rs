//! Request heads (RFC 9112 section 3).

use super::chars::{is_token, position};
use super::fields::{
    self, ConnectionOptions, Framing, Lines, connection_lists, is_disguised_framing,
};
use super::target::{self, TargetForm, is_host};
use super::{Field, HeadError, Http1Limits, KnownField, Progress, Version};
use crate::Span;

/// Rule for finding the end of a request body (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestFraming {
    /// No body.
    #[default]
    None,
    /// The body has this many bytes, at least one.
    Length(u64),
    /// The body has chunked transfer coding.
    Chunked,
}

/// Valid request head. All spans are ranges of the parsed buffer.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// The method with its original case.
    pub method: Span,
    /// The request target as received.
    pub target: Span,
    /// Path and query of the target; empty for `CONNECT`. The path of an absolute target may be
    /// empty, which means `/`.
    pub path_and_query: Span,
    /// Form of the target.
    pub form: TargetForm,
    /// The protocol version.
    pub version: Version,
    /// All field lines in their order.
    pub fields: Vec<Field>,
    /// `host[:port]` of the request. The value comes from an absolute target or from the target of
    /// CONNECT, else from `Host`.
    pub authority: Option<Span>,
    /// Rule for finding the end of the body.
    pub framing: RequestFraming,
    /// True if the connection may be reused after the reply.
    pub keep_alive: bool,
    /// True if the client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// True if the request has `Connection: upgrade` and an `Upgrade` field.
    pub upgrade: bool,
    /// True if `Connection` contains options other than `close`, `keep-alive` and `upgrade`.
    pub connection_names_fields: bool,
    /// True if the name of a field contains a mark other than a hyphen, such as `_`. Some backends
    /// read this mark as a hyphen.
    pub has_marks: bool,
    /// Length of the head in bytes, including the blank line.
    pub len: usize,
}

impl RequestHead {
    /// Returns the value of the first field with this known name, or `None`.
    pub fn value<'a>(&self, known: KnownField, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.fields.iter().find(|field| field.known == known).map(|field| field.value.of(bytes))
    }

    /// Returns the value of AUTH_TYPE (RFC 3875 section 4.1.1). This is `Digest` or `Bearer` if the
    /// first `Authorization` field has that scheme, and `Basic` otherwise.
    pub fn auth_scheme(&self, bytes: &[u8]) -> &'static str {
        let mut fields = self.fields.iter();
        let field =
            fields.find(|field| field.name.of(bytes).eq_ignore_ascii_case(b"authorization"));
        let value = field.map(|field| field.value.of(bytes)).unwrap_or_default();
        let scheme = &value[..memchr::memchr(b' ', value).unwrap_or(value.len())];
        let known = ["Digest", "Bearer"].into_iter();
        known.into_iter().find(|one| scheme.eq_ignore_ascii_case(one.as_bytes())).unwrap_or("Basic")
    }

    /// Returns true if a `Connection` field lists `name`.
    pub fn connection_lists(&self, name: &[u8], bytes: &[u8]) -> bool {
        connection_lists(&self.fields, name, bytes)
    }
}

/// Parser of a request head from a growing buffer. Each head needs a new parser.
///
/// A further call with more bytes continues at the position of the previous call.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestParser {
    lines: Lines,
    started: bool,
    limits: Http1Limits,
}

impl RequestParser {
    /// Creates a parser with these limits.
    pub fn new(limits: Http1Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Continues to parse a head. `bytes` is everything received since the end of the previous
    /// message. Fails if the head breaks a rule or exceeds a limit.
    ///
    /// Up to two empty lines before the request line are skipped (RFC 9112 section 2.2).
    pub fn parse(&mut self, bytes: &[u8], head: &mut RequestHead) -> Result<Progress, HeadError> {
        if !self.started {
            *head =
                RequestHead { fields: fields::reuse(&mut head.fields), ..RequestHead::default() };
            if !self.start_line(bytes, head)? {
                return Ok(Progress::Partial);
            }
            self.started = true;
        }
        let progress = fields::parse(&mut self.lines, bytes, &self.limits, &mut head.fields)?;
        if let Progress::Complete(len) = progress {
            head.len = len;
            head.has_marks = self.lines.has_marks;
            finish(bytes, head)?;
            let is_get = matches!(head.method.of(bytes), b"GET" | b"HEAD");
            if is_get && head.framing != RequestFraming::None && !self.limits.get_body {
                return Err(HeadError::GetBody);
            }
        }
        Ok(progress)
    }

    fn start_line(&mut self, bytes: &[u8], head: &mut RequestHead) -> Result<bool, HeadError> {
        while let Some(line) = self.next_line(bytes)? {
            if line.len() > 2 {
                return parse_start_line(bytes, line, &self.limits, head).map(|()| true);
            }
            if line.start > 2 {
                return Err(HeadError::StartLine);
            }
        }
        Ok(false)
    }

    /// Returns the next line, or `None` if it is incomplete. If the line is too long, its target
    /// must be too long, so the error is [`HeadError::TargetTooLong`].
    fn next_line(&mut self, bytes: &[u8]) -> Result<Option<Span>, HeadError> {
        // The method, the version and two spaces may have 64 bytes in addition to the longest
        // target.
        let limit = self.limits.head.min(self.limits.target + 64);
        self.lines.next(bytes, limit).map_err(|error| match error {
            HeadError::TooLarge => HeadError::TargetTooLong,
            other => other,
        })
    }
}

/// Parses the request line into `head`: method, target and version.
fn parse_start_line(
    bytes: &[u8],
    line: Span,
    limits: &Http1Limits,
    head: &mut RequestHead,
) -> Result<(), HeadError> {
    let text = &line.of(bytes)[..line.len() - 2];
    let base = line.start as usize;
    let method_end = position(b' ', text).ok_or(HeadError::StartLine)?;
    if !is_token(&text[..method_end]) {
        return Err(HeadError::Method);
    }
    // Each valid version has eight bytes.
    let target_end = text.len().saturating_sub(9);
    if target_end <= method_end || text[target_end] != b' ' {
        return Err(HeadError::StartLine);
    }
    head.version = parse_version(&text[target_end + 1..])?;
    head.method = Span::new(base, base + method_end);
    head.target = Span::new(base + method_end + 1, base + target_end);
    if head.target.len() > limits.target {
        return Err(HeadError::TargetTooLong);
    }
    let target = target::parse(bytes, head.target, &text[..method_end]).ok_or(HeadError::Target)?;
    head.form = target.form;
    head.path_and_query = target.path_and_query;
    Ok(())
}

/// Parses the version: `HTTP/1.0`, or `HTTP/1.1` for 1.1 and any higher minor version (RFC 9110
/// section 2.5). Another well-formed version causes [`HeadError::Version`].
pub(super) fn parse_version(text: &[u8]) -> Result<Version, HeadError> {
    match text {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(HeadError::Version)
        }
        _ => Err(HeadError::StartLine),
    }
}

/// Reads the fields that concern the body, the host and the connection. Rejects invalid and
/// contradictory fields, and a request of HTTP/1.1 without `Host`.
fn finish(bytes: &[u8], head: &mut RequestHead) -> Result<(), HeadError> {
    let mut framing = Framing::default();
    let mut host = None;
    let mut connection = ConnectionOptions::default();
    let mut has_upgrade = false;
    let mut expect_continue = false;
    for field in &head.fields {
        let value = field.value.of(bytes);
        match field.known {
            KnownField::ContentLength => framing.read_length(value)?,
            KnownField::TransferEncoding => framing.read_coding(value, head.version)?,
            KnownField::Host if host.is_some() || !is_host(value) => return Err(HeadError::Host),
            KnownField::Host => host = Some(field.value),
            KnownField::Connection => connection.read(value),
            KnownField::Upgrade => has_upgrade = true,
            KnownField::Expect if head.version == Version::Http11 => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(HeadError::Expect);
                }
                expect_continue = true;
            }
            KnownField::Other if is_disguised_framing(field.name.of(bytes)) => {
                return Err(HeadError::FieldName);
            }
            _ => {}
        }
    }
    let (chunked, length) = framing.end()?;
    if host.is_none() && head.version == Version::Http11 {
        return Err(HeadError::Host);
    }
    head.authority = match head.form {
        TargetForm::Absolute { authority } => Some(authority),
        TargetForm::Authority => Some(head.target),
        _ => host,
    };
    head.framing = match (chunked, length) {
        (true, _) => RequestFraming::Chunked,
        (_, Some(length)) if length > 0 => RequestFraming::Length(length),
        _ => RequestFraming::None,
    };
    head.keep_alive = connection.keeps_alive(head.version);
    head.expect_continue = expect_continue && head.framing != RequestFraming::None;
    head.upgrade = connection.upgrade && has_upgrade && head.version == Version::Http11;
    head.connection_names_fields = connection.names_fields;
    Ok(())
}
