//! Networks of trusted proxies and of crawlers that come from a file or a URL, and that are read
//! again while the server runs.
//!
//! A list decides whose word counts about the address of a client, or who passes without a
//! challenge, so a wrong one is worse than an old one. It is refused as a whole if a line is wrong,
//! and if it is so wide that anybody could be meant.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use maxminddb::{PathElement, Reader};
use serde_json::Value;

use super::peer::Network;

/// Maximum size of a list in bytes.
pub const MAX_LIST_BYTES: u64 = 1 << 20;
/// Maximum number of networks in a list.
const MAX_NETWORKS: usize = 10_000;
/// Shortest prefixes that a list may have. Those of the large CDNs are /11 and /20 or longer.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 16;
/// Maximum number of IPv4 addresses in a list: an eighth of all.
const MAX_V4: u64 = 1 << 29;

/// Networks, with the place that they come from.
pub struct NetworkList {
    pub source: NetworkSource,
    ranges: RwLock<Arc<[Range]>>,
}

/// The place of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkSource {
    File(PathBuf),
    Url(NetworkUrl),
}

/// The URL of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkUrl {
    pub is_https: bool,
    /// Host and port.
    pub host: String,
    /// The value of the field `Host`.
    pub authority: String,
    /// Path and query.
    pub target: String,
}

/// First and last address, with IPv4 addresses in their IPv6 form.
type Range = (u128, u128);

impl NetworkList {
    /// Creates a list without networks.
    pub fn new(source: NetworkSource) -> Self {
        Self { source, ranges: RwLock::default() }
    }

    /// Replaces the networks by those in `text`: one address or network in each line, and comments
    /// after `#`; or JSON, as search engines and clouds publish it. If the text is refused, the list
    /// stays as it is.
    ///
    /// # Errors
    /// Returns the reason.
    pub fn replace(&self, text: &str) -> Result<(), String> {
        let ranges = parse(text)?;
        *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = ranges.into();
        Ok(())
    }

    /// Takes the networks of another list, such as that of the configuration before a reload.
    pub fn replace_by(&self, other: &Self) {
        let ranges = other.ranges.read().unwrap_or_else(PoisonError::into_inner).clone();
        *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = ranges;
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let address = number(address);
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let after = ranges.partition_point(|(first, _)| *first <= address);
        after > 0 && address <= ranges[after - 1].1
    }
}

impl PartialEq for NetworkList {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for NetworkList {}

impl fmt::Debug for NetworkList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl fmt::Display for NetworkSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(NetworkUrl { is_https, authority, target, .. }) => {
                write!(f, "http{}://{authority}{target}", if *is_https { "s" } else { "" })
            }
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Returns the networks of a JSON document, one in each line:
/// `{"prefixes": [{"ipv4Prefix": "192.0.2.0/24"}, {"ipv6Prefix": "2001:db8::/32"}]}`.
fn lines_of_json(text: &str) -> Result<String, String> {
    let wrong = |why: &str| format!("it is not JSON with `prefixes`: {why}");
    let document: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    let prefixes =
        document.get("prefixes").and_then(Value::as_array).ok_or_else(|| wrong("no such list"))?;
    let mut lines = String::new();
    for prefix in prefixes {
        let of_family = |key| prefix.get(key).and_then(Value::as_str);
        let network = of_family("ipv4Prefix").or_else(|| of_family("ipv6Prefix"));
        lines += network.ok_or_else(|| wrong("an item has neither ipv4Prefix nor ipv6Prefix"))?;
        lines.push('\n');
    }
    Ok(lines)
}

fn parse(text: &str) -> Result<Vec<Range>, String> {
    let of_json = text.trim_start().starts_with('{').then(|| lines_of_json(text)).transpose()?;
    let mut ranges = Vec::new();
    let mut v4 = 0;
    for (at, line) in of_json.as_deref().unwrap_or(text).lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |why: String| {
            let shown: String = line.chars().take(60).collect();
            format!("line {}, \"{}\": {why}", at + 1, shown.escape_debug())
        };
        let network = network(line).ok_or_else(|| wrong("not an address or a network".into()))?;
        let (shortest, bits) = match network.addr {
            IpAddr::V4(_) => (SHORTEST_V4, 32),
            IpAddr::V6(_) => (SHORTEST_V6, 128),
        };
        if network.prefix_len < shortest {
            let why = "write a larger network into the configuration itself if you mean it";
            return Err(wrong(format!("a list has at most /{shortest}: {why}")));
        }
        let size = 1_u128.checked_shl(u32::from(bits - network.prefix_len)).unwrap_or(0);
        if bits == 32 {
            v4 += size as u64;
        }
        let first = number(network.addr);
        ranges.push((first, first + (size - 1)));
        if ranges.len() > MAX_NETWORKS {
            return Err(format!("it has more than {MAX_NETWORKS} networks"));
        }
    }
    if v4 > MAX_V4 {
        return Err("it has more than an eighth of all IPv4 addresses".into());
    }
    if ranges.is_empty() {
        return Err("it has no networks".into());
    }
    ranges.sort_unstable();
    // An address is looked for in the last range that begins before it, so ranges must not overlap.
    ranges.dedup_by(|next, kept| {
        let overlaps = next.0 <= kept.1;
        if overlaps {
            kept.1 = kept.1.max(next.1);
        }
        overlaps
    });
    Ok(ranges)
}

