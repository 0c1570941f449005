//! Finds fields whose names are disguises of other names.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use super::chars::has_mark;
use super::claims::is_claim;
use super::{Field, KnownField, RequestHead};

/// Maximum number of different names in a table. It is above the default limit on fields of a head.
/// Each further name is compared with all fields.
const MOST: usize = 128;

/// Number of bytes of a name that are compared with known fields and claims. All of these names are
/// shorter. The beginning of a longer name is enough to recognize `X-Forwarded-`.
const LONGEST: usize = 32;

/// Table of the names of a head. It finds names with marks that are disguises of other names. A
/// mark is a byte other than a letter, a digit or a hyphen.
///
/// CGI and its successors (PSGI, WSGI, Rack) may replace each mark and each hyphen with `_`. These
/// programs would mistake a field with marks in its name for another field. The other field is in
/// the same head, or is one that a gateway writes or must understand.
// A client chooses the number of marked names. Without the table, the comparison of each name with
// all others would take quadratic time.
pub struct Disguises<'h> {
    fields: &'h [Field],
    bytes: &'h [u8],
    names: [Name; MOST],
    count: usize,
    /// False if the head has more names than the table.
    is_whole: bool,
}

/// Spellings of a name that CGI programs cannot distinguish, such as `X_A` and `x-a`.
#[derive(Clone, Copy, Default)]
struct Name {
    hash: u64,
    /// Position of the first field with one of these spellings.
    first: usize,
    /// True if the spellings in the head differ in more than case.
    is_disguised: bool,
}

impl<'h> Disguises<'h> {
    /// Returns the table of a head, or `None` if no name has a mark. The caller should not move the
    /// result, because each move copies 3 KB, even if the result is `None`.
    pub fn of(head: &'h RequestHead, bytes: &'h [u8]) -> Option<Self> {
        if head.has_marks { Some(Self::new(&head.fields, bytes)) } else { None }
    }

    // Few requests need a table, so the compiler must not inline this code into the callers.
    #[cold]
    #[inline(never)]
    fn new(fields: &'h [Field], bytes: &'h [u8]) -> Self {
        let names = [Name::default(); MOST];
        let mut table = Self { fields, bytes, names, count: 0, is_whole: true };
        for (at, field) in fields.iter().enumerate() {
            let name = field.name.of(bytes);
            let hash = hash(name);
            match table.find(name, hash) {
                Some(known) => {
                    let first = fields[table.names[known].first].name.of(bytes);
                    table.names[known].is_disguised |= !first.eq_ignore_ascii_case(name);
                }
                None if table.count < MOST => {
                    table.names[table.count] = Name { hash, first: at, is_disguised: false };
                    table.count += 1;
                }
                None => table.is_whole = false,
            }
        }
        table
    }

    /// Returns true if the name of `field` is a disguise of another name. An example is `X_Real_IP`
    /// instead of `X-Real-IP`. `field` is one of the head's fields.
    pub fn have(&self, field: &Field) -> bool {
        let name = field.name.of(self.bytes);
        if field.known != KnownField::Other || !has_mark(name) {
            return false;
        }
        let mut meant = [0; LONGEST];
        meant.iter_mut().zip(name).for_each(|(to, byte)| *to = fold(*byte));
        let meant = &meant[..name.len().min(LONGEST)];
        if KnownField::of(meant) != KnownField::Other || is_claim(meant) {
            return true;
        }
        match self.find(name, hash(name)) {
            Some(known) => self.names[known].is_disguised,
            None => !self.is_whole && self.fields.iter().any(|other| self.are_alike(other, name)),
        }
    }

    /// Looks up the entry whose spellings CGI programs cannot distinguish from `name`. Returns its
    /// position in the table, or `None` if there is no such entry.
    fn find(&self, name: &[u8], hash: u64) -> Option<usize> {
        self.names[..self.count].iter().position(|known| {
            known.hash == hash && means_same(self.fields[known.first].name.of(self.bytes), name)
        })
    }

