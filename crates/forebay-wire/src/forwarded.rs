//! Parser of the `Forwarded` field, which contains information from proxies about their clients.
//!
//! Specification: <https://www.rfc-editor.org/rfc/rfc7239>
//!
//! The parser is strict, except for spaces around semicolons, which are common. Only the parameters
//! `for` and `proto` are used. `by`, `host` and extensions must be well-formed, but are ignored.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::http1::is_token;

/// Information from one proxy about its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Peer of the connection to that proxy, if the proxy reports it.
    pub client: Option<Node>,
    /// True if the request reached that proxy over `https`. `None` if the proxy does not report
    /// this.
    pub https: Option<bool>,
}

/// Peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// Address of the peer. An IPv4-mapped IPv6 address becomes IPv4.
    Address(IpAddr),
    /// `unknown`, or a name that only the proxy understands.
    Hidden,
}

/// Error for a field that does not conform to the RFC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed Forwarded")
    }
}

impl std::error::Error for Malformed {}

/// Appends the elements of one field's value to `elements`, from left to right. Several fields of a
/// message form one list, in their order. After an error, the appended elements are meaningless.
pub fn decode(value: &[u8], elements: &mut Vec<Element>) -> Result<(), Malformed> {
    let mut rest = Rest(value);
    loop {
        rest.skip_spaces();
        if let Some(element) = rest.element()? {
            elements.push(element);
        }
        match rest.next() {
            None => return Ok(()),
            Some(b',') => {}
            Some(_) => return Err(Malformed),
        }
    }
}

/// Unread part of the value.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// Reads pairs up to a comma or the end. Returns `None` for an empty element, because a list
    /// may contain empty elements.
    fn element(&mut self) -> Result<Option<Element>, Malformed> {
        let mut element = Element::default();
        let mut names: Vec<&[u8]> = Vec::new();
        loop {
            self.skip_spaces();
            match self.0.first() {
                None | Some(b',') => return Ok((!names.is_empty()).then_some(element)),
                Some(b';') => {
                    self.next();
                    continue;
                }
                Some(_) => {}
            }
            let name = self.token()?;
            if self.next() != Some(b'=') || names.len() == PAIRS {
                return Err(Malformed);
            }
            if names.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return Err(Malformed);
            }
            names.push(name);
            element.read(name, &self.value()?)?;
            self.skip_spaces();
            if !matches!(self.0.first(), None | Some(b',' | b';')) {
                return Err(Malformed);
            }
        }
    }

    fn token(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|byte| b"=,; \t\"".contains(byte));
        let (token, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        if is_token(token) { Ok(token) } else { Err(Malformed) }
    }

    /// Reads a token or the content of a quoted string.
    fn value(&mut self) -> Result<Vec<u8>, Malformed> {
        if self.0.first() != Some(&b'"') {
            return self.token().map(<[u8]>::to_vec);
        }
        self.next();
        let mut value = Vec::new();
        loop {
            match self.next().ok_or(Malformed)? {
                b'"' => return Ok(value),
                b'\\' => value.push(self.next().filter(is_quotable).ok_or(Malformed)?),
                byte if is_quotable(&byte) => value.push(byte),
                _ => return Err(Malformed),
            }
        }
    }

    fn skip_spaces(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

impl Element {
    fn read(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if name.eq_ignore_ascii_case(b"for") {
            self.client = Some(node(value).ok_or(Malformed)?);
        } else if name.eq_ignore_ascii_case(b"by") {
            node(value).ok_or(Malformed)?;
        } else if name.eq_ignore_ascii_case(b"proto") {
            self.https = Some(is_secure_scheme(value));
        }
        Ok(())
    }
}

/// Returns true if a scheme that a proxy names means TLS. For a WebSocket, some proxies write `wss`.
pub fn is_secure_scheme(scheme: &[u8]) -> bool {
    [&b"https"[..], b"wss"].iter().any(|secure| scheme.eq_ignore_ascii_case(secure))
}

/// Parses the value of `for` or `by`: a node with an optional port. The port is checked, but is not
/// a part of the result. Returns `None` for an invalid value.
fn node(text: &[u8]) -> Option<Node> {
    let text = str::from_utf8(text).ok()?;
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, behind) = rest.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            let port = if behind.is_empty() { None } else { Some(behind.strip_prefix(':')?) };
            (Node::Address(IpAddr::V6(address).to_canonical()), port)
        }
        None => {
            let (name, port) = text.split_once(':').map_or((text, None), |(n, p)| (n, Some(p)));
            let is_hidden = name.eq_ignore_ascii_case("unknown") || is_obfuscated(name);
            let node = if is_hidden {
                Node::Hidden
            } else {
                Node::Address(IpAddr::V4(name.parse::<Ipv4Addr>().ok()?))
            };
            (node, port)
        }
    };
    let is_port = |port: &str| {
        let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
        is_number && port.parse::<u16>().is_ok() || is_obfuscated(port)
    };
    port.is_none_or(is_port).then_some(name)
}

