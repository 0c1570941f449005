//! Measurement of the round trip with PING.

use std::time::{Duration, Instant};

/// Our active PING, and the fastest measured round trip.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    sent: Option<Instant>,
    fastest: Option<Duration>,
}

impl RoundTrip {
    /// Starts a measurement. Returns true if a PING must be sent, which is false while one is
    /// active.
    pub fn start(&mut self, now: Instant) -> bool {
        let starts = self.sent.is_none();
        if starts {
            self.sent = Some(now);
        }
        starts
    }

    /// Ends the measurement. Returns false if no PING was active.
    pub fn finish(&mut self, now: Instant) -> bool {
        let Some(sent) = self.sent.take() else { return false };
        let trip = now.saturating_duration_since(sent);
        self.fastest = Some(self.fastest.map_or(trip, |fastest| fastest.min(trip)));
        true
    }

    /// Returns the time of the PING without a reply, if there is one.
    pub fn unanswered(&self) -> Option<Instant> {
        self.sent
    }

    #[inline]
    pub fn fastest(&self) -> Option<Duration> {
        self.fastest
    }
}
