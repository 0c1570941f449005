//! Identifiers of streams that no longer exist, to distinguish late frames from wrong ones.

use std::collections::VecDeque;

/// Number of closed streams that are remembered, to distinguish their frames from those of streams
/// that were never open.
const CLOSED: usize = 16;

/// Number of reset streams that are remembered one by one.
const RESET: usize = 64;

/// Streams that were closed or reset recently.
#[derive(Debug, Default)]
pub(super) struct PastStreams {
    /// Streams that we have reset. Their frames are dropped.
    reset: VecDeque<u32>,
    /// The highest stream that was removed from `reset`.
    reset_forgotten: u32,
    /// Streams that were closed, as a ring buffer, and its next position.
    closed: [u32; CLOSED],
    next_closed: usize,
}

impl PastStreams {
    #[inline]
    pub fn add_closed(&mut self, id: u32) {
        self.closed[self.next_closed] = id;
        self.next_closed = (self.next_closed + 1) % CLOSED;
    }

    pub fn add_reset(&mut self, id: u32) {
        if self.reset.len() == RESET {
            let forgotten = self.reset.pop_front().unwrap_or_default();
            self.reset_forgotten = self.reset_forgotten.max(forgotten);
        }
        self.reset.push_back(id);
    }

    /// Returns true if the stream is among the last that were closed.
    pub fn was_closed(&self, id: u32) -> bool {
        self.closed.contains(&id)
    }

    /// Returns true if we have reset this stream, or may have reset it and forgotten it.
    pub fn was_reset(&self, id: u32) -> bool {
        id <= self.reset_forgotten || self.reset.contains(&id)
    }

    pub fn shrink(&mut self) {
        self.reset.shrink_to_fit();
    }

    /// Returns the number of allocated bytes.
    pub fn allocated(&self) -> usize {
        self.reset.capacity() * size_of::<u32>()
    }
}
