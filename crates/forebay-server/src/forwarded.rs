//! Finds the client's address in the forwarding fields of trusted proxies.
//!
//! A proxy that writes `X-Forwarded-For` usually passes on the client's own `Forwarded`, and vice
//! versa. If Forebay always preferred one of the two fields, clients could choose their address. If
//! a trusted peer sends both and they differ, Forebay therefore answers 400. The log then names the
//! key `forwarded`, which selects the field that the proxies write.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use forebay_conf::{Clients, ForwardedFields, NetworkList};
use forebay_net::fault::Fault;
use forebay_net::head::{NamedBy, Request};
use forebay_wire::ClientAddress;
use forebay_wire::forwarded::{self, Element, Node, is_secure_scheme, x_forwarded_for_addresses};
use forebay_wire::http1::{Field, KnownField};

/// Maximum number of addresses examined in one chain; addresses further left are ignored.
const CHAIN: usize = 64;

/// Reason to refuse the forwarding fields of a trusted peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedError {
    /// `Forwarded` violates the syntax of RFC 7239.
    Malformed,
    /// `Forwarded` and the `X-Forwarded-` fields name different clients or schemes.
    Contradiction,
}

impl fmt::Display for ForwardedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "malformed Forwarded from a trusted proxy",
            Self::Contradiction => {
                "Forwarded and X-Forwarded-For or -Proto from a trusted proxy contradict each \
                 other; set the site's key `forwarded` to the one that your proxies write"
            }
        })
    }
}

impl From<ForwardedError> for Fault {
    fn from(why: ForwardedError) -> Self {
        Self::client(400, why.to_string())
    }
}

/// The forwarding fields that a site trusts.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Peers whose fields are trusted.
    pub proxies: Vec<Clients>,
    /// Lists of further such peers, which may change while the server runs.
    pub lists: Vec<Arc<NetworkList>>,
    /// Kind of fields that these peers write.
    pub fields: ForwardedFields,
}

impl Trust {
    fn has(&self, address: ClientAddress) -> bool {
        let ip = address.ip();
        self.proxies.iter().any(|clients| clients.contains(ip))
            || ip.is_some_and(|ip| self.lists.iter().any(|list| list.contains(ip)))
    }

    fn has_nobody(&self) -> bool {
        self.proxies.is_empty() && self.lists.is_empty()
    }
}

/// Determines the client of `request`, which came from `peer`.
///
/// Only fields of a trusted peer count. The client is the first address from the right that is not
/// a trusted proxy, as with nginx's `real_ip_recursive`. If the search meets an unreadable address,
/// the client is the address to its right. If all addresses are trusted, the client is the leftmost
/// one. Also sets the scheme that the fields name.
///
/// Fails if a `Forwarded` field is malformed. Also fails if both kinds of fields are present and do
/// not name the same client and the same scheme.
pub fn find_client(
    request: &mut Request,
    peer: ClientAddress,
    trust: &Trust,
) -> Result<(), ForwardedError> {
    request.peer = peer;
    request.client = peer;
    request.is_peer_trusted = !trust.has_nobody() && trust.has(peer);
    request.named_by = NamedBy::XForwarded;
    if !request.is_peer_trusted {
        if let ForwardedFields::Named(name) = &trust.fields {
            // Applications that know the proxy believe this field, and many read `_` as `-`. Who comes
            // past the proxy has forged it.
            let bytes = &request.bytes;
            request.head.fields.retain(|field| !is_like(field.name.of(bytes), name.as_bytes()));
        }
        return Ok(());
    }
    let by_fields = match trust.fields {
        ForwardedFields::Forwarded => None,
        _ => by_x_fields(request, peer, trust),
    };
    let by_forwarded = match trust.fields {
        ForwardedFields::XForwarded | ForwardedFields::Named(_) => None,
        _ => by_forwarded(request, peer, trust)?,
    };
    if by_fields.zip(by_forwarded).is_some_and(|(one, other)| one != other) {
        return Err(ForwardedError::Contradiction);
    }
    request.named_by = match trust.fields {
        ForwardedFields::Named(_) => NamedBy::Own,
        ForwardedFields::Forwarded => NamedBy::Forwarded,
        _ if by_fields.is_none() && by_forwarded.is_some() => NamedBy::Forwarded,
        _ => NamedBy::XForwarded,
    };
    let claimed = by_fields.or(by_forwarded).unwrap_or_default();
    if let Some(client) = claimed.client.filter(|client| client.ip() != peer.ip()) {
        request.client = client;
    }
    request.https = claimed.https.unwrap_or(request.https);
    Ok(())
}

