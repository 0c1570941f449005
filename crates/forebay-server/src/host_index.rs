//! Selects by host name, in a time that does not grow with the number of names.
//!
//! Sites and streams are selected for every request and every handshake, so a scan over the names
//! of 10,000 sites would cost more than the rest of a request. An exact name is one look-up in a
//! hash table, and a wildcard is one look-up for each label of the host. Labels before the longest
//! wildcard are skipped. So a client that sends thousands of labels does not cause as many look-ups.

use std::borrow::Cow;
use std::collections::HashMap;

use foldhash::quality::RandomState;
use forebay_conf::HostPattern;

/// The names of several items, such as the sites of a listener. Items are numbered by position.
#[derive(Debug, Default)]
pub struct HostIndex {
    exact: HashMap<Box<[u8]>, u32, RandomState>,
    /// Texts that begin with a dot, from patterns such as `*.example.org`.
    suffixes: HashMap<Box<[u8]>, u32, RandomState>,
    max_suffix_bytes: usize,
    /// First item for any host.
    any: Option<u32>,
}

/// An item that fits a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMatch {
    pub item: usize,
    /// How exactly the item's pattern names the host; see [`specificity`].
    pub specificity: usize,
}

impl HostIndex {
    /// Creates the index. Each entry of `items` has the patterns of one item. If two items have
    /// the same pattern, the first one is found.
    pub fn new<'a>(items: impl IntoIterator<Item = &'a [HostPattern]>) -> Self {
        let mut index = Self::default();
        for (item, patterns) in (0..).zip(items) {
            for pattern in patterns {
                match pattern {
                    HostPattern::Exact(name) => {
                        index.exact.entry(name.as_bytes().into()).or_insert(item);
                    }
                    HostPattern::Suffix(suffix) => {
                        index.max_suffix_bytes = index.max_suffix_bytes.max(suffix.len());
                        index.suffixes.entry(suffix.as_bytes().into()).or_insert(item);
                    }
                    HostPattern::Any => {
                        index.any.get_or_insert(item);
                    }
                }
            }
        }
        index
    }

    /// The item that names `host` most exactly. The order of preference is: exact name, longest
    /// wildcard, any host. `host` has no port and no final dot.
    pub fn find(&self, host: &[u8]) -> Option<HostMatch> {
        let host = if host.iter().any(u8::is_ascii_uppercase) {
            Cow::Owned(host.to_ascii_lowercase())
        } else {
            Cow::Borrowed(host)
        };
        let found = |item: &u32, specificity| HostMatch { item: *item as usize, specificity };
        if let Some(item) = self.exact.get(&*host) {
            return Some(found(item, EXACT));
        }
        // A wildcard stands for at least one byte.
        let first = host.len().saturating_sub(self.max_suffix_bytes).max(1);
        let mut dots = (first..host.len()).filter(|&at| host[at] == b'.');
        let by_suffix = dots.find_map(|at| {
            let item = self.suffixes.get(&host[at..])?;
            Some(found(item, ANY + host.len() - at))
        });
        by_suffix.or_else(|| self.any.as_ref().map(|item| found(item, ANY)))
    }
}

const ANY: usize = 1;
const EXACT: usize = usize::MAX;

/// How exactly a pattern names the host: 0 if it does not match, 1 for any host, more for longer
/// suffixes, and most for an exact name.
pub fn specificity(pattern: &HostPattern, host: &[u8]) -> usize {
    match pattern {
        HostPattern::Any => ANY,
        HostPattern::Exact(name) if host.eq_ignore_ascii_case(name.as_bytes()) => EXACT,
        HostPattern::Suffix(suffix) => {
            let cut = host.len().checked_sub(suffix.len());
            let matches =
                cut.is_some_and(|at| at > 0 && host[at..].eq_ignore_ascii_case(suffix.as_bytes()));
            if matches { ANY + suffix.len() } else { 0 }
        }
        HostPattern::Exact(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// What the index replaces: the best of all patterns, and the first among equals.
    fn scan(items: &[Vec<HostPattern>], host: &[u8]) -> Option<HostMatch> {
        let rank = |patterns: &Vec<HostPattern>| {
            patterns.iter().map(|pattern| specificity(pattern, host)).max().unwrap_or(0)
        };
        let ranked = items.iter().map(rank).enumerate();
        let (item, specificity) =
            ranked.max_by_key(|&(item, rank)| (rank, std::cmp::Reverse(item)))?;
        (specificity > 0).then_some(HostMatch { item, specificity })
    }

    #[test]
    fn the_index_finds_what_a_scan_finds() {
        let mut rng = Rng::with_seed(45);
        let label = |rng: &mut Rng| ["a", "b", "ab", "xn--c", "org"][rng.usize(..5)];
        let name = |rng: &mut Rng| {
            let labels: Vec<_> = (0..=rng.usize(..4)).map(|_| label(rng)).collect();
            labels.join(".")
        };
        for _ in 0..500 {
            let pattern = |rng: &mut Rng| match rng.usize(..8) {
                0 => HostPattern::Any,
                1..=3 => HostPattern::Suffix(format!(".{}", name(rng))),
                _ => HostPattern::Exact(name(rng)),
            };
            let items: Vec<Vec<_>> = (0..rng.usize(..20))
                .map(|_| (0..rng.usize(..3)).map(|_| pattern(&mut rng)).collect())
                .collect();
            let index = HostIndex::new(items.iter().map(|patterns| &patterns[..]));
            for _ in 0..20 {
                let host = match rng.usize(..10) {
                    0 => String::new(),
                    1 => format!(".{}", name(&mut rng)),
                    2 => format!("{}..{}", name(&mut rng), name(&mut rng)),
                    3 => format!("\u{e9}.{}", name(&mut rng)),
                    4 => name(&mut rng).to_ascii_uppercase(),
                    _ => name(&mut rng),
                };
                let expected = scan(&items, host.as_bytes());
                assert_eq!(index.find(host.as_bytes()), expected, "{host:?} {items:?}");
            }
        }
    }
}
