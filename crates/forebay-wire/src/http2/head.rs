//! Rules for heads and trailers (RFC 9113 section 8). They are as strict as the rules for HTTP/1.1
//! in this crate.

use super::error::HeadRule;
use super::hpack::{Decoded, Flaw};
use crate::Span;
use crate::fields::{Entry, FieldRef, Fields};
use crate::http1::{
    Field, KnownField, RequestFraming, RequestHead, ResponseFraming, ResponseHead, TargetForm,
    Version, is_disguised_framing, is_host, is_target, is_token, may_be_trailer, parse_length,
};

impl FieldRef<'_> {
    /// Returns true if HTTP/2 and HTTP/3 forbid the field (RFC 9113 section 8.2.2, RFC 9114 section
    /// 4.2) or use `:authority` instead.
    pub(crate) fn is_http1_only(&self) -> bool {
        match self.known {
            KnownField::Connection
            | KnownField::KeepAlive
            | KnownField::ProxyConnection
            | KnownField::TransferEncoding
            | KnownField::Upgrade
            | KnownField::Host => true,
            KnownField::Te => self.value != b"trailers",
            _ => false,
        }
    }
}

/// Maximum length in bytes of an authority that is remembered as valid.
const CHECKED_LIMIT: usize = 256;

/// Limits of a request head, in addition to the limits of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Maximum length of `:path`, in bytes.
    pub target: usize,
    /// True if GET and HEAD may have a body, as with HTTP/1.1.
    pub get_body: bool,
    /// True if we have offered extended CONNECT (RFC 8441).
    pub extended_connect: bool,
}

/// Priority of a reply relative to other replies (RFC 9218 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Urgency from 0 to 7. Replies with smaller values are sent first.
    pub urgency: u8,
    /// True if the client can use parts of the reply, so that the reply may alternate with others.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Parses the value of the `priority` field, which is a dictionary of structured fields (RFC
    /// 8941 section 3.2).
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in value.split(|&byte| byte == b',') {
            match member.trim_ascii().split(|&byte| byte == b';').next().unwrap_or_default() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

/// Valid head or trailers of a message over HTTP/2 or HTTP/3. Each [`Span`] is a range of the bytes
/// of `fields`.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// All fields except pseudo-fields, in order. A request other than CONNECT has exactly one
    /// `host`. If the client sent no `host`, this field is a copy of `:authority`. Several `cookie`
    /// fields of a request are joined to one.
    pub fields: Fields,
    /// `:method` of a request.
    pub method: Span,
    /// `:scheme`; empty for CONNECT without `:protocol`.
    pub scheme: Span,
    /// `:authority`, or `host` if `:authority` is missing.
    pub authority: Span,
    /// `:path` including the query; empty for CONNECT without `:protocol`.
    pub path: Span,
    /// `:protocol` of an extended CONNECT; empty otherwise.
    pub protocol: Span,
    /// `:status` of a reply; 0 for a request.
    pub status: u16,
    /// Value of `content-length`.
    pub content_length: Option<u64>,
    /// True if the client waits for status 100 before it sends the body.
    pub expect_continue: bool,
    /// True if the message contains `te: trailers`.
    pub accepts_trailers: bool,
    /// Value of the `priority` field.
    pub priority: Priority,
    /// True if the name of a field contains a mark other than a hyphen, such as `_`.
    pub has_marks: bool,
    /// Size of the decoded list (RFC 9113 section 6.5.2), or the larger number of bytes that
    /// [`HeldHeads`](super::HeldHeads) counts for a request head.
    pub counted: usize,
    /// Last authority that was valid. An equal authority of a later message is not checked again.
    checked: Vec<u8>,
}

/// Pseudo-field. Its number is the index of its value in the result of `take_pseudo_fields`.
#[derive(Clone, Copy)]
enum Pseudo {
    Method,
    Scheme,
    Authority,
    Path,
    Protocol,
    Status,
}

impl Pseudo {
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b":status" => Self::Status,
            _ => return None,
        })
    }
}

