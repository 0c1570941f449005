//! Keys of resources, and the groups that an unsafe request removes.
//!
//! Applications see the current target of a request. If Forebay has replaced the client's own
//! target, applications see both. The key of such a request is an *alias*: the *plain key*, which
//! the current target alone gives, and then the client's own target. Without the second part, one
//! client could choose the reply that others get.
//!
//! A change of a resource outdates all aliases of its plain key, and all replies to requests for
//! the client's own target. The hash of a key therefore has two halves, one for each group. Sorted
//! by either half, the members of a group are neighbours, in memory and in the names of files.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;

use super::checksum::checksum;

/// Hash of a key. The hash of a plain key is the start of its SHA-256 digest. The hash of an alias
/// begins with the first half of the plain key's hash. The second half is a hash of the client's
/// own target.
pub type KeyHash = [u8; 16];
/// A half of a hash.
pub type Half = [u8; 8];

/// Maximum number of resources of a group that an unsafe request removes. A larger group belongs to
/// a front controller, which answers many URLs, or to a document that many pages include. Otherwise
/// a client could empty the store with one request.
// A page can include up to 256 documents. A change of the page removes all of them.
pub const MOST_REMOVED: usize = 256;

/// Key of a resource.
#[derive(Clone, Debug)]
pub struct Key {
    bytes: Arc<[u8]>,
    /// Hash of an alias; `None` for a plain key.
    alias: Option<KeyHash>,
}

/// A group of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// A plain key and its aliases.
    Plain(Half),
    /// Aliases for the same target that the client itself sent.
    Own(Half),
}

/// The resources that a request has changed.
#[derive(Clone, Debug, Default)]
pub struct ChangedKeys {
    /// Keys that are removed in any case.
    pub keys: BTreeSet<Key>,
    /// Groups that are removed if they have at most [`MOST_REMOVED`] members.
    pub groups: BTreeSet<Group>,
}

impl Key {
    /// Creates the key of a request. The first `plain` bytes of `bytes` are the plain key. If
    /// `bytes` is longer, the key is an alias, and `own` returns the hash of the client's own
    /// target.
    pub fn new(bytes: Vec<u8>, plain: usize, own: impl FnOnce() -> Half) -> Self {
        let alias =
            (plain < bytes.len()).then(|| join(halves(&checksum(&bytes[..plain])).0, own()));
        Self { bytes: bytes.into(), alias }
    }

    /// Returns the hash of the key.
    pub fn hash(&self) -> KeyHash {
        self.alias.unwrap_or_else(|| checksum(&self.bytes))
    }

    /// Returns the hash of the key if the key is an alias. Otherwise returns `None`.
    pub fn alias_hash(&self) -> Option<KeyHash> {
        self.alias
    }
}

impl Default for Key {
    fn default() -> Self {
        Self { bytes: [].into(), alias: None }
    }
}

#[cfg(test)]
impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self { bytes: text.as_bytes().into(), alias: None }
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Lookups hash the bytes alone.
        self.bytes.hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes.cmp(&other.bytes)
    }
}

impl Group {
    /// Returns the two groups that contain the key with this hash, if the key is an alias. A plain
    /// key belongs only to the first group.
    pub fn all_of(hash: &KeyHash) -> [Self; 2] {
        let (plain, own) = halves(hash);
        [Self::Plain(plain), Self::Own(own)]
    }

    /// Returns the range that contains the hashes of all members. For [`Group::Own`], the caller
    /// must swap the halves of a hash ([`swapped`]) before comparing the hash with the range.
    pub fn hashes(&self) -> RangeInclusive<KeyHash> {
        let (Self::Plain(half) | Self::Own(half)) = *self;
        join(half, [0; 8])..=join(half, [u8::MAX; 8])
    }
}

impl ChangedKeys {
    /// Adds a key, and the group of all aliases of its plain key.
    pub fn add(&mut self, key: Key) {
        self.groups.insert(Group::Plain(halves(&key.hash()).0));
        self.keys.insert(key);
    }
}

/// Returns the hash after swapping its halves.
pub fn swapped(hash: &KeyHash) -> KeyHash {
    let (first, second) = halves(hash);
    join(second, first)
}

/// Returns the halves of a hash.
pub fn halves(hash: &KeyHash) -> (Half, Half) {
    let (first, second) = hash.split_at(8);
    let half = |bytes: &[u8]| std::array::from_fn(|at| bytes[at]);
    (half(first), half(second))
}

fn join(first: Half, second: Half) -> KeyHash {
    std::array::from_fn(|at| if at < 8 { first[at] } else { second[at - 8] })
}
