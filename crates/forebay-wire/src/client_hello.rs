//! Finds the server name (SNI) in a TLS ClientHello, without taking part in the handshake.
//!
//! Specifications: RFC 8446 section 5.1 (records) and section 4.1.2 (message), and RFC 6066 section
//! 3 (name). The server that gets these bytes from Forebay must find the same name. Therefore, a
//! message that two implementations could read differently is refused.

use std::fmt;

/// Maximum total size, in bytes, of the records that contain a ClientHello. Clients send less than
/// 2 kB.
pub const LARGEST: usize = 16 * 1024;

/// A whole ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The host name that the client wants, in lower case. `None` if the client named none.
    pub server_name: Option<String>,
}

/// Rule that the first bytes of a connection violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// The connection does not begin with a TLS handshake.
    NotTls,
    /// The ClientHello has more than [`LARGEST`] bytes.
    TooLarge,
    /// A length does not fit, or bytes follow the message.
    Malformed,
    /// The server name is repeated, or is no host name.
    ServerName,
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTls => "the connection does not begin with a TLS handshake",
            Self::TooLarge => "a ClientHello that is too large",
            Self::Malformed => "a malformed ClientHello",
            Self::ServerName => "a ClientHello without one valid server name",
        })
    }
}

impl std::error::Error for HelloError {}

/// Reader of a ClientHello that may arrive in several pieces and records.
#[derive(Debug, Default)]
pub struct HelloReader {
    /// The handshake message without record headers, as far as whole records have arrived.
    message: Vec<u8>,
    /// Position after the last whole record.
    at: usize,
}

impl HelloReader {
    /// Reads more of the ClientHello. `bytes` are all bytes of the connection so far. Returns
    /// `None` until the message is complete. Ignores bytes after the last record of the message.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<ClientHello>, HelloError> {
        // Each record is copied once, so that a client that sends single bytes causes no extra
        // work.
        while let Some(fragment) = self.next_fragment(bytes)? {
            self.at += HEADER + fragment.len();
            if self.at > LARGEST {
                return Err(HelloError::TooLarge);
            }
            self.message.extend_from_slice(fragment);
            if let Some(body) = whole_message(&self.message)? {
                return parse(body).map(Some);
            }
        }
        if bytes.len() >= LARGEST { Err(HelloError::TooLarge) } else { Ok(None) }
    }

    fn next_fragment<'a>(&self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, HelloError> {
        next_fragment(&bytes[self.at..]).map_err(|error| match error {
            // The first record was valid TLS, so this is malformed TLS and not another protocol.
            HelloError::NotTls if self.at > 0 => HelloError::Malformed,
            error => error,
        })
    }
}

/// Size of a record header in bytes.
const HEADER: usize = 5;
/// Maximum length of a record's fragment in bytes.
const LONGEST_FRAGMENT: usize = 1 << 14;
/// Type of a record with handshake messages.
const HANDSHAKE: u8 = 22;
/// Type of the handshake message.
const CLIENT_HELLO: u8 = 1;
/// Type of the extension with the server name, and of a host name in it.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Returns the fragment of the record at the start of `bytes`. Returns `None` if the record is
/// incomplete. Fails if `bytes` is not the start of a TLS handshake record.
fn next_fragment(bytes: &[u8]) -> Result<Option<&[u8]>, HelloError> {
    // Two bytes are enough to detect another protocol, so do not wait for the whole header.
    let is_tls = bytes.iter().zip([HANDSHAKE, 3]).all(|(byte, wanted)| *byte == wanted);
    if !is_tls {
        return Err(HelloError::NotTls);
    }
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length == 0 || length > LONGEST_FRAGMENT {
        return Err(HelloError::Malformed);
    }
    Ok(rest.get(..length))
}

/// Returns the body of the ClientHello in `message`. Returns `None` if the message is incomplete.
fn whole_message(message: &[u8]) -> Result<Option<&[u8]>, HelloError> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(HelloError::NotTls);
    }
    let Some(([_, length @ ..], body)) = message.split_first_chunk::<4>() else { return Ok(None) };
    let length =
        usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
    if length > LARGEST {
        return Err(HelloError::TooLarge);
    }
    match body.len().cmp(&length) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some(body)),
        // No message may follow in the same record.
        std::cmp::Ordering::Greater => Err(HelloError::Malformed),
    }
}