impl Head {
    /// Returns the bytes of a span.
    pub fn bytes(&self, span: Span) -> &[u8] {
        span.of(self.fields.bytes())
    }

    /// Clears the head, but keeps its memory.
    pub fn clear(&mut self) {
        let (mut fields, checked) =
            (std::mem::take(&mut self.fields), std::mem::take(&mut self.checked));
        fields.clear();
        *self = Self { fields, checked, ..Self::default() };
    }

    /// Checks a decoded request and fills the members of the head. Fails with the rule that the
    /// request breaks.
    pub fn finish_request(
        &mut self,
        decoded: Decoded,
        limits: &HeadLimits,
    ) -> Result<(), HeadRule> {
        let found = self.take_pseudo_fields(decoded)?;
        if found[Pseudo::Status as usize].is_some() {
            return Err(HeadRule::PseudoField);
        }
        let take = |pseudo: Pseudo| found[pseudo as usize];
        self.method = take(Pseudo::Method).ok_or(HeadRule::PseudoField)?;
        if !is_token(self.bytes(self.method)) {
            return Err(HeadRule::Method);
        }
        if let Some(protocol) = take(Pseudo::Protocol) {
            let fits = limits.extended_connect && self.bytes(self.method) == b"CONNECT";
            if !fits || !is_token(self.bytes(protocol)) {
                return Err(HeadRule::Protocol);
            }
            self.protocol = protocol;
        }
        let summary = self.read_fields(Role::Request)?;
        let is_tunnel = self.bytes(self.method) == b"CONNECT" && self.protocol.is_empty();
        self.finish_authority(take(Pseudo::Authority), summary.host, is_tunnel)?;
        match (is_tunnel, take(Pseudo::Scheme), take(Pseudo::Path)) {
            (true, None, None) => {}
            (false, Some(scheme), Some(path)) => self.finish_target(scheme, path, limits)?,
            _ => return Err(HeadRule::PseudoField),
        }
        let is_get = matches!(self.bytes(self.method), b"GET" | b"HEAD");
        if is_get && !limits.get_body && self.content_length.is_some_and(|length| length > 0) {
            return Err(HeadRule::GetBody);
        }
        if summary.crumbs > 1 {
            // Join the `cookie` fields (RFC 9113 section 8.2.3).
            self.fields.join(b"cookie", b"; ");
        }
        Ok(())
    }

