//! Division of a load among several machines.

use std::str::FromStr;
use std::time::Duration;

/// One of the parts of a load that several machines generate together.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// Number of the part, from 1.
    pub number: u32,
    /// Number of parts.
    pub count: u32,
    /// Connections of the whole load.
    pub connections: usize,
    /// Requests of the whole load, if a number of requests ends it.
    pub requests: Option<u64>,
    /// Requests per second of the whole load, if it has a rate.
    pub rate: Option<f64>,
}

/// Run of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardRun {
    /// The shard.
    pub shard: Shard,
    /// Name of the machine.
    pub host: String,
    /// Time between the planned start and the start of the run.
    pub late: Duration,
}

/// Maximum number of shards.
const MOST: u32 = 4096;

impl Shard {
    /// Returns the share of `total` that this shard has. The remainder of the division is
    /// distributed among the first shards, one unit to each.
    pub(crate) fn part(&self, total: u64) -> u64 {
        let count = u64::from(self.count);
        total / count + u64::from(u64::from(self.number - 1) < total % count)
    }

    /// Returns the position of this shard among all shards, from 0 to less than 1.
    pub(crate) fn phase(&self) -> f64 {
        f64::from(self.number - 1) / f64::from(self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    /// Parses `I/N`, which means the shard with the number I of N shards.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten()
        };
        let parsed = text.split_once('/').and_then(|(i, n)| Some((number(i)?, number(n)?)));
        match parsed {
            Some((0, _)) => Err("shards count from 1: the first of four is 1/4".to_owned()),
            Some((number, count)) if number <= count && count <= MOST => {
                Ok(Self { number, count, connections: 0, requests: None, rate: None })
            }
            _ => Err(format!("write I/N, such as 1/4, with N from 1 to {MOST} and I at most N")),
        }
    }
}

impl ShardRun {
    pub(crate) fn new(shard: &Shard) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { shard: shard.clone(), host, late: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1", "0/4", "5/4", "1/0", "+1/4", "1/4097", "1/4/5", "a/b", "-1/4"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
