//! Addresses and networks of clients.

/// Translates an address or network such as `10.0.0.0/8`, `10.`, `10.0.0.0/255.0.0.0` or `::1` to
/// Forebay's form. Returns `None` for other texts.
pub fn network(text: &str) -> Option<String> {
    if let Some((address, mask)) = text.split_once('/') {
        let address: std::net::IpAddr = address.parse().ok()?;
        if mask.parse::<u8>().is_ok() {
            return Some(text.to_owned());
        }
        let mask: std::net::Ipv4Addr = mask.parse().ok()?;
        let bits = u32::from(mask);
        let length = bits.leading_ones();
        return (bits.count_ones() == length).then(|| format!("{address}/{length}"));
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Some(text.to_owned());
    }
    let parts: Vec<&str> = text.trim_end_matches('.').split('.').collect();
    let is_part = |part: &&str| part.parse::<u8>().is_ok();
    if parts.len() > 3 || !parts.iter().all(is_part) {
        return None;
    }
    let zeros = vec!["0"; 4 - parts.len()];
    Some(format!("{}/{}", [parts.clone(), zeros].concat().join("."), parts.len() * 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_all_forms() {
        for (text, found) in [
            ("10", Some("10.0.0.0/8")),
            ("192.168.", Some("192.168.0.0/16")),
            ("10.1.2.3", Some("10.1.2.3")),
            ("10.0.0.0/255.255.0.0", Some("10.0.0.0/16")),
            ("::1", Some("::1")),
            ("example.org", None),
            ("10.0.0.0/255.0.255.0", None),
        ] {
            assert_eq!(network(text).as_deref(), found, "{text}");
        }
    }
}
