//! Encoder of header blocks (RFC 7541 sections 4.2, 6 and 7.1).
//!
//! A field enters the dynamic table when it is sent for the second time. Paths, lengths and request
//! IDs therefore do not evict repeated fields. The encoder needs no list of names that are worth
//! storing.

use super::table::{self, DynamicTable, ENTRIES, Entry, hash};
use super::{DEFAULT_TABLE, ENTRY_OVERHEAD, huffman};
use crate::fields::FieldRef;

/// Number of slots of the hash table that finds entries.
const SLOTS: usize = 128;
/// Number of slots for hashes of fields that were sent once.
const SEEN: usize = 64;

/// Minimum length in bytes of a string that uses the Huffman code. With fewer bytes, the code would
/// save at most two bytes.
pub(crate) const HUFFMAN_FROM: usize = 8;

/// Length in bytes from which a cookie may enter a table. An attacker could guess a shorter cookie
/// byte by byte from the size of the block (RFC 7541 section 7.1.3).
const SHORT_COOKIE: usize = 20;

const INDEXED: u8 = 0x80;
const INCREMENTAL: u8 = 0x40;
const SIZE_UPDATE: u8 = 0x20;
const NEVER_INDEXED: u8 = 0x10;
const NOT_INDEXED: u8 = 0x00;

/// Encoder of the header blocks that one side of a connection sends. Blocks must be sent in the
/// order of encoding.
#[derive(Clone, Debug)]
pub struct Encoder {
    table: DynamicTable,
    /// Our own limit of the table size, in bytes.
    wanted: usize,
    /// Pending table size update for the peer: the smallest size since the last block, and the
    /// current size.
    update: Option<(usize, usize)>,
    /// For each slot, the insertion number of the newest entry with this hash of the name, or of
    /// name and value. Empty until the first block and after [`Self::shrink`].
    slots: Vec<u32>,
    /// Hashes of fields that were sent once and are not in the table.
    seen: Vec<u32>,
    /// Buffer for a name in lower case.
    lower: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new(DEFAULT_TABLE)
    }
}

impl Encoder {
    /// Creates an encoder whose table uses at most `wanted` bytes, even if the peer allows more.
    pub fn new(wanted: usize) -> Self {
        let (slots, seen, lower) = (Vec::new(), Vec::new(), Vec::new());
        let table = DynamicTable::new(DEFAULT_TABLE);
        let mut encoder = Self { table, wanted, update: None, slots, seen, lower };
        encoder.set_allowed(DEFAULT_TABLE);
        encoder
    }

    /// Sets the maximum table size that the peer's settings allow.
    pub fn set_allowed(&mut self, allowed: usize) {
        let size = allowed.min(self.wanted);
        let smallest = self.update.map_or(self.table.limit(), |(smallest, _)| smallest);
        if size != self.table.limit() || self.update.is_some() {
            self.update = Some((smallest.min(size), size));
            self.table.set_limit(size);
        }
    }

    /// Starts a block with the pending table size update, if there is one.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, size)) = self.update.take() {
            if smallest < size {
                super::encode_integer(out, smallest, 5, SIZE_UPDATE);
            }
            super::encode_integer(out, size, 5, SIZE_UPDATE);
        }
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, 0);
            self.seen.resize(SEEN, 0);
            self.find_entries_again();
        }
    }

    /// Appends a `:status` field.
    pub fn status(&mut self, out: &mut Vec<u8>, status: u16) {
        if let Some(place) = table::STATUSES.iter().position(|&known| known == status) {
            out.push(INDEXED | (table::STATUS + place) as u8);
            return;
        }
        let digit = |value: u16| b'0' + (value % 10) as u8;
        let digits = [digit(status / 100), digit(status / 10), digit(status)];
        self.pair(out, b":status", &digits);
    }

    /// Appends a field and converts its name to lower case.
    pub fn field(&mut self, out: &mut Vec<u8>, field: FieldRef) {
        let mut lower = std::mem::take(&mut self.lower);
        lower.clear();
        lower.extend_from_slice(field.name);
        lower.make_ascii_lowercase();
        self.encode(out, &lower, field.value, field.sensitive);
        self.lower = lower;
    }

    /// Appends a field with a lower-case name.
    pub fn pair(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        self.encode(out, name, value, false);
    }

    /// Frees unused memory. The entries of the table are kept.
    pub fn shrink(&mut self) {
        self.table.shrink();
        (self.slots, self.seen, self.lower) = Default::default();
    }

    /// Returns the number of allocated bytes.
    pub fn allocated(&self) -> usize {
        let hashes = (self.slots.capacity() + self.seen.capacity()) * size_of::<u32>();
        self.table.allocated() + hashes + self.lower.capacity()
    }

    /// Appends a field in its shortest form: as an index, or as a literal with or without an
    /// indexed name.
    fn encode(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], sensitive: bool) {
        let name_hash = hash(0, name);
        let whole = hash(name_hash, value);
        if let Some(place) = self.find(whole, |n, v| n == name && v == value) {
            return super::encode_integer(out, table::LEN + 1 + place, 7, INDEXED);
        }
        let fixed = table::index_of(name, name_hash);
        if let Some(index) = fixed.and_then(|index| exact(index, name, value)) {
            return super::encode_integer(out, index, 7, INDEXED);
        }
        let index = fixed.or_else(|| {
            let place = self.find(name_hash, |n, _| n == name)?;
            Some(table::LEN + 1 + place)
        });
        let (bits, pattern) = if sensitive || is_secret(name, value) {
            (4, NEVER_INDEXED)
        } else if self.repeats(whole) && name.len() + value.len() + ENTRY_OVERHEAD <= self.largest()
        {
            (6, INCREMENTAL)
        } else {
            (4, NOT_INDEXED)
        };
        super::encode_integer(out, index.unwrap_or(0), bits, pattern);
        if index.is_none() {
            string(out, name);
        }
        string(out, value);
        if pattern == INCREMENTAL {
            self.insert(name, value, name_hash, whole);
        }
    }

    /// Looks up the entry that was inserted last with this hash, and returns its position in the
    /// dynamic table. Different fields can have equal hashes, so `fits` checks the entry's name and
    /// value. Returns `None` if the entry does not fit or was evicted.
    fn find(&self, hash: u32, fits: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
        let place = self.table.place_of(self.slots[hash as usize % SLOTS])?;
        let (_, name, value) = self.table.get(place)?;
        fits(name, value).then_some(place)
    }

    /// Returns true if a field with this hash was sent recently. Also records the hash.
    fn repeats(&mut self, hash: u32) -> bool {
        std::mem::replace(&mut self.seen[hash as usize % SEEN], hash) == hash
    }

    /// Returns the maximum size of an entry. A larger entry would evict too many other entries.
    fn largest(&self) -> usize {
        self.table.limit() / 4 * 3
    }

    fn insert(&mut self, name: &[u8], value: &[u8], name_hash: u32, whole: u32) {
        let mut entry = Entry::new(name, value);
        entry.hash = whole;
        self.table.insert(name, value, entry);
        self.slots[name_hash as usize % SLOTS] = self.table.newest();
        self.slots[whole as usize % SLOTS] = self.table.newest();
    }

    fn find_entries_again(&mut self) {
        for place in (0..self.table.len()).rev() {
            let Some((entry, name, _)) = self.table.get(place) else { break };
            let number = self.table.newest().wrapping_sub(place as u32);
            self.slots[hash(0, name) as usize % SLOTS] = number;
            self.slots[entry.hash as usize % SLOTS] = number;
        }
    }
}

