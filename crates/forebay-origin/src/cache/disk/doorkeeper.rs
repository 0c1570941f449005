//! Memory of recent requests, so that only replies that are requested again go to disk.
//!
//! Most URLs of a site are requested only once in a long time. The reply for such a URL would
//! displace others from the disk, and would cost a write for no hit.

use std::sync::atomic::{AtomicU32, Ordering};

use super::super::resource_key::{Half, KeyHash, halves};

/// Assumed size of an entry in bytes.
const USUAL_SIZE: u64 = 8 * 1024;
/// Limits on the number of remembered requests. The largest table takes 8 MiB.
const SIZES: (u64, u64) = (1 << 12, 1 << 21);

/// A table of fingerprints of requests. A new fingerprint replaces the old one at its index, so the
/// table forgets old requests.
#[derive(Debug)]
pub struct Doorkeeper(Box<[AtomicU32]>);

impl Doorkeeper {
    /// Creates a table for a disk of this many bytes.
    pub fn new(capacity: u64) -> Self {
        let size = (capacity / USUAL_SIZE).clamp(SIZES.0, SIZES.1).next_power_of_two();
        Self((0..size).map(|_| AtomicU32::new(0)).collect())
    }

    /// Records a request for `key`. Returns true if the table already contained the key.
    pub fn is_known(&self, key: &KeyHash) -> bool {
        // Use both halves, because different keys may share one of them.
        let (first, second) = halves(key);
        let mixed: Half = std::array::from_fn(|at| first[at] ^ second[at]);
        let [a, b, c, d, e, f, g, h] = mixed;
        let place = u32::from_le_bytes([a, b, c, d]) as usize % self.0.len();
        let fingerprint = u32::from_le_bytes([e, f, g, h]).max(1);
        self.0[place].swap(fingerprint, Ordering::Relaxed) == fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_request_is_known() {
        let door = Doorkeeper::new(1 << 20);
        let key = |number: u32| {
            let mut key = [0; 16];
            key[..4].copy_from_slice(&number.to_le_bytes());
            key[4..8].copy_from_slice(&number.to_be_bytes());
            key
        };
        let known = (0..2000).filter(|&number| door.is_known(&key(number))).count();
        assert_eq!(known, 0);
        let known = (0..2000).filter(|&number| door.is_known(&key(number))).count();
        assert_eq!(known, 2000);
    }
}