fn is_obfuscated(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    name.strip_prefix('_').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(allowed))
}

/// Returns true if a quoted string may contain the byte. A quotation mark and a backslash need a
/// backslash before them.
fn is_quotable(byte: &u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

/// Maximum number of pairs in an element. The RFC defines four parameters.
const PAIRS: usize = 16;

/// Address of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAddress {
    /// An IP address with its port. The port is 0 if a proxy reported the address in a field such
    /// as `X-Forwarded-For`, because such a field contains no port. A PROXY header contains the
    /// port.
    Ip(SocketAddr),
    /// No IP address: the client connected over a Unix socket, and no trusted proxy reported its
    /// address.
    Unix,
}

impl ClientAddress {
    /// Returns the IP address, or `None` for a client on a Unix socket.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Ip(address) => Some(address.ip()),
            Self::Unix => None,
        }
    }

    /// Returns the port, or 0 if the port is not known.
    pub fn port(self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Unix => 0,
        }
    }

    /// Appends the address without its port, as `Display` writes it.
    pub fn append(self, out: &mut Vec<u8>) {
        match self {
            Self::Ip(address) => crate::http1::encode::address(out, address.ip()),
            Self::Unix => out.extend_from_slice(UNIX),
        }
    }
}

/// Value of nginx's `$remote_addr` for a client on a Unix socket.
const UNIX: &[u8] = b"unix:";

impl From<SocketAddr> for ClientAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

/// Writes the address without its port. An IPv4 address that is mapped into IPv6 is written as
/// IPv4.
impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip() {
            Some(address) => address.to_canonical().fmt(f),
            None => f.write_str("unix:"),
        }
    }
}

/// Returns the addresses of one field's value, from right to left. An element that is not an
/// address yields `None`. The caller must not trust the elements to the left of such an element.
pub fn x_forwarded_for_addresses(value: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    value.rsplit(|&b| b == b',').map(x_forwarded_for_address)
}

