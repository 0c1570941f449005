//! The PROXY protocol, versions 1 and 2: the client's address, sent by a proxy in the first bytes of a
//! connection.
//!
//! Specification: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>
//!
//! [`decode`] reads either version; [`encode_v1`] and [`encode_v2`] write them. Checksums and the
//! meaning of TLVs are not looked at, only that TLVs are well formed.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Whom the proxy names as the source of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The proxy itself (a health check, say), or a client without an IP address: the addresses of
    /// the connection hold.
    Local,
    /// A client of the proxy.
    Client {
        /// The client's address.
        source: SocketAddr,
        /// The address it connected to.
        destination: SocketAddr,
    },
}

/// The rule that a header broke. The proxy that sent it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// The connection begins with something else.
    Missing,
    /// A version 1 line that is longer than 107 bytes, or not of the form the specification gives.
    Line,
    /// Version 2 with a version, command, family or transport that there is not.
    Kind,
    /// Version 2 with less in it than its family needs, or with TLVs that do not fit in.
    Length,
    /// Version 2 with more than [`LARGEST`] bytes.
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

/// Largest header that is taken, in bytes: addresses of every family and some TLVs.
pub const LARGEST: usize = 4096;

/// Reads a header from the first bytes of a connection: its content and its length in bytes;
/// `None` while it is incomplete. What follows the header is not looked at.
pub fn decode(bytes: &[u8]) -> Result<Option<(Announced, usize)>, ProxyError> {
    if starts_like(bytes, SIGNATURE) {
        return decode_v2(bytes);
    }
    if starts_like(bytes, b"PROXY ") {
        return decode_v1(bytes);
    }
    Err(ProxyError::Missing)
}

/// Appends a version 1 line. Where one address alone is of IPv6, the other is written in its form.
pub fn encode_v1(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    let ports = (source.port(), destination.port());
    match of_one_family(source, destination) {
        Pair::V4(from, to) => write!(out, "PROXY TCP4 {from} {to} {} {}\r\n", ports.0, ports.1),
        Pair::V6(from, to) => write!(out, "PROXY TCP6 {from} {to} {} {}\r\n", ports.0, ports.1),
    }
    .expect("a vector takes everything");
}

/// Appends a version 2 header without TLVs. Where one address alone is of IPv6, the other is written
/// in its form.
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

/// Appends the version 1 header of a connection that the proxy opened for itself.
pub fn encode_local_v1(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PROXY UNKNOWN\r\n");
}

/// Appends the version 2 header (LOCAL) of a connection that the proxy opened for itself.
pub fn encode_local_v2(out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[LOCAL_COMMAND, UNSPECIFIED, 0, 0]);
}

/// Two addresses of one family.
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

/// Whether the two agree as far as both go.
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
        // What follows it is to be ignored.
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
    // The earliest byte that is wrong ends it, however the bytes come.
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

/// Two addresses of `N` bytes each, then two ports; the caller has seen that they are there.
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
/// Signature, command, family and length.
const V2_HEADER: usize = 16;
/// A version 1 line with its line end.
const LONGEST_LINE: usize = 107;
const PROXY: u8 = 1;
const LOCAL_COMMAND: u8 = 0x20;
const PROXY_COMMAND: u8 = 0x20 | PROXY;
const UNSPECIFIED: u8 = 0;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
