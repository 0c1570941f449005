//! Encoder of a request head, as a web server sends it.

use super::codes::{
    ARE_DONE, REQUEST_ATTRIBUTE, REQUEST_FIELDS, SSL_KEY_SIZE, STORED_METHOD, method_code,
};
use super::packet::Writer;
use super::{AjpError, Attribute, MOST_FIELDS, TO_CONTAINER, kind};

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
