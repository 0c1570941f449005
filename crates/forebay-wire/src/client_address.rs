//! Address of a client, as Forebay logs and forwards it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

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
