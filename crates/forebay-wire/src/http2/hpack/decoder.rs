//! Decoder of header blocks (RFC 7541 sections 3 and 6).

use super::table::{self, DynamicTable, ENTRIES, Entry, Flaw};
use super::{DEFAULT_TABLE, ENTRY_OVERHEAD, HpackError, huffman};
use crate::Span;
use crate::fields::{Entry as Field, Fields};
use crate::http1::{KnownField, has_mark, is_field_value};

/// Limits of the fields that one block may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    /// Maximum total size in bytes: all names and values, and 32 bytes per field (RFC 9113
    /// section 6.5.2).
    pub size: usize,
    /// Maximum number of fields. Pseudo-fields do not count, and all `cookie` fields count as one:
    /// clients split a cookie into a field for each of its pairs (RFC 9113 section 8.2.3).
    pub fields: usize,
}

/// Result of decoding a block, in addition to the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// First violation in a field, or [`Flaw::None`].
    pub flaw: Flaw,
    /// True if the block exceeds a limit. The first field above the limit and all later fields are
    /// missing.
    pub too_large: bool,
    /// True if the name of a field contains a mark other than a hyphen, such as `_`. Known names
    /// and pseudo-fields do not count.
    pub has_marks: bool,
    /// Size of the fields, as in [`ListLimits::size`].
    pub size: usize,
}

/// Decoder of the header blocks that one side of a connection receives. Each block must be decoded
/// once, in the order of arrival.
#[derive(Clone, Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// Maximum table size that our acknowledged settings allow.
    allowed: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { table: DynamicTable::new(DEFAULT_TABLE), allowed: DEFAULT_TABLE }
    }
}

impl Decoder {
    /// Sets the maximum table size that our settings allow. The caller calls this function when the
    /// peer has acknowledged the settings. If the table is larger than `allowed`, the peer's next
    /// block must reduce it first (section 4.2).
    pub fn set_allowed(&mut self, allowed: usize) {
        self.allowed = allowed;
    }

    /// Decodes a complete block and appends its fields to `fields`.
    ///
    /// A block that exceeds a limit is decoded to its end, because the dynamic tables of both sides
    /// must stay equal. Fails only if the block breaks a rule of HPACK.
    pub fn decode(
        &mut self,
        block: &[u8],
        limits: ListLimits,
        fields: &mut Fields,
    ) -> Result<Decoded, HpackError> {
        let mut rest = self.size_updates(block)?;
        let mut list = List::new(limits, fields);
        while let Some(&first) = rest.first() {
            match first {
                0x80.. => {
                    let index = super::decode_integer(&mut rest, 7)?;
                    self.indexed(index, &mut list)?;
                }
                0x40.. => {
                    let name = super::decode_integer(&mut rest, 6)?;
                    let literal = self.literal(name, &mut rest, &mut list)?;
                    self.insert(&literal, &list);
                    list.push(literal, false);
                }
                0x20.. => return Err(HpackError::TableUpdate),
                _ => {
                    let name = super::decode_integer(&mut rest, 4)?;
                    let literal = self.literal(name, &mut rest, &mut list)?;
                    list.push(literal, first & 0x10 != 0);
                }
            }
        }
        Ok(list.finish())
    }

    /// Frees unused memory of the table.
    pub fn shrink(&mut self) {
        self.table.shrink();
    }

    /// Returns the number of allocated bytes.
    pub fn allocated(&self) -> usize {
        self.table.allocated()
    }

    /// Reads the table size updates at the start of a block, and returns the rest of the block. A
    /// block contains at most two updates, and the first one has the smaller size (section 4.2).
    /// Returns an error if an update is missing or too large.
    fn size_updates<'a>(&mut self, block: &'a [u8]) -> Result<&'a [u8], HpackError> {
        let mut rest = block;
        for _ in 0..2 {
            let Some(0x20..0x40) = rest.first() else { break };
            let size = super::decode_integer(&mut rest, 5)?;
            if size > self.allowed {
                return Err(HpackError::TableSize);
            }
            self.table.set_limit(size);
        }
        if self.table.limit() > self.allowed {
            return Err(HpackError::MissingUpdate);
        }
        Ok(rest)
    }

    /// Appends the field with this index, from the static or the dynamic table.
    fn indexed(&self, index: usize, list: &mut List) -> Result<(), HpackError> {
        let Some(place) = index.checked_sub(1) else { return Err(HpackError::Index) };
        if let Some((name, value)) = ENTRIES.get(place) {
            if list.has_room(name, value.len()) {
                list.fields.push_known(table::KNOWN[place], name, value);
            }
            return Ok(());
        }
        let found = self.table.joined(place - table::LEN);
        let (entry, joined) = found.ok_or(HpackError::Index)?;
        let (name, value) = joined.split_at(entry.name_len());
        if list.has_room(name, value.len()) {
            list.flaw(entry.flaw);
            list.found.has_marks |= entry.has_mark;
            list.fields.push_joined(entry.known, joined, entry.name_len());
        }
        Ok(())
    }

    /// Appends the name and the value of a literal to the bytes of `list.fields`. `name` is the
    /// index of the name, or 0 for a name in the block.
    fn literal(
        &self,
        name: usize,
        rest: &mut &[u8],
        list: &mut List,
    ) -> Result<Literal, HpackError> {
        let arena = list.fields.arena();
        let start = arena.len();
        let (mut flaw, mut has_mark) = (Flaw::None, false);
        let known = if name == 0 {
            string(rest, 7, arena)?;
            if !is_name(&arena[start..]) {
                flaw = Flaw::Name;
            }
            let known = KnownField::of(&arena[start..]);
            has_mark = is_marked(known, &arena[start..]);
            known
        } else if let Some((static_name, _)) = ENTRIES.get(name - 1) {
            arena.extend_from_slice(static_name);
            table::KNOWN[name - 1]
        } else {
            let found = self.table.get(name - 1 - table::LEN);
            let (entry, name, _) = found.ok_or(HpackError::Index)?;
            arena.extend_from_slice(name);
            if entry.flaw == Flaw::Name {
                flaw = Flaw::Name;
            }
            has_mark = entry.has_mark;
            entry.known
        };
        let middle = arena.len();
        string(rest, 7, arena)?;
        if flaw == Flaw::None && !is_value(&arena[middle..]) {
            flaw = Flaw::Value;
        }
        let end = arena.len();
        let (name, value) = (Span::new(start, middle), Span::new(middle, end));
        Ok(Literal { name, value, known, flaw, has_mark })
    }

    fn insert(&mut self, literal: &Literal, list: &List) {
        let bytes = list.fields.bytes();
        let (name, value) = (literal.name.of(bytes), literal.value.of(bytes));
        let mut entry = Entry::new(name, value);
        entry.known = literal.known;
        entry.flaw = literal.flaw;
        entry.has_mark = literal.has_mark;
        self.table.insert(name, value, entry);
    }
}

