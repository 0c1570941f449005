//! Numeric codes of methods, fields and attributes.

use crate::http1::position_of_name;

/// Methods in the order of their codes. The codes start at 1.
const METHODS: [&[u8]; 27] = [
    b"OPTIONS",
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"TRACE",
    b"PROPFIND",
    b"PROPPATCH",
    b"MKCOL",
    b"COPY",
    b"MOVE",
    b"LOCK",
    b"UNLOCK",
    b"ACL",
    b"REPORT",
    b"VERSION-CONTROL",
    b"CHECKIN",
    b"CHECKOUT",
    b"UNCHECKOUT",
    b"SEARCH",
    b"MKWORKSPACE",
    b"UPDATE",
    b"LABEL",
    b"MERGE",
    b"BASELINE-CONTROL",
    b"MKACTIVITY",
];

/// Code of methods outside [`METHODS`]. [`Attribute::StoredMethod`] contains the name of such a
/// method.
pub(super) const STORED_METHOD: u8 = 0xFF;
/// Byte after the last attribute.
pub(super) const ARE_DONE: u8 = 0xFF;
/// Code of an attribute with two strings: its name and its value.
pub(super) const REQUEST_ATTRIBUTE: u8 = 0x0A;
/// Code of the attribute with the TLS key length. The value is a number, not a string.
pub(super) const SSL_KEY_SIZE: u8 = 0x0B;

/// Request fields in the order of their codes. The codes start at 0xA001.
pub(super) const REQUEST_FIELDS: &[&[u8]] = &[
    b"Accept",
    b"Accept-Charset",
    b"Accept-Encoding",
    b"Accept-Language",
    b"Authorization",
    b"Connection",
    b"Content-Type",
    b"Content-Length",
    b"Cookie",
    b"Cookie2",
    b"Host",
    b"Pragma",
    b"Referer",
    b"User-Agent",
];

/// Reply fields in the order of their codes. The codes start at 0xA001.
pub(super) const REPLY_FIELDS: &[&[u8]] = &[
    b"Content-Type",
    b"Content-Language",
    b"Content-Length",
    b"Date",
    b"Last-Modified",
    b"Location",
    b"Set-Cookie",
    b"Set-Cookie2",
    b"Servlet-Engine",
    b"Status",
    b"WWW-Authenticate",
];

/// Upper byte of all field codes. A field begins with a code or with the length of its name. The
/// length must be less than [`FIRST_FIELD`], so that it differs from all codes.
const FIELD_PAGE: u16 = 0xA000;
/// Smallest length of a name, in bytes, that a reader would mistake for the code of a field.
pub(super) const FIRST_FIELD: usize = FIELD_PAGE as usize;

/// Attribute of a request. Each attribute occurs at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Path of the web application. Unused, because containers find it themselves.
    Context = 0x01,
    /// Path of the servlet. Unused.
    ServletPath = 0x02,
    /// User that the web server has authenticated.
    RemoteUser = 0x03,
    /// Authentication scheme, such as `Basic`.
    AuthType = 0x04,
    /// The part of the target after the question mark.
    QueryString = 0x05,
    /// The container's `jvmRoute`, which identifies it for load balancing.
    Route = 0x06,
    /// The client's certificate in PEM.
    SslCert = 0x07,
    /// Cipher suite of the TLS session.
    SslCipher = 0x08,
    /// TLS session ID in hexadecimal.
    SslSession = 0x09,
    /// Secret that the container requires from web servers.
    Secret = 0x0C,
    /// Name of a method without a code.
    StoredMethod = 0x0D,
}

/// One more than the largest code of an [`Attribute`].
pub(super) const ATTRIBUTES: usize = 0x0E;

impl Attribute {
    /// Returns the attribute with this code, or `None` if no variant has the code.
    pub(super) fn of(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => Self::Context,
            0x02 => Self::ServletPath,
            0x03 => Self::RemoteUser,
            0x04 => Self::AuthType,
            0x05 => Self::QueryString,
            0x06 => Self::Route,
            0x07 => Self::SslCert,
            0x08 => Self::SslCipher,
            0x09 => Self::SslSession,
            0x0C => Self::Secret,
            0x0D => Self::StoredMethod,
            _ => return None,
        })
    }
}

/// Returns the code of `method`, or [`STORED_METHOD`] if the method has no code.
pub(super) fn method_code(method: &[u8]) -> u8 {
    let at = METHODS.iter().position(|known| *known == method);
    at.map_or(STORED_METHOD, |at| at as u8 + 1)
}

pub(super) fn method(code: u8) -> Option<&'static [u8]> {
    METHODS.get(usize::from(code).checked_sub(1)?).copied()
}

/// Returns the code of the field `name`, or `None` if `table` does not contain this name.
pub(super) fn field_code(table: &[&[u8]], name: &[u8]) -> Option<u16> {
    let at = position_of_name(table, name)?;
    Some(FIELD_PAGE + at as u16 + 1)
}

/// Returns true if `code` is the code of a field. Any other number is the length of a name.
pub(super) fn is_field_code(code: u16) -> bool {
    code & 0xFF00 == FIELD_PAGE
}

pub(super) fn field(table: &'static [&'static [u8]], code: u16) -> Option<&'static [u8]> {
    table.get(usize::from(code & 0xFF).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_codes_in_any_case() {
        for table in [REQUEST_FIELDS, REPLY_FIELDS] {
            for (at, name) in table.iter().enumerate() {
                let code = Some(0xA001 + at as u16);
                assert_eq!(field_code(table, &name.to_ascii_lowercase()), code);
                assert_eq!(field_code(table, &name.to_ascii_uppercase()), code);
                assert_eq!(field_code(table, &name[1..]), None);
            }
            assert_eq!(field_code(table, &[b'a'; 100]), None);
        }
    }
}