    /// Checks a decoded interim or final reply and fills the members of the head. Fails with the
    /// rule that the reply breaks.
    pub fn finish_reply(&mut self, decoded: Decoded) -> Result<(), HeadRule> {
        let found = self.take_pseudo_fields(decoded)?;
        if found[..Pseudo::Status as usize].iter().any(Option::is_some) {
            return Err(HeadRule::PseudoField);
        }
        let status = found[Pseudo::Status as usize].ok_or(HeadRule::PseudoField)?;
        self.status = match self.bytes(status) {
            &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
            }
            _ => return Err(HeadRule::Status),
        };
        // Only HTTP/1.1 has status 101 (RFC 9113 section 8.6).
        if self.status == 101 {
            return Err(HeadRule::Status);
        }
        self.read_fields(Role::Reply)?;
        if self.status < 200 && self.content_length.is_some_and(|length| length > 0) {
            return Err(HeadRule::ContentLength);
        }
        Ok(())
    }

    /// Checks decoded trailers. Fails with the rule that the trailers break. In a request, they must
    /// not have fields about framing or routing.
    pub fn finish_trailers(&mut self, decoded: Decoded) -> Result<(), HeadRule> {
        self.finish_reply_trailers(decoded)?;
        let forbidden =
            |entry: &Entry| matches!(entry.known, KnownField::ContentLength | KnownField::Host);
        let has_forbidden = self.fields.entries().iter().any(forbidden);
        if has_forbidden { Err(HeadRule::Trailers) } else { Ok(()) }
    }

    /// Checks decoded trailers of a reply. [`Head::write_trailers`] omits fields about framing or
    /// routing.
    pub fn finish_reply_trailers(&mut self, decoded: Decoded) -> Result<(), HeadRule> {
        let found = self.take_pseudo_fields(decoded)?;
        if found.iter().any(Option::is_some) {
            return Err(HeadRule::PseudoField);
        }
        self.read_fields(Role::Trailers)?;
        Ok(())
    }

    /// Removes the pseudo-fields from `fields`. Returns their values, indexed by [`Pseudo`]. A
    /// value is `None` if its pseudo-field is missing. Fails if the decoder has found a violation,
    /// or if a pseudo-field is unknown or repeated.
    fn take_pseudo_fields(&mut self, decoded: Decoded) -> Result<[Option<Span>; 6], HeadRule> {
        match decoded.flaw {
            Flaw::None => {}
            Flaw::Name => return Err(HeadRule::FieldName),
            Flaw::Value => return Err(HeadRule::FieldValue),
        }
        if decoded.too_large {
            return Err(HeadRule::TooLarge);
        }
        (self.has_marks, self.counted) = (decoded.has_marks, decoded.size);
        let mut found = [None; 6];
        let mut count = 0;
        let bytes = self.fields.bytes();
        for entry in self.fields.entries() {
            let name = entry.name.of(bytes);
            if name.first() != Some(&b':') {
                break;
            }
            let pseudo = Pseudo::of(name).ok_or(HeadRule::PseudoField)?;
            if found[pseudo as usize].replace(entry.value).is_some() {
                return Err(HeadRule::PseudoField);
            }
            count += 1;
        }
        self.fields.drop_first(count);
        Ok(found)
    }

    /// Checks every field except pseudo-fields. Returns the values that framing and routing need.
    fn read_fields(&mut self, role: Role) -> Result<FieldSummary, HeadRule> {
        let mut summary = FieldSummary::default();
        let bytes = self.fields.bytes();
        for entry in self.fields.entries() {
            summary.read(entry, bytes, role)?;
        }
        self.content_length = summary.content_length;
        self.expect_continue = summary.expect_continue;
        self.accepts_trailers = summary.accepts_trailers;
        self.priority = summary.priority;
        Ok(summary)
    }

    fn finish_authority(
        &mut self,
        authority: Option<Span>,
        host: Option<Span>,
        is_tunnel: bool,
    ) -> Result<(), HeadRule> {
        let bytes = self.fields.bytes();
        if let (Some(authority), Some(host)) = (authority, host)
            && !authority.of(bytes).eq_ignore_ascii_case(host.of(bytes))
        {
            return Err(HeadRule::Authority);
        }
        let chosen = if is_tunnel { authority } else { authority.or(host) };
        let chosen = chosen.ok_or(HeadRule::Authority)?;
        let text = chosen.of(bytes);
        // The port of a CONNECT request is mandatory (RFC 9110 section 9.3.6).
        let has_port = text.last().is_some_and(u8::is_ascii_digit) && text.contains(&b':');
        if text.is_empty() || is_tunnel && !has_port {
            return Err(HeadRule::Authority);
        }
        if text != self.checked {
            if !is_host(text) {
                return Err(HeadRule::Authority);
            }
            self.checked.clear();
            if text.len() <= CHECKED_LIMIT {
                self.checked.extend_from_slice(text);
            }
        }
        self.authority = chosen;
        if host.is_none() && !is_tunnel {
            let name = self.fields.append(b"host");
            let known = KnownField::Host;
            self.fields.push_entry(Entry { name, value: chosen, known, sensitive: false });
        }
        Ok(())
    }

    /// Checks and stores `:scheme` and `:path`.
    fn finish_target(
        &mut self,
        scheme: Span,
        path: Span,
        limits: &HeadLimits,
    ) -> Result<(), HeadRule> {
        let is_scheme_byte = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        let text = self.bytes(scheme);
        let is_scheme = text.first().is_some_and(u8::is_ascii_alphabetic);
        if !is_scheme || !text.iter().all(is_scheme_byte) {
            return Err(HeadRule::Scheme);
        }
        let text = self.bytes(path);
        let is_asterisk = text == b"*" && self.bytes(self.method) == b"OPTIONS";
        let is_path = text.first() == Some(&b'/') && is_target(text);
        if !is_path && !is_asterisk {
            return Err(HeadRule::Path);
        }
        if path.len() > limits.target {
            return Err(HeadRule::TargetTooLong);
        }
        (self.scheme, self.path) = (scheme, path);
        Ok(())
    }
}

