//! The PROXY protocol, versions 1 and 2. A proxy sends the client's address in the first bytes of a
//! connection.
//!
//! Specification: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>
//!
//! [`decode`] reads both versions. [`encode_v1`] and [`encode_v2`] write them. The additional
//! values of version 2 (TLVs), such as checksums, must be well-formed, but are otherwise ignored.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Source of the connection, as the proxy reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The source is the proxy itself (for example a health check), or a client without an IP
    /// address. The addresses of the connection itself apply.
    Local,
    /// A client of the proxy.
    Client {
        /// Address of the client.
        source: SocketAddr,
        /// Destination address of the client's connection.
        destination: SocketAddr,
    },
}

/// Rule that a header violated. The proxy that sent it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// The connection does not start with a PROXY header.
    Missing,
    /// Version 1 line that is longer than 107 bytes or malformed.
    Line,
    /// Version 2 header with an undefined version, command, family or transport.
    Kind,
    /// Version 2 header that is shorter than its family requires, or has TLVs that do not fit.
    Length,
    /// Version 2 header with more than [`LARGEST`] bytes.
    TooLarge,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the connection does not begin with a PROXY header",
            Self::Line => "malformed PROXY line",
            Self::Kind => "unknown version, command or family in a PROXY header",
            Self::Length => "the parts of a PROXY header do not fit its length",
            Self::TooLarge => "a PROXY header that is too large",
        })
    }
}

impl std::error::Error for ProxyError {}

/// Maximum size of a header in bytes. It is sufficient for addresses of every family and some TLVs.
pub const LARGEST: usize = 4096;

/// Parses a header at the start of a connection. Returns its content and its length in bytes.
/// Returns `None` if the header is incomplete. Bytes after the header are ignored.
pub fn decode(bytes: &[u8]) -> Result<Option<(Announced, usize)>, ProxyError> {
    if starts_like(bytes, SIGNATURE) {
        return decode_v2(bytes);
    }
    if starts_like(bytes, b"PROXY ") {
        return decode_v1(bytes);
    }
    Err(ProxyError::Missing)
}

/// Appends a version 1 line. If only one address is IPv6, the IPv4 address is mapped into IPv6.
pub fn encode_v1(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    let ports = (source.port(), destination.port());
    match of_one_family(source, destination) {
        Pair::V4(from, to) => write!(out, "PROXY TCP4 {from} {to} {} {}\r\n", ports.0, ports.1),
        Pair::V6(from, to) => write!(out, "PROXY TCP6 {from} {to} {} {}\r\n", ports.0, ports.1),
    }
    .expect("a vector takes everything");
}