/// Returns true if the names differ only in case and marks.
fn is_like(name: &[u8], other: &[u8]) -> bool {
    let is_same = |(a, b): (&u8, &u8)| {
        a.eq_ignore_ascii_case(b) || !a.is_ascii_alphanumeric() && !b.is_ascii_alphanumeric()
    };
    name.len() == other.len() && name.iter().zip(other).all(is_same)
}

/// The client and the scheme, according to one kind of forwarding field.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Claimed {
    /// The client, or the peer if the field names no other client.
    client: Option<ClientAddress>,
    https: Option<bool>,
}

/// Returns the client and the scheme in the `X-Forwarded-` fields, or the client in the field that the
/// site names. Returns `None` if the request has no such fields.
fn by_x_fields(request: &Request, peer: ClientAddress, trust: &Trust) -> Option<Claimed> {
    let chain = match &trust.fields {
        ForwardedFields::Named(name) => chain(request, |field| {
            field.name.of(&request.bytes).eq_ignore_ascii_case(name.as_bytes())
        }),
        _ => chain(request, |field| field.known == KnownField::XForwardedFor),
    };
    let client = chain.map(|chain| {
        let mut client = without_port(peer);
        for address in chain {
            client = named(address);
            if !trust.has(client) {
                break;
            }
        }
        client
    });
    let scheme = request.head.value(KnownField::XForwardedProto, &request.bytes);
    let https = scheme.map(is_secure_scheme);
    (client.is_some() || https.is_some()).then_some(Claimed { client, https })
}

/// Returns the client and the scheme in the `Forwarded` fields. Returns `None` if the request has
/// no such fields, and an error if a field is malformed.
fn by_forwarded(
    request: &Request,
    peer: ClientAddress,
    trust: &Trust,
) -> Result<Option<Claimed>, ForwardedError> {
    let mut elements = Vec::new();
    let fields = request.head.fields.iter().filter(|field| field.known == KnownField::Forwarded);
    for field in fields {
        forwarded::decode(field.value.of(&request.bytes), &mut elements)
            .map_err(|_| ForwardedError::Malformed)?;
    }
    if elements.is_empty() {
        return Ok(None);
    }
    let mut claimed = Claimed { client: Some(without_port(peer)), https: None };
    for Element { client, https } in elements.into_iter().rev().take(CHAIN) {
        // The elements to the right of this element name trusted proxies. The nearest of these
        // proxies wrote this element, so trust the scheme in it.
        claimed.https = https;
        let Some(Node::Address(address)) = client else { break };
        claimed.client = Some(named(address));
        if !trust.has(named(address)) {
            break;
        }
    }
    Ok(Some(claimed))
}

/// Returns a client with this address and without a port. A port that a proxy names is ignored.
fn named(address: IpAddr) -> ClientAddress {
    SocketAddr::new(address, 0).into()
}

/// Returns `peer` without its port, because addresses in forwarding fields usually have no port.
/// Returns a peer on a Unix socket unchanged.
fn without_port(peer: ClientAddress) -> ClientAddress {
    peer.ip().map_or(peer, named)
}

/// Returns the addresses in certain fields from right to left, up to the first unreadable address. Returns `None`
/// if there is no such field.
fn chain(request: &Request, is_it: impl Fn(&Field) -> bool) -> Option<Vec<IpAddr>> {
    let mut fields = request.head.fields.iter().rev().filter(|field| is_it(field)).peekable();
    fields.peek()?;
    let addresses =
        fields.flat_map(|field| x_forwarded_for_addresses(field.value.of(&request.bytes)));
    Some(addresses.take(CHAIN).map_while(|address| address).collect())
}

#[cfg(test)]
mod tests {
    use forebay_conf::{Network, NetworkSource};
    use forebay_testkit::forwarded::CASES;
    use forebay_wire::http1::{Claims, Http1Limits, Progress, RequestHead, RequestParser};

    use super::*;

    /// Returns a request from `peer` with these header fields, after [`find_client`].
    fn found(peer: &str, fields: &[(&str, &str)]) -> Request {
        found_by(ForwardedFields::Either, peer, fields).unwrap()
    }

    fn found_by(
        which: ForwardedFields,
        peer: &str,
        fields: &[(&str, &str)],
    ) -> Result<Request, ForwardedError> {
        let fields: String =
            fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let bytes = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        let limits = Http1Limits { head: 1 << 16, fields: 200, target: 100, get_body: false };
        let progress = RequestParser::new(limits).parse(&bytes, &mut head).unwrap();
        assert!(matches!(progress, Progress::Complete(_)));
        let server = SocketAddr::new(peer.parse().unwrap(), 4711);
        let peer = ClientAddress::Ip(server);
        let mut request = Request::new(bytes, head, peer, server);
        let network = |addr: &str, prefix_len| {
            Clients::Network(Network { addr: addr.parse().unwrap(), prefix_len })
        };
        let proxies = vec![network("127.0.0.0", 8), network("10.0.0.0", 8), network("fd00::", 8)];
        let list = NetworkList::new(NetworkSource::File("list".into()));
        list.replace("198.18.0.0/15").unwrap();
        let trust = Trust { proxies, lists: vec![Arc::new(list)], fields: which };
        find_client(&mut request, peer, &trust).map(|()| request)
    }

