//! Fields of a message in one arena: names and values as ranges of one buffer.
//!
//! HTTP/2 heads are decoded straight into it, replies are built in it. Clearing keeps both
//! allocations, so a connection that reuses its heads allocates nothing per message.
//!
//! What is not here: which fields a message may have (`http1`, `http2::head`).

use crate::Span;
use crate::http1::KnownField;

/// One field of an arena. Only meaningful together with the [`Fields`] that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the name lies.
    pub name: Span,
    /// Where the value lies.
    pub value: Span,
    /// Which of the names that the gateway must understand it is.
    pub known: KnownField,
    /// Compressors must not remember the value (RFC 7541 section 7.1.3).
    pub sensitive: bool,
}

/// A field as the reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRef<'a> {
    /// The name, case kept.
    pub name: &'a [u8],
    /// The value without surrounding white space.
    pub value: &'a [u8],
    /// Which of the names that the gateway must understand it is.
    pub known: KnownField,
    /// Compressors must not remember the value (RFC 7541 section 7.1.3).
    pub sensitive: bool,
}

/// Fields in order, in an arena of bytes and spans.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Fields {
    /// No fields, and nothing allocated.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), entries: Vec::new() }
    }

    /// Appends a field; its name is classified. The caller vouches for both being valid.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_known(KnownField::of(name), name, value);
    }

    /// Appends a field whose name the caller has classified.
    pub fn push_known(&mut self, known: KnownField, name: &[u8], value: &[u8]) {
        let name = self.append(name);
        let value = self.append(value);
        self.entries.push(Entry { name, value, known, sensitive: false });
    }

    /// Appends a field whose name and value lie one behind the other in `joined`.
    pub(crate) fn push_joined(&mut self, known: KnownField, joined: &[u8], name_len: usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(joined);
        let name = Span::new(start, start + name_len);
        let value = Span::new(start + name_len, start + joined.len());
        self.entries.push(Entry { name, value, known, sensitive: false });
    }

    /// Appends a field with a number as its value.
    pub fn push_number(&mut self, name: &[u8], value: u64) {
        let known = KnownField::of(name);
        let name = self.append(name);
        let start = self.bytes.len();
        crate::http1::encode::decimal(&mut self.bytes, value);
        let value = Span::new(start, self.bytes.len());
        self.entries.push(Entry { name, value, known, sensitive: false });
    }

    /// Appends bytes that no field names yet, and gives their place.
    pub fn append(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, self.bytes.len())
    }

    /// Forgets all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Drops the fields for which `keep` is false. Their bytes stay until [`Self::clear`].
    pub fn retain(&mut self, mut keep: impl FnMut(FieldRef) -> bool) {
        let bytes = &self.bytes;
        self.entries.retain(|entry| keep(entry.of(bytes)));
    }

    /// The fields in order.
    pub fn iter(&self) -> Iter<'_> {
        self.into_iter()
    }

    /// The first field of this kind.
    pub fn value(&self, known: KnownField) -> Option<&[u8]> {
        let entry = self.entries.iter().find(|entry| entry.known == known)?;
        Some(entry.value.of(&self.bytes))
    }

    /// The value of the first field with this name, whatever its case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let named = |entry: &&Entry| entry.name.of(&self.bytes).eq_ignore_ascii_case(name);
        self.entries.iter().find(named).map(|entry| entry.value.of(&self.bytes))
    }

    /// The values of all fields with this name, whatever its case.
    pub fn get_all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let named = move |entry: &&Entry| entry.name.of(&self.bytes).eq_ignore_ascii_case(name);
        self.entries.iter().filter(named).map(|entry| entry.value.of(&self.bytes))
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The arena that spans are ranges of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The entries in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes allocated.
    pub fn allocated(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// The arena, for a decoder that writes in place.
    pub(crate) fn arena(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Names as a field what already lies in the arena.
    pub(crate) fn push_entry(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Makes all fields of this name one, in the place of the first, their values joined.
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

    /// Drops the first `count` entries, whose bytes stay named by other spans.
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

/// The fields of an arena in order.
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

/// The fields of `lines`, each of which ends in CRLF. What is no field line is left out.
pub fn of_lines(lines: &[u8]) -> impl Iterator<Item = FieldRef<'_>> {
    lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        Some(FieldRef { name, value, known: KnownField::of(name), sensitive: false })
    })
}

impl Entry {
    /// The field in its arena.
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
