//! Counts the reply bytes that all threads buffer for slow clients.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buffered reply bytes of all connections of all threads.
#[derive(Default)]
pub struct Buffered(AtomicU64);

impl Buffered {
    /// Returns the current total.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Reserves up to `wanted` bytes and keeps the total at or below `most`. Returns the number of
    /// reserved bytes.
    pub fn take(&self, wanted: u64, most: u64) -> u64 {
        let mut taken = 0;
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            taken = wanted.min(most.saturating_sub(used));
            Some(used + taken)
        });
        taken
    }

    /// Releases `bytes` reserved bytes.
    pub fn give_back(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}