    fn client(peer: &str, values: &[&str]) -> String {
        let fields: Vec<_> = values.iter().map(|value| ("X-Forwarded-For", *value)).collect();
        found(peer, &fields).client.to_string()
    }

    /// Checks the cases on which nginx (`real_ip_recursive on`) and Apache's mod_remoteip agree.
    /// The tests of `forebay serve` run both servers with these cases.
    #[test]
    fn the_client_is_the_first_stranger_from_the_right() {
        for (values, expected) in CASES {
            assert_eq!(client("127.0.0.1", values), expected, "{values:?}");
        }
    }

    #[test]
    fn fields_of_an_untrusted_peer_are_ignored() {
        for peer in ["192.0.2.50", "2001:db8::50", "128.0.0.1"] {
            assert_eq!(client(peer, &["10.0.0.1"]), peer);
            assert_eq!(client(peer, &["203.0.113.9, 127.0.0.1"]), peer);
            assert!(!found(peer, &[("X-Forwarded-Proto", "https")]).https);
        }
        for (scheme, is_secure) in
            [("https", true), ("WSS", true), ("wss", true), ("http", false), ("ws", false)]
        {
            let forwarded = format!("for=192.0.2.1;proto={scheme}");
            assert_eq!(found("10.0.0.1", &[("X-Forwarded-Proto", scheme)]).https, is_secure);
            assert_eq!(found("10.0.0.1", &[("Forwarded", &forwarded)]).https, is_secure);
        }
        let forwarded = found("192.0.2.50", &[("Forwarded", "for=192.0.2.1;proto=https")]);
        assert_eq!(forwarded.client, forwarded.peer);
        assert!(!forwarded.https);
        assert!(found_by(ForwardedFields::Either, "192.0.2.50", &[("Forwarded", "=")]).is_ok());
    }

