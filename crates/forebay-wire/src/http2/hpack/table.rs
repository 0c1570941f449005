//! The dynamic table (RFC 7541 sections 2.3.2 and 4). The encoder and the decoder both use it.

use std::collections::VecDeque;

use crate::http1::KnownField;

use super::ENTRY_OVERHEAD;

/// Violation in a field that the decoder found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flaw {
    /// No violation.
    #[default]
    None,
    /// The name contains upper case, or a byte that no lower-case token contains.
    Name,
    /// The value contains a control byte, or white space at either end.
    Value,
}

/// Data of an entry in addition to its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Offset of the name in the sequence of all bytes ever inserted. The value follows the name.
    start: u32,
    name_len: u32,
    value_len: u32,
    /// Known field name, for the decoder only.
    pub known: KnownField,
    /// Violation in the entry, for the decoder. The decoder stores it, so that each string is
    /// checked only once.
    pub flaw: Flaw,
    /// True if the name contains a mark, for the decoder; see `Decoded::has_marks`.
    pub has_mark: bool,
    /// Hash of name and value, for the encoder.
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

/// Dynamic table, which evicts the oldest entries. The sum of all sizes never exceeds `limit`.
#[derive(Clone, Debug)]
pub(super) struct DynamicTable {
    /// Bytes of the entries in the order of insertion. Bytes of evicted entries may precede them.
    bytes: Vec<u8>,
    /// Offset of `bytes[0]` in the sequence of all inserted bytes, as in `Entry::start`.
    base: u32,
    /// Entries in the order of insertion: the newest entry is the last.
    entries: VecDeque<Entry>,
    /// Number of insertions so far.
    inserted: u32,
    size: usize,
    limit: usize,
}

impl DynamicTable {
    pub fn new(limit: usize) -> Self {
        let (bytes, entries) = (Vec::new(), VecDeque::new());
        Self { bytes, base: 0, entries, inserted: 0, size: 0, limit }
    }

    /// Changes the limit, and evicts entries that no longer fit.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict_to(limit);
    }

    /// Inserts an entry. If the entry is larger than `limit`, the table becomes empty (section
    /// 4.4).
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

    /// Returns the entry at position `place` with its name and value, or `None` if there is no such
    /// entry. The newest entry has position 0.
    pub fn get(&self, place: usize) -> Option<(&Entry, &[u8], &[u8])> {
        let (entry, joined) = self.joined(place)?;
        let (name, value) = joined.split_at_checked(entry.name_len as usize)?;
        Some((entry, name, value))
    }

    /// Returns the entry at position `place`, and its name directly followed by its value. Returns
    /// `None` if there is no such entry.
    pub fn joined(&self, place: usize) -> Option<(&Entry, &[u8])> {
        let entry = self.entries.get(self.entries.len().checked_sub(place + 1)?)?;
        let start = entry.start.wrapping_sub(self.base) as usize;
        let end = start + (entry.name_len + entry.value_len) as usize;
        Some((entry, self.bytes.get(start..end)?))
    }

    /// Returns the position of the entry with this insertion number, or `None` if it was evicted.
    pub fn place_of(&self, number: u32) -> Option<usize> {
        let age = self.inserted.wrapping_sub(number) as usize;
        (age < self.entries.len()).then_some(age)
    }

    /// Returns the insertion number of the newest entry, for [`Self::place_of`].
    pub fn newest(&self) -> u32 {
        self.inserted
    }

    /// Frees memory that no entry needs.
    pub fn shrink(&mut self) {
        self.drop_evicted();
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

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

    /// Prepares `bytes` for `needed` more bytes. If `bytes` would have to grow, and evicted entries
    /// occupy at least half of `bytes`, first removes the bytes of these entries. A removal
    /// therefore moves at most as many bytes as it removes. The capacity of `bytes` stays below
    /// four times the largest limit that the table has had.
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
    pub fn new(name: &[u8], value: &[u8]) -> Self {
        Self {
            start: 0,
            name_len: name.len() as u32,
            value_len: value.len() as u32,
            known: KnownField::Other,
            flaw: Default::default(),
            has_mark: false,
            hash: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_memory_stays_bounded() {
        let mut table = DynamicTable::new(200);
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
        let mut table = DynamicTable::new(100);
        table.insert(b"a", b"b", Entry::new(b"a", b"b"));
        table.insert(b"a", &[b'v'; 68], Entry::new(b"a", &[b'v'; 68]));
        assert_eq!((table.len(), table.size()), (0, 0));
        table.insert(b"a", &[b'v'; 67], Entry::new(b"a", &[b'v'; 67]));
        assert_eq!((table.len(), table.size()), (1, 100));
        table.set_limit(99);
        assert_eq!((table.len(), table.size()), (0, 0));
    }
}