/// Parses an address or a network. Bits after the prefix are ignored, and an IPv4 network in IPv6 form is one
/// of IPv4.
fn network(text: &str) -> Option<Network> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let addr: IpAddr = address.parse().ok()?;
    let bits = if addr.is_ipv4() { 32 } else { 128 };
    let prefix_len = match prefix {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
        None => bits,
    };
    if prefix_len > bits {
        return None;
    }
    Some(match addr {
        IpAddr::V4(addr) => {
            let mask = u32::MAX.checked_shl(u32::from(32 - prefix_len)).unwrap_or(0);
            Network { addr: IpAddr::V4((u32::from(addr) & mask).into()), prefix_len }
        }
        IpAddr::V6(addr) => {
            let mask = u128::MAX.checked_shl(u32::from(128 - prefix_len)).unwrap_or(0);
            let addr = IpAddr::V6((u128::from(addr) & mask).into());
            match addr.to_canonical() {
                IpAddr::V4(v4) if prefix_len >= 96 => {
                    Network { addr: v4.into(), prefix_len: prefix_len - 96 }
                }
                _ => Network { addr, prefix_len },
            }
        }
    })
}

/// Databases, which are asked in turn.
pub struct Geo(Vec<(String, Reader<Vec<u8>>)>);

impl Geo {
    /// Opens databases, each with its name for messages. Returns the position and the reason of the
    /// first one that cannot be used. Checks all of each database, so that a later lookup cannot
    /// fail.
    pub(crate) fn open(databases: Vec<(String, Vec<u8>)>) -> Result<Self, (usize, String)> {
        let open = |(at, (name, bytes)): (usize, (String, Vec<u8>))| {
            let reader = Reader::from_source(bytes).map_err(|error| (at, error.to_string()))?;
            reader.verify().map_err(|error| (at, error.to_string()))?;
            Ok((name, reader))
        };
        databases.into_iter().enumerate().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the country of an address: two capital letters (ISO 3166).
    pub fn country(&self, address: IpAddr) -> Option<[u8; 2]> {
        const PATHS: [&[PathElement<'_>]; 2] = [
            &[PathElement::Key("country"), PathElement::Key("iso_code")],
            &[PathElement::Key("country_code")],
        ];
        let code: &str = self.find(address, &PATHS)?;
        code.as_bytes().try_into().ok()
    }

    /// Returns the number of the autonomous system of an address.
    pub fn asn(&self, address: IpAddr) -> Option<u32> {
        self.find(address, &[&[PathElement::Key("autonomous_system_number")]])
    }

    fn find<'d, T: serde::Deserialize<'d>>(
        &'d self,
        address: IpAddr,
        paths: &[&[PathElement<'_>]],
    ) -> Option<T> {
        let address = address.to_canonical();
        self.0.iter().find_map(|(_, reader)| {
            let found = reader.lookup(address).ok()?;
            paths.iter().find_map(|path| found.decode_path(path).ok().flatten())
        })
    }
}

impl PartialEq for Geo {
    fn eq(&self, other: &Self) -> bool {
        let built = |(name, reader): &(String, Reader<Vec<u8>>)| {
            let metadata = reader.metadata();
            (name.clone(), metadata.build_epoch, metadata.node_count)
        };
        self.0.iter().map(built).eq(other.0.iter().map(built))
    }
}

impl Eq for Geo {}

impl fmt::Debug for Geo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<NetworkList, String> {
        let list = NetworkList::new(NetworkSource::File("x".into()));
        list.replace(text).map(|()| list)
    }

    #[test]
    fn addresses_are_found_in_overlapping_networks_of_both_families() {
        let list = list(
            "# of the CDN\n203.0.113.0/24\r\n10.0.0.0/8\n10.1.0.0/16 # inside\n192.0.2.7\n\n2001:db8::/32\n\
             ::ffff:198.51.100.0/120\n203.0.112.1/24\n",
        )
        .unwrap();
        for (address, expected) in [
            ("203.0.113.255", true),
            ("203.0.112.0", true),
            ("203.0.114.0", false),
            ("10.0.0.0", true),
            ("10.1.255.255", true),
            ("10.200.0.1", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("192.0.2.7", true),
            ("192.0.2.6", false),
            ("192.0.2.8", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("198.51.100.9", true),
            ("::ffff:10.0.0.1", true),
            ("::", false),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false),
        ] {
            assert_eq!(list.contains(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn a_hostile_list_is_refused_whole_and_the_last_good_one_stays() {
        let good = list("192.0.2.0/24").unwrap();
        let many = "192.0.2.1\n".repeat(MAX_NETWORKS + 1);
        let eights: String = (1..=40).map(|n| format!("{n}.0.0.0/8\n")).collect();
        for (text, why) in [
            ("0.0.0.0/0", "at most /8"),
            ("192.0.2.0/24\n0.0.0.0/0", "line 2"),
            ("::/0", "at most /16"),
            ("::ffff:0:0/96", "at most /8"),
            ("::ffff:0:0/0", "at most /16"),
            ("0.0.0.0/1\n128.0.0.0/1", "at most /8"),
            (&eights, "an eighth"),
            (&many, "10000"),
            ("", "no networks"),
            ("# nothing\n\n", "no networks"),
            ("<html>not found</html>", "line 1"),
            ("192.0.2.0/24, 10.0.0.0/8", "line 1"),
            ("192.0.2.0/33", "not an address"),
            ("192.0.2.0/-1", "not an address"),
            ("192.0.2.0/+8", "not an address"),
            ("192.0.2.0/", "not an address"),
            ("192.0.2.0/08/8", "not an address"),
            ("\u{1b}[2J", "\\u{1b}"),
            ("010.0.0.1", "not an address"),
            ("all", "not an address"),
        ] {
            let error = good.replace(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            assert!(good.contains("192.0.2.9".parse().unwrap()));
            assert!(!good.contains("8.8.8.8".parse().unwrap()));
        }
    }

    #[test]
    fn published_json_is_read_as_the_lines_are() {
        let json = r#" {"creationTime": "2026-11-28T23:00:00", "prefixes": [
            {"ipv4Prefix": "192.0.2.0/27"}, {"ipv6Prefix": "2001:db8:4860::/64"}]}"#;
        let list = list(json).unwrap();
        for (address, expected) in
            [("192.0.2.31", true), ("192.0.2.32", false), ("2001:db8:4860::1", true)]
        {
            assert_eq!(list.contains(address.parse().unwrap()), expected, "{address}");
        }
        for (text, why) in [
            ("{", "not JSON"),
            ("{}", "no such list"),
            (r#"{"prefixes": []}"#, "no networks"),
            (r#"{"prefixes": [{"ipv4Prefix": "0.0.0.0/0"}]}"#, "at most /8"),
            (r#"{"prefixes": [{"ipv4Prefix": 7}]}"#, "neither ipv4Prefix"),
            (r##"{"prefixes": [{"ipv4Prefix": "x\n10.0.0.0/8"}]}"##, "line 1"),
        ] {
            let error = list.replace(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_whole_space_of_addresses_is_no_overflow() {
        let list = list("ffff::/16\n255.255.255.255\n::1").unwrap();
        assert!(list.contains("ffff:ffff::1".parse().unwrap()));
        assert!(list.contains("255.255.255.255".parse().unwrap()));
    }
}
