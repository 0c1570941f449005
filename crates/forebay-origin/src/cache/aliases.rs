//! Aliases in memory, by the groups that an unsafe request removes.

use std::collections::BTreeSet;

use super::resource_key::{Group, Key, KeyHash, MOST_REMOVED, swapped};

/// Bytes that an alias takes here: two places in trees. The trees share the bytes of the key.
pub const ALIAS_SIZE: usize = 192;

/// The aliases (see `resource_key`) that have stored replies, or whose replies are arriving. Each
/// alias adds [`ALIAS_SIZE`] to the size of its stored reply, so `cache_memory` also limits this
/// list.
#[derive(Debug, Default)]
pub struct Aliases {
    by_plain: BTreeSet<(KeyHash, Key)>,
    by_own: BTreeSet<(KeyHash, Key)>,
}

impl Aliases {
    /// Adds an alias if `is_live` is true, else removes it. Does nothing if the key is no alias.
    pub fn set(&mut self, key: &Key, is_live: bool) {
        let Some(hash) = key.alias_hash() else { return };
        let entries = [(&mut self.by_plain, hash), (&mut self.by_own, swapped(&hash))];
        for (list, hash) in entries {
            let entry = (hash, key.clone());
            if is_live {
                list.insert(entry);
            } else {
                list.remove(&entry);
            }
        }
    }

    /// Returns the aliases in a group. Returns no aliases if the group is too large to be removed.
    pub fn in_group(&self, group: &Group) -> Vec<Key> {
        let list = match group {
            Group::Plain(_) => &self.by_plain,
            Group::Own(_) => &self.by_own,
        };
        let hashes = group.hashes();
        let from = list.range((*hashes.start(), Key::default())..);
        let members = from.take_while(|(hash, _)| hash <= hashes.end());
        let mut keys: Vec<_> = members.take(MOST_REMOVED + 1).map(|(_, key)| key.clone()).collect();
        if keys.len() > MOST_REMOVED {
            keys.clear();
        }
        keys
    }

    /// Returns the number of aliases.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        assert_eq!(self.by_plain.len(), self.by_own.len());
        self.by_plain.len()
    }
}