    /// Returns true if `name` and the name of `other` differ in more than case, but CGI programs
    /// cannot distinguish them.
    fn are_alike(&self, other: &Field, name: &[u8]) -> bool {
        let other = other.name.of(self.bytes);
        means_same(other, name) && !other.eq_ignore_ascii_case(name)
    }
}

/// Returns true if the names differ at most in case and in marks. CGI programs cannot distinguish
/// such names.
fn means_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().map(|&b| fold(b)).eq(other.iter().map(|&b| fold(b)))
}

/// Returns a hash that is equal for names that differ only in case and in marks. The key of the
/// hash is random, so that no client can choose other names with equal hashes.
fn hash(name: &[u8]) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    let mut hasher = KEY.get_or_init(RandomState::new).build_hasher();
    let mut folded = [0; LONGEST];
    for part in name.chunks(LONGEST) {
        folded.iter_mut().zip(part).for_each(|(to, byte)| *to = fold(*byte));
        hasher.write(&folded[..part.len()]);
    }
    hasher.finish()
}

/// Returns a letter in lower case, a digit unchanged, and a hyphen for any other byte.
fn fold(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{Http1Limits, RequestParser};

    fn head(fields: &str) -> (Vec<u8>, RequestHead) {
        let raw = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        let limits = Http1Limits { fields: 1000, head: 100_000, ..Http1Limits::default() };
        RequestParser::new(limits).parse(&raw, &mut head).unwrap();
        (raw, head)
    }

    fn found(fields: &str) -> Vec<bool> {
        let (raw, head) = head(fields);
        let disguises = Disguises::of(&head, &raw).unwrap();
        head.fields[1..].iter().map(|field| disguises.have(field)).collect()
    }

    #[test]
    fn names_that_fold_onto_others_are_disguised() {
        let found = found(
            "X_Forwarded_For: 1\r\nx.real.ip: 1\r\nX-Forwarded_Ssl: 1\r\nAccept_Encoding: 1\r\n\
             X_Own: 1\r\nX-Own: 1\r\nX-Plain: 1\r\nX_Api_Key: 1\r\nX_Two: 1\r\nx.two: 2\r\n\
             X_Same: 1\r\nx_same: 2\r\n",
        );
        let expected =
            [true, true, true, true, true, false, false, false, true, true, false, false];
        assert_eq!(found, expected);
        let (raw, plain) = head("X-Own: 1\r\n");
        assert!(Disguises::of(&plain, &raw).is_none());
    }

    #[test]
    fn long_names_are_compared_whole() {
        let long = "a".repeat(100);
        let name = |start: &str, end: &str| format!("{start}{long}{end}: 1\r\n");
        let fields = [
            name("X_", "b"),
            name("X-", "b"),
            name("X_", "c"),
            name("X-", "d"),
            name("X_Forwarded_", ""),
        ];
        assert_eq!(found(&fields.concat()), [true, false, false, false, true]);
    }

    #[test]
    fn any_number_of_marked_names_is_judged_as_if_each_were_compared_with_each() {
        // (names that differ, spellings of each)
        for (names, spellings) in
            [(1, 1), (1, 100), (50, 2), (100, 1), (130, 1), (150, 2), (400, 1)]
        {
            let name = |n: usize, spelling: usize| {
                let marks = ["_", ".", "-", "~"];
                format!("X{}Name{}{n}: 1\r\n", marks[spelling % 4], marks[spelling / 4 % 4])
            };
            let all = (0..names).flat_map(|n| (0..spellings).map(move |spelling| (n, spelling)));
            let fields: String = all.map(|(n, spelling)| name(n, spelling)).collect();
            let (raw, head) = head(&fields);
            let disguises = Disguises::of(&head, &raw).unwrap();
            for field in &head.fields {
                let name = field.name.of(&raw);
                let is_marked = field.known == KnownField::Other && has_mark(name);
                let expected =
                    is_marked && head.fields.iter().any(|other| disguises.are_alike(other, name));
                assert_eq!(disguises.have(field), expected, "{names} {spellings} {name:?}");
            }
        }
    }
}
