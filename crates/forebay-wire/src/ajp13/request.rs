//! Parser of requests, as a container reads them.

use super::codes::{
    ARE_DONE, ATTRIBUTES, REQUEST_ATTRIBUTE, REQUEST_FIELDS, SSL_KEY_SIZE, STORED_METHOD, method,
    method_code,
};
use super::packet::{PayloadReader, Writer, payload};
use super::{AjpError, Attribute, MOST_FIELDS, TO_CONTAINER, kind};
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

/// Start of a request. None of its values may contain a NUL byte.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// The method.
    pub method: &'a [u8],
    /// Version, such as `HTTP/1.1`.
    pub protocol: &'a [u8],
    /// The path as received, without the query.
    pub uri: &'a [u8],
    /// The client's address.
    pub remote_addr: &'a [u8],
    /// The client's host name, or its address if the name is unknown.
    pub remote_host: &'a [u8],
    /// Host that the client requested.
    pub server_name: &'a [u8],
    /// Port that the client requested.
    pub server_port: u16,
    /// True if the client used TLS.
    pub is_ssl: bool,
}

/// Encoder of a request. The caller first adds the fields, then calls [`Self::attributes`] to add
/// the attributes.
#[derive(Debug)]
pub struct Forward<'a> {
    writer: Writer<'a>,
    method: &'a [u8],
    /// Position of the field count in the buffer.
    count_at: usize,
    count: usize,
}

/// Encoder of a request's attributes. [`Self::finish`] completes the request.
#[derive(Debug)]
pub struct Attributes<'a> {
    writer: Writer<'a>,
    fields: usize,
}

impl<'a> Forward<'a> {
    /// Starts a request at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, line: &RequestLine<'a>) -> Self {
        let mut writer = Writer::new(out, TO_CONTAINER, kind::FORWARD_REQUEST);
        writer.byte(method_code(line.method));
        for text in [line.protocol, line.uri, line.remote_addr, line.remote_host, line.server_name]
        {
            writer.text(text);
        }
        writer.int(line.server_port);
        writer.byte(u8::from(line.is_ssl));
        let count_at = writer.out.len();
        writer.int(0);
        Self { writer, method: line.method, count_at, count: 0 }
    }

    /// Adds a field. The caller guarantees that name and value are valid.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.count += 1;
        self.writer.field(REQUEST_FIELDS, name, value);
    }

    /// Adds a field with a numeric value.
    pub fn field_number(&mut self, name: &[u8], value: u64) {
        let mut digits = Vec::with_capacity(20);
        crate::http1::encode::decimal(&mut digits, value);
        self.field(name, &digits);
    }

    /// Completes the fields and begins the attributes. If the method has no code, the first
    /// attribute contains the method's name.
    pub fn attributes(mut self) -> Attributes<'a> {
        self.writer.set_int(self.count_at, self.count.min(MOST_FIELDS) as u16);
        let mut attributes = Attributes { writer: self.writer, fields: self.count };
        if method_code(self.method) == STORED_METHOD {
            attributes.attribute(Attribute::StoredMethod, self.method);
        }
        attributes
    }
}

impl Attributes<'_> {
    /// Adds an attribute.
    pub fn attribute(&mut self, attribute: Attribute, value: &[u8]) {
        self.writer.byte(attribute as u8);
        self.writer.text(value);
    }

    /// Adds the key length of the TLS session in bits.
    pub fn ssl_key_size(&mut self, bits: u16) {
        self.writer.byte(SSL_KEY_SIZE);
        self.writer.int(bits);
    }

    /// Adds an attribute that has a name instead of a code. Tomcat always accepts
    /// `AJP_REMOTE_PORT`, `AJP_LOCAL_ADDR`, `AJP_SSL_PROTOCOL` and `JK_LB_ACTIVATION`. Tomcat
    /// accepts another name only if its configuration allows that name.
    pub fn request_attribute(&mut self, name: &[u8], value: &[u8]) {
        self.writer.byte(REQUEST_ATTRIBUTE);
        self.writer.text(name);
        self.writer.text(value);
    }

    /// Completes the request, which data packets may follow. If the request has too many fields, a
    /// text that is too long, or more than `packet_size` bytes, removes the request from the buffer
    /// and returns an error.
    pub fn finish(mut self, packet_size: usize) -> Result<(), AjpError> {
        self.writer.byte(ARE_DONE);
        let (fields, start) = (self.fields, self.writer.start());
        if fields > MOST_FIELDS {
            self.writer.out.truncate(start);
            return Err(AjpError::Fields(fields, MOST_FIELDS));
        }
        self.writer.finish(packet_size)
    }
}