/// Field whose name and value are at the end of the bytes of `Fields`.
pub(crate) struct Literal {
    pub name: Span,
    pub value: Span,
    pub known: KnownField,
    pub flaw: Flaw,
    /// Result of [`is_marked`] for the name.
    pub has_mark: bool,
}

/// Returns true if the name of a field contains a mark other than a hyphen. A pseudo-field has no
/// mark.
// The dynamic table stores the result with each entry, so that references to an entry need no
// further check of the name.
pub(crate) fn is_marked(known: KnownField, name: &[u8]) -> bool {
    known == KnownField::Other && name.first() != Some(&b':') && has_mark(name)
}

/// Fields of a block that are decoded so far, and the remaining limits.
pub(crate) struct List<'a> {
    pub fields: &'a mut Fields,
    size: usize,
    room: usize,
    left: usize,
    /// True if a `cookie` field has been counted.
    has_cookie: bool,
    found: Decoded,
}

/// How the fields of a name count against [`ListLimits::fields`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Pseudo-fields.
    Never,
    /// `cookie`, whose fields are the pieces of one field.
    Once,
    Always,
}

impl Counted {
    fn of(name: &[u8]) -> Self {
        match name {
            [b':', ..] => Self::Never,
            b"cookie" => Self::Once,
            _ => Self::Always,
        }
    }
}

impl<'a> List<'a> {
    pub fn new(limits: ListLimits, fields: &'a mut Fields) -> Self {
        let ListLimits { size, fields: left } = limits;
        Self { fields, size, room: size, left, has_cookie: false, found: Decoded::default() }
    }

    /// Returns the result after the last field.
    pub fn finish(self) -> Decoded {
        Decoded { size: self.size - self.room, ..self.found }
    }

    /// Counts a field. Returns false if this field or an earlier one exceeds a limit.
    pub fn has_room(&mut self, name: &[u8], value: usize) -> bool {
        let kind = Counted::of(name);
        self.count(kind, name.len() + value)
    }

    fn count(&mut self, kind: Counted, bytes: usize) -> bool {
        let size = bytes + ENTRY_OVERHEAD;
        let counts = match kind {
            Counted::Never => 0,
            Counted::Once => usize::from(!self.has_cookie),
            Counted::Always => 1,
        };
        // Later fields are also rejected, so that the result is a prefix of the list.
        if self.found.too_large || counts > self.left || size > self.room {
            self.found.too_large = true;
            return false;
        }
        self.has_cookie |= kind == Counted::Once;
        self.left -= counts;
        self.room -= size;
        true
    }

    fn flaw(&mut self, flaw: Flaw) {
        if self.found.flaw == Flaw::None {
            self.found.flaw = flaw;
        }
    }

    pub fn push(&mut self, literal: Literal, sensitive: bool) {
        let Literal { name, value, known, flaw, has_mark } = literal;
        let kind = Counted::of(&self.fields.arena()[name.start as usize..name.end as usize]);
        if self.count(kind, name.len() + value.len()) {
            self.flaw(flaw);
            self.found.has_marks |= has_mark;
            self.fields.push_entry(Field { name, value, known, sensitive });
        } else {
            self.fields.arena().truncate(name.start as usize);
        }
    }
}

/// Decodes a string literal (section 5.2), whose length has a prefix of `bits` bits. Appends the
/// string to `out`.
pub(crate) fn string(rest: &mut &[u8], bits: u32, out: &mut Vec<u8>) -> Result<(), HpackError> {
    let is_huffman = rest.first().is_some_and(|byte| byte & (1 << bits) != 0);
    let length = super::decode_integer(rest, bits)?;
    let (bytes, behind) = rest.split_at_checked(length).ok_or(HpackError::Truncated)?;
    *rest = behind;
    if is_huffman {
        return huffman::decode(bytes, out);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// True for each `tchar` (RFC 9110 section 5.6.2) that is not an upper-case letter.
static LOWER_TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = crate::http1::TOKEN[byte] && !(byte as u8).is_ascii_uppercase();
        byte += 1;
    }
    table
};

/// Returns true if `name` is a lower-case token. A colon may precede the token.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let token = name.strip_prefix(b":").unwrap_or(name);
    !token.is_empty() && token.iter().all(|&byte| LOWER_TOKEN[byte as usize])
}

/// Returns true if `value` is a field value without surrounding white space (RFC 9113 section
/// 8.2.1).
pub(crate) fn is_value(value: &[u8]) -> bool {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let is_padded = value.first().is_some_and(is_space) || value.last().is_some_and(is_space);
    !is_padded && is_field_value(value)
}
