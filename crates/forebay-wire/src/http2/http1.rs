//! Converts the heads of HTTP/2 and HTTP/3 messages to HTTP/1.1. Server handlers process requests
//! in that form, and the proxy processes replies in that form.

use super::Head;
use crate::Span;
use crate::http1::{
    Field, KnownField, RequestFraming, RequestHead, ResponseFraming, ResponseHead, TargetForm,
    Version, may_be_trailer,
};

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
