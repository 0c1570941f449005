//! Encoder of messages. It appends start lines, field lines and chunk framing to a buffer.

use super::{RequestHead, ResponseHead};

/// Appends `name: value` and CRLF. The caller guarantees that name and value are valid.
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends `name: number` and CRLF.
pub fn field_number(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    decimal(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number in decimal digits.
pub fn decimal(out: &mut Vec<u8>, mut value: u64) {
    if value < 10 {
        return out.push(b'0' + value as u8);
    }
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends an address as text. IPv4-mapped IPv6 addresses are written as IPv4.
pub fn address(out: &mut Vec<u8>, address: std::net::IpAddr) {
    match address.to_canonical() {
        std::net::IpAddr::V4(address) => {
            let mut text = [b'.'; 16];
            let mut at = 0;
            for octet in address.octets() {
                if octet >= 100 {
                    text[at] = b'0' + octet / 100;
                    at += 1;
                }
                if octet >= 10 {
                    text[at] = b'0' + octet / 10 % 10;
                    at += 1;
                }
                text[at] = b'0' + octet % 10;
                at += 2;
            }
            // The dot after the last octet is omitted.
            out.extend_from_slice(&text[..at - 1]);
        }
        std::net::IpAddr::V6(address) => out.extend_from_slice(address.to_string().as_bytes()),
    }
}

/// Appends a status line. If `reason` is empty, the line contains the reason phrase of RFC 9110.
pub fn status_line(out: &mut Vec<u8>, status: u16, reason: &[u8]) {
    if status == 200 && matches!(reason, b"" | b"OK") {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(if reason.is_empty() {
        reason_phrase(status).as_bytes()
    } else {
        reason
    });
    out.extend_from_slice(b"\r\n");
}

/// Appends the size line of a chunk. The caller then appends the data and [`CHUNK_END`].
pub fn chunk_size(out: &mut Vec<u8>, size: usize) {
    let mut digits = [0u8; 16];
    let mut at = digits.len();
    let mut value = size;
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[value & 15];
        value >>= 4;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// Bytes that follow the data of each chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The last chunk with an empty trailer section.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Interim reply that permits a client to send its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends the end-to-end field lines of a request, without the fields that `drop` selects. Copies
/// adjacent lines with one call.
pub fn forward_request_fields(
    out: &mut Vec<u8>,
    head: &RequestHead,
    bytes: &[u8],
    drop: impl Fn(&super::Field) -> bool,
) {
    copy_lines(out, &head.fields, bytes, |field| {
        field.known.is_hop_by_hop()
            || drop(field)
            || head.connection_names_fields
                && field.known != super::KnownField::Gateway
                && head.connection_lists(field.name.of(bytes), bytes)
    });
}

/// Appends the end-to-end field lines of a response, without the fields that `drop` selects. Copies
/// adjacent lines with one call.
pub fn forward_response_fields(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    bytes: &[u8],
    drop: impl Fn(&super::Field) -> bool,
) {
    copy_lines(out, &head.fields, bytes, |field| {
        field.known.is_hop_by_hop()
            || drop(field)
            || head.connection_names_fields && head.connection_lists(field.name.of(bytes), bytes)
    });
}

/// Appends the lines of the fields that `drop` does not select.
fn copy_lines(
    out: &mut Vec<u8>,
    fields: &[super::Field],
    bytes: &[u8],
    drop: impl Fn(&super::Field) -> bool,
) {
    let mut run = 0..0;
    for field in fields {
        if drop(field) {
            out.extend_from_slice(&bytes[run.clone()]);
            run = field.line.end as usize..field.line.end as usize;
            continue;
        }
        if run.end != field.line.start as usize {
            out.extend_from_slice(&bytes[run.clone()]);
            run.start = field.line.start as usize;
        }
        run.end = field.line.end as usize;
    }
    out.extend_from_slice(&bytes[run]);
}

/// Returns the reason phrase for a status (RFC 9110 section 15), or `Unknown`.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        508 => "Loop Detected",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn addresses_are_written_as_the_standard_library_has_them() {
        for octet in 0..=255 {
            let address = Ipv4Addr::new(octet, 255, 255 - octet, octet);
            for ip in [IpAddr::V4(address), IpAddr::V6(address.to_ipv6_mapped())] {
                let mut out = Vec::new();
                super::address(&mut out, ip);
                assert_eq!(out, address.to_string().as_bytes());
            }
        }
    }
}
