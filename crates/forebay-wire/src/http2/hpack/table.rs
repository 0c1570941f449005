//! The dynamic table (RFC 7541 sections 2.3.2 and 4), the same for both directions.

use std::collections::VecDeque;

use crate::http1::KnownField;

use super::ENTRY_OVERHEAD;

/// What the table remembers of an entry beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Offset of the name in the sum of all that was ever inserted; the value follows it.
    start: u32,
    name_len: u32,
    value_len: u32,
    /// The kind of its name; the encoder has no use for it.
    pub known: KnownField,
    /// What a message may not have in it (decoder), so that each string is checked once.
    pub flaw: super::decoder::Flaw,
    /// The hash of name and value (encoder).
    pub hash: u32,
}

impl Entry {
    pub fn name_len(&self) -> usize {
        self.name_len as usize
    }

    fn size(&self) -> usize {
        self.name_len as usize + self.value_len as usize + ENTRY_OVERHEAD
    }
}

/// Entries, newest first, evicted so that their sizes never exceed `limit`.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Bytes of the entries in the order of insertion, behind some that are evicted.
    bytes: Vec<u8>,
    /// What `bytes[0]` has as offset in entries.
    base: u32,
    /// The newest is the last.
    entries: VecDeque<Entry>,
    /// How many were ever inserted.
    inserted: u32,
    size: usize,
    limit: usize,
}

impl Table {
    pub fn new(limit: usize) -> Self {
        let (bytes, entries) = (Vec::new(), VecDeque::new());
        Self { bytes, base: 0, entries, inserted: 0, size: 0, limit }
    }

    /// Changes the limit, and evicts what no longer fits.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict_to(limit);
    }

    /// Inserts an entry; one larger than the table empties it (section 4.4).
    pub fn insert(&mut self, name: &[u8], value: &[u8], mut entry: Entry) {
        let size = entry.size();
        if size > self.limit {
            self.evict_to(0);
            return;
        }
        self.evict_to(self.limit - size);
        self.make_room(name.len() + value.len());
        entry.start = self.end();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(entry);
        self.inserted = self.inserted.wrapping_add(1);
        self.size += size;
    }

    /// The entry at `place`, the newest being zero, with name and value.
    pub fn get(&self, place: usize) -> Option<(&Entry, &[u8], &[u8])> {
        let (entry, joined) = self.joined(place)?;
        let (name, value) = joined.split_at_checked(entry.name_len as usize)?;
        Some((entry, name, value))
    }

    /// The same with the value right behind the name.
    pub fn joined(&self, place: usize) -> Option<(&Entry, &[u8])> {
        let entry = self.entries.get(self.entries.len().checked_sub(place + 1)?)?;
        let start = entry.start.wrapping_sub(self.base) as usize;
        let end = start + (entry.name_len + entry.value_len) as usize;
        Some((entry, self.bytes.get(start..end)?))
    }

    /// The place of the entry inserted as the `number`th, where it is still there.
    pub fn place_of(&self, number: u32) -> Option<usize> {
        let age = self.inserted.wrapping_sub(number) as usize;
        (age < self.entries.len()).then_some(age)
    }

    /// The number that [`Self::place_of`] finds the newest entry by.
    pub fn newest(&self) -> u32 {
        self.inserted
    }

    /// Gives memory back that no entry needs.
    pub fn shrink(&mut self) {
        self.drop_evicted();
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// Bytes allocated.
    pub fn allocated(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.size
    }

    fn end(&self) -> u32 {
        self.base.wrapping_add(self.bytes.len() as u32)
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_front() else { break };
            self.size -= entry.size();
        }
    }

    /// Moves the live bytes to the front once as many are dead as alive: at most one byte is moved
    /// for each that is inserted, and no more than twice the limit is held.
    fn make_room(&mut self, needed: usize) {
        if self.bytes.len() + needed > self.bytes.capacity() {
            let live = self.size - self.entries.len() * ENTRY_OVERHEAD;
            if self.bytes.len() >= 2 * live {
                self.drop_evicted();
            }
        }
    }

    fn drop_evicted(&mut self) {
        let start = self.entries.front().map_or(self.end(), |oldest| oldest.start);
        let dead = start.wrapping_sub(self.base) as usize;
        self.bytes.drain(..dead);
        self.base = start;
    }
}

impl Entry {
    /// What to remember of a name and a value.
    pub fn new(name: &[u8], value: &[u8]) -> Self {
        Self {
            start: 0,
            name_len: name.len() as u32,
            value_len: value.len() as u32,
            known: KnownField::Other,
            flaw: Default::default(),
            hash: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_memory_stays_bounded() {
        let mut table = Table::new(200);
        for number in 0..10_000u32 {
            let name = format!("name-{number}");
            table.insert(name.as_bytes(), b"value", Entry::new(name.as_bytes(), b"value"));
            let (_, newest, value) = table.get(0).unwrap();
            assert_eq!((newest, value), (name.as_bytes(), &b"value"[..]));
            assert!(table.size() <= 200);
            assert_eq!(table.place_of(table.newest()), Some(0));
            if number > 4 {
                assert_eq!(table.len(), 4);
                let oldest = format!("name-{}", number - 3);
                assert_eq!(table.get(3).unwrap().1, oldest.as_bytes());
                assert_eq!(table.place_of(table.newest().wrapping_sub(4)), None);
            }
        }
        assert!(table.bytes.capacity() <= 400, "{}", table.bytes.capacity());
        assert!(table.get(4).is_none());
    }

    #[test]
    fn an_entry_larger_than_the_table_empties_it() {
        let mut table = Table::new(100);
        table.insert(b"a", b"b", Entry::new(b"a", b"b"));
        table.insert(b"a", &[b'v'; 68], Entry::new(b"a", &[b'v'; 68]));
        assert_eq!((table.len(), table.size()), (0, 0));
        table.insert(b"a", &[b'v'; 67], Entry::new(b"a", &[b'v'; 67]));
        assert_eq!((table.len(), table.size()), (1, 100));
        table.set_limit(99);
        assert_eq!((table.len(), table.size()), (0, 0));
    }
}
