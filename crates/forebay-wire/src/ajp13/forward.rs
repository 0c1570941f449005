//! Writing the head of a request, as a web server does.

use super::codes::{
    ARE_DONE, REQUEST_ATTRIBUTE, REQUEST_FIELDS, SSL_KEY_SIZE, STORED_METHOD, method_code,
};
use super::packet::Writer;
use super::{AjpError, Attribute, MOST_FIELDS, TO_CONTAINER, kind};

/// What a request begins with. No part holds a NUL byte.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// The method.
    pub method: &'a [u8],
    /// `HTTP/1.1` and the like.
    pub protocol: &'a [u8],
    /// The path as it came, without query.
    pub uri: &'a [u8],
    /// The client's address.
    pub remote_addr: &'a [u8],
    /// The client's name, or its address once more.
    pub remote_host: &'a [u8],
    /// The host that was asked.
    pub server_name: &'a [u8],
    /// The port that was asked.
    pub server_port: u16,
    /// Whether the client came by TLS.
    pub is_ssl: bool,
}

/// Writes a request: fields first, then attributes.
#[derive(Debug)]
pub struct Forward<'a> {
    writer: Writer<'a>,
    method: &'a [u8],
    /// Where the number of fields stands.
    count_at: usize,
    count: usize,
}

/// Writes the attributes of a request; [`Self::finish`] ends it.
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

    /// Adds a field. The caller vouches for name and value being valid.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.count += 1;
        self.writer.field(REQUEST_FIELDS, name, value);
    }

    /// Adds a field with a number as its value.
    pub fn field_number(&mut self, name: &[u8], value: u64) {
        let mut digits = Vec::with_capacity(20);
        crate::http1::encode::decimal(&mut digits, value);
        self.field(name, &digits);
    }

    /// Ends the fields. The method is an attribute where it has no number.
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

    /// Adds the length of the TLS session's key, in bits.
    pub fn ssl_key_size(&mut self, bits: u16) {
        self.writer.byte(SSL_KEY_SIZE);
        self.writer.int(bits);
    }

    /// Adds an attribute by its name. Tomcat refuses those that it was not told of but for
    /// `AJP_REMOTE_PORT`, `AJP_LOCAL_ADDR`, `AJP_SSL_PROTOCOL` and `JK_LB_ACTIVATION`.
    pub fn request_attribute(&mut self, name: &[u8], value: &[u8]) {
        self.writer.byte(REQUEST_ATTRIBUTE);
        self.writer.text(name);
        self.writer.text(value);
    }

    /// Ends the request; data packets may follow. One that is too large is taken back.
    pub fn finish(mut self, packet_size: usize) -> Result<(), AjpError> {
        self.writer.byte(ARE_DONE);
        let (fields, start) = (self.fields, self.writer.start());
        if fields > MOST_FIELDS {
            self.writer.out.truncate(start);
            return Err(AjpError::Fields(fields));
        }
        self.writer.finish(packet_size)
    }
}
