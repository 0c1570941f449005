//! Budget of a peer. Each frame that causes work, but is of little use to the peer, has a price.
//! The price is subtracted from the budget.
//!
//! An attack consists not of one invalid frame, but of thousands of valid ones. Useful work refills
//! a part of the budget: streams that end normally, and data that we send. Time refills the rest.
//! If the budget is used up, the connection ends.

use std::time::Instant;

/// Budget of a new connection, and its maximum.
pub const FULL: u32 = 10_000;

/// Growth of the budget per second.
const REFILL: u32 = 1_000;

/// Price of a stream that the peer opened and reset, or that the peer made us reset. A full budget
/// is enough for 500 such streams at once, and the refill for 50 per second.
pub const RESET: u32 = 20;

/// Price of a reset after a complete reply, or for a stream that no longer exists.
pub const LATE_RESET: u32 = 1;

/// Price of a header list above the limit, which is decoded to its end. A full budget is enough for
/// 50 such lists.
pub const HEADER_LIST: u32 = 200;

/// Price of a SETTINGS frame, which requires an acknowledgement.
pub const SETTINGS: u32 = 40;
/// Price of each pair in SETTINGS.
pub const SETTING: u32 = 2;

/// Price of a PING that no DATA frame has prepaid. A full budget is enough for 1,000 PINGs at once,
/// and the refill for 100 per second.
pub const PING: u32 = 10;

/// Price of a DATA frame without content that does not end the stream.
pub const EMPTY_DATA: u32 = 10;

/// Price of a window update that is smaller than [`SMALL_UPDATE`], or for a stream that no longer
/// exists. Each DATA frame that we send pays for two such updates.
pub const WINDOW_UPDATE: u32 = 1;
/// Increment in bytes from which a window update is free.
pub const SMALL_UPDATE: u32 = 1_024;

/// Price of a PRIORITY or PRIORITY_UPDATE frame.
pub const PRIORITY: u32 = 5;

/// Price of a frame of an unknown type, of an acknowledgement that was not expected, and of a
/// GOAWAY.
pub const USELESS: u32 = 10;

/// Price of a CONTINUATION frame with fewer than [`SMALL_FRAGMENT`] bytes that does not end its
/// block.
pub const CONTINUATION: u32 = 50;
/// Length in bytes from which a CONTINUATION frame is free.
pub const SMALL_FRAGMENT: usize = 1_024;

/// Refill for a stream that both sides have ended: half the price of a reset.
pub const STREAM_DONE: u32 = 10;

/// Refill for a DATA frame that we send.
pub const DATA_SENT: u32 = 2;

/// Maximum number of PINGs that DATA frames can prepay.
const PAID_PINGS: u32 = 1_000;

/// Remaining budget of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u32,
    /// Number of PINGs that DATA frames have prepaid.
    paid_pings: u32,
    refilled: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: FULL, paid_pings: 0, refilled: None }
    }
}

impl Budget {
    /// Refills the budget if necessary, and then subtracts `price`. If the budget is smaller than
    /// `price`, empties the budget and returns false.
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

    /// Counts a sent or received DATA frame with content. Each such frame prepays one PING, because
    /// gRPC sends a PING for each frame that it reads, to measure its bandwidth.
    ///
    /// A received frame adds only the PING, and nothing to the budget. If it added the price of a
    /// PING (10), two small frames would pay for a reset (20), so resets would be free.
    pub fn allow_ping(&mut self) {
        self.paid_pings = (self.paid_pings + 1).min(PAID_PINGS);
    }

    /// Pays for a received PING frame. Uses up a PING that a DATA frame has prepaid, if there is
    /// one. Otherwise, subtracts the price from the budget. Returns false if the budget is too
    /// small.
    #[must_use]
    pub fn spend_ping(&mut self, now: Instant) -> bool {
        if self.paid_pings > 0 {
            self.paid_pings -= 1;
            return true;
        }
        self.spend(PING, now)
    }

    /// Adds `amount` to the budget, because we did work that the peer requested.
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
