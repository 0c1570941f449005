//! Nonces of the Digest scheme (RFC 7616 section 3.3).
//!
//! A nonce contains its time of issue and a signature, so that a client that has not logged in
//! costs no memory. A bounded table keeps the counts of accepted nonces. If it is full, the oldest
//! nonces become stale, so that no count is accepted twice.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use aws_lc_rs::{constant_time, rand};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Lifetime of a nonce. Apache has the same default.
const LIFETIME: Duration = Duration::from_secs(300);

/// Maximum number of nonces whose counts are kept, about 1 MiB.
const MOST: usize = 10_000;

/// Lengths of the two parts of a nonce in bytes: time and random bits, then the signature.
const ID: usize = 16;
const TAG: usize = 16;

/// Time of issue in milliseconds, and then random bits. Ids sort by time.
type Id = [u8; ID];

/// Nonces of all routes.
pub struct Nonces {
    key: Key,
    start: Instant,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    counts: BTreeMap<Id, Counts>,
    /// All nonces up to this one are stale.
    stale_up_to: Id,
}

/// Accepted counts of a nonce. Over several connections, a client's counts may arrive out of order.
struct Counts {
    highest: u32,
    /// Bit `n` is set if `highest - n` was accepted.
    window: u64,
}

impl Nonces {
    /// Creates nonces with a new key.
    pub fn new() -> Self {
        let mut key = [0; 32];
        rand::fill(&mut key).expect("the system has random bytes");
        // tokio's clock is used, because tests can pause it.
        let start = tokio::time::Instant::now().into_std();
        Self { key: Key::new(HMAC_SHA256, &key), start, used: Mutex::default() }
    }

    /// Returns a new nonce for `realm`.
    pub fn issue(&self, realm: &str) -> String {
        let mut nonce = [0; ID + TAG];
        nonce[..8].copy_from_slice(&self.now().to_be_bytes());
        rand::fill(&mut nonce[8..ID]).expect("the system has random bytes");
        let tag = self.tag(&nonce[..ID], realm);
        nonce[ID..].copy_from_slice(&tag);
        URL_SAFE_NO_PAD.encode(nonce)
    }

    /// Returns true if the nonce was issued for `realm` within the last five minutes (`LIFETIME`).
    pub fn is_fresh(&self, nonce: &[u8], realm: &str) -> bool {
        self.verify(nonce, realm).is_some()
    }

    /// Returns true if the nonce is fresh and has not been used with this count. Stores the count.
    pub fn accept(&self, nonce: &[u8], realm: &str, count: u32) -> bool {
        let Some(id) = self.verify(nonce, realm) else { return false };
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(oldest) = used.counts.first_entry()
            && self.has_expired(oldest.key())
        {
            oldest.remove();
        }
        used.accept(id, count)
    }

    fn verify(&self, nonce: &[u8], realm: &str) -> Option<Id> {
        let nonce = URL_SAFE_NO_PAD.decode(nonce).ok()?;
        let (id, tag) = nonce.split_at_checked(ID)?;
        constant_time::verify_slices_are_equal(tag, &self.tag(id, realm)).ok()?;
        let id = id.try_into().ok()?;
        (!self.has_expired(&id)).then_some(id)
    }

    fn tag(&self, id: &[u8], realm: &str) -> [u8; TAG] {
        let signed = sign(&self.key, &[id, realm.as_bytes()].concat());
        signed.as_ref()[..TAG].try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    fn has_expired(&self, id: &Id) -> bool {
        let issued = u64::from_be_bytes(id[..8].try_into().expect("an id has 16 bytes"));
        u128::from(self.now().saturating_sub(issued)) > LIFETIME.as_millis()
    }

    /// Returns the time in milliseconds since the start.
    fn now(&self) -> u64 {
        let now = tokio::time::Instant::now().into_std();
        let passed = now.saturating_duration_since(self.start).as_millis();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

impl Used {
    fn accept(&mut self, id: Id, count: u32) -> bool {
        if id <= self.stale_up_to || count == 0 {
            return false;
        }
        let Some(counts) = self.counts.get_mut(&id) else {
            self.counts.insert(id, Counts { highest: count, window: 1 });
            if self.counts.len() > MOST
                && let Some((oldest, _)) = self.counts.pop_first()
            {
                self.stale_up_to = oldest;
            }
            return true;
        };
        counts.accept(count)
    }
}

impl Counts {
    fn accept(&mut self, count: u32) -> bool {
        if count > self.highest {
            self.window = self.window.checked_shl(count - self.highest).unwrap_or(0) | 1;
            self.highest = count;
            return true;
        }
        let bit = 1u64.checked_shl(self.highest - count).unwrap_or(0);
        let is_new = bit != 0 && self.window & bit == 0;
        self.window |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_accepted_once() {
        let nonces = Nonces::new();
        let nonce = nonces.issue("r").into_bytes();
        for (count, is_new) in [
            (0, false),
            (2, true),
            (1, true),
            (1, false),
            (2, false),
            (70, true),
            (7, true),
            (7, false),
            (6, false),
            (3, false),
            (u32::MAX, true),
            (u32::MAX, false),
            (70, false),
        ] {
            assert_eq!(nonces.accept(&nonce, "r", count), is_new, "{count}");
        }
        assert!(nonces.is_fresh(&nonce, "r"));
    }

    #[test]
    fn only_issued_nonces_are_accepted() {
        let nonces = Nonces::new();
        let nonce = nonces.issue("r");
        assert!(!nonces.is_fresh(nonce.as_bytes(), "other realm"));
        assert!(!Nonces::new().is_fresh(nonce.as_bytes(), "r"), "another key");
        for at in 0..nonce.len() {
            let mut changed = nonce.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(!nonces.is_fresh(&changed, "r"), "{at}");
        }
        for short in ["", "A", "AAAA", &nonce[..nonce.len() - 1], &format!("{nonce}A")] {
            assert!(!nonces.is_fresh(short.as_bytes(), "r"), "{short}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_nonce_expires() {
        let nonces = Nonces::new();
        let nonce = nonces.issue("r").into_bytes();
        tokio::time::advance(LIFETIME).await;
        assert!(nonces.accept(&nonce, "r", 1));
        tokio::time::advance(Duration::from_millis(2)).await;
        assert!(!nonces.accept(&nonce, "r", 2) && !nonces.is_fresh(&nonce, "r"));
        assert!(nonces.accept(nonces.issue("r").as_bytes(), "r", 1));
        assert_eq!(nonces.used.lock().unwrap().counts.len(), 1, "the old count is forgotten");
    }

    #[test]
    fn the_table_is_bounded_and_a_forgotten_count_is_not_accepted_again() {
        let mut used = Used::default();
        let id = |number: u64| {
            let mut id = [0; ID];
            id[..8].copy_from_slice(&number.to_be_bytes());
            id
        };
        let most = MOST as u64;
        for number in 1..=most + 5 {
            assert!(used.accept(id(number), 1), "{number}");
        }
        assert_eq!(used.counts.len(), MOST);
        for number in 1..=most + 5 {
            assert!(!used.accept(id(number), 1), "{number}");
            assert_eq!(used.accept(id(number), 2), number > 5, "{number}");
        }
    }
}
