//! Format of an entry's file.
//!
//! A file contains a preamble of 64 bytes, the body and the head. The head is last, because the
//! body of a large reply is written while it arrives. Numbers are little endian.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 7 | name and version of the format |
//! | 8 | [`USABLE`], or another value after a soft purge; no checksum covers this byte |
//! | 9 to 15 | zeros |
//! | 16 to 23 | length of the head |
//! | 24 to 31 | length of the body |
//! | 32 to 47 | checksum of the body |
//! | 48 to 63 | checksum of the rest of the preamble and of the head |

use forebay_wire::caching::{CacheControl, Freshness};

use super::super::checksum::{Checker, Checksum};
use super::super::vary::Variant;

/// Length of the preamble in bytes. The body follows it.
pub const PREAMBLE: usize = 64;
/// Maximum length of a head. The limits on reply heads are smaller.
pub const MOST_HEAD: u64 = 1 << 20;
/// Position of the byte that a soft purge changes.
pub const MARK_AT: u64 = 8;
/// Value of the byte at [`MARK_AT`] of a reply that may be fresh. Any other value makes the reply
/// stale, such as a value with one wrong bit.
pub const USABLE: u8 = 0xa5;
/// Value of the byte at [`MARK_AT`] after a soft purge.
pub const EXPIRED: u8 = 0x5a;

/// Bit of the flags that says that the head has another URL.
const OTHER_URL: u16 = 12;

const MAGIC: [u8; 8] = *b"FBCACHE1";

/// The first 64 bytes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Length of the head.
    pub head: u64,
    /// Length of the body.
    pub body: u64,
    /// Checksum of the body.
    pub body_sum: Checksum,
    head_sum: Checksum,
    /// True after a soft purge.
    pub is_expired: bool,
}

impl Preamble {
    /// Returns the preamble of an entry with this head and body.
    pub fn of(head: &[u8], body: u64, body_sum: Checksum) -> Self {
        let preamble = Self {
            head: head.len() as u64,
            body,
            body_sum,
            head_sum: Checksum::default(),
            is_expired: false,
        };
        Self { head_sum: preamble.sum_with(head), ..preamble }
    }

    /// Returns the length of the whole file.
    pub fn file_length(&self) -> u64 {
        (PREAMBLE as u64).saturating_add(self.head).saturating_add(self.body)
    }

    /// Returns true if `head` is the head that belongs to this preamble, without a changed bit.
    pub fn matches(&self, head: &[u8]) -> bool {
        self.sum_with(head) == self.head_sum
    }

    /// Returns the preamble as it is in the file.
    pub fn encode(&self) -> [u8; PREAMBLE] {
        let mut bytes = [0; PREAMBLE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[MARK_AT as usize] = if self.is_expired { EXPIRED } else { USABLE };
        bytes[16..24].copy_from_slice(&self.head.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.body.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.body_sum);
        bytes[48..].copy_from_slice(&self.head_sum);
        bytes
    }

    /// Parses a preamble. Returns `None` if the bytes are not a preamble, or if its lengths do not
    /// fit the length of the file.
    pub fn decode(bytes: &[u8], file_length: u64) -> Option<Self> {
        let bytes: &[u8; PREAMBLE] = bytes.get(..PREAMBLE)?.try_into().ok()?;
        if bytes[..8] != MAGIC || bytes[9..16] != [0; 7] {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let preamble = Self {
            head: number(16)?,
            body: number(24)?,
            body_sum: bytes[32..48].try_into().ok()?,
            head_sum: bytes[48..].try_into().ok()?,
            is_expired: bytes[MARK_AT as usize] != USABLE,
        };
        let is_whole = preamble.head <= MOST_HEAD && preamble.file_length() == file_length;
        is_whole.then_some(preamble)
    }

    fn sum_with(&self, head: &[u8]) -> Checksum {
        let mut checker = Checker::default();
        checker.update(&MAGIC);
        checker.update(&self.head.to_le_bytes());
        checker.update(&self.body.to_le_bytes());
        checker.update(&self.body_sum);
        checker.update(head);
        checker.finish()
    }
}

/// A stored reply without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryHead {
    /// Key of the resource.
    pub key: Vec<u8>,
    /// URL of the request.
    pub url: Vec<u8>,
    /// Other URL of the request; empty for most requests.
    pub other_url: Vec<u8>,
    /// Status.
    pub status: u16,
    /// Field lines.
    pub lines: Vec<u8>,
    /// Request fields that selected the reply.
    pub variant: Variant,
    /// Cache directives.
    pub control: CacheControl,
    /// Age on arrival, and lifetime.
    pub freshness: Freshness,
    /// Time of arrival, in seconds since 1970.
    pub arrived: u64,
}

impl EntryHead {
    /// Returns the head as it is in the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.key.len() + self.url.len() + self.lines.len());
        out.extend_from_slice(&self.status.to_le_bytes());
        let other = u16::from(!self.other_url.is_empty()) << OTHER_URL;
        let flags = flags(&self.control, self.freshness.is_explicit) | other;
        out.extend_from_slice(&flags.to_le_bytes());
        let control = &self.control;
        let numbers = [
            self.freshness.initial_age,
            self.freshness.lifetime,
            self.arrived,
            control.max_age.unwrap_or(0),
            control.s_maxage.unwrap_or(0),
            control.stale_while_revalidate.unwrap_or(0),
            control.stale_if_error.unwrap_or(0),
        ];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        for text in [&self.key, &self.url, &self.lines] {
            append(&mut out, text);
        }
        if !self.other_url.is_empty() {
            append(&mut out, &self.other_url);
        }
        for (name, value) in self.variant.fields() {
            append(&mut out, name.as_bytes());
            append(&mut out, value);
        }
        out
    }

