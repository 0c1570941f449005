//! The limit on connections from one client address.
//!
//! The addresses of one IPv6 network (/64) count together, because one subscriber has a whole network.
//!
//! The default limit does not apply to loopback, private and link-local addresses. All clients of a
//! load balancer or of a container's network may share such an address. Load tests use such an
//! address, too.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum interval between log messages about the limit.
const PERIOD: Duration = Duration::from_secs(10);

/// The default limit is the limit on all connections divided by `SHARE`, within these bounds.
const SHARE: usize = 8;
const LEAST: usize = 512;
const GREATEST: usize = 8192;

/// The limit on connections from one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    /// The largest number of connections. 0 means no limit.
    most: usize,
    /// True if the limit is the default.
    is_default: bool,
}

impl AddressLimit {
    /// Returns the limit for a configured value. The default is `connections / SHARE`, but at least
    /// `LEAST` and at most `GREATEST`. `connections` is the limit on all connections. If
    /// `connections` is 0 (no limit), the default is `GREATEST`.
    pub fn of(configured: Option<usize>, connections: usize) -> Self {
        let default =
            if connections == 0 { GREATEST } else { (connections / SHARE).clamp(LEAST, GREATEST) };
        Self { most: configured.unwrap_or(default), is_default: configured.is_none() }
    }
}

/// The connections of each client address, on all threads.
pub struct AddressCounts {
    most: AtomicUsize,
    is_default: AtomicBool,
    counts: Mutex<HashMap<IpAddr, usize>>,
    started: Instant,
    /// Number of connections refused since the last log message.
    refused: AtomicUsize,
    /// Earliest time of the next log message, in milliseconds.
    next_line: AtomicU64,
}

/// The result of counting a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressEntry {
    /// The connection is counted. [`AddressCounts::leave`] must follow.
    Counted,
    /// The address has no limit.
    Unlimited,
    /// The address has reached its limit, and the connection is not counted.
    Full,
}

impl AddressCounts {
    pub fn new(limit: AddressLimit) -> Self {
        Self {
            most: AtomicUsize::new(limit.most),
            is_default: AtomicBool::new(limit.is_default),
            counts: Mutex::default(),
            started: Instant::now(),
            refused: AtomicUsize::new(0),
            next_line: AtomicU64::new(0),
        }
    }

    /// Replaces the limit. Existing connections remain counted.
    pub fn limit(&self, limit: AddressLimit) {
        self.most.store(limit.most, Ordering::Relaxed);
        self.is_default.store(limit.is_default, Ordering::Relaxed);
    }

    /// Returns true if the configuration sets no limit, so that the default applies.
    pub fn is_default(&self) -> bool {
        self.is_default.load(Ordering::Relaxed)
    }

    /// Counts a connection against the limit of its address.
    pub fn enter(&self, address: IpAddr) -> AddressEntry {
        let Some(most) = self.most_of(address) else { return AddressEntry::Unlimited };
        let mut counts = self.counts();
        let count = counts.entry(network(address)).or_default();
        if *count >= most {
            return AddressEntry::Full;
        }
        *count += 1;
        AddressEntry::Counted
    }

