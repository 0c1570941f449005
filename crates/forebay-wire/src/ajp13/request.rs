//! Parser of requests, as a container reads them.

use super::codes::{
    ARE_DONE, ATTRIBUTES, REQUEST_ATTRIBUTE, REQUEST_FIELDS, SSL_KEY_SIZE, STORED_METHOD, method,
};
use super::packet::{PayloadReader, payload};
use super::{AjpError, Attribute, TO_CONTAINER, kind};
use crate::Span;
use crate::fields::Fields;
use crate::http1::{is_target, is_token};

/// Head of a request. All spans are ranges of the buffer of `fields`.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// Fields of the request. Their buffer also contains all other parts.
    pub fields: Fields,
    /// Length of the body in bytes, if `Content-Length` states it.
    pub content_length: Option<u64>,
    /// The method, which is a token.
    pub method: Span,
    /// Version, such as `HTTP/1.1`.
    pub protocol: Span,
    /// The path as the client sent it, without the query.
    pub uri: Span,
    /// The client's address.
    pub remote_addr: Span,
    /// The client's host name. It is empty if the name is unknown.
    pub remote_host: Span,
    /// Host that the client requested.
    pub server_name: Span,
    /// Port that the client requested.
    pub server_port: u16,
    /// True if the client used TLS.
    pub is_ssl: bool,
    /// Key length of the TLS session in bits.
    pub ssl_key_size: Option<u16>,
    /// Names and values of the attributes that have a name instead of a code.
    pub request_attributes: Vec<(Span, Span)>,
    attributes: [Option<Span>; ATTRIBUTES],
}

/// Packet that a web server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A request, whose head was read.
    Request,
    /// A test if the container is alive.
    Ping,
}

/// Parses the packet at the start of `input`, which must not be a data packet. Returns the type and
/// the length of the packet, or `None` if more input is needed.
pub fn parse_request(
    input: &[u8],
    packet_size: usize,
    head: &mut RequestHead,
) -> Result<Option<(Incoming, usize)>, AjpError> {
    let Some(payload) = payload(input, TO_CONTAINER, packet_size)? else { return Ok(None) };
    let len = payload.end;
    let mut reader = PayloadReader(&input[payload]);
    let incoming = match reader.byte()? {
        kind::FORWARD_REQUEST => {
            head.read(&mut reader)?;
            Incoming::Request
        }
        kind::CPING => Incoming::Ping,
        kind::SHUTDOWN => return Err(AjpError::Shutdown),
        other => return Err(AjpError::Kind(other)),
    };
    if reader.0.is_empty() { Ok(Some((incoming, len))) } else { Err(AjpError::Length) }
}

impl RequestHead {
    /// Returns the value of `attribute`, or `None` if the request does not contain it.
    pub fn attribute(&self, attribute: Attribute) -> Option<&[u8]> {
        Some(self.attributes[attribute as usize]?.of(self.fields.bytes()))
    }

    /// Returns the value of the first attribute that has this name instead of a code. Returns
    /// `None` if no attribute has the name.
    pub fn request_attribute(&self, name: &[u8]) -> Option<&[u8]> {
        let bytes = self.fields.bytes();
        let named = |(given, _): &&(Span, Span)| given.of(bytes) == name;
        Some(self.request_attributes.iter().find(named)?.1.of(bytes))
    }

    fn read(&mut self, reader: &mut PayloadReader<'_>) -> Result<(), AjpError> {
        self.clear();
        let code = reader.byte()?;
        self.protocol = self.fields.append(reader.required_text()?);
        let uri = reader.required_text()?;
        if uri.is_empty() || !is_target(uri) {
            return Err(AjpError::Target);
        }
        self.uri = self.fields.append(uri);
        self.remote_addr = self.fields.append(reader.text()?.unwrap_or_default());
        self.remote_host = self.fields.append(reader.text()?.unwrap_or_default());
        self.server_name = self.fields.append(reader.text()?.unwrap_or_default());
        self.server_port = reader.int()?;
        self.is_ssl = reader.byte()? != 0;
        self.content_length =
            reader.fields(REQUEST_FIELDS, &mut self.fields, super::MOST_FIELDS)?;
        self.read_attributes(reader)?;
        let stored = self.attributes[Attribute::StoredMethod as usize];
        self.method = match (code, stored) {
            (STORED_METHOD, Some(stored)) if is_token(stored.of(self.fields.bytes())) => stored,
            (STORED_METHOD, _) => return Err(AjpError::Method),
            (code, None) => self.fields.append(method(code).ok_or(AjpError::Method)?),
            // The code names the method. A stored method would be a second one, so it is an error.
            (_, Some(_)) => return Err(AjpError::Method),
        };
        Ok(())
    }

    /// Reads the attributes up to the end of the packet's list. Rejects unknown codes, invalid
    /// query strings and repeated codes. An attribute that has a name instead of its own code may
    /// be repeated.
    fn read_attributes(&mut self, reader: &mut PayloadReader<'_>) -> Result<(), AjpError> {
        loop {
            match reader.byte()? {
                ARE_DONE => return Ok(()),
                SSL_KEY_SIZE if self.ssl_key_size.is_none() => {
                    self.ssl_key_size = Some(reader.int()?);
                }
                REQUEST_ATTRIBUTE => {
                    let name = self.fields.append(reader.required_text()?);
                    let value = self.fields.append(reader.text()?.unwrap_or_default());
                    self.request_attributes.push((name, value));
                }
                code => {
                    let attribute = Attribute::of(code).ok_or(AjpError::Attribute(code))?;
                    let place = &mut self.attributes[attribute as usize];
                    if place.is_some() {
                        return Err(AjpError::Attribute(code));
                    }
                    let Some(value) = reader.text()? else { continue };
                    if attribute == Attribute::QueryString && !is_target(value) {
                        return Err(AjpError::Target);
                    }
                    *place = Some(self.fields.append(value));
                }
            }
        }
    }

    /// Clears the fields and attributes, but keeps their memory. `read` sets all other members.
    fn clear(&mut self) {
        self.fields.clear();
        self.request_attributes.clear();
        self.attributes = Default::default();
        self.ssl_key_size = None;
    }
}
