//! Loopback ports that nobody else uses.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A listener on a free loopback port, and its address.
pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    (listener, address)
}

/// A loopback port that was free a moment ago, for a program that must be told its port.
///
/// Another process may take it first: whoever starts the program should be ready to try again.
pub fn free_port() -> u16 {
    listener().1.port()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_port_can_be_bound() {
        let port = free_port();
        assert_ne!(port, 0);
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
