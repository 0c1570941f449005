//! Fields of a message in an arena: all names and values are ranges of one buffer.
//!
//! HTTP/2 heads are decoded directly into the arena, and replies are built in it. `clear` keeps
//! both allocations, so a connection that reuses its heads allocates nothing per message.
//!
//! The rules about allowed fields are in `http1` and `http2::head`.

use crate::Span;
use crate::http1::{KnownField, position};

/// Field of a [`Fields`] arena. The spans have a meaning only together with that arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position of the name.
    pub name: Span,
    /// Position of the value.
    pub value: Span,
    /// Known field name, or [`KnownField::Other`].
    pub known: KnownField,
    /// True if compressors must not store the value (RFC 7541 section 7.1.3).
    pub sensitive: bool,
}

/// Field with the bytes of its name and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRef<'a> {
    /// The name with its original case.
    pub name: &'a [u8],
    /// The value without surrounding white space.
    pub value: &'a [u8],
    /// Known field name, or [`KnownField::Other`].
    pub known: KnownField,
    /// True if compressors must not store the value (RFC 7541 section 7.1.3).
    pub sensitive: bool,
}

/// Fields of a message in their order. One buffer contains the bytes of all names and values.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Fields {
    /// Creates an empty arena without allocations.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), entries: Vec::new() }
    }

    /// Appends a field and finds its known name. The caller guarantees that `name` and `value` are
    /// valid.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_known(KnownField::of(name), name, value);
    }

    /// Appends a field whose known name the caller has found.
    pub fn push_known(&mut self, known: KnownField, name: &[u8], value: &[u8]) {
        let name = self.append(name);
        let value = self.append(value);
        self.entries.push(Entry { name, value, known, sensitive: false });
    }

    /// Appends a field. `joined` contains the field's name, which has `name_len` bytes, directly
    /// followed by the value.
    pub(crate) fn push_joined(&mut self, known: KnownField, joined: &[u8], name_len: usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(joined);
        let name = Span::new(start, start + name_len);
        let value = Span::new(start + name_len, start + joined.len());
        self.entries.push(Entry { name, value, known, sensitive: false });
    }

    /// Appends a field with a numeric value.
    pub fn push_number(&mut self, name: &[u8], value: u64) {
        let known = KnownField::of(name);
        let name = self.append(name);
        let start = self.bytes.len();
        crate::http1::encode::decimal(&mut self.bytes, value);
        let value = Span::new(start, self.bytes.len());
        self.entries.push(Entry { name, value, known, sensitive: false });
    }

    /// Appends bytes that do not belong to a field yet, and returns their position.
    pub fn append(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, self.bytes.len())
    }

    /// Removes all fields, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Removes the fields for which `keep` returns false. Their bytes remain until [`Self::clear`].
    pub fn retain(&mut self, mut keep: impl FnMut(FieldRef) -> bool) {
        let bytes = &self.bytes;
        self.entries.retain(|entry| keep(entry.of(bytes)));
    }

    /// Returns the fields in order.
    pub fn iter(&self) -> Iter<'_> {
        self.into_iter()
    }

    /// Returns the value of the first field with this known name, or `None`.
    pub fn value(&self, known: KnownField) -> Option<&[u8]> {
        let entry = self.entries.iter().find(|entry| entry.known == known)?;
        Some(entry.value.of(&self.bytes))
    }

    /// Returns the value of the first field with this name in any case, or `None`.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let named = |entry: &&Entry| entry.name.of(&self.bytes).eq_ignore_ascii_case(name);
        self.entries.iter().find(named).map(|entry| entry.value.of(&self.bytes))
    }

    /// Returns the values of all fields with this name, ignoring case.
    pub fn get_all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let named = move |entry: &&Entry| entry.name.of(&self.bytes).eq_ignore_ascii_case(name);
        self.entries.iter().filter(named).map(|entry| entry.value.of(&self.bytes))
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is no field.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the buffer to which the spans refer.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the entries in the order of the fields.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the number of allocated bytes.
    pub fn allocated(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Returns the buffer, for a decoder that appends to it directly.
    pub(crate) fn arena(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a field whose name and value are already in the buffer.
    pub(crate) fn push_entry(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Joins the values of all fields with this name into the first of these fields, and removes
    /// the others.
    pub(crate) fn join(&mut self, name: &[u8], separator: &[u8]) {
        let start = self.bytes.len();
        for entry in &self.entries {
            if entry.name.of(&self.bytes) == name {
                if self.bytes.len() > start {
                    self.bytes.extend_from_slice(separator);
                }
                let value = entry.value.start as usize..entry.value.end as usize;
                self.bytes.extend_from_within(value);
            }
        }
        let joined = Span::new(start, self.bytes.len());
        let bytes = &self.bytes;
        let mut is_first = true;
        self.entries.retain_mut(|entry| {
            if entry.name.of(bytes) != name {
                return true;
            }
            entry.value = joined;
            std::mem::take(&mut is_first)
        });
    }

    /// Removes the first `count` entries. Their bytes remain, because other spans may refer to
    /// them.
    pub(crate) fn drop_first(&mut self, count: usize) {
        self.entries.drain(..count);
    }
}

impl<'a> IntoIterator for &'a Fields {
    type Item = FieldRef<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        Iter { bytes: &self.bytes, entries: self.entries.iter() }
    }
}

/// Iterator over the fields of an arena.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    bytes: &'a [u8],
    entries: std::slice::Iter<'a, Entry>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = FieldRef<'a>;

    fn next(&mut self) -> Option<FieldRef<'a>> {
        self.entries.next().map(|entry| entry.of(self.bytes))
    }
}