fn parse(body: &[u8]) -> Result<ClientHello, HelloError> {
    let mut rest = Unread(body);
    let _version_and_random = rest.take(2 + 32)?;
    let session = rest.short_vector()?;
    let ciphers = rest.vector()?;
    let compressions = rest.short_vector()?;
    if session.len() > 32 || ciphers.is_empty() || ciphers.len() % 2 != 0 || compressions.is_empty()
    {
        return Err(HelloError::Malformed);
    }
    let mut server_name = None;
    if !rest.0.is_empty() {
        let mut extensions = Unread(rest.vector()?);
        if !rest.0.is_empty() {
            return Err(HelloError::Malformed);
        }
        while !extensions.0.is_empty() {
            let (kind, data) = (extensions.number()?, extensions.vector()?);
            if kind != SERVER_NAME {
                continue;
            }
            if server_name.is_some() {
                return Err(HelloError::ServerName);
            }
            server_name = Some(host_name(data)?);
        }
    }
    Ok(ClientHello { server_name })
}

/// Returns the host name of the extension, in lower case. The extension must contain exactly one
/// valid host name.
fn host_name(data: &[u8]) -> Result<String, HelloError> {
    let mut data = Unread(data);
    let mut list = Unread(data.vector()?);
    let (kind, name) = (list.take(1)?[0], list.vector()?);
    let is_only = list.0.is_empty() && data.0.is_empty();
    if !is_only || kind != HOST_NAME || !is_host_name(name) {
        return Err(HelloError::ServerName);
    }
    let name = name.to_ascii_lowercase();
    String::from_utf8(name).map_err(|_| HelloError::ServerName)
}

fn is_host_name(name: &[u8]) -> bool {
    let is_label = |label: &[u8]| {
        (1..=63).contains(&label.len())
            && label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
    };
    name.len() <= 253 && name.split(|byte| *byte == b'.').all(is_label)
}

/// The unread part of a message.
struct Unread<'a>(&'a [u8]);

