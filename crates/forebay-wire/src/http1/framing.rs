//! Fields that determine the end of a message and the reuse of its connection (RFC 9112 sections 6
//! and 9).

use super::chars::{list_has, trim};
use super::fields::parse_length;
use super::{Field, HeadError, KnownField, Version};

/// `Content-Length` and `Transfer-Encoding` of one message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Framing {
    length: Option<u64>,
    chunked: bool,
}

impl Framing {
    /// Reads the value of `Content-Length`. Rejects a second `Content-Length`.
    pub fn read_length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        let parsed = parse_length(value).ok_or(HeadError::ContentLength)?;
        match self.length.replace(parsed) {
            Some(_) => Err(HeadError::ContentLength),
            None => Ok(()),
        }
    }

    /// Reads the value of `Transfer-Encoding`. Rejects a value other than `chunked`, a second
    /// `Transfer-Encoding`, and a message of HTTP/1.0.
    pub fn read_coding(&mut self, value: &[u8], version: Version) -> Result<(), HeadError> {
        let fits = version == Version::Http11 && !self.chunked;
        if !fits || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError::TransferEncoding);
        }
        self.chunked = true;
        Ok(())
    }

    /// Returns two values: true if the body is chunked, and the value of `Content-Length`. Rejects
    /// a chunked message with a `Content-Length`.
    pub fn end(self) -> Result<(bool, Option<u64>), HeadError> {
        if self.chunked && self.length.is_some() {
            return Err(HeadError::AmbiguousLength);
        }
        Ok((self.chunked, self.length))
    }
}

/// Options in the `Connection` fields of a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionOptions {
    close: bool,
    keep_alive: bool,
    pub upgrade: bool,
    pub names_fields: bool,
}

impl ConnectionOptions {
    /// Adds the options in the value of one `Connection` field.
    pub fn read(&mut self, value: &[u8]) {
        // The usual value has a fast path.
        if value == b"keep-alive" {
            self.keep_alive = true;
            return;
        }
        for option in value.split(|&b| b == b',').map(trim) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if !option.is_empty() {
                self.names_fields = true;
            }
        }
    }

    /// Returns true if the connection may be reused after the message.
    pub fn keeps_alive(self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }
}

/// Returns true if a `Connection` field in `fields` lists `name`.
pub fn connection_lists(fields: &[Field], name: &[u8], bytes: &[u8]) -> bool {
    let mut connection = fields.iter().filter(|field| field.known == KnownField::Connection);
    connection.any(|field| list_has(field.value.of(bytes), name))
}
