//! Peers: what we listen on, what we connect to, and whom we trust.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// What a site listens on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An address and port. Where only a port was typed the address is `[::]`, which on Linux
    /// takes IPv4 clients, too, unless the listener says otherwise; on a machine without IPv6 the
    /// listener has to take `0.0.0.0` in its place. Port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A Unix socket, absolute.
    Unix(PathBuf),
    /// The sockets that a service manager passes on under this name.
    Named(String),
    /// One of the first three, whose connections begin with a TLS handshake.
    Https(Box<Listen>),
    /// One of the first three, whose connections come from a web server that speaks AJP 1.3.
    Ajp(Box<Listen>),
    /// An address and port of UDP, where QUIC carries HTTP/3: those of an [`Self::Https`] of the same
    /// site, which stands in front of it. Port 0: the one that the kernel chose for that.
    Http3(SocketAddr),
}

impl Listen {
    /// Whether its connections begin with a TLS handshake.
    pub fn is_https(&self) -> bool {
        matches!(self, Self::Https(_) | Self::Http3(_))
    }

    /// Whether HTTP/3 is spoken over it.
    pub fn is_http3(&self) -> bool {
        matches!(self, Self::Http3(_))
    }

    /// Where HTTP/3 is spoken beside it, if it is a listener with TLS on an address.
    pub fn beside_for_http3(&self) -> Option<Self> {
        match self {
            Self::Https(socket) => match **socket {
                Self::Tcp(address) => Some(Self::Http3(address)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether AJP is spoken over it.
    pub fn is_ajp(&self) -> bool {
        matches!(self, Self::Ajp(_))
    }

    /// The socket, whatever is spoken over it.
    pub fn socket(&self) -> &Self {
        match self {
            Self::Https(socket) | Self::Ajp(socket) => socket,
            socket => socket,
        }
    }

    /// `socket`, over which the same is spoken.
    pub fn same_over(&self, socket: Self) -> Self {
        match self {
            Self::Https(_) => Self::Https(Box::new(socket)),
            Self::Ajp(_) => Self::Ajp(Box::new(socket)),
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
            Self::Http3(address) => write!(f, "https://{address} (HTTP/3)"),
        }
    }
}

/// What a backend listens on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`, the host a name, an IPv4 address or an IPv6 address in brackets; not yet
    /// looked up. The port is never 0.
    Tcp(String),
    /// A Unix socket, absolute.
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

/// How to speak to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP/1.1 without TLS.
    Http,
    /// FastCGI.
    Fastcgi,
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi,
    /// AJP 1.3.
    Ajp,
}

impl Scheme {
    /// The key of a route to servers that speak it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Http => "proxy",
            Self::Fastcgi => "fastcgi",
            Self::Scgi => "scgi",
            Self::Uwsgi => "uwsgi",
            Self::Ajp => "ajp",
        }
    }
}

/// Addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first address: all bits behind the prefix are zero.
    pub addr: IpAddr,
    /// How many bits are shared: 0 to 32, or to 128.
    pub prefix_len: u8,
}

impl Network {
    /// Whether the address is one of them. An IPv4 address in IPv6 form counts as IPv4.
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

/// Clients that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clients {
    /// Clients with an address of this network.
    Network(Network),
    /// Clients of Unix sockets, which have no address.
    Unix,
    /// All, with and without an address.
    All,
}

impl Clients {
    /// Returns true if the client is one of them. `None` is the address of a client of a Unix socket.
    pub fn contains(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Self::Network(network), Some(address)) => network.contains(address),
            (Self::Network(_), None) | (Self::Unix, Some(_)) => false,
            (Self::Unix, None) | (Self::All, _) => true,
        }
    }
}

/// Mode and owner of a Unix socket that a site listens on: a user who may write to it may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits. Default 0660.
    pub mode: u32,
    /// Owner. `None`: the user that Forebay becomes.
    pub user: Option<String>,
    /// Group. `None`: the group that Forebay becomes.
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