impl<'a> Unread<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, HelloError> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Takes a vector that begins with a length of two bytes.
    fn vector(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.number()?;
        self.take(usize::from(length))
    }

    /// Takes a vector that begins with a length of one byte.
    fn short_vector(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector(data)].concat()
    }

    fn names(names: &[&str]) -> Vec<u8> {
        let list: Vec<u8> =
            names.iter().flat_map(|name| [&[0][..], &vector(name.as_bytes())].concat()).collect();
        extension(SERVER_NAME, &vector(&list))
    }

    fn message(extensions: Option<&[u8]>) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(vector(&[0x13, 0x01]));
        body.extend([1, 0]);
        body.extend(extensions.map(vector).unwrap_or_default());
        let length = (body.len() as u32).to_be_bytes();
        [&[CLIENT_HELLO], &length[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |piece: &[u8]| [&[HANDSHAKE, 3, 1][..], &vector(piece)].concat();
        message.chunks(size).flat_map(record).collect()
    }

    fn read(bytes: &[u8]) -> Result<Option<ClientHello>, HelloError> {
        HelloReader::default().read(bytes)
    }

    fn with(extensions: &[u8]) -> Result<Option<String>, HelloError> {
        let hello = read(&records(&message(Some(extensions)), 1 << 14))?;
        Ok(hello.expect("all of it was given").server_name)
    }

    #[test]
    fn a_name_is_found_whole_byte_by_byte_and_over_records() {
        let padding = extension(21, &[0; 300]);
        let message = message(Some(&[padding, names(&["Db.Example.org"])].concat()));
        for size in [1, 7, 100, 1 << 14] {
            let mut bytes = records(&message, size);
            bytes.extend(b"early data");
            let whole = bytes.len() - b"early data".len();
            let mut reader = HelloReader::default();
            for end in 0..whole {
                assert_eq!(reader.read(&bytes[..end]), Ok(None), "{end} of {whole}");
            }
            let name = Some("db.example.org".to_owned());
            assert_eq!(reader.read(&bytes), Ok(Some(ClientHello { server_name: name.clone() })));
            assert_eq!(read(&bytes), Ok(Some(ClientHello { server_name: name })));
        }
    }

    #[test]
    fn a_client_need_not_name_a_server() {
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&extension(10, &[0, 2, 0, 29])), Ok(None));
        let none = read(&records(&message(None), 1 << 14)).unwrap().unwrap();
        assert_eq!(none.server_name, None);
    }

    #[test]
    fn names_that_servers_could_read_differently_are_refused() {
        let twice = [names(&["a.example"]), names(&["b.example"])].concat();
        assert_eq!(with(&twice), Err(HelloError::ServerName));
        assert_eq!(with(&names(&["a.example", "b.example"])), Err(HelloError::ServerName));
        let long = format!("{}.example", "a".repeat(64));
        let longest = vec!["a23456789"; 30].join(".");
        for name in ["", ".", "a.example.", "a..b", "a b", "a\0.example", "\u{fc}.example", &long] {
            assert_eq!(with(&names(&[name])), Err(HelloError::ServerName), "{name:?}");
        }
        assert_eq!(with(&names(&[&longest])), Err(HelloError::ServerName));
        let other_kind = extension(SERVER_NAME, &vector(&[&[1][..], &vector(b"a")].concat()));
        assert_eq!(with(&other_kind), Err(HelloError::ServerName));
        let mut rest = vector(&[&[0][..], &vector(b"a.example")].concat());
        rest.push(0);
        assert_eq!(with(&extension(SERVER_NAME, &rest)), Err(HelloError::ServerName));
    }

    #[test]
    fn every_wrong_length_is_refused() {
        let message = message(Some(&names(&["a.example"])));
        let whole = records(&message, 1 << 14);
        // The name `a.example` has 9 bytes at the end of the message.
        for at in (5..whole.len() - 9).filter(|at| !(9..43).contains(at)) {
            for change in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = bytes[at].wrapping_add(change);
                // Values such as ciphers may change. A changed length must never give a name that
                // differs, and must never panic.
                if let Ok(Some(ClientHello { server_name: Some(name) })) = read(&bytes) {
                    assert_eq!(name, "a.example", "byte {at}");
                }
            }
        }
        let mut extended = message.clone();
        extended.push(0);
        assert_eq!(read(&records(&extended, 1 << 14)), Err(HelloError::Malformed));
        for cut in 5..message.len() {
            let mut short = message[..cut].to_vec();
            let length = ((cut - 4) as u32).to_be_bytes();
            short[1..4].copy_from_slice(&length[1..]);
            let outcome = read(&records(&short, 1 << 14));
            let is_without_extensions = cut == 4 + 2 + 32 + 1 + 4 + 2;
            assert_eq!(outcome.is_ok(), is_without_extensions, "{cut}: {outcome:?}");
        }
    }

    #[test]
    fn other_protocols_and_endless_messages_are_refused() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x02", &[HANDSHAKE, 3, 1, 0, 1, 2]] {
            assert_eq!(read(bytes), Err(HelloError::NotTls), "{bytes:?}");
        }
        for length in [[0, 0], [0x40, 1], [0xff, 0xff]] {
            let bytes = [&[HANDSHAKE, 3, 1][..], &length].concat();
            assert_eq!(read(&bytes), Err(HelloError::Malformed));
        }
        assert_eq!(read(&[HANDSHAKE, 3, 1, 0, 4, 1, 0xff, 0, 0]), Err(HelloError::TooLarge));
        let padding = extension(21, &vec![0; 15_000]);
        let large = message(Some(&padding));
        assert!(read(&records(&large, 1 << 14)).unwrap().is_some());
        assert_eq!(read(&records(&large, 1)), Err(HelloError::TooLarge), "records of one byte");
    }

    #[test]
    fn random_bytes_cause_no_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let message = message(Some(&names(&["a.example"])));
        for _ in 0..20_000 {
            let mut bytes = records(&message, 40);
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8;
            }
            let _ = read(&bytes);
        }
    }
}
