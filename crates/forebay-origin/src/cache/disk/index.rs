//! List of the entries on disk, in memory.
//!
//! An entry costs about 120 bytes of memory. The list is bounded by the bytes of the files. If
//! there is no space, a hand moves over the slots in a circle, and removes entries that no request
//! has used since the hand's last visit (the CLOCK algorithm).

use std::collections::{BTreeMap, BTreeSet};

use super::super::resource_key::{Group, KeyHash, MOST_REMOVED, swapped};

/// Unit of space on disk, in bytes.
pub const BLOCK: u64 = 4096;
/// Maximum number of variants of one resource.
const VARIANTS: usize = 32;
/// Maximum number of used entries that one eviction spares, so that it holds the lock only briefly.
const SPARED: usize = 4096;
/// First epoch: see [`Index::epoch`].
pub const FIRST_EPOCH: u32 = 1;
/// End of a chain.
const NONE: u32 = u32::MAX;

/// Name of an entry: the resource, and the values of the fields in `Vary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryName {
    /// Hash of the key.
    pub key: KeyHash,
    /// Hash of the request fields that selected the reply; 0 without `Vary`.
    pub variant: u64,
}

/// Properties of an entry that are known without its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryFacts {
    /// Length of the file in blocks.
    pub blocks: u32,
    /// Hashes of the URLs; 0 if unknown.
    pub urls: [u32; 2],
    /// Identity of a file that had the right checksums; 0 if none was checked.
    pub verified: u64,
    /// Number of the list of field names in `Vary`; 0 if unknown.
    pub vary: u16,
}

#[derive(Clone, Debug)]
struct Slot {
    name: EntryName,
    facts: EntryFacts,
    /// The next older variant of the same resource.
    next: u32,
    is_used: bool,
    /// False in a free slot.
    is_taken: bool,
}

/// The list of the entries on disk.
#[derive(Debug, Default)]
pub struct Index {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The newest variant of each resource. A plain key and its aliases are neighbours.
    newest: BTreeMap<KeyHash, u32>,
    /// The keys of `newest` with swapped halves. Aliases with the same URL of the client are
    /// neighbours.
    by_own: BTreeSet<KeyHash>,
    hand: usize,
    /// Number of circles that the hand has completed.
    circles: u32,
    blocks: u64,
    reserved: u64,
    capacity: u64,
    len: usize,
}

/// Returns the number of blocks of a file with this many bytes.
pub fn blocks(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX)
}

impl Index {
    /// Creates a list for files with a total size of at most `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self { capacity: capacity / BLOCK, ..Self::default() }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the total size of all files in bytes, including the files that are being written.
    pub fn bytes(&self) -> u64 {
        (self.blocks + self.reserved) * BLOCK
    }

    /// Returns the variants of a resource, the newest first.
    pub fn variants(&self, key: &KeyHash) -> Vec<(EntryName, EntryFacts)> {
        let mut found = Vec::new();
        let mut at = self.newest.get(key).copied().unwrap_or(NONE);
        while let Some(slot) = self.slots.get(at as usize) {
            found.push((slot.name, slot.facts));
            at = slot.next;
        }
        found
    }

    /// Returns the keys in a group; `None` if the group is too large to be removed.
    pub fn in_group(&self, group: &Group) -> Option<Vec<KeyHash>> {
        let most = MOST_REMOVED + 1;
        let keys: Vec<_> = match group {
            Group::Plain(_) => {
                self.newest.range(group.hashes()).map(|(key, _)| *key).take(most).collect()
            }
            Group::Own(_) => self.by_own.range(group.hashes()).map(swapped).take(most).collect(),
        };
        (keys.len() < most).then_some(keys)
    }

    /// Returns a number that increases each time the hand of the CLOCK algorithm has passed a
    /// quarter of the list. If the memory serves a reply, the store marks the reply's entry on disk
    /// as used, once per epoch. The hand then skips the entry.
    pub fn epoch(&self) -> u32 {
        let quarter = (self.hand * 4).checked_div(self.slots.len()).unwrap_or(0);
        let quarter = u32::try_from(quarter).unwrap_or(0);
        FIRST_EPOCH.wrapping_add(self.circles.wrapping_mul(4)).wrapping_add(quarter).max(1)
    }

