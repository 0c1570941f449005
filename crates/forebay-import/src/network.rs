//! Addresses and networks of clients.

use std::net::IpAddr;

/// Returns an address or network in Forebay's form, with zeros after its prefix. Returns `None` if
/// the text is neither.
pub fn network(text: &str) -> Option<String> {
    let Some((address, length)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(|address| address.to_string());
    };
    let length: u32 = length.parse().ok()?;
    let masked: IpAddr = match address.parse().ok()? {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32u32.checked_sub(length)?).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128u32.checked_sub(length)?).unwrap_or(0);
            std::net::Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    };
    Some(format!("{masked}/{length}"))
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn networks_have_zeros_after_their_prefix() {
        for (text, expected) in [
            ("127.0.0.1/8", Some("127.0.0.0/8")),
            ("10.1.2.3/32", Some("10.1.2.3/32")),
            ("10.1.2.3/0", Some("0.0.0.0/0")),
            ("10.1.2.3", Some("10.1.2.3")),
            ("fd00::1/8", Some("fd00::/8")),
            ("::1", Some("::1")),
            ("::1/0", Some("::/0")),
            ("10.1.2.3/33", None),
            ("::/129", None),
            ("10.1.2.3/", None),
            ("host", None),
        ] {
            assert_eq!(network(text).as_deref(), expected, "{text}");
        }
    }
}