    #[test]
    fn forwarded_is_walked_from_the_right() {
        for (values, expected, https) in [
            (&["for=192.0.2.1"][..], "192.0.2.1", false),
            (&["for=192.0.2.1;proto=https"], "192.0.2.1", true),
            (&["for=192.0.2.1, for=10.0.0.1;proto=https"], "192.0.2.1", false),
            (&["for=203.0.113.9;proto=https, for=192.0.2.1, for=10.0.0.1"], "192.0.2.1", false),
            (&["for=192.0.2.1;proto=https", "for=10.0.0.1;proto=http"], "192.0.2.1", true),
            (&["for=\"[2001:db8::1]:80\""], "2001:db8::1", false),
            (&["for=10.0.0.7;proto=https"], "10.0.0.7", true),
            // A hidden client stays unknown, but its scheme counts.
            (&["for=192.0.2.1, for=_hidden;proto=https"], "127.0.0.1", true),
            (&["for=192.0.2.1, for=unknown, for=10.0.0.1"], "10.0.0.1", false),
            (&["proto=https"], "127.0.0.1", true),
            (&[""], "127.0.0.1", false),
        ] {
            let fields: Vec<_> = values.iter().map(|value| ("Forwarded", *value)).collect();
            let request = found("127.0.0.1", &fields);
            assert_eq!(request.client.to_string(), expected, "{values:?}");
            assert_eq!(request.https, https, "{values:?}");
        }
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused() {
        let one = ("X-Forwarded-For", "192.0.2.1");
        let by = |which, fields: &[(&str, &str)]| {
            let found = found_by(which, "127.0.0.1", fields);
            found.map(|request| (request.client.to_string(), request.https))
        };
        let claimed = |client: &str, https| Ok((client.to_owned(), https));
        let either = |fields: &[(&str, &str)]| by(ForwardedFields::Either, fields);
        let same = ("Forwarded", "for=\"192.0.2.1:99\";proto=https");
        let other = ("Forwarded", "for=192.0.2.2;proto=https");
        let scheme = ("X-Forwarded-Proto", "https");
        assert_eq!(either(&[one, scheme, same]), claimed("192.0.2.1", true));
        assert_eq!(either(&[one, ("Forwarded", "for=192.0.2.1")]), claimed("192.0.2.1", false));
        // A claim that only one of the fields makes may come from the client, so it is refused.
        assert_eq!(either(&[one, same]), Err(ForwardedError::Contradiction));
        assert_eq!(either(&[one, other]), Err(ForwardedError::Contradiction));
        assert_eq!(either(&[one, ("Forwarded", "for=_x")]), Err(ForwardedError::Contradiction));
        assert_eq!(either(&[one, ("Forwarded", "=")]), Err(ForwardedError::Malformed));
        assert_eq!(either(&[("Forwarded", "for")]), Err(ForwardedError::Malformed));
        let (http, https) = (("X-Forwarded-Proto", "http"), ("X-Forwarded-Proto", "https"));
        assert_eq!(either(&[http, same]), Err(ForwardedError::Contradiction));
        assert_eq!(either(&[https, same]), Err(ForwardedError::Contradiction));
        let only_client = ("Forwarded", "for=192.0.2.2");
        assert_eq!(either(&[https, only_client]), Err(ForwardedError::Contradiction));

        let x = || ForwardedFields::XForwarded;
        assert_eq!(by(x(), &[one, other]), claimed("192.0.2.1", false));
        assert_eq!(by(x(), &[other]), claimed("127.0.0.1", false));
        assert_eq!(by(x(), &[one, ("Forwarded", "=")]), claimed("192.0.2.1", false));
        let forwarded = || ForwardedFields::Forwarded;
        assert_eq!(
            by(forwarded(), &[one, https, ("Forwarded", "for=192.0.2.2")]),
            claimed("192.0.2.2", false)
        );
        assert_eq!(by(forwarded(), &[one, https]), claimed("127.0.0.1", false));
    }

    #[test]
    fn a_named_field_of_a_trusted_peer_counts_and_no_other() {
        let by = |name: &str, peer: &str, fields: &[(&str, &str)]| {
            let which = ForwardedFields::Named(name.to_ascii_lowercase());
            let request = found_by(which, peer, fields).unwrap();
            let head: Vec<_> = request
                .head
                .fields
                .iter()
                .map(|field| {
                    String::from_utf8_lossy(field.name.of(&request.bytes)).to_ascii_lowercase()
                })
                .collect();
            (
                request.client.to_string(),
                request.https,
                request.claims(),
                head.contains(&name.to_ascii_lowercase()),
            )
        };
        let proto = ("X-Forwarded-Proto", "https");
        for name in ["CF-Connecting-IP", "True-Client-IP", "X-Real-IP", "Fastly-Client-IP"] {
            // The others may be the client's own words, even those that are malformed or contradict it.
            let fields = [
                (name, "203.0.113.5"),
                ("X-Forwarded-For", "192.0.2.1"),
                ("Forwarded", "="),
                proto,
            ];
            let expected = ("203.0.113.5".to_owned(), true, Claims::Nobodys, true);
            assert_eq!(by(name, "127.0.0.1", &fields), expected);
            assert_eq!(
                by(&name.to_uppercase(), "198.19.0.1", &fields),
                expected,
                "a peer of the list"
            );
            // Who comes past the proxy says nothing, not even to the backend.
            let expected = ("192.0.2.50".to_owned(), false, Claims::Nobodys, false);
            assert_eq!(by(name, "192.0.2.50", &fields), expected);
        }
        let client = |values: &[&str]| {
            let fields: Vec<_> = values.iter().map(|value| ("CF-Connecting-IP", *value)).collect();
            by("cf-connecting-ip", "10.0.0.1", &fields).0
        };
        for (values, expected) in [
            (&["2001:db8::1"][..], "2001:db8::1"),
            (&["203.0.113.5:4711"], "203.0.113.5"),
            // As in a chain, the last stranger counts.
            (&["192.0.2.1, 203.0.113.5, 198.18.0.1"], "203.0.113.5"),
            (&["192.0.2.1", "203.0.113.5"], "203.0.113.5"),
            (&["unknown"], "10.0.0.1"),
            (&["203.0.113.5, x"], "10.0.0.1"),
            (&[""], "10.0.0.1"),
            (&[], "10.0.0.1"),
        ] {
            assert_eq!(client(values), expected, "{values:?}");
        }
        let other = by("cf-connecting-ip", "10.0.0.1", &[("X-Forwarded-For", "192.0.2.1")]);
        assert_eq!(other.0, "10.0.0.1");
    }

    #[test]
    fn a_long_chain_is_followed_so_far() {
        let long = vec!["10.0.0.1"; CHAIN].join(", ");
        assert_eq!(client("127.0.0.1", &[&format!("192.0.2.1, {long}")]), "10.0.0.1");
        let most = vec!["10.0.0.1"; CHAIN - 1].join(", ");
        assert_eq!(client("127.0.0.1", &[&format!("192.0.2.1, {most}")]), "192.0.2.1");
    }
}