    /// Returns the properties of an entry, or `None` if there is no such entry.
    pub fn facts(&self, name: &EntryName) -> Option<EntryFacts> {
        self.find(name).map(|at| self.slots[at as usize].facts)
    }

    /// Records that a request has used an entry. Calls `change` to update the facts of the entry.
    /// Does nothing if there is no such entry.
    pub fn update(&mut self, name: &EntryName, change: impl FnOnce(&mut EntryFacts)) {
        if let Some(at) = self.find(name) {
            let slot = &mut self.slots[at as usize];
            slot.is_used = true;
            change(&mut slot.facts);
        }
    }

    /// Records facts about an entry, but not that a request has used it.
    pub fn learn(&mut self, name: &EntryName, facts: EntryFacts) {
        if let Some(at) = self.find(name) {
            self.slots[at as usize].facts = facts;
        }
    }

    /// Reserves space for a file that is being written. If necessary, removes other entries, and
    /// returns their names. Returns `None` if the reserved space would be larger than the capacity.
    pub fn reserve(&mut self, blocks: u32) -> Option<Vec<EntryName>> {
        let wanted = u64::from(blocks);
        if self.reserved + wanted > self.capacity {
            return None;
        }
        self.reserved += wanted;
        let mut displaced = Vec::new();
        while self.blocks + self.reserved > self.capacity {
            displaced.push(self.evict()?);
        }
        Some(displaced)
    }

    /// Gives reserved space back.
    pub fn release(&mut self, blocks: u32) {
        self.reserved = self.reserved.saturating_sub(u64::from(blocks));
    }

