//! The static table (RFC 7541 appendix A).

use crate::http1::{KnownField, NAMES};

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
