//! Decides which of the waiting streams of one connection may send first.
//!
//! When the client has accepted bytes, `quinn` wakes all waiting streams, beginning with the stream
//! that blocked last. Without this module, that stream would use the whole window each time. With
//! this module, a different stream sends first each time, and all other streams yield once.

use std::cell::Cell;

/// The waiting streams of a connection.
#[derive(Default)]
pub struct FairSendQueue {
    waiting: Cell<usize>,
    looks: Cell<u64>,
}

/// A waiting stream.
pub struct WaitingStream<'a> {
    queue: &'a FairSendQueue,
    has_looked: bool,
    has_yielded: bool,
}

impl<'a> WaitingStream<'a> {
    /// Registers a waiting stream until the returned value is dropped.
    pub fn new(queue: &'a FairSendQueue) -> Self {
        queue.waiting.set(queue.waiting.get() + 1);
        Self { queue, has_looked: false, has_yielded: false }
    }

    /// Returns true if the stream should yield to the other waiting streams before it tries to
    /// send. The caller calls this function before each try.
    pub fn lets_others_go(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        self.has_yielded = !is_first && !self.has_yielded && !self.queue.is_next();
        self.has_yielded
    }
}

impl Drop for WaitingStream<'_> {
    fn drop(&mut self) {
        self.queue.waiting.set(self.queue.waiting.get() - 1);
    }
}

impl FairSendQueue {
    /// Returns true if the calling stream may send first. If n streams wait, about one call in n
    /// returns true.
    fn is_next(&self) -> bool {
        // Multiples of the golden ratio are spread evenly, so the order of the calls gives no
        // stream a preference.
        const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
        self.looks.set(self.looks.get().wrapping_add(GOLDEN_RATIO));
        let waiting = self.waiting.get() as u64;
        waiting < 2 || (self.looks.get() >> 32).is_multiple_of(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_lets_others_go_once_for_each_wake_and_each_goes_first_as_often() {
        let queue = FairSendQueue::default();
        let mut streams: Vec<_> = (0..50).map(|_| WaitingStream::new(&queue)).collect();
        // The first try is never delayed.
        assert!(streams.iter_mut().all(|stream| !stream.lets_others_go()));
        let mut first = [0; 50];
        for _ in 0..5_000 {
            for (stream, first) in streams.iter_mut().zip(&mut first) {
                if stream.lets_others_go() {
                    assert!(!stream.lets_others_go(), "twice for one wake");
                } else {
                    *first += 1;
                }
            }
        }
        assert!(first.iter().all(|count| (50..200).contains(count)), "{first:?}");
        streams.truncate(1);
        assert!((0..10).all(|_| !streams[0].lets_others_go()), "there are no others");
    }
}