    /// Adds an entry, which replaces an entry of the same name. If the resource now has too many
    /// variants, removes the oldest one, and returns its name. Otherwise returns `None`.
    pub fn insert(&mut self, name: EntryName, facts: EntryFacts) -> Option<EntryName> {
        self.remove(&name);
        let slot = Slot {
            name,
            facts,
            next: self.newest.get(&name.key).copied().unwrap_or(NONE),
            is_used: false,
            is_taken: true,
        };
        let at = if let Some(at) = self.free.pop() {
            self.slots[at as usize] = slot;
            at
        } else {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).expect("the disk has fewer blocks than 2^32")
        };
        if self.newest.insert(name.key, at).is_none() {
            self.by_own.insert(swapped(&name.key));
        }
        self.blocks += u64::from(facts.blocks);
        self.len += 1;
        let variants = self.variants(&name.key);
        let oldest = variants.get(VARIANTS).map(|(name, _)| *name);
        if let Some(oldest) = &oldest {
            self.remove(oldest);
        }
        oldest
    }

    /// Removes an entry. Returns true if it existed.
    pub fn remove(&mut self, name: &EntryName) -> bool {
        let Some(at) = self.find(name) else { return false };
        let next = self.slots[at as usize].next;
        let first = self.newest[&name.key];
        if first != at {
            let mut before = first;
            while self.slots[before as usize].next != at {
                before = self.slots[before as usize].next;
            }
            self.slots[before as usize].next = next;
        } else if next == NONE {
            self.newest.remove(&name.key);
            self.by_own.remove(&swapped(&name.key));
        } else {
            self.newest.insert(name.key, next);
        }
        let slot = &mut self.slots[at as usize];
        slot.is_taken = false;
        slot.next = NONE;
        self.blocks -= u64::from(slot.facts.blocks);
        self.len -= 1;
        self.free.push(at);
        true
    }

    /// Removes entries until the total size of all files is at most the capacity. Returns the
    /// removed entries.
    pub fn shrink(&mut self) -> Vec<EntryName> {
        let mut displaced = Vec::new();
        while self.blocks + self.reserved > self.capacity {
            let Some(name) = self.evict() else { break };
            displaced.push(name);
        }
        displaced
    }

    fn find(&self, name: &EntryName) -> Option<u32> {
        let mut at = *self.newest.get(&name.key)?;
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.name == *name {
                return Some(at);
            }
            at = slot.next;
        }
        None
    }

    /// Removes an entry by the CLOCK algorithm, and returns its name. The hand skips entries that
    /// were used since its last visit, but at most [`SPARED`] of them. Returns `None` if there are
    /// no entries.
    fn evict(&mut self) -> Option<EntryName> {
        if self.len == 0 {
            return None;
        }
        let mut spared = 0;
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            self.circles = self.circles.wrapping_add(u32::from(self.hand == 0));
            let slot = &mut self.slots[self.hand];
            if !slot.is_taken {
                continue;
            }
            if slot.is_used && spared < SPARED {
                slot.is_used = false;
                spared += 1;
                continue;
            }
            let name = slot.name;
            self.remove(&name);
            return Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: u8, variant: u64) -> EntryName {
        EntryName { key: [key; 16], variant }
    }

    fn facts(blocks: u32) -> EntryFacts {
        EntryFacts { blocks, ..EntryFacts::default() }
    }

    fn store(index: &mut Index, name: EntryName, blocks: u32) -> Vec<EntryName> {
        let Some(mut displaced) = index.reserve(blocks) else { return Vec::new() };
        index.release(blocks);
        displaced.extend(index.insert(name, facts(blocks)));
        displaced
    }

    #[test]
    fn entries_that_requests_use_stay_longer() {
        let mut index = Index::new(4 * BLOCK);
        for key in 0..4 {
            assert_eq!(store(&mut index, name(key, 0), 1), []);
        }
        for key in [0, 2, 3] {
            index.update(&name(key, 0), |_| {});
        }
        assert_eq!(store(&mut index, name(9, 0), 1), [name(1, 0)]);
        assert_eq!(store(&mut index, name(8, 0), 4).len(), 4);
        assert_eq!((index.len(), index.bytes()), (1, 4 * BLOCK));
        assert!(index.reserve(5).is_none(), "larger than the disk");
    }

    #[test]
    fn a_resource_has_at_most_32_variants() {
        let mut index = Index::new(1000 * BLOCK);
        for variant in 0..40 {
            let displaced = store(&mut index, name(1, variant), 1);
            let expected = (variant >= 32).then(|| name(1, variant - 32));
            assert_eq!(displaced, Vec::from_iter(expected));
        }
        let variants = index.variants(&[1; 16]);
        assert_eq!(variants.len(), 32);
        assert_eq!(variants[0].0, name(1, 39), "the newest is first");
    }

    /// Compares the list with a simple model, over many changes in a fixed pseudorandom order.
    #[test]
    fn the_list_agrees_with_a_model() {
        let mut index = Index::new(64 * BLOCK);
        let mut model: Vec<(EntryName, u32)> = Vec::new();
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let name = name(random(20) as u8, random(4));
            match random(4) {
                0 => {
                    let existed = model.iter().any(|(other, _)| *other == name);
                    assert_eq!(index.remove(&name), existed);
                    model.retain(|(other, _)| *other != name);
                }
                1 => index.update(&name, |_| {}),
                _ => {
                    let blocks = 1 + random(9) as u32;
                    let displaced = store(&mut index, name, blocks);
                    model.retain(|(other, _)| !displaced.contains(other) && *other != name);
                    model.push((name, blocks));
                }
            }
            let blocks: u64 = model.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
            assert_eq!((index.len(), index.bytes()), (model.len(), blocks * BLOCK));
            assert!(index.bytes() <= 64 * BLOCK);
            for (name, blocks) in &model {
                assert_eq!(index.facts(name), Some(facts(*blocks)));
                let members = index.in_group(&Group::Plain([name.key[0]; 8])).unwrap();
                assert_eq!(members, [name.key]);
            }
            assert_eq!(index.by_own.len(), index.newest.len());
        }
    }
}
