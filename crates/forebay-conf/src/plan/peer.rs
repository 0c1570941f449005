//! Peers: listeners, backends, and clients in access rules.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;

use crate::error::Problem;
use crate::key::{FromText, Resolution, not_empty};

/// A listener of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An address and port. If the user typed only a port, the address is `[::]`. That address also
    /// accepts IPv4 clients. On a machine without IPv6, the user must type `0.0.0.0` and the port
    /// instead. Port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
    /// The sockets that a service manager passes on under this name.
    Named(String),
    /// A listener of one of the first three kinds, whose connections begin with a TLS handshake.
    Https(Box<Listen>),
    /// A listener of one of the first three kinds, for connections of web servers that speak AJP
    /// 1.3.
    Ajp(Box<Listen>),
    /// A listener of one of the first three kinds or of UDP, for a stream.
    Stream(Box<Listen>),
    /// A UDP address and port. Only in [`Self::Stream`].
    Udp(SocketAddr),
    /// A UDP address and port for HTTP/3 over QUIC, equal to those of the preceding [`Self::Https`]
    /// listener of the site. Port 0 means the port that the kernel chose for that listener.
    Http3(SocketAddr),
}

impl Listen {
    /// Returns true if connections use TLS: over TCP, or over QUIC for HTTP/3.
    pub fn is_https(&self) -> bool {
        matches!(self, Self::Https(_) | Self::Http3(_))
    }

    /// Returns true if the listener speaks HTTP/3.
    pub fn is_http3(&self) -> bool {
        matches!(self, Self::Http3(_))
    }

    /// Returns an HTTP/3 listener on the address and port of this `https://` listener. Returns
    /// `None` for an `https://` listener without an address, such as a Unix socket, and for other
    /// protocols.
    pub fn beside_for_http3(&self) -> Option<Self> {
        match self {
            Self::Https(socket) => match **socket {
                Self::Tcp(address) => Some(Self::Http3(address)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns true if the listener speaks AJP.
    pub fn is_ajp(&self) -> bool {
        matches!(self, Self::Ajp(_))
    }

    /// Returns true if the listener belongs to a stream and uses UDP.
    pub fn is_udp(&self) -> bool {
        matches!(self.socket(), Self::Udp(_))
    }

    /// Returns the listener inside [`Self::Https`], [`Self::Ajp`] or [`Self::Stream`]. Returns any
    /// other listener unchanged.
    pub fn socket(&self) -> &Self {
        match self {
            Self::Https(socket) | Self::Ajp(socket) | Self::Stream(socket) => socket,
            socket => socket,
        }
    }

    /// Returns `socket` inside the variant of this listener: [`Self::Https`], [`Self::Ajp`] or
    /// [`Self::Stream`]. If this listener is of another variant, returns `socket` unchanged.
    pub fn same_over(&self, socket: Self) -> Self {
        match self {
            Self::Https(_) => Self::Https(Box::new(socket)),
            Self::Ajp(_) => Self::Ajp(Box::new(socket)),
            Self::Stream(_) => Self::Stream(Box::new(socket)),
            _ => socket,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Named(name) => write!(f, "fd:{name}"),
            Self::Https(socket) => write!(f, "https://{socket}"),
            Self::Ajp(socket) => write!(f, "ajp://{socket}"),
            Self::Stream(socket) => socket.fmt(f),
            Self::Udp(address) => write!(f, "udp://{address}"),
            Self::Http3(address) => write!(f, "https://{address} (HTTP/3)"),
        }
    }
}

/// The address of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`, not resolved yet. The host is a name, an IPv4 address or an IPv6 address in
    /// brackets. The port is never 0.
    Tcp(String),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The protocol of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP of any version, with or without TLS.
    Http,
    /// FastCGI.
    Fastcgi,
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi,
    /// AJP 1.3.
    Ajp,
    /// Any protocol over TCP or UDP, for a stream.
    Stream,
}

impl Scheme {
    /// Returns the key of the configuration for servers with this protocol, such as `proxy`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Http => "proxy",
            Self::Fastcgi => "fastcgi",
            Self::Scgi => "scgi",
            Self::Uwsgi => "uwsgi",
            Self::Ajp => "ajp",
            Self::Stream => "stream",
        }
    }
}

/// A network: addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first address: all bits after the prefix are zero.
    pub addr: IpAddr,
    /// The length of the prefix: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub prefix_len: u8,
}

