//! Free loopback ports.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a listener on a free port of the loopback address, and its address.
pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    (listener, address)
}

/// Range of ports to choose from. For outgoing connections and for port 0, Linux chooses ports from
/// 32768 on. Linux therefore never takes a chosen port before the test uses it.
const CHOICE: std::ops::Range<u32> = 16_000..32_000;

/// Returns a port of the loopback address on which nothing listens, and which this process has not
/// returned before. Use this port for a program that needs a port as an argument.
///
/// # Panics
/// Panics if all ports are in use.
pub fn free_port() -> u16 {
    static CHOSEN: AtomicU32 = AtomicU32::new(0);
    let count = CHOICE.end - CHOICE.start;
    // Test programs that run at the same time start their search at different ports.
    let first = std::process::id().wrapping_mul(97);
    let next = || {
        let chosen = CHOSEN.fetch_add(1, Ordering::Relaxed);
        (CHOICE.start + first.wrapping_add(chosen) % count) as u16
    };
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (0..count).map(|_| next()).find(is_free).expect("loopback has a free port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ_and_can_be_bound() {
        let port = free_port();
        assert!(CHOICE.contains(&u32::from(port)));
        assert_ne!(port, free_port());
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