/// Part of a message whose fields are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Request,
    Reply,
    Trailers,
}

/// Values of the fields that framing and routing need.
#[derive(Default)]
struct FieldSummary {
    host: Option<Span>,
    crumbs: usize,
    content_length: Option<u64>,
    expect_continue: bool,
    accepts_trailers: bool,
    priority: Priority,
}

impl FieldSummary {
    /// Checks one field, and stores its value if framing or routing needs it.
    fn read(&mut self, entry: &Entry, bytes: &[u8], role: Role) -> Result<(), HeadRule> {
        let value = entry.value.of(bytes);
        match entry.known {
            KnownField::Other => return self.read_other(entry.name.of(bytes), value, role),
            KnownField::ContentLength => {
                let length = parse_length(value).ok_or(HeadRule::ContentLength)?;
                if self.content_length.replace(length).is_some() {
                    return Err(HeadRule::ContentLength);
                }
            }
            KnownField::Host if role == Role::Request => {
                let earlier = self.host.replace(entry.value);
                return if earlier.is_some() { Err(HeadRule::Authority) } else { Ok(()) };
            }
            KnownField::Connection
            | KnownField::KeepAlive
            | KnownField::ProxyConnection
            | KnownField::TransferEncoding
            | KnownField::Upgrade => return Err(HeadRule::ConnectionField),
            KnownField::Te if value != b"trailers" => return Err(HeadRule::Te),
            KnownField::Te => self.accepts_trailers = true,
            KnownField::Expect if role == Role::Request => {
                self.expect_continue = value.eq_ignore_ascii_case(b"100-continue");
                return if self.expect_continue { Ok(()) } else { Err(HeadRule::Expect) };
            }
            _ => {}
        }
        Ok(())
    }

    fn read_other(&mut self, name: &[u8], value: &[u8], role: Role) -> Result<(), HeadRule> {
        match name {
            b"cookie" => self.crumbs += 1,
            b"priority" => self.priority = Priority::parse(value),
            [b':', ..] => return Err(HeadRule::PseudoField),
            _ if role == Role::Request && is_disguised_framing(name) => {
                return Err(HeadRule::FieldName);
            }
            _ => {}
        }
        Ok(())
    }
}

// Converts the heads of HTTP/2 and HTTP/3 messages to HTTP/1.1. Server handlers process requests
// in that form, and the proxy processes replies in that form.

