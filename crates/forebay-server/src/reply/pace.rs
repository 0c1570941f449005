//! Limits the speed of a reply (`bandwidth_limit` of a route), over every protocol.

use std::time::Duration;

use forebay_conf::BandwidthLimit;
use tokio::time::Instant;

/// The number of parts in which the bytes of a second are sent.
const PARTS: u64 = 8;

/// The progress of a reply with a limited speed.
pub(super) struct Pace {
    limit: BandwidthLimit,
    sent: u64,
    /// Time at which the first byte beyond [`BandwidthLimit::after`] was sent.
    begun: Option<Instant>,
}

impl Pace {
    pub(super) fn new(limit: BandwidthLimit) -> Self {
        Self { limit, sent: 0, begun: None }
    }

    /// Waits until more bytes may be sent. Returns the number of these bytes, at most `left`.
    pub(super) async fn wait(&mut self, left: u64) -> u64 {
        let BandwidthLimit { rate, after } = self.limit;
        let unlimited = after.saturating_sub(self.sent);
        if unlimited > 0 {
            let count = left.min(unlimited);
            self.sent += count;
            return count;
        }
        // Use tokio's clock, because tests can pause it.
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let seconds = (self.sent - after) as f64 / rate as f64;
        // Limit the time to avoid an overflow. A year is longer than every connection.
        let due = begun + Duration::from_secs_f64(seconds.min(365.0 * 86_400.0));
        tokio::time::sleep_until(due).await;
        let count = left.min(rate.div_ceil(PARTS));
        self.sent += count;
        count
    }
}

/// Body bytes that wait until they may be sent.
pub(super) struct Delayed {
    bytes: Vec<u8>,
    sent: usize,
}

impl Delayed {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Waits until `pace` allows more bytes, and returns these bytes. Together with the last bytes,
    /// also returns `last`.
    pub(super) async fn next<'a>(
        &'a mut self,
        pace: &mut Pace,
        last: Option<&'a [u8]>,
    ) -> (&'a [u8], Option<&'a [u8]>) {
        let left = self.bytes.len() - self.sent;
        let count = usize::try_from(pace.wait(left as u64).await).unwrap_or(left);
        let start = self.sent;
        self.sent += count;
        (&self.bytes[start..self.sent], last.filter(|_| count == left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn seconds_for(limit: BandwidthLimit, bytes: u64) -> u64 {
        let (mut pace, began, mut left) = (Pace::new(limit), Instant::now(), bytes);
        while left > 0 {
            let count = pace.wait(left).await;
            assert!((1..=left).contains(&count));
            left -= count;
        }
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_after_the_first_ones_take_their_time() {
        let limit = |rate, after| BandwidthLimit { rate, after };
        assert_eq!(seconds_for(limit(100, 0), 1000).await, 9);
        assert_eq!(seconds_for(limit(100, 900), 1000).await, 0);
        assert_eq!(seconds_for(limit(100, 500), 1500).await, 9);
        assert_eq!(seconds_for(limit(1, 0), 5).await, 4);
        assert_eq!(seconds_for(limit(u64::MAX, 0), u64::MAX).await, 0);
        assert_eq!(seconds_for(limit(u64::MAX, u64::MAX), 5).await, 0);
    }
}