impl Network {
    /// Returns true if the address is in the network. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.addr, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let len = self.prefix_len.min(32);
                let differ = u32::from(ours) ^ u32::from(theirs);
                differ.checked_shr(32 - u32::from(len)).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let len = self.prefix_len.min(128);
                let differ = u128::from(ours) ^ u128::from(theirs);
                differ.checked_shr(128 - u32::from(len)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// A set of clients that an access rule or `trusted_proxies` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clients {
    /// Clients with an address of this network.
    Network(Network),
    /// Clients of Unix sockets, which have no address.
    Unix,
    /// All clients, with and without an address.
    All,
}

impl FromText for Clients {
    /// Parses an address or a network, `unix` or `all`.
    fn from_text(text: &str, span: &Range<usize>) -> Resolution<Self> {
        match text {
            "all" => Ok(Self::All),
            "unix" => Ok(Self::Unix),
            _ => network(text, span).map(Self::Network),
        }
    }
}

/// Parses an address such as `10.0.0.1`, or a network such as `10.0.0.0/8`.
fn network(text: &str, span: &Range<usize>) -> Resolution<Network> {
    let problem = Problem::new(span, format!("\"{text}\" is not an address or a network"));
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(addr) = address.parse::<IpAddr>() else {
        return Err(problem.help(match text {
            "unix:" => "write \"unix\", without the colon",
            _ => "write an address such as \"10.0.0.1\", or \"10.0.0.0/8\"",
        }));
    };
    let bits = if addr.is_ipv4() { 32 } else { 128 };
    let prefix_len = match prefix.map(str::parse::<u8>) {
        None => bits,
        Some(Ok(length)) if length <= bits => length,
        Some(_) => return Err(problem.help(format!("what follows the slash is 0 to {bits}"))),
    };
    let first = first_address(addr, prefix_len);
    if first != addr {
        return Err(Problem::new(span, format!("\"{text}\" has bits after its prefix"))
            .help(format!("write \"{first}/{prefix_len}\", or \"{addr}\" for that one address")));
    }
    match addr.to_canonical() {
        IpAddr::V4(v4) if addr.is_ipv6() && prefix_len >= 96 => {
            Ok(Network { addr: v4.into(), prefix_len: prefix_len - 96 })
        }
        _ => Ok(Network { addr, prefix_len }),
    }
}

/// Returns the first address of a network: all bits after the prefix are zero.
fn first_address(address: IpAddr, prefix_len: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

impl Clients {
    /// Checks a list of clients in a rule.
    pub(crate) fn some(list: &[Self], span: &Range<usize>) -> Resolution<()> {
        not_empty(
            list,
            span,
            "",
            "name addresses or networks such as \"10.0.0.0/8\", or leave the key out",
        )
    }

    /// Returns true if the client belongs to this set. `None` is the address of a client of a Unix
    /// socket.
    pub fn contains(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Self::Network(network), Some(address)) => network.contains(address),
            (Self::Network(_), None) | (Self::Unix, Some(_)) => false,
            (Self::Unix, None) | (Self::All, _) => true,
        }
    }
}

/// Mode and owner of a Unix socket that a site listens on. A user needs write permission to
/// connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits. Default 0660.
    pub mode: u32,
    /// The owner. `None`: the user that Forebay switches to.
    pub user: Option<String>,
    /// The group. `None`: the group that Forebay switches to.
    pub group: Option<String>,
}

impl Default for SocketAccess {
    fn default() -> Self {
        Self { mode: 0o660, user: None, group: None }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(addr: &str, prefix_len: u8) -> Network {
        Network { addr: addr.parse().unwrap(), prefix_len }
    }

    #[test]
    fn networks_hold_their_own() {
        let ten = network("10.0.0.0", 8);
        assert!(ten.contains("10.255.0.1".parse().unwrap()));
        assert!(ten.contains("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!ten.contains("11.0.0.1".parse().unwrap()));
        assert!(!ten.contains("::1".parse().unwrap()));
        assert!(network("0.0.0.0", 0).contains("255.1.2.3".parse().unwrap()));
        assert!(!network("0.0.0.0", 0).contains("::1".parse().unwrap()));
        assert!(network("::", 0).contains("fe80::1".parse().unwrap()));
        assert!(network("fe80::", 10).contains("febf::1".parse().unwrap()));
        assert!(!network("::1", 128).contains("::2".parse().unwrap()));
    }
}