impl Head {
    /// Writes this head as lines of HTTP/1.1 to `bytes`, which must be empty. Stores the positions
    /// of its parts in `head`. `version` is the version of the received request. `ends` is true if
    /// no body follows.
    ///
    /// An extended CONNECT (RFC 8441) becomes a GET with an `Upgrade` field. For WebSocket, the
    /// function also adds `Sec-WebSocket-Key` with the value `websocket_key`, because HTTP/2 does
    /// not use that field.
    pub fn write_http1(
        &self,
        version: Version,
        ends: bool,
        websocket_key: &[u8],
        bytes: &mut Vec<u8>,
        head: &mut RequestHead,
    ) {
        let mut fields = std::mem::take(&mut head.fields);
        fields.clear();
        // The lines of all fields and the request line need at most this size.
        let size = self.fields.bytes().len() + 4 * self.fields.len() + 64;
        if bytes.capacity() < size {
            // Free the small buffer before the allocation of a larger one. Growing the small buffer
            // would fragment the allocator's heap, which took 12 % more memory for heads of 28 kB.
            *bytes = Vec::new();
            bytes.reserve_exact(size);
        }
        let is_tunnel = !self.protocol.is_empty();
        let method = if is_tunnel { b"GET" } else { self.bytes(self.method) };
        let is_connect = method == b"CONNECT";
        let target = self.bytes(if is_connect { self.authority } else { self.path });
        let method = append(bytes, method);
        bytes.push(b' ');
        let target = append(bytes, target);
        let is_http3 = version == Version::Http3;
        bytes.extend_from_slice(if is_http3 { b" HTTP/3.0\r\n" } else { b" HTTP/2.0\r\n" });
        for field in &self.fields {
            fields.push(append_line(bytes, field.known, field.name, field.value));
        }
        if is_tunnel {
            let protocol = self.bytes(self.protocol);
            fields.push(append_line(bytes, KnownField::Upgrade, b"upgrade", protocol));
            if protocol.eq_ignore_ascii_case(b"websocket") {
                let name = b"sec-websocket-key";
                fields.push(append_line(bytes, KnownField::Other, name, websocket_key));
            }
        }
        bytes.extend_from_slice(b"\r\n");
        let host =
            fields.iter().find(|field| field.known == KnownField::Host).map(|field| field.value);
        let framing = match self.content_length {
            _ if ends || is_tunnel || is_connect => RequestFraming::None,
            Some(0) => RequestFraming::None,
            Some(length) => RequestFraming::Length(length),
            None => RequestFraming::Chunked,
        };
        *head = RequestHead {
            method,
            target,
            path_and_query: if is_connect { Span::default() } else { target },
            form: match target.of(bytes) {
                _ if is_connect => TargetForm::Authority,
                b"*" => TargetForm::Asterisk,
                _ => TargetForm::Origin,
            },
            version,
            fields,
            authority: if is_connect { Some(target) } else { host },
            framing,
            keep_alive: true,
            expect_continue: self.expect_continue && framing != RequestFraming::None,
            upgrade: is_tunnel,
            connection_names_fields: false,
            has_marks: self.has_marks,
            len: bytes.len(),
        };
    }

    /// Converts a reply as [`Head::write_http1`] converts a request. `to_head` is true if the
    /// request's method was HEAD. A body of unknown length is chunked.
    pub fn write_http1_reply(
        &self,
        ends: bool,
        to_head: bool,
        bytes: &mut Vec<u8>,
        head: &mut ResponseHead,
    ) {
        let mut fields = std::mem::take(&mut head.fields);
        fields.clear();
        for field in &self.fields {
            fields.push(append_line(bytes, field.known, field.name, field.value));
        }
        let has_none = to_head || self.status < 200 || matches!(self.status, 204 | 304);
        *head = ResponseHead {
            version: Version::Http11,
            status: self.status,
            reason: Span::default(),
            fields,
            framing: match self.content_length {
                _ if has_none => ResponseFraming::None,
                Some(length) => ResponseFraming::Length(length),
                None if ends => ResponseFraming::Length(0),
                None => ResponseFraming::Chunked,
            },
            content_length: self.content_length,
            keep_alive: true,
            connection_names_fields: false,
            len: bytes.len(),
        };
    }

    /// Writes the trailer fields as lines. Fields that must not be trailers (RFC 9110 section
    /// 6.5.1) are omitted.
    pub fn write_trailers(&self, lines: &mut Vec<u8>) {
        for field in self.fields.iter().filter(|field| may_be_trailer(field.name)) {
            append_line(lines, field.known, field.name, field.value);
        }
    }
}

fn append(bytes: &mut Vec<u8>, text: &[u8]) -> Span {
    let start = bytes.len();
    bytes.extend_from_slice(text);
    Span::new(start, bytes.len())
}

fn append_line(bytes: &mut Vec<u8>, known: KnownField, name: &[u8], value: &[u8]) -> Field {
    let start = bytes.len();
    let name = append(bytes, name);
    bytes.extend_from_slice(b": ");
    let value = append(bytes, value);
    bytes.extend_from_slice(b"\r\n");
    Field { name, value, line: Span::new(start, bytes.len()), known }
}
