//! The address of a client.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The address of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAddress {
    /// An IP address with its port, which is 0 if a proxy named the client.
    Ip(SocketAddr),
    /// None: the client came over a Unix socket, and no trusted proxy named it.
    Unix,
}

impl ClientAddress {
    /// Returns the IP address, if there is one.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Ip(address) => Some(address.ip()),
            Self::Unix => None,
        }
    }

    /// Returns the port; 0 if it is not known.
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

/// nginx's `$remote_addr` for such a client.
const UNIX: &[u8] = b"unix:";

impl From<SocketAddr> for ClientAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

/// Writes the address without its port, IPv4 ones as such also if they come mapped into IPv6.
impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip() {
            Some(address) => address.to_canonical().fmt(f),
            None => f.write_str("unix:"),
        }
    }
}