/// Appends a version 2 header without TLVs. If only one address is IPv6, the IPv4 address is mapped
/// into IPv6.
pub fn encode_v2(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    out.extend_from_slice(SIGNATURE);
    out.push(0x20 | PROXY);
    match of_one_family(source, destination) {
        Pair::V4(from, to) => {
            out.extend_from_slice(&[TCP4, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        Pair::V6(from, to) => {
            out.extend_from_slice(&[TCP6, 0, 36]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

/// Appends the version 1 header of a connection that the proxy opened for its own purposes.
pub fn encode_local_v1(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PROXY UNKNOWN\r\n");
}

/// Appends the version 2 header (LOCAL) of a connection that the proxy opened for its own purposes.
pub fn encode_local_v2(out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[LOCAL_COMMAND, UNSPECIFIED, 0, 0]);
}

/// Two addresses of the same family.
enum Pair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

fn of_one_family(source: SocketAddr, destination: SocketAddr) -> Pair {
    let as_v6 = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Pair::V4(from, to),
        (from, to) => Pair::V6(as_v6(from), as_v6(to)),
    }
}

/// Returns true if `bytes` starts with `beginning`, or `beginning` starts with `bytes`.
fn starts_like(bytes: &[u8], beginning: &[u8]) -> bool {
    bytes.iter().zip(beginning).all(|(a, b)| a == b)
}

fn decode_v1(bytes: &[u8]) -> Result<Option<(Announced, usize)>, ProxyError> {
    let seen = &bytes[..bytes.len().min(LONGEST_LINE)];
    let Some(end) = seen.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return if seen.len() < LONGEST_LINE { Ok(None) } else { Err(ProxyError::Line) };
    };
    match (seen[end], seen.get(end + 1)) {
        (b'\r', Some(b'\n')) => {}
        (b'\r', None) if seen.len() < LONGEST_LINE => return Ok(None),
        _ => return Err(ProxyError::Line),
    }
    let line = str::from_utf8(&seen[..end]).map_err(|_| ProxyError::Line)?;
    Ok(Some((announced(line).ok_or(ProxyError::Line)?, end + 2)))
}

fn announced(line: &str) -> Option<Announced> {
    let mut words = line.strip_prefix("PROXY ")?.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        // The receiver must ignore the rest of the line after `UNKNOWN`.
        return Some(Announced::Local);
    }
    let (source, destination): (IpAddr, IpAddr) =
        (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let is_right = match family {
        "TCP4" => source.is_ipv4() && destination.is_ipv4(),
        "TCP6" => source.is_ipv6() && destination.is_ipv6(),
        _ => false,
    };
    let (from, to) = (port(words.next()?)?, port(words.next()?)?);
    if !is_right || words.next().is_some() {
        return None;
    }
    Some(Announced::Client {
        source: SocketAddr::new(source, from),
        destination: SocketAddr::new(destination, to),
    })
}

fn port(digits: &str) -> Option<u16> {
    let is_plain =
        digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if is_plain { digits.parse().ok() } else { None }
}

fn decode_v2(bytes: &[u8]) -> Result<Option<(Announced, usize)>, ProxyError> {
    // The fields are checked in the order of their bytes, so the error does not depend on the sizes
    // of reads.
    let Some(&command) = bytes.get(12) else { return Ok(None) };
    if !matches!(command, LOCAL_COMMAND | PROXY_COMMAND) {
        return Err(ProxyError::Kind);
    }
    let Some(&family) = bytes.get(13) else { return Ok(None) };
    if family >> 4 > 3 || family & 15 > 2 {
        return Err(ProxyError::Kind);
    }
    let Some(length) = bytes.get(14..16) else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let addresses = match (command, family >> 4) {
        (PROXY_COMMAND, 1) => 12,
        (PROXY_COMMAND, 2) => 36,
        (PROXY_COMMAND, 3) => 216,
        _ => 0,
    };
    if length < addresses {
        return Err(ProxyError::Length);
    }
    let end = V2_HEADER + length;
    if end > LARGEST {
        return Err(ProxyError::TooLarge);
    }
    let Some(content) = bytes.get(V2_HEADER..end) else { return Ok(None) };
    if command == LOCAL_COMMAND {
        return Ok(Some((Announced::Local, end)));
    }
    if family != UNSPECIFIED {
        check_tlvs(&content[addresses..])?;
    }
    let announced = match family {
        TCP4 => client::<4>(content, |octets| Ipv4Addr::from(octets).into()),
        TCP6 => client::<16>(content, |octets| Ipv6Addr::from(octets).into()),
        _ => Announced::Local,
    };
    Ok(Some((announced, end)))
}

/// Parses two addresses of `N` bytes each and two ports. The caller has checked the length.
fn client<const N: usize>(content: &[u8], address: fn([u8; N]) -> IpAddr) -> Announced {
    let octets =
        |at: usize| address(content[at..at + N].try_into().expect("the length has been checked"));
    let port = |at: usize| u16::from_be_bytes([content[at], content[at + 1]]);
    Announced::Client {
        source: SocketAddr::new(octets(0), port(2 * N)),
        destination: SocketAddr::new(octets(N), port(2 * N + 2)),
    }
}

fn check_tlvs(mut bytes: &[u8]) -> Result<(), ProxyError> {
    while !bytes.is_empty() {
        let header = bytes.get(..3).ok_or(ProxyError::Length)?;
        let length = usize::from(u16::from_be_bytes([header[1], header[2]]));
        bytes = bytes.get(3 + length..).ok_or(ProxyError::Length)?;
    }
    Ok(())
}

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length in bytes of signature, command, family and length field.
const V2_HEADER: usize = 16;
/// Maximum length in bytes of a version 1 line, including its line end.
const LONGEST_LINE: usize = 107;
const PROXY: u8 = 1;
const LOCAL_COMMAND: u8 = 0x20;
const PROXY_COMMAND: u8 = 0x20 | PROXY;
const UNSPECIFIED: u8 = 0;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
