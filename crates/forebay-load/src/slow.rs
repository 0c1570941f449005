//! Slow peers: connections that send their request or read the reply at a low pace.

use std::time::Duration;

use forebay_stat::Latency;
use serde_json::{Value, json};

use crate::counts::latency_json;

/// Maximum pace at which connections read replies and send requests. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowPeers {
    /// Maximum number of bytes of replies that a connection reads per second.
    pub read: Option<u64>,
    /// Maximum number of bytes of requests that a connection sends per second.
    pub send: Option<u64>,
}

/// Results of a run with slow connections.
#[derive(Clone, Debug)]
pub struct SlowCounts {
    /// Pace of the connections.
    pub peers: SlowPeers,
    /// Times from the start of a request until the server ended the request early, before the
    /// request and the reply were complete. A reply to an incomplete request also ends it early,
    /// and so does a reply with the status 408.
    pub closed: Latency,
}

/// Bytes that a slow connection transfers at once, and the time until the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    pub bytes: usize,
    pub interval: Duration,
}

const LARGEST: u64 = 64 << 10;

impl SlowPeers {
    pub fn is_used(self) -> bool {
        self.read.is_some() || self.send.is_some()
    }

    /// Returns the portion of a reply that is read at once. Returns `None` if replies are read at
    /// full speed.
    pub(crate) fn reads(self) -> Option<Portion> {
        self.read.map(Portion::of)
    }

    /// Returns the portion of a request that is sent at once. Returns `None` if requests are sent
    /// at full speed.
    pub(crate) fn sends(self) -> Option<Portion> {
        self.send.map(Portion::of)
    }

    /// Returns the size of the kernel's receive buffer for slow reads, or `None` for the default
    /// size. With the default size, the kernel would take megabytes of a reply at once, and the
    /// server would not notice the slow pace.
    pub(crate) fn receive_buffer(self) -> Option<usize> {
        self.read.map(|rate| rate.clamp(2 << 10, 256 << 10) as usize)
    }
}

impl Portion {
    /// Returns the portion for `rate` bytes per second, which is not zero. A portion is a tenth of
    /// `rate`, but at least 1 byte and at most `LARGEST` bytes. The interval is the portion divided
    /// by `rate`: about 0.1 s, unless one of these limits applies.
    fn of(rate: u64) -> Self {
        let bytes = (rate / 10).clamp(1, LARGEST);
        let interval = Duration::from_secs_f64(bytes as f64 / rate as f64);
        Self { bytes: bytes as usize, interval }
    }
}

impl SlowCounts {
    pub(crate) fn new(peers: SlowPeers) -> Self {
        Self { peers, closed: Latency::new() }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "read_bytes_per_s": self.peers.read,
            "send_bytes_per_s": self.peers.send,
            "closed": self.closed.count(),
            "closed_after_us": latency_json(&self.closed),
            "histogram": self.closed.encode(),
        })
    }

    pub(crate) fn from_json(json: &Value) -> Result<Option<Self>, String> {
        // Reports of older versions do not have this field.
        if json.is_null() {
            return Ok(None);
        }
        let histogram = json["histogram"].as_str().unwrap_or_default();
        let closed = Latency::decode(histogram).map_err(|error| format!("slow_peers: {error}"))?;
        let pace = |name: &str| json[name].as_u64().filter(|rate| *rate > 0);
        let peers = SlowPeers { read: pace("read_bytes_per_s"), send: pace("send_bytes_per_s") };
        Ok(Some(Self { peers, closed }))
    }

    /// Adds the counts of another thread, turn or machine to `sum`.
    pub(crate) fn add(sum: &mut Option<Box<Self>>, other: Option<Box<Self>>) {
        match (sum, other) {
            (Some(mine), Some(theirs)) => mine.closed.merge(&theirs.closed),
            (mine, theirs) => *mine = mine.take().or(theirs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_have_the_pace() {
        let portion = |rate| {
            let Portion { bytes, interval } = Portion::of(rate);
            (bytes, interval)
        };
        assert_eq!(portion(1), (1, Duration::from_secs(1)));
        assert_eq!(portion(8), (1, Duration::from_millis(125)));
        assert_eq!(portion(1000), (100, Duration::from_millis(100)));
        assert_eq!(portion(65_536_000), (65_536, Duration::from_millis(1)));
        assert!(!portion(u64::MAX).1.is_zero() || portion(u64::MAX).0 == 65_536);
    }

    #[test]
    fn counts_are_read_back() {
        let mut counts = SlowCounts::new(SlowPeers { read: Some(10), send: None });
        counts.closed.record_us(5_000_000);
        let json = counts.to_json();
        assert_eq!(SlowCounts::from_json(&json).unwrap().unwrap().to_json(), json);
        assert!(SlowCounts::from_json(&json!({ "histogram": "x" })).is_err());
        assert!(SlowCounts::from_json(&Value::Null).unwrap().is_none());
    }
}