/// Returns the index of the static entry with this name and value, or `None` if there is no such
/// entry. `index` is the first index with this name.
fn exact(index: usize, name: &[u8], value: &[u8]) -> Option<usize> {
    let same_name = ENTRIES[index - 1..].iter().take_while(|entry| entry.0 == name);
    same_name.zip(index..).find(|(entry, _)| entry.1 == value).map(|(_, index)| index)
}

/// Returns true if no table may store the field. With a stored value, an attacker who sends other
/// fields over the connection could guess the value: a correct guess makes the block shorter.
pub(crate) fn is_secret(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"authorization" | b"proxy-authorization" | b"set-cookie" => true,
        b"cookie" => value.len() < SHORT_COOKIE,
        _ => false,
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    if text.len() >= HUFFMAN_FROM {
        let length = huffman::encoded_len(text);
        if length < text.len() {
            super::encode_integer(out, length, 7, 0x80);
            return huffman::encode(text, out);
        }
    }
    super::encode_integer(out, text.len(), 7, 0);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, ListLimits};
    use super::*;
    use crate::fields::Fields;

    const LIMITS: ListLimits = ListLimits { size: 65_536, fields: 100 };

    #[test]
    fn repeated_fields_become_one_byte_and_others_are_not_stored() {
        let mut encoder = Encoder::default();
        let mut sizes = Vec::new();
        for request in 0..4 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.pair(&mut out, b"x-kind", b"the same each time");
            sizes.push(out.len());
            encoder.pair(&mut out, b"x-id", request.to_string().as_bytes());
        }
        assert!(sizes[0] > 15 && sizes[1] > 10, "{sizes:?}");
        assert_eq!(sizes[2..], [1, 1]);
        assert_eq!(encoder.table.len(), 1);
    }

    #[test]
    fn secrets_are_never_indexed() {
        let mut encoder = Encoder::default();
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.pair(&mut out, b"authorization", b"Basic abcdefghijklmnop");
            assert_eq!(out[0] & 0xf0, NEVER_INDEXED);
            let mut fields = Fields::new();
            Decoder::default().decode(&out, LIMITS, &mut fields).unwrap();
            assert!(fields.entries()[0].sensitive);
        }
        assert_eq!(encoder.table.len(), 0);
    }

    #[test]
    fn a_shrunken_encoder_finds_its_entries_again() {
        let mut encoder = Encoder::default();
        let encode = |encoder: &mut Encoder| {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.pair(&mut out, b"x-a", b"some value that repeats");
            out.len()
        };
        for _ in 0..2 {
            encode(&mut encoder);
        }
        assert_eq!(encode(&mut encoder), 1);
        encoder.shrink();
        assert!(encoder.allocated() < 100);
        assert_eq!(encode(&mut encoder), 1);
    }

    #[test]
    fn a_smaller_table_is_announced_before_the_next_block() {
        let mut encoder = Encoder::default();
        encoder.set_allowed(0);
        encoder.set_allowed(100);
        let mut out = Vec::new();
        encoder.begin(&mut out);
        assert_eq!(out, [0x20, 0x3f, 69]);
        out.clear();
        encoder.begin(&mut out);
        assert!(out.is_empty());
    }
}