    /// Removes a connection that [`Self::enter`] has counted.
    pub fn leave(&self, address: IpAddr) {
        if let Entry::Occupied(mut entry) = self.counts().entry(network(address)) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// Returns true if the address has reached its limit.
    pub fn is_full(&self, address: IpAddr) -> bool {
        self.most_of(address).is_some_and(|most| {
            self.counts().get(&network(address)).is_some_and(|count| *count >= most)
        })
    }

    /// Records that a connection was refused. Returns the log message if one is due, at most one
    /// per ten seconds.
    pub fn refuse(&self, address: IpAddr) -> Option<String> {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let next = self.next_line.load(Ordering::Relaxed);
        let after = now + PERIOD.as_millis() as u64;
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        if now < next || self.next_line.compare_exchange(next, after, set, get).is_err() {
            return None;
        }
        let refused = self.refused.swap(0, Ordering::Relaxed);
        let most = self.most.load(Ordering::Relaxed);
        let connections = if refused == 1 { "1 connection was" } else { "connections were" };
        let number = if refused == 1 { String::new() } else { format!("{refused} ") };
        Some(format!(
            "{number}{connections} refused, the last from {}, which has {most} already; if it is a \
             proxy, list it in `trusted_proxies`, or raise `connections_per_address` in \
             [server.limits]",
            ShownNetwork(network(address))
        ))
    }

    /// Returns the limit for an address, or `None` if the address has no limit.
    fn most_of(&self, address: IpAddr) -> Option<usize> {
        let most = self.most.load(Ordering::Relaxed);
        (most > 0 && !(self.is_default() && is_local(address))).then_some(most)
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns an IPv4 address, or the /64 network of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        canonical => canonical,
    }
}

/// Returns true for loopback, private and link-local addresses (RFC 1918, RFC 4193).
fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback() || address.is_private() || address.is_link_local()
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

/// An address, or a network, in log messages.
struct ShownNetwork(IpAddr);

impl std::fmt::Display for ShownNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.0.is_ipv6() { "/64" } else { "" };
        write!(f, "{}{end}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_default_is_a_share_of_all_connections() {
        let default = |connections| AddressLimit::of(None, connections).most;
        assert_eq!([10, 16_000, usize::MAX, 0].map(default), [512, 2000, 8192, 8192]);
        assert_eq!(AddressLimit::of(Some(0), 16_000).most, 0);
    }

    #[test]
    fn the_default_spares_local_addresses_and_a_configured_limit_does_not() {
        let counts = AddressCounts::new(AddressLimit::of(None, 1));
        let local = [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.2",
            "10.1.2.3",
            "192.168.0.1",
            "fd00::1",
            "fe80::1",
        ];
        for text in local {
            assert_eq!(counts.enter(address(text)), AddressEntry::Unlimited, "{text}");
        }
        for _ in 0..512 {
            assert_eq!(counts.enter(address("203.0.113.1")), AddressEntry::Counted);
        }
        assert_eq!(counts.enter(address("203.0.113.1")), AddressEntry::Full);
        assert_eq!(counts.enter(address("203.0.113.2")), AddressEntry::Counted);
        counts.limit(AddressLimit::of(Some(1), 1));
        assert_eq!(counts.enter(address("127.0.0.1")), AddressEntry::Counted);
        assert_eq!(counts.enter(address("127.0.0.1")), AddressEntry::Full);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let counts = AddressCounts::new(AddressLimit::of(Some(2), 100));
        assert_eq!(counts.enter(address("2001:db8::1")), AddressEntry::Counted);
        assert_eq!(counts.enter(address("2001:db8::ffff:2")), AddressEntry::Counted);
        assert_eq!(counts.enter(address("2001:db8::3")), AddressEntry::Full);
        assert!(counts.is_full(address("2001:db8::4")));
        assert_eq!(counts.enter(address("2001:db8:0:1::1")), AddressEntry::Counted);
        counts.leave(address("2001:db8::9"));
        assert_eq!(counts.enter(address("2001:db8::3")), AddressEntry::Counted);
        for text in ["2001:db8::1", "2001:db8::1", "2001:db8:0:1::1"] {
            counts.leave(address(text));
        }
        assert!(counts.counts().is_empty());
        counts.leave(address("2001:db8::1"));
    }

    #[test]
    fn refusals_are_logged_with_their_number_once_in_a_while() {
        let counts = AddressCounts::new(AddressLimit::of(Some(2), 100));
        let line = counts.refuse(address("2001:db8::1")).unwrap();
        assert!(line.starts_with("1 connection was refused, the last from 2001:db8::/64, which "));
        for _ in 0..1000 {
            assert_eq!(counts.refuse(address("192.0.2.1")), None);
        }
        counts.next_line.store(0, Ordering::Relaxed);
        let line = counts.refuse(address("192.0.2.1")).unwrap();
        assert!(line.starts_with("1001 connections were refused, the last from 192.0.2.1, which "));
    }
}
