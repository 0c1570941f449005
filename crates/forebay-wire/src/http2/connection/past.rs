//! Identifiers of streams that no longer exist. With them, the connection distinguishes late frames
//! from invalid frames.

use std::collections::VecDeque;

/// Number of closed streams that are remembered, to distinguish their frames from those of streams
/// that were never open.
const CLOSED: usize = 16;

/// Number of reset streams that are remembered individually.
const RESET: usize = 64;

/// Streams that were closed or reset recently.
#[derive(Debug, Default)]
pub(super) struct PastStreams {
    /// Streams that we have reset. Later frames of these streams are dropped.
    reset: VecDeque<u32>,
    /// Highest identifier that was removed from `reset`.
    reset_forgotten: u32,
    /// Ring buffer of the streams that were closed last. `next_closed` is its next position.
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

    /// Returns true if the stream is one of the last 16 that were closed.
    pub fn was_closed(&self, id: u32) -> bool {
        self.closed.contains(&id)
    }

    /// Returns true if we have reset this stream. Only the last 64 resets are remembered
    /// individually, so the result is also true for every stream up to the highest forgotten one.
    pub fn was_reset(&self, id: u32) -> bool {
        id <= self.reset_forgotten || self.reset.contains(&id)
    }

    pub fn shrink(&mut self) {
        self.reset.shrink_to_fit();
    }

    pub fn allocated(&self) -> usize {
        self.reset.capacity() * size_of::<u32>()
    }
}
