//! Division of a load among several machines.

use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Rate, Spec, Stop};

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
    /// Reduces `spec`, the whole load, to this shard. The connections and requests of all shards
    /// add up to those of the whole load. The rate is divided equally.
    ///
    /// # Errors
    /// Fails if the load has fewer connections or requests than shards.
    pub fn divide(mut self, spec: Spec) -> Result<Spec, Error> {
        self.connections = spec.connections;
        self.rate = spec.rate.map(|rate| rate.per_second);
        let too_few = |count: u64, what: &str| {
            let Self { number, count: shards, .. } = self;
            Error::Invalid(format!(
                "--shard {number}/{shards}: {count} {what} cannot be divided among {shards} \
                 shards: use at least {shards}"
            ))
        };
        let connections = self.part(spec.connections as u64);
        if spec.connections < self.count as usize {
            return Err(too_few(spec.connections as u64, "connections (-c)"));
        }
        let mut stop = spec.stop;
        if let Stop::Requests(requests) = &mut stop {
            self.requests = Some(*requests);
            if *requests < u64::from(self.count) {
                return Err(too_few(*requests, "requests (-n)"));
            }
            *requests = self.part(*requests);
        }
        let connections = connections as usize;
        let count = f64::from(self.count);
        Ok(Spec {
            connections,
            threads: spec.threads.min(connections),
            stop,
            rate: spec.rate.map(|rate| Rate { per_second: rate.per_second / count, ..rate }),
            shard: Some(self),
            ..spec
        })
    }

    /// Returns the share of `total` that this shard has. The first shards include the remainder.
    fn part(&self, total: u64) -> u64 {
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

    /// Parses `I/N`.
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
    use crate::{Arrivals, Url};

    #[test]
    fn the_parts_of_all_shards_add_up_exactly() {
        let rate = Some(Rate { per_second: 100.0, arrivals: Arrivals::Even });
        let whole = Spec {
            connections: 10,
            stop: Stop::Requests(1003),
            rate,
            ..Spec::new(Url::parse("http://h/").unwrap())
        };
        for count in [1, 2, 3, 7, 10] {
            let parts: Vec<Spec> = (1..=count)
                .map(|n| format!("{n}/{count}").parse::<Shard>().unwrap())
                .map(|shard| shard.divide(whole.clone()).unwrap())
                .collect();
            let requests = |spec: &Spec| match spec.stop {
                Stop::Requests(n) => n,
                Stop::Duration(_) => 0,
            };
            assert_eq!(parts.iter().map(|spec| spec.connections).sum::<usize>(), 10);
            assert_eq!(parts.iter().map(requests).sum::<u64>(), 1003);
            assert!(parts.iter().all(|spec| spec.threads <= spec.connections));
            let shard = parts[0].shard.as_ref().unwrap();
            assert_eq!((shard.rate, shard.requests), (Some(100.0), Some(1003)));
            let rates: f64 = parts.iter().map(|spec| spec.rate.unwrap().per_second).sum();
            assert!((rates - 100.0).abs() < 1e-9);
        }
        let error = "3/11".parse::<Shard>().unwrap().divide(whole).unwrap_err().to_string();
        assert!(error.contains("10 connections (-c) cannot be divided among 11"), "{error}");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1", "0/4", "5/4", "1/0", "+1/4", "1/4097", "1/4/5", "a/b", "-1/4"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