    /// Parses a head. Returns `None` if the bytes are not a head.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let status = u16::from_le_bytes(take(&mut rest, 2)?.try_into().ok()?);
        let flags = u16::from_le_bytes(take(&mut rest, 2)?.try_into().ok()?);
        let mut number = || Some(u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?));
        let (initial_age, lifetime, arrived) = (number()?, number()?, number()?);
        let (max_age, s_maxage) = (number()?, number()?);
        let (while_revalidate, if_error) = (number()?, number()?);
        let (key, url, lines) = (text(&mut rest)?, text(&mut rest)?, text(&mut rest)?);
        let is = |bit: u16| flags & 1 << bit != 0;
        let other_url = if is(OTHER_URL) { text(&mut rest)? } else { Vec::new() };
        let mut fields = Vec::new();
        while !rest.is_empty() {
            fields.push((String::from_utf8(text(&mut rest)?).ok()?, text(&mut rest)?));
        }
        Some(Self {
            key,
            url,
            other_url,
            status,
            lines,
            variant: Variant::from_fields(fields),
            control: CacheControl {
                no_store: is(0),
                no_cache: is(1),
                private: is(2),
                public: is(3),
                must_revalidate: is(4),
                must_understand: is(5),
                only_if_cached: is(6),
                max_age: is(8).then_some(max_age),
                s_maxage: is(9).then_some(s_maxage),
                stale_while_revalidate: is(10).then_some(while_revalidate),
                stale_if_error: is(11).then_some(if_error),
            },
            freshness: Freshness { initial_age, lifetime, is_explicit: is(7) },
            arrived,
        })
    }
}

fn flags(control: &CacheControl, is_explicit: bool) -> u16 {
    let bits = [
        control.no_store,
        control.no_cache,
        control.private,
        control.public,
        control.must_revalidate,
        control.must_understand,
        control.only_if_cached,
        is_explicit,
        control.max_age.is_some(),
        control.s_maxage.is_some(),
        control.stale_while_revalidate.is_some(),
        control.stale_if_error.is_some(),
    ];
    bits.iter().enumerate().map(|(at, &bit)| u16::from(bit) << at).sum()
}

fn append(out: &mut Vec<u8>, text: &[u8]) {
    // Heads are limited to 1 MiB, so each length fits.
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(text);
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn text(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let length = u32::from_le_bytes(take(rest, 4)?.try_into().ok()?);
    take(rest, usize::try_from(length).ok()?).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::super::super::checksum::checksum;
    use super::*;

    fn head() -> EntryHead {
        EntryHead {
            key: b"zone\0http://h/\0".to_vec(),
            url: b"http://h/".to_vec(),
            other_url: Vec::new(),
            status: 200,
            lines: b"Vary: a, b\r\nETag: \"x\"\r\n".to_vec(),
            variant: Variant::from_fields(vec![
                ("a".to_owned(), b"1".to_vec()),
                ("b".to_owned(), Vec::new()),
            ]),
            control: CacheControl {
                public: true,
                s_maxage: Some(7),
                stale_if_error: Some(0),
                ..CacheControl::default()
            },
            freshness: Freshness { initial_age: 1, lifetime: u64::MAX, is_explicit: true },
            arrived: 1_000_000_000,
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for other_url in ["", "http://h/index.php"] {
            let head = EntryHead { other_url: other_url.into(), ..head() };
            let bytes = head.encode();
            assert_eq!(EntryHead::decode(&bytes).as_ref(), Some(&head));
            for length in 0..bytes.len() {
                // A prefix may be a head with fewer variants, but the checksum refuses it.
                assert_ne!(EntryHead::decode(&bytes[..length]).as_ref(), Some(&head));
            }
        }
    }

    #[test]
    fn each_changed_bit_is_found_or_makes_the_reply_stale() {
        let (head, body) = (head().encode(), b"body");
        let preamble = Preamble::of(&head, 4, checksum(body));
        let file = [&preamble.encode()[..], body, &head].concat();
        let read = |file: &[u8]| {
            let preamble = Preamble::decode(file, file.len() as u64)?;
            let (body, head) = file[PREAMBLE..].split_at_checked(preamble.body as usize)?;
            let is_right = preamble.matches(head) && checksum(body) == preamble.body_sum;
            is_right.then_some(preamble.is_expired)
        };
        assert_eq!(read(&file), Some(false));
        for bit in 0..file.len() * 8 {
            let mut changed = file.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let expected = (bit as u64 / 8 == MARK_AT).then_some(true);
            assert_eq!(read(&changed), expected, "bit {bit}");
        }
        for length in 0..file.len() {
            assert_eq!(read(&file[..length]), None);
        }
        assert_eq!(read(&[&file[..], b"x"].concat()), None);
    }
}
