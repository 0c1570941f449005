//! What a peer may cost: frames that bring it nothing are paid from a budget, which work refills.
//!
//! An attack is not one frame that is wrong, but thousands that are right. So each frame that costs
//! more than it brings has a price, streams that are answered and data that is sent pay some of it
//! back, and time the rest. A peer that has spent all is sent away.

use std::time::Instant;

/// What a connection may spend at once.
pub const FULL: u32 = 10_000;

/// What comes back in a second.
const REFILL: u32 = 1_000;

/// A stream opened and reset, or made us reset: 500 at once, 50 a second for ever.
pub const RESET: u32 = 20;

/// A reset of a stream whose reply was complete, or of one that is gone.
pub const LATE_RESET: u32 = 1;

/// A header list above the limit, which is decoded to its end: 50 at once.
pub const HEADER_LIST: u32 = 200;

/// SETTINGS, for which an acknowledgement is written, and each of its pairs.
pub const SETTINGS: u32 = 40;
/// See [`SETTINGS`].
pub const SETTING: u32 = 2;

/// PING that no DATA pays for: 1,000 at once, 100 a second for ever.
pub const PING: u32 = 10;

/// DATA without data that does not end the stream.
pub const EMPTY_DATA: u32 = 10;

/// A window update by less than [`SMALL_UPDATE`], or for a stream that is gone. Data that is sent
/// pays for two.
pub const WINDOW_UPDATE: u32 = 1;
/// See [`WINDOW_UPDATE`].
pub const SMALL_UPDATE: u32 = 1_024;

/// PRIORITY, PRIORITY_UPDATE.
pub const PRIORITY: u32 = 5;

/// A frame of an unknown type, an acknowledgement of nothing, a GOAWAY from a client.
pub const USELESS: u32 = 10;

/// CONTINUATION with less than [`SMALL_FRAGMENT`] bytes.
pub const CONTINUATION: u32 = 50;
/// See [`CONTINUATION`].
pub const SMALL_FRAGMENT: usize = 1_024;

/// A stream that ended as it should pays for half a reset.
pub const STREAM_DONE: u32 = 10;

/// A DATA frame that we send.
pub const DATA_SENT: u32 = 2;

/// PINGs that DATA pays for, at most as many as have not come yet.
const PAID_PINGS: u32 = 1_000;

/// What is left.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u32,
    /// PINGs that DATA has paid for.
    paid_pings: u32,
    refilled: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: FULL, paid_pings: 0, refilled: None }
    }
}

impl Budget {
    /// Pays `price`; false when that is more than is left.
    #[must_use]
    pub fn spend(&mut self, price: u32, now: Instant) -> bool {
        if self.left < price {
            self.refill(now);
        } else if self.left == FULL {
            self.refilled = Some(now);
        }
        let fits = price <= self.left;
        self.left = self.left.saturating_sub(price);
        fits
    }

    /// Counts a DATA frame with content, sent or received: it pays for one PING. gRPC measures its
    /// bandwidth by a PING for each frame that it reads. DATA buys nothing else, because a stream
    /// with two small frames would otherwise pay for its own reset.
    pub fn allow_ping(&mut self) {
        self.paid_pings = (self.paid_pings + 1).min(PAID_PINGS);
    }

    /// Pays for a PING; false when that is more than is left.
    #[must_use]
    pub fn spend_ping(&mut self, now: Instant) -> bool {
        if self.paid_pings > 0 {
            self.paid_pings -= 1;
            return true;
        }
        self.spend(PING, now)
    }

    /// The peer let us do some work.
    pub fn earn(&mut self, amount: u32) {
        self.left = (self.left + amount).min(FULL);
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = self.refilled.map_or(0, |then| {
            now.saturating_duration_since(then).as_millis().min(u128::from(u16::MAX)) as u32
        });
        self.refilled = Some(now);
        self.earn(elapsed * REFILL / 1_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_budget_is_spent_and_comes_back_with_time_and_work() {
        let start = Instant::now();
        let mut budget = Budget::default();
        for _ in 0..FULL / RESET {
            assert!(budget.spend(RESET, start));
        }
        assert!(!budget.spend(RESET, start));
        budget.earn(RESET);
        assert!(budget.spend(RESET, start));
        assert!(!budget.spend(RESET, start + Duration::from_millis(19)));
        assert!(budget.spend(RESET, start + Duration::from_millis(40)));
        let late = start + Duration::from_secs(1_000);
        for _ in 0..FULL / RESET {
            assert!(budget.spend(RESET, late));
        }
        assert!(!budget.spend(RESET, late));
    }

    #[test]
    fn data_pays_for_a_ping_and_for_nothing_else() {
        let start = Instant::now();
        let mut budget = Budget::default();
        assert!(budget.spend(FULL, start));
        for _ in 0..20_000 {
            budget.allow_ping();
            assert!(budget.spend_ping(start));
            assert!(!budget.spend_ping(start));
        }
        budget.allow_ping();
        assert!(!budget.spend(LATE_RESET, start));
    }
}
