//! Receive windows, which reopen as the receiver consumes data, and grow with the measured rate
//! (RFC 9113 section 5.2).

use std::time::{Duration, Instant};

/// Initial size of a window in bytes, before any setting or update.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;

/// Maximum size of a window in bytes.
pub(super) const LARGEST_WINDOW: i64 = 0x7fff_ffff;

/// Minimum of the round trip in calculations. If both peers run on the same machine, a sender waits
/// longer for the processor than for the network. With this minimum, Forebay's thread slept 2.7
/// instead of 4.0 times per MB of a large reply from Tomcat.
const SHORTEST_TRIP: Duration = Duration::from_millis(5);

/// Receive window of a stream or of the connection. The sum of `available`, `held` and `credit` is
/// at most `size`. While a frame arrives, the sum is smaller: the missing bytes of the frame are no
/// longer `available`, and not yet `held`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    /// Bytes that the peer may still send.
    available: u32,
    /// Bytes that have arrived and are not consumed.
    held: u32,
    /// Bytes that are consumed, but not yet announced with a window update.
    credit: u32,
    /// Maximum number of held bytes.
    size: u32,
    /// Time of the last window update.
    updated: Option<Instant>,
}

impl Inbound {
    pub fn new(size: u32) -> Self {
        Self { available: size, held: 0, credit: 0, size, updated: None }
    }

    /// Reserves `len` bytes for a frame. Returns false if the window is too small.
    #[must_use]
    pub fn reserve(&mut self, len: u32) -> bool {
        let fits = len <= self.available;
        if fits {
            self.available -= len;
        }
        fits
    }

    /// Counts `len` reserved bytes as arrived.
    pub fn arrive(&mut self, len: u32) {
        self.held += len;
    }

    /// Counts `len` bytes of a reserved frame as consumed. The caller uses this for bytes that need
    /// no memory, such as padding, and may call it before the bytes arrive.
    pub fn pass(&mut self, len: u32) {
        self.credit += len;
    }

    /// Counts `len` held bytes as consumed, because they no longer need memory.
    pub fn consume(&mut self, len: u32) {
        let len = len.min(self.held);
        self.held -= len;
        self.credit += len;
    }

    /// Returns the number of bytes that have arrived and are not consumed.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns the increment of the window update that must be sent now. Returns `None` until at
    /// least half of the window is consumed.
    ///
    /// If the last window update was sent less than two round trips ago, the window has blocked the
    /// peer. The window then doubles, up to `limit`. A round trip counts as at least 5 ms.
    pub fn update(
        &mut self,
        now: Instant,
        round_trip: Option<Duration>,
        limit: u32,
    ) -> Option<u32> {
        if self.credit == 0 || self.credit < self.size / 2 {
            return None;
        }
        let elapsed = self.updated.map(|updated| now.saturating_duration_since(updated));
        let was_limiting = elapsed
            .zip(round_trip)
            .is_some_and(|(since, trip)| since < trip.max(SHORTEST_TRIP) * 2);
        let mut increment = self.credit;
        if was_limiting && self.size < limit {
            let size = self.size.saturating_mul(2).min(limit);
            increment += size - self.size;
            self.size = size;
        }
        self.updated = Some(now);
        self.credit = 0;
        self.available += increment;
        Some(increment)
    }

    /// Returns the number of bytes by which the window exceeds `limit`.
    pub fn beyond(&self, limit: u32) -> u32 {
        self.size.saturating_sub(limit)
    }

    /// Enlarges the window to `size`. Returns the increment for the window update.
    pub fn open_to(&mut self, size: u32) -> u32 {
        let increment = size.saturating_sub(self.size);
        self.size += increment;
        self.available += increment;
        increment
    }

    #[cfg(test)]
    pub fn size(&self) -> u32 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_millis(50);

    #[test]
    fn the_window_opens_by_what_is_consumed_and_not_before_half_of_it() {
        let now = Instant::now();
        let mut window = Inbound::new(100);
        assert!(window.reserve(100));
        assert!(!window.reserve(1));
        window.arrive(90);
        window.pass(10);
        window.consume(39);
        assert_eq!(window.update(now, None, 1_000), None);
        window.consume(1);
        assert_eq!(window.update(now, None, 1_000), Some(50));
        assert!(window.reserve(50) && !window.reserve(1));
        window.arrive(50);
        // More bytes than held cannot be consumed.
        window.consume(500);
        assert_eq!(window.update(now, None, 1_000), Some(100));
        assert!(window.reserve(100) && !window.reserve(1));
    }

    #[test]
    fn a_peer_next_door_that_waits_for_the_processor_gets_a_larger_window() {
        let (mut now, trip) = (Instant::now(), Duration::from_micros(80));
        let mut window = Inbound::new(100);
        let mut sizes = Vec::new();
        for elapsed in [20, 9, 11, 9] {
            now += Duration::from_millis(elapsed);
            let size = window.size();
            assert!(window.reserve(size));
            window.arrive(size);
            window.consume(size);
            window.update(now, Some(trip), 1_000).unwrap();
            sizes.push(window.size());
        }
        assert_eq!(sizes, [100, 200, 200, 400]);
    }

    #[test]
    fn a_window_that_holds_the_peer_up_doubles_to_its_limit() {
        let mut now = Instant::now();
        let mut window = Inbound::new(100);
        let mut sizes = Vec::new();
        for elapsed in [200, 10, 10, 200, 10, 10] {
            now += Duration::from_millis(elapsed);
            let size = window.size();
            assert!(window.reserve(size));
            window.arrive(size);
            window.consume(size);
            window.update(now, Some(TRIP), 700).unwrap();
            sizes.push(window.size());
        }
        assert_eq!(sizes, [100, 200, 400, 400, 700, 700]);
    }
}
