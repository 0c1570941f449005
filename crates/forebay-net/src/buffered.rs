//! Counts the bytes that all threads buffer: of replies for slow clients, and of requests that have
//! not arrived completely.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buffered bytes of all connections of all threads.
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

/// The bytes that one request has reserved. They are released when it is dropped.
pub struct Reserved {
    total: Arc<Buffered>,
    bytes: u64,
}

impl Reserved {
    /// Creates a reservation of no bytes in `total`.
    pub fn new(total: Arc<Buffered>) -> Self {
        Self { total, bytes: 0 }
    }

    /// Changes the reservation to `bytes`. Fails, and changes nothing, if the total would exceed
    /// `most`.
    pub fn set(&mut self, bytes: usize, most: u64) -> Result<(), Full> {
        let bytes = bytes as u64;
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) {
            let taken = self.total.take(more, most);
            if taken < more {
                self.total.give_back(taken);
                return Err(Full);
            }
        } else if bytes < self.bytes {
            self.total.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.total.give_back(self.bytes);
    }
}

/// The total of all buffers has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_keep_to_the_total_and_end_with_their_owner() {
        let total = Arc::<Buffered>::default();
        let (mut one, mut other) = (Reserved::new(total.clone()), Reserved::new(total.clone()));
        assert_eq!((one.set(6, 10), other.set(5, 10)), (Ok(()), Err(Full)));
        assert_eq!((other.set(4, 10), total.bytes()), (Ok(()), 10));
        assert_eq!((one.set(2, 10), other.set(8, 10), total.bytes()), (Ok(()), Ok(()), 10));
        drop(other);
        assert_eq!(total.bytes(), 2);
    }
}
