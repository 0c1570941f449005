//! Secrets in a plan.

use std::fmt;
use std::ops::Range;

use crate::error::Problem;
use crate::key::{FromText, Resolution};

/// The shortest secret of signatures, in bytes: the output of SHA-256 (RFC 7518 section 3.2).
const SHORTEST: usize = 32;

/// A secret that Forebay shares with a peer, an authority or an application. `Debug` does not print
/// the secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Returns a secret with the bytes of this text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the bytes of the secret.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Checks that nobody can guess the secret from what it signs.
    pub(crate) fn is_long(&self, span: &Range<usize>) -> Resolution<()> {
        if self.0.len() >= SHORTEST {
            return Ok(());
        }
        Err(Problem::new(span, "this secret has fewer than 32 bytes").help(
            "a short secret can be guessed from one signature: use the output of `openssl rand -hex 32`",
        ))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl FromText for Secret {
    fn from_text(text: &str, _: &Range<usize>) -> Resolution<Self> {
        Ok(Self(text.to_owned()))
    }
}
