//! The dynamic table (RFC 7541 sections 2.3.2 and 4). The encoder and the decoder both use it.

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD;
use crate::http1::{KnownField, NAMES};

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

// The static table (RFC 7541 appendix A).

/// Number of entries. The first index is one.
pub(super) const LEN: usize = ENTRIES.len();

/// Index of the first `:status` entry. The values of the `:status` entries are in [`STATUSES`].
pub(super) const STATUS: usize = 8;

/// Status codes of the static table, in the order of the entries.
pub(super) const STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

pub(super) const ENTRIES: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Known field name of each entry, in the order of [`ENTRIES`].
pub(super) static KNOWN: [KnownField; LEN] = {
    let mut known = [KnownField::Other; LEN];
    let mut at = 0;
    while at < LEN {
        let mut place = 0;
        while place < NAMES.len() {
            if is_equal(ENTRIES[at].0, NAMES[place].0) {
                known[at] = NAMES[place].1;
            }
            place += 1;
        }
        at += 1;
    }
    known
};

const SLOTS: usize = 256;

/// Hash table that finds the index of the first entry of a name. Zero marks an empty slot.
static BY_NAME: [u8; SLOTS] = {
    let mut slots = [0; SLOTS];
    let mut at = 0;
    while at < LEN {
        let is_first = at == 0 || !is_equal(ENTRIES[at].0, ENTRIES[at - 1].0);
        if is_first {
            let mut slot = hash(0, ENTRIES[at].0) as usize % SLOTS;
            while slots[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = at as u8 + 1;
        }
        at += 1;
    }
    slots
};

/// Returns the first index of this name, or `None`. `hash` is the hash of the name with seed zero.
pub(super) fn index_of(name: &[u8], hash: u32) -> Option<usize> {
    let mut slot = hash as usize % SLOTS;
    loop {
        match BY_NAME[slot] as usize {
            0 => return None,
            index if ENTRIES[index - 1].0 == name => return Some(index),
            _ => slot = (slot + 1) % SLOTS,
        }
    }
}

/// Hashes a short string with one multiplication per eight bytes. Only our own encoder uses the
/// hash. If two hashes are equal, the encoder also compares the strings. A collision therefore
/// costs only a few bytes of compression.
pub(super) const fn hash(seed: u32, bytes: &[u8]) -> u32 {
    let mut state = (seed as u64) ^ bytes.len() as u64;
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        state = mix(state, u64::from_le_bytes(*word));
        rest = behind;
    }
    // Combine the last bytes: four to seven bytes as two overlapping words, and fewer bytes one by
    // one.
    let tail = if let (Some(a), Some(b)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        u32::from_le_bytes(*a) as u64 | (u32::from_le_bytes(*b) as u64) << 32
    } else if let [first, .., last] = rest {
        *first as u64 | (rest[rest.len() / 2] as u64) << 8 | (*last as u64) << 16
    } else if let [only] = rest {
        *only as u64
    } else {
        0
    };
    let state = mix(state, tail);
    (state >> 32) as u32 ^ state as u32
}

const fn mix(state: u64, word: u64) -> u64 {
    // This odd number contains the bits of the golden ratio's fraction.
    let product = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 29
}

const fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
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

    #[test]
    fn every_name_is_found_at_its_first_index() {
        for (name, _) in ENTRIES {
            let first = ENTRIES.iter().position(|entry| entry.0 == name).unwrap() + 1;
            assert_eq!(index_of(name, hash(0, name)), Some(first));
        }
        assert_eq!(index_of(b"x-other", hash(0, b"x-other")), None);
        assert_eq!(index_of(b"", hash(0, b"")), None);
    }

    #[test]
    fn statuses_lie_where_they_are_said_to() {
        for (at, status) in STATUSES.iter().enumerate() {
            assert_eq!(ENTRIES[STATUS - 1 + at].1, status.to_string().as_bytes());
        }
        assert_eq!(KNOWN[27], KnownField::ContentLength);
        assert_eq!(KNOWN[0], KnownField::Other);
    }
}