/// Parses an address with an optional port. An IPv6 address may have brackets. Returns `None` for
/// other text.
fn x_forwarded_for_address(element: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(element).ok()?.trim();
    if let Ok(x_forwarded_for_address) = text.parse::<IpAddr>() {
        return Some(x_forwarded_for_address.to_canonical());
    }
    if let Ok(x_forwarded_for_address) = text.parse::<SocketAddr>() {
        return Some(x_forwarded_for_address.ip().to_canonical());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner
        .parse::<IpAddr>()
        .ok()
        .map(|x_forwarded_for_address| x_forwarded_for_address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(value: &str) -> Result<Vec<Element>, Malformed> {
        let mut elements = Vec::new();
        decode(value.as_bytes(), &mut elements).map(|()| elements)
    }

    fn element(client: &str, https: Option<bool>) -> Element {
        let client = match client {
            "" => None,
            "?" => Some(Node::Hidden),
            address => Some(Node::Address(address.parse().unwrap())),
        };
        Element { client, https }
    }

    #[test]
    fn examples_of_the_rfc_are_read() {
        for (value, expected) in [
            ("", vec![]),
            (" , ,", vec![]),
            ("for=\"_gazonk\"", vec![element("?", None)]),
            ("For=\"[2001:db8:cafe::17]:4711\"", vec![element("2001:db8:cafe::17", None)]),
            ("for=192.0.2.60;proto=http;by=203.0.113.43", vec![element("192.0.2.60", Some(false))]),
            (
                "for=192.0.2.43, for=198.51.100.17",
                vec![element("192.0.2.43", None), element("198.51.100.17", None)],
            ),
            ("for=unknown", vec![element("?", None)]),
            ("for=\"192.0.2.43:47011\"", vec![element("192.0.2.43", None)]),
            ("for=\"unknown:_x\" ; proto=HTTPS", vec![element("?", Some(true))]),
            ("for=\"[::ffff:192.0.2.1]\"", vec![element("192.0.2.1", None)]),
            ("host=\"a, b;for=1.2.3.4\\\"\"", vec![element("", None)]),
            ("for=\"192.0.2.\\4\"", vec![element("192.0.2.4", None)]),
            (";;for=192.0.2.1;", vec![element("192.0.2.1", None)]),
            ("secret=x;proto=wss", vec![element("", Some(true))]),
        ] {
            assert_eq!(decoded(value), Ok(expected), "{value}");
        }
    }

    #[test]
    fn malformed_input_is_refused() {
        for value in [
            "for",
            "for=",
            "for =192.0.2.1",
            "for= 192.0.2.1",
            "=192.0.2.1",
            "192.0.2.1",
            "for=192.0.2.1 for=192.0.2.2",
            "for=192.0.2.1;for=192.0.2.2",
            "for=192.0.2.1;FOR=192.0.2.1",
            "for=\"192.0.2.1",
            "for=\"192.0.2.1\\",
            "for=\"192.0.2.1\"x",
            "for=192.0.2.1:80",
            "for=[::1]",
            "for=\"::1\"",
            "for=\"[::1\"",
            "for=\"[::1]80\"",
            "for=\"[::1]:\"",
            "for=\"192.0.2.1:65536\"",
            "for=\"192.0.2.1:+1\"",
            "for=\"192.0.2.1:\"",
            "for=_",
            "for=example.org",
            "for=\"_a b\"",
            "by=nonsense;for=192.0.2.1",
            "for=\"\"",
            "a=\"\x01\"",
            "a=\"\x7f\"",
        ] {
            assert_eq!(decoded(value), Err(Malformed), "{value}");
        }
        let many: String = (0..17).map(|at| format!("a{at}=b;")).collect();
        assert_eq!(decoded(&many), Err(Malformed));
    }

    #[test]
    fn forms_of_an_address() {
        let of = |text: &str| {
            x_forwarded_for_address(text.as_bytes())
                .map(|x_forwarded_for_address| x_forwarded_for_address.to_string())
        };
        assert_eq!(of(" 192.0.2.1 ").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("192.0.2.1:80").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("[2001:db8::1]:80").as_deref(), Some("2001:db8::1"));
        assert_eq!(of("[2001:db8::1]").as_deref(), Some("2001:db8::1"));
        assert_eq!(of("::ffff:192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("[::ffff:192.0.2.1]").as_deref(), Some("192.0.2.1"));
        for bad in ["", "unknown", "192.0.2", "evil.example", "1.2.3.4.5", "[1.2.3.4"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_right_comes_first() {
        let found: Vec<_> = x_forwarded_for_addresses(b"192.0.2.1, x,10.0.0.1").collect();
        assert_eq!(found[0], Some([10, 0, 0, 1].into()));
        assert_eq!((found[1], found.len()), (None, 3));
    }
}
