//! Who the client is, behind proxies that are believed.

use std::net::{IpAddr, SocketAddr};

use forebay_conf::Network;
use forebay_wire::http1::Known;

use crate::exchange::Request;

/// Addresses looked at in one chain; what is further away is not believed.
const CHAIN: usize = 64;

/// Sets the client of `request`, which came from `peer`.
///
/// Only a trusted peer is believed: `X-Forwarded-For` is walked from the right, past the addresses
/// of trusted proxies, to the first that is not one of them (as nginx does with `real_ip_recursive`
/// and Apache's mod_remoteip). What cannot be read ends the walk.
pub fn find_client(request: &mut Request, peer: SocketAddr, trusted: &[Network]) {
    request.peer = peer;
    request.client = peer;
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    request.is_peer_trusted = !trusted.is_empty() && is_trusted(peer.ip());
    if !request.is_peer_trusted {
        return;
    }
    let mut client = peer.ip();
    for address in chain(request) {
        client = address;
        if !is_trusted(address) {
            break;
        }
    }
    if client != peer.ip() {
        request.client = SocketAddr::new(client, 0);
    }
    let scheme = request.head.value(Known::XForwardedProto, &request.bytes);
    request.https = scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https"));
}

/// The addresses of all `X-Forwarded-For` fields, from the right, up to the first unreadable one.
fn chain(request: &Request) -> Vec<IpAddr> {
    let fields = request.head.fields.iter().rev();
    fields
        .filter(|field| field.known == Known::XForwardedFor)
        .flat_map(|field| field.value.of(&request.bytes).rsplit(|&b| b == b','))
        .take(CHAIN)
        .map_while(parse)
        .collect()
}

/// An address, perhaps with a port, an IPv6 one perhaps in brackets.
fn parse(element: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(element).ok()?.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip().to_canonical());
    }
    text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let of = |text: &str| parse(text.as_bytes()).map(|address| address.to_string());
        assert_eq!(of(" 192.0.2.1 ").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("192.0.2.1:80").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("[2001:db8::1]:80").as_deref(), Some("2001:db8::1"));
        assert_eq!(of("[2001:db8::1]").as_deref(), Some("2001:db8::1"));
        assert_eq!(of("::ffff:192.0.2.1").as_deref(), Some("192.0.2.1"));
        for bad in ["", "unknown", "192.0.2", "evil.example", "1.2.3.4.5", "[1.2.3.4"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
