//! Encrypts entries with the key of the configuration.
//!
//! An entry is `1`, a random nonce of 12 bytes, and the output of AES-256-GCM. The name of the entry is
//! authenticated too, so that an entry cannot take the place of another.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};

use crate::StoreError;

const VERSION: u8 = 1;

/// Encryption of entries.
pub struct Seal {
    key: LessSafeKey,
    derivation: Derivation,
}

/// Derives keys from the configured key. All machines with the same configured key derive the same
/// keys.
#[derive(Clone, Debug)]
pub struct Derivation(hmac::Key);

impl Derivation {
    /// Returns the key for `purpose`.
    pub fn key(&self, purpose: &str) -> [u8; 32] {
        // The configured key is random text, so one HMAC is enough instead of the two steps of
        // HKDF.
        let tag = hmac::sign(&self.0, format!("forebay {purpose}").as_bytes());
        let mut key = [0; 32];
        key.copy_from_slice(tag.as_ref());
        key
    }
}

impl Seal {
    /// Creates the encryption from the configured key.
    pub fn new(key: &[u8]) -> Self {
        let derivation = Derivation(hmac::Key::new(hmac::HMAC_SHA256, key));
        let key = UnboundKey::new(&AES_256_GCM, &derivation.key("store entries"));
        Self { key: LessSafeKey::new(key.expect("the key has 32 bytes")), derivation }
    }

    pub fn derivation(&self) -> Derivation {
        self.derivation.clone()
    }

    /// Encrypts the content of the entry `name`.
    pub fn close(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        let failed = |_| StoreError::Refused("cannot encrypt an entry".to_owned());
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(failed)?;
        let mut content = value.to_vec();
        let aad = Aad::from(name.as_bytes());
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut content)
            .map_err(failed)?;
        let mut stored = vec![VERSION];
        stored.extend_from_slice(&nonce);
        stored.append(&mut content);
        Ok(stored)
    }

    /// Decrypts the content of the entry `name`. Returns `None` if the content was not encrypted
    /// with this key for this name.
    pub fn open(&self, name: &str, stored: &[u8]) -> Option<Vec<u8>> {
        let stored = stored.strip_prefix(&[VERSION])?;
        let (nonce, content) = stored.split_first_chunk::<NONCE_LEN>()?;
        let mut content = content.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.key.open_in_place(nonce, Aad::from(name.as_bytes()), &mut content);
        let length = length.ok()?.len();
        content.truncate(length);
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_opened_with_its_key_and_name_alone() {
        let (seal, other) = (Seal::new(b"one key"), Seal::new(b"another"));
        let stored = seal.close("a", b"secret").unwrap();
        assert!(!stored.windows(6).any(|part| part == b"secret"));
        assert_eq!(seal.open("a", &stored).as_deref(), Some(&b"secret"[..]));
        assert_eq!(seal.open("b", &stored), None);
        assert_eq!(other.open("a", &stored), None);
        for end in 0..stored.len() {
            assert_eq!(seal.open("a", &stored[..end]), None);
            let mut changed = stored.clone();
            changed[end] ^= 1;
            assert_eq!(seal.open("a", &changed), None);
        }
        assert_ne!(stored, seal.close("a", b"secret").unwrap());
    }

    #[test]
    fn keys_of_purposes_differ() {
        let keys = Seal::new(b"key").derivation();
        assert_eq!(keys.key("a"), Seal::new(b"key").derivation().key("a"));
        assert_ne!(keys.key("a"), keys.key("b"));
    }
}
