//! Windows that open as the receiver consumes, and grow by measurement (RFC 9113 section 5.2).

use std::time::{Duration, Instant};

/// What a window is without settings or updates.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;

/// The largest window there is.
pub(super) const LARGEST_WINDOW: i64 = 0x7fff_ffff;

/// A shorter round trip counts as this one. Next door a sender waits for the processor longer than for
/// the wire: while Tomcat sent one large reply, Forebay slept 4.0 times for a MB, and 2.7 with this.
const SHORTEST_TRIP: Duration = Duration::from_millis(5);

/// The receiving side of a window, of a stream or of the connection: `available`, `held`,
/// `credit` and what has not come yet of a frame that has begun sum up to `size`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    /// What the peer may still send.
    available: u32,
    /// What came and is not consumed.
    held: u32,
    /// What is consumed, but not announced.
    credit: u32,
    /// What may be held at most.
    size: u32,
    /// When the last update was sent.
    updated: Option<Instant>,
}

impl Inbound {
    pub fn new(size: u32) -> Self {
        Self { available: size, held: 0, credit: 0, size, updated: None }
    }

    /// A frame of `len` bytes begins; false where the window does not allow it.
    #[must_use]
    pub fn reserve(&mut self, len: u32) -> bool {
        let fits = len <= self.available;
        if fits {
            self.available -= len;
        }
        fits
    }

    /// `len` bytes of what was reserved have come.
    pub fn arrive(&mut self, len: u32) {
        self.held += len;
    }

    /// `len` bytes of what was reserved need no memory, come or not.
    pub fn pass(&mut self, len: u32) {
        self.credit += len;
    }

    /// `len` bytes that came need no memory any more.
    pub fn consume(&mut self, len: u32) {
        let len = len.min(self.held);
        self.held -= len;
        self.credit += len;
    }

    /// What came and is not consumed.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// The increment to announce, once it is half of the window.
    ///
    /// A window that was used up twice as fast as a round trip takes held the peer up: it doubles,
    /// up to `limit`. So it holds some 10 ms of what comes, or four round trips, and who reads less than
    /// 3 MB/s next door has no more than it began with.
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

    /// By how much the window is larger than `limit`.
    pub fn beyond(&self, limit: u32) -> u32 {
        self.size.saturating_sub(limit)
    }

    /// Opens the window to `size` at once.
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
        // More than is held cannot be consumed.
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
