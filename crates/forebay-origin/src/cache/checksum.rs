//! Checksums of stored replies: the first 16 bytes of SHA-256.

use aws_lc_rs::digest::{Context, SHA256};

/// The start of a SHA-256 digest.
pub type Checksum = [u8; 16];

/// Checksum of bytes that arrive in pieces.
pub struct Checker(Context);

impl Default for Checker {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Checker {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes.
    pub fn finish(self) -> Checksum {
        let digest = self.0.finish();
        std::array::from_fn(|at| digest.as_ref()[at])
    }
}

/// Returns the checksum of `bytes`.
pub fn checksum(bytes: &[u8]) -> Checksum {
    let mut checker = Checker::default();
    checker.update(bytes);
    checker.finish()
}
