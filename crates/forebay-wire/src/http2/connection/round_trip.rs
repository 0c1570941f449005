//! Measurement of the round trip with PING.

use std::time::{Duration, Instant};

/// Time of our unanswered PING, and the fastest measured round trip.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    sent: Option<Instant>,
    fastest: Option<Duration>,
}

impl RoundTrip {
    /// Starts a measurement if none is active. Returns true if a measurement has started. The
    /// caller must then send a PING.
    pub fn start(&mut self, now: Instant) -> bool {
        let starts = self.sent.is_none();
        if starts {
            self.sent = Some(now);
        }
        starts
    }

    /// Ends the measurement. Returns false if no measurement was active.
    pub fn finish(&mut self, now: Instant) -> bool {
        let Some(sent) = self.sent.take() else { return false };
        let trip = now.saturating_duration_since(sent);
        self.fastest = Some(self.fastest.map_or(trip, |fastest| fastest.min(trip)));
        true
    }

    /// Returns the time at which the unanswered PING was sent, or `None` if every PING was
    /// answered.
    pub fn unanswered(&self) -> Option<Instant> {
        self.sent
    }

    #[inline]
    pub fn fastest(&self) -> Option<Duration> {
        self.fastest
    }
}
