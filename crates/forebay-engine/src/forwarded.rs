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
/// and Apache's mod_remoteip). What cannot be read ends the walk. `Forwarded` (RFC 7239) is not
/// looked at: most proxies pass on what the client wrote in it.
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

    use forebay_wire::http1::{Limits, Progress, RequestHead, RequestParser};

    /// A request from `peer` with these header fields, after the client has been looked for.
    fn found(peer: &str, fields: &[(&str, &str)]) -> Request {
        let fields: String =
            fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let bytes = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        let limits = Limits { head: 1 << 16, fields: 200, target: 100 };
        let progress = RequestParser::new(limits).parse(&bytes, &mut head).unwrap();
        assert!(matches!(progress, Progress::Complete(_)));
        let peer = SocketAddr::new(peer.parse().unwrap(), 4711);
        let mut request = Request {
            bytes,
            head,
            path: Vec::new(),
            rest: 0..0,
            client: peer,
            peer,
            is_peer_trusted: false,
            server: peer,
            https: false,
        };
        let network = |addr: &str, prefix_len| Network { addr: addr.parse().unwrap(), prefix_len };
        let trusted = [network("127.0.0.0", 8), network("10.0.0.0", 8), network("fd00::", 8)];
        find_client(&mut request, peer, &trusted);
        request
    }

    fn client(peer: &str, values: &[&str]) -> String {
        let fields: Vec<_> = values.iter().map(|value| ("X-Forwarded-For", *value)).collect();
        found(peer, &fields).client.ip().to_string()
    }

    /// The cases on which nginx (`real_ip_recursive on`) and Apache's mod_remoteip agree; the same
    /// are put to them in the tests of `forebay serve`.
    #[test]
    fn the_client_is_the_first_stranger_from_the_right() {
        let local = "127.0.0.1";
        for (values, expected) in [
            (&[][..], local),
            (&["192.0.2.1"], "192.0.2.1"),
            (&["  192.0.2.1  "], "192.0.2.1"),
            (&["192.0.2.1, 10.0.0.1"], "192.0.2.1"),
            (&["192.0.2.1,10.0.0.1,10.0.0.2"], "192.0.2.1"),
            (&["203.0.113.9, 192.0.2.1"], "192.0.2.1"),
            (&["10.0.0.9, 192.0.2.1, 10.0.0.1"], "192.0.2.1"),
            (&["127.0.0.1, 192.0.2.1"], "192.0.2.1"),
            (&["203.0.113.9, 192.0.2.1, 10.0.0.1, 10.1.2.3"], "192.0.2.1"),
            (&["10.0.0.1"], "10.0.0.1"),
            (&["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["2001:db8::1, 10.0.0.1"], "2001:db8::1"),
            (&["2001:db8::1, fd00::1"], "2001:db8::1"),
            (&["192.0.2.1, fd00::1, 10.0.0.1"], "192.0.2.1"),
            (&["unknown"], local),
            (&["192.0.2.1, unknown, 10.0.0.1"], "10.0.0.1"),
            (&["evil.example, 192.0.2.1"], "192.0.2.1"),
            (&["192.0.2.1", "10.0.0.1"], "192.0.2.1"),
            (&["203.0.113.9", "192.0.2.1, 10.0.0.1"], "192.0.2.1"),
        ] {
            assert_eq!(client(local, values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_stranger_is_not_believed() {
        for peer in ["192.0.2.50", "2001:db8::50", "128.0.0.1"] {
            assert_eq!(client(peer, &["10.0.0.1"]), peer);
            assert_eq!(client(peer, &["203.0.113.9, 127.0.0.1"]), peer);
            assert!(!found(peer, &[("X-Forwarded-Proto", "https")]).https);
        }
        assert!(found("10.0.0.1", &[("X-Forwarded-Proto", "https")]).https);
        // A field that many proxies pass on as the client sent it.
        let forwarded = found("10.0.0.1", &[("Forwarded", "for=192.0.2.1;proto=https")]);
        assert_eq!(forwarded.client, forwarded.peer);
        assert!(!forwarded.https);
    }

    #[test]
    fn a_long_chain_is_followed_so_far() {
        let long = vec!["10.0.0.1"; CHAIN].join(", ");
        assert_eq!(client("127.0.0.1", &[&format!("192.0.2.1, {long}")]), "10.0.0.1");
        let most = vec!["10.0.0.1"; CHAIN - 1].join(", ");
        assert_eq!(client("127.0.0.1", &[&format!("192.0.2.1, {most}")]), "192.0.2.1");
    }

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
