//! Hashes of passwords: bcrypt, SHA-crypt (<https://www.akkadia.org/drepper/SHA-crypt.txt>), and
//! Apache's apr1, which is MD5-crypt with another name in it
//! (<https://httpd.apache.org/docs/2.4/misc/password_encryptions.html>).

use md5::{Digest, Md5};
use sha_crypt::{PasswordVerifier, ShaCrypt};

/// Accepted costs of bcrypt, as in `htpasswd`. The largest takes about ten seconds.
const BCRYPT_COSTS: std::ops::RangeInclusive<u32> = 4..=17;
/// Maximum number of SHA-crypt rounds. So many rounds take some seconds.
const MOST_ROUNDS: u64 = 10_000_000;

/// A kind of hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashKind {
    Apr1,
    Sha256,
    Sha512,
    Bcrypt,
}

/// A hash of a password.
#[derive(Debug, PartialEq, Eq)]
pub enum Hash {
    /// `$2y$` and its variants.
    Bcrypt { text: String, cost: u32 },
    /// `$5$` and `$6$`.
    ShaCrypt { text: String, rounds: u64 },
    /// `$apr1$`.
    Apr1 { salt: Vec<u8>, digest: Vec<u8> },
}

impl Hash {
    /// Parses a hash. Returns `None` if its kind is unknown, its form is wrong, or its cost is out
    /// of range.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.strip_prefix('$')?.split_once('$')?;
        match kind {
            "2a" | "2b" | "2y" => {
                let cost = rest.split('$').next()?.parse().ok()?;
                let is_whole = text.len() == 60 && BCRYPT_COSTS.contains(&cost);
                is_whole.then(|| Self::Bcrypt { text: text.to_owned(), cost })
            }
            "5" | "6" => {
                let (rounds, salted) = match rest.strip_prefix("rounds=") {
                    Some(rest) => {
                        let (rounds, salted) = rest.split_once('$')?;
                        (rounds.parse().ok().filter(|rounds| *rounds <= MOST_ROUNDS)?, salted)
                    }
                    None => (5000, rest),
                };
                let length = if kind == "5" { 43 } else { 86 };
                let (_, digest) = salted.split_once('$')?;
                let is_whole = digest.len() == length;
                is_whole.then(|| Self::ShaCrypt { text: text.to_owned(), rounds })
            }
            "apr1" => {
                let (salt, digest) = rest.split_once('$')?;
                let is_whole = digest.len() == 22 && salt.len() <= 8;
                let (salt, digest) = (salt.as_bytes().to_vec(), digest.as_bytes().to_vec());
                is_whole.then_some(Self::Apr1 { salt, digest })
            }
            _ => None,
        }
    }

    /// Returns true if the hash is that of `password`. The comparison of hashes takes constant
    /// time.
    pub fn fits(&self, password: &[u8]) -> bool {
        match self {
            Self::Bcrypt { text, .. } => bcrypt::verify(password, text).unwrap_or(false),
            Self::ShaCrypt { text, .. } => {
                ShaCrypt::default().verify_password(password, text.as_str()).is_ok()
            }
            Self::Apr1 { salt, digest } => {
                let found = apr1(password, salt);
                let differences = found.iter().zip(digest).map(|(one, other)| one ^ other);
                found.len() == digest.len() && differences.fold(0, |all, one| all | one) == 0
            }
        }
    }

    /// Returns kind and cost, which determine the time of a comparison for a given password.
    pub fn class(&self) -> (HashKind, u64) {
        match self {
            Self::Apr1 { .. } => (HashKind::Apr1, 0),
            Self::ShaCrypt { text, rounds } => {
                let kind = if text.starts_with("$5") { HashKind::Sha256 } else { HashKind::Sha512 };
                (kind, *rounds)
            }
            Self::Bcrypt { cost, .. } => (HashKind::Bcrypt, u64::from(*cost)),
        }
    }
}

/// Returns the 22 characters of apr1: MD5 over password and salt, a thousand times in varying
/// order.
fn apr1(password: &[u8], salt: &[u8]) -> Vec<u8> {
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password);
    let inner: [u8; 16] = inner.finalize().into();
    let mut first = Md5::new();
    first.update(password);
    first.update(b"$apr1$");
    first.update(salt);
    for piece in password.chunks(16) {
        first.update(&inner[..piece.len()]);
    }
    let mut bits = password.len();
    while bits > 0 {
        // The loop does not run for an empty password, so index 0 exists.
        first.update(if bits & 1 == 1 { &[0][..] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest: [u8; 16] = first.finalize().into();
    for round in 0..1000 {
        let mut next = Md5::new();
        let (one, other) = (password, &digest[..]);
        next.update(if round % 2 == 1 { one } else { other });
        next.update(if round % 3 != 0 { salt } else { b"" });
        next.update(if round % 7 != 0 { password } else { b"" });
        next.update(if round % 2 == 1 { other } else { one });
        digest = next.finalize().into();
    }
    letters(&digest)
}

/// Encodes a digest as crypt(3) does: each character has six bits, and the lowest bits come first.
fn letters(digest: &[u8; 16]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut out = Vec::with_capacity(22);
    let mut append = |mut bits: u32, count: usize| {
        for _ in 0..count {
            out.push(LETTERS[bits as usize & 63]);
            bits >>= 6;
        }
    };
    for at in 0..5 {
        let last = if at == 4 { 5 } else { at + 12 };
        let byte = |at: usize| u32::from(digest[at]);
        append(byte(at) << 16 | byte(at + 6) << 8 | byte(last), 4);
    }
    append(u32::from(digest[11]), 2);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes from Apache's htpasswd and openssl passwd.
    const KNOWN: [&str; 4] = [
        "$2y$04$DP2m6DW4hZh8trbDbtlzouX4rdlWtxKJhsXFv0/jFzbV9ufG9Q/Pq",
        "$5$9DV/TqU/6/W.PBnB$LtEyNxrZbHIIlPvXhlNdRtPOVGlxx3vTfhfoZmr4/.1",
        "$6$M277/fhrESLs38oA$Rf3zGBwZCT7VI3fSWjqYvk.YtvxJY1lwR3SYJJeaWElJhO7Ch0mSYgMVK6kEb96vrCVNqtghGnHxjxm5LuKKA/",
        "$apr1$Eis92LRE$Q4BKiRZ.XcXCzIjNGwUXT.",
    ];

    #[test]
    fn each_kind_fits_its_password_alone() {
        for text in KNOWN {
            let hash = Hash::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert!(hash.fits(b"p:ss w\xc3\xb6rd"), "{text}");
            for wrong in [&b""[..], b"p:ss word", b"p:ss w\xc3\xb6rd "] {
                assert!(!hash.fits(wrong), "{text}");
            }
        }
    }

    #[test]
    fn unknown_hashes_are_none() {
        for text in [
            "",
            "secret",
            "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
            "rqXexS6ZhobKA",
            "$1$a$b",
            "$2y$31$aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "$2y$05$short",
            "$6$rounds=999999999$salt$x",
            "$5$salt$short",
            "$apr1$toolongasalt$aaaaaaaaaaaaaaaaaaaaaa",
        ] {
            assert_eq!(Hash::parse(text), None, "{text}");
        }
    }
}
