//! What a route's stored replies belong to.

use std::fmt;

/// A number for everything that was typed for a route, with defaults, sets, groups and maps. It is
/// the same after a restart, on another machine and in a later version of Forebay, so files of a
/// disk cache may carry it. Names of Rust types and fields do not count.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The hash FNV-1a of 128 bits (Fowler, Noll and Vo): stable, and good enough for texts that
    /// only administrators write.
    pub(crate) fn of(text: &str) -> Self {
        const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        Self(text.bytes().fold(OFFSET_BASIS, step))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Without the number, because it says nothing to a reader.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_published_vectors() {
        assert_eq!(Fingerprint::of("").to_string(), "6c62272e07bb014262b821756295c58d");
        assert_eq!(Fingerprint::of("a").to_string(), "d228cb696f1a8caf78912b704e4a8964");
    }
}
