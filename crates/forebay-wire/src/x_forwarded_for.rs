//! `X-Forwarded-For`: the addresses of the client and of the proxies. Each proxy appends the
//! address of its peer, so the last address is the peer of the nearest proxy.

use std::net::{IpAddr, SocketAddr};

/// Returns the addresses of one field's value, from right to left. An element that is not an
/// address yields `None`. The caller must not trust the elements to the left of such an element.
pub fn addresses(value: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    value.rsplit(|&b| b == b',').map(address)
}

/// Parses an address with an optional port. An IPv6 address may have brackets. Returns `None` for
/// other text.
fn address(element: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(element).ok()?.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip().to_canonical());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_an_address() {
        let of = |text: &str| address(text.as_bytes()).map(|address| address.to_string());
        assert_eq!(of(" 192.0.2.1 ").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("192.0.2.1:80").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("[2001:db8::1]:80").as_deref(), Some("2001:db8::1"));
        assert_eq!(of("[2001:db8::1]").as_deref(), Some("2001:db8::1"));
        assert_eq!(of("::ffff:192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(of("[::ffff:192.0.2.1]").as_deref(), Some("192.0.2.1"));
        for bad in ["", "unknown", "192.0.2", "evil.example", "1.2.3.4.5", "[1.2.3.4"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_right_comes_first() {
        let found: Vec<_> = addresses(b"192.0.2.1, x,10.0.0.1").collect();
        assert_eq!(found[0], Some([10, 0, 0, 1].into()));
        assert_eq!((found[1], found.len()), (None, 3));
    }
}
