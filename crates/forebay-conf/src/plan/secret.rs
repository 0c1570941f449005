//! Secrets in a plan.

use std::fmt;

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
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