/// Returns the fields of `lines`. Each line must end with CRLF. Lines that are not fields are
/// skipped.
pub fn of_lines(lines: &[u8]) -> impl Iterator<Item = FieldRef<'_>> {
    let mut rest = lines;
    let next_line = move || {
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        rest.split_off(..end).filter(|line| !line.is_empty())
    };
    std::iter::from_fn(next_line).filter_map(|line| {
        let colon = position(b':', line)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        Some(FieldRef { name, value, known: KnownField::of(name), sensitive: false })
    })
}

impl Entry {
    /// Returns the name and value of this entry. `bytes` is the buffer of the [`Fields`] that
    /// contain the entry.
    pub fn of(self, bytes: &[u8]) -> FieldRef<'_> {
        FieldRef {
            name: self.name.of(bytes),
            value: self.value.of(bytes),
            known: self.known,
            sensitive: self.sensitive,
        }
    }
}

impl<'a> Extend<(&'a [u8], &'a [u8])> for Fields {
    fn extend<T: IntoIterator<Item = (&'a [u8], &'a [u8])>>(&mut self, fields: T) {
        for (name, value) in fields {
            self.push(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Fields {
        let mut fields = Fields::new();
        fields.push(b"Content-Type", b"text/html");
        fields.push(b"x-a", b"1");
        fields.push(b"X-A", b"");
        fields.push_number(b"Content-Length", 1_234);
        fields
    }

    #[test]
    fn fields_are_found_by_name_in_any_case_and_by_kind() {
        let fields = sample();
        assert_eq!(fields.get(b"CONTENT-TYPE"), Some(&b"text/html"[..]));
        assert_eq!(fields.get_all(b"x-A").collect::<Vec<_>>(), [&b"1"[..], b""]);
        assert_eq!(fields.get(b"x-b"), None);
        assert_eq!(fields.value(KnownField::ContentLength), Some(&b"1234"[..]));
        let names: Vec<_> = fields.iter().map(|field| field.name).collect();
        assert_eq!(names, [&b"Content-Type"[..], b"x-a", b"X-A", b"Content-Length"]);
    }

    #[test]
    fn a_cleared_arena_is_filled_again_without_allocation() {
        let mut fields = sample();
        let allocated = fields.allocated();
        for _ in 0..100 {
            fields.clear();
            assert!(fields.is_empty());
            fields.extend(sample().iter().map(|field| (field.name, field.value)));
            assert_eq!(fields.len(), 4);
        }
        assert_eq!(fields.allocated(), allocated);
    }

    #[test]
    fn dropped_fields_leave_the_others_in_order() {
        let mut fields = sample();
        fields.retain(|field| !field.name.eq_ignore_ascii_case(b"x-a"));
        assert_eq!(fields.len(), 2);
        assert_eq!(fields.get(b"content-length"), Some(&b"1234"[..]));
    }
}
