//! Load on several servers: divides connections, requests and rate among them, loads all at the same
//! time, and adds up their results. Each connection belongs to one server.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{io, thread};

use forebay_stat::Latency;
use serde_json::{Value, json};

use crate::counts::latency_json;
use crate::merge::add_up;
use crate::outcome::{count, status_json, status_of};
use crate::run::{LoadThreads, allow_files, crew};
use crate::{
    Control, Endpoint, Error, Failures, Outcome, Part, PartCounts, Ramp, RampStage, Rate, ShardRun,
    Spec, Stop,
};

/// Counts of one of several servers.
#[derive(Clone, Debug)]
pub struct ServerCounts {
    /// Host and port of the URLs, or the path of the socket.
    pub server: String,
    /// Number of connections.
    pub connections: usize,
    /// Wanted requests per second; `None` for a closed loop.
    pub rate: Option<f64>,
    /// Missed share of the wanted rate.
    pub shortfall: f64,
    /// True if the run missed the wanted rate of this server.
    pub has_missed_rate: bool,
    /// Duration of the load on this server.
    pub duration: Duration,
    /// Number of completed requests.
    pub completed: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Failed requests by kind.
    pub failures: Failures,
    /// Complete replies, by status.
    pub status: BTreeMap<u16, u64>,
    /// Latencies of completed requests.
    pub latency: Box<Latency>,
}

/// Share of a load that one server gets.
struct ServerLoad {
    /// Name for the report.
    name: String,
    /// Indices of the server's requests in the whole load.
    parts: Vec<usize>,
    spec: Spec,
}

impl Spec {
    /// Returns true if the requests go to several servers.
    pub(crate) fn has_servers(&self) -> bool {
        let mut parts = self.parts.iter();
        let first = parts.next().map(|part| part.url.server());
        parts.any(|part| Some(part.url.server()) != first)
    }

    /// Returns the number of servers that the requests go to.
    pub fn servers(&self) -> usize {
        self.groups().len().max(1)
    }

    /// Returns the number of load threads that a run starts.
    pub fn load_threads(&self) -> usize {
        let threads = |spec: &Self| spec.threads.min(spec.connections).max(1);
        if !self.has_servers() {
            return threads(self);
        }
        self.by_server().map_or(1, |loads| loads.iter().map(|load| threads(&load.spec)).sum())
    }

    /// Returns the indices of the requests of each server, in the order of their first requests.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            let server = part.url.server();
            let same = |group: &&mut Vec<usize>| self.parts[group[0]].url.server() == server;
            match groups.iter_mut().find(same) {
                Some(group) => group.push(index),
                None => groups.push(vec![index]),
            }
        }
        groups
    }

    /// Divides the load among the servers, in the order of their first requests. Connections,
    /// requests and rate are divided by the sums of the weights of the servers' requests.
    fn by_server(&self) -> Result<Vec<ServerLoad>, Error> {
        let groups = self.groups();
        let weight = |parts: &[usize]| -> u64 {
            parts.iter().map(|&index| u64::from(self.parts[index].weight)).sum()
        };
        let weights: Vec<u64> = groups.iter().map(|group| weight(group)).collect();
        let total: u64 = weights.iter().sum();
        let count = groups.len();
        let too_few = |number: u64, what: &str| {
            Error::Invalid(format!(
                "{number} {what} cannot be divided among {count} servers with these weights: use \
                 more"
            ))
        };
        let connections = shares(self.connections as u64, &weights)
            .ok_or_else(|| too_few(self.connections as u64, "connections (-c)"))?;
        let stops = match self.stop {
            Stop::Duration(_) => vec![self.stop; count],
            Stop::Requests(n) => {
                let shares = shares(n, &weights).ok_or_else(|| too_few(n, "requests (-n)"))?;
                shares.into_iter().map(Stop::Requests).collect()
            }
        };
        let threads = self.threads.div_ceil(count);
        let load = |(index, parts): (usize, Vec<usize>)| {
            let share = weights[index] as f64 / total as f64;
            let connections = connections[index] as usize;
            let requests: Vec<Part> = parts.iter().map(|&part| self.parts[part].clone()).collect();
            let url = requests[0].url.clone();
            let name = match url.own_endpoint() {
                Endpoint::Unix(path) => path.display().to_string(),
                Endpoint::Tcp { .. } => url.host().to_owned(),
            };
            let scaled = |rate: Rate| Rate { per_second: rate.per_second * share, ..rate };
            let spec = Spec {
                url,
                parts: requests,
                connections,
                threads: threads.min(connections),
                stop: stops[index],
                rate: self.rate.map(scaled),
                ramp: self.ramp.as_ref().map(|ramp| ramp.scaled(share).into()),
                ..self.without_parts()
            };
            ServerLoad { name, parts, spec }
        };
        Ok(groups.into_iter().enumerate().map(load).collect())
    }
}

impl Ramp {
    fn scaled(&self, share: f64) -> Self {
        let stage = |stage: &RampStage| RampStage { target: stage.target * share, ..*stage };
        Self { from: self.from * share, stages: self.stages.iter().map(stage).collect() }
    }
}

/// Divides `total` by weights, at least 1 for each. Returns `None` if this is not possible.
fn shares(total: u64, weights: &[u64]) -> Option<Vec<u64>> {
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let rest = total.checked_sub(weights.len() as u64)?;
    // Each share is the difference of two rounded sums, so that the shares add up exactly.
    let until = |before: u128| (u128::from(rest) * before + sum / 2) / sum.max(1);
    let mut before = 0;
    let share = |&weight: &u64| {
        let from = until(before);
        before += u128::from(weight);
        (until(before) - from) as u64 + 1
    };
    Some(weights.iter().map(share).collect())
}

/// Runs the load that `spec` describes and blocks until the load ends.
///
/// # Errors
/// Fails if no load was possible: the settings are invalid, the host cannot be resolved, the server
/// never accepted a connection, or the system refuses threads or files. Failed requests are no
/// error; the outcome counts them.
pub fn run(spec: &Spec, control: &Control) -> Result<Outcome, Error> {
    if spec.has_servers() {
        return run_servers(spec, control);
    }
    crew(spec)?.run(spec, LoadThreads::default(), control)
}

/// Runs a load on several servers.
fn run_servers(spec: &Spec, control: &Control) -> Result<Outcome, Error> {
    spec.validate()?;
    let loads = spec.by_server()?;
    allow_files(spec.connections as u64 + 2 * (spec.threads + loads.len()) as u64)?;
    // Check all loads before the first one starts.
    let crews = loads.iter().map(|load| crew(&load.spec)).collect::<Result<Vec<_>, _>>()?;
    let mut first_thread = 0;
    let results: Vec<Result<Outcome, Error>> = thread::scope(|scope| {
        let started: Vec<_> = crews
            .into_iter()
            .zip(&loads)
            .map(|(mut crew, load)| {
                let threads = LoadThreads { drains: false, first: first_thread };
                first_thread += load.spec.threads;
                scope.spawn(move || {
                    let result = crew.run(&load.spec, threads, control);
                    if result.is_err() {
                        // The error ends the whole run.
                        control.cancelled.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        let panicked =
            || Error::System { what: "a load thread", source: io::Error::other("it panicked") };
        started.into_iter().map(|run| run.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let outcomes = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(sum(spec, &loads, outcomes))
}

/// Adds up the results of all servers.
fn sum(spec: &Spec, loads: &[ServerLoad], mut outcomes: Vec<Outcome>) -> Outcome {
    let servers = loads.iter().zip(&outcomes);
    let servers = servers.map(|(load, outcome)| ServerCounts::of(&load.name, outcome)).collect();
    let mut parts = Vec::new();
    for (load, outcome) in loads.iter().zip(&mut outcomes) {
        let counts = match std::mem::take(&mut outcome.parts) {
            // The only request of a server has no counts of its own.
            counts if counts.is_empty() => vec![whole(&load.spec.parts[0], outcome)],
            counts => counts,
        };
        parts.extend(load.parts.iter().copied().zip(counts));
    }
    parts.sort_by_key(|(index, _)| *index);
    let named = loads.iter().map(|load| load.name.clone()).zip(outcomes).collect();
    let mut sum = add_up(named);
    for (stage, (from, whole)) in
        sum.stages.iter_mut().zip(spec.ramp.iter().flat_map(|r| r.steps()))
    {
        (stage.from, stage.stage) = (from, whole);
    }
    Outcome {
        url: spec.url.to_string(),
        rate: spec.rate,
        parts: parts.into_iter().map(|(_, part)| part).collect(),
        servers,
        shard: spec.shard.as_ref().map(ShardRun::new),
        ..sum
    }
}

/// Returns the counts of the only request of a server.
fn whole(part: &Part, outcome: &Outcome) -> PartCounts {
    PartCounts {
        name: None,
        url: part.url.to_string(),
        method: part.method.clone(),
        weight: part.weight,
        completed: outcome.requests.completed,
        failed: outcome.requests.failed,
        failures: outcome.requests.failures.clone(),
        mean: Duration::from_secs_f64(outcome.latency.mean_us().max(0.0) / 1e6),
        latency: Some(Box::new(outcome.latency.clone())),
    }
}

impl ServerCounts {
    fn of(name: &str, outcome: &Outcome) -> Self {
        Self {
            server: name.to_owned(),
            connections: outcome.connections,
            rate: outcome.rate.map(|rate| rate.per_second),
            shortfall: outcome.shortfall,
            has_missed_rate: outcome.has_missed_rate(),
            duration: outcome.duration,
            completed: outcome.requests.completed,
            failed: outcome.requests.failed,
            failures: outcome.requests.failures.clone(),
            status: outcome.requests.status.clone(),
            latency: Box::new(outcome.latency.clone()),
        }
    }

    /// Returns the number of replies with a status of 400 or above.
    pub fn error_replies(&self) -> u64 {
        self.status.range(400..).map(|(_, count)| count).sum()
    }

    /// Returns the number of completed requests per second.
    pub fn rate_per_s(&self) -> f64 {
        self.completed as f64 / self.duration.as_secs_f64().max(1e-9)
    }

    /// Returns reasons not to trust the figures of this server.
    pub(crate) fn problems(&self) -> Vec<String> {
        let Self { server, rate, shortfall, .. } = self;
        let mut problems = Vec::new();
        if self.completed == 0 {
            problems.push(format!("{server}: no request was completed"));
        }
        if let Some(rate) = rate.filter(|_| self.has_missed_rate) {
            let missed = shortfall * 100.0;
            problems.push(format!(
                "{server}: the wanted rate of {rate} requests/s was missed by {missed:.0} %"
            ));
        }
        problems
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "server": self.server,
            "connections": self.connections,
            "requested_rate": self.rate,
            "rate_shortfall": self.rate.map(|_| self.shortfall),
            "rate_missed": self.has_missed_rate,
            "duration_s": self.duration.as_secs_f64(),
            "completed": self.completed,
            "failed": self.failed,
            "failures": self.failures.to_json(),
            "status": status_json(&self.status),
            "rate_per_s": self.rate_per_s(),
            "latency_us": latency_json(&self.latency),
            "histogram": self.latency.encode(),
        })
    }

    pub(crate) fn from_json(json: &Value) -> Result<Self, String> {
        let server = json["server"].as_str().ok_or("server")?.to_owned();
        let duration =
            json["duration_s"].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
        let histogram = json["histogram"].as_str().ok_or("histogram")?;
        Ok(Self {
            server,
            connections: count(json, "connections")? as usize,
            rate: json["requested_rate"].as_f64(),
            shortfall: json["rate_shortfall"].as_f64().unwrap_or(0.0),
            has_missed_rate: json["rate_missed"] == true,
            duration: duration.ok_or("duration_s")?,
            completed: count(json, "completed")?,
            failed: count(json, "failed")?,
            failures: Failures::from_json(&json["failures"])?,
            status: status_of(json)?,
            latency: Box::new(Latency::decode(histogram).map_err(|error| error.to_string())?),
        })
    }

    /// Adds the counts of the same server on another machine.
    pub(crate) fn add(&mut self, other: &Self) {
        let rates = [self.rate, other.rate].map(Option::unwrap_or_default);
        let total = rates[0] + rates[1];
        if total > 0.0 {
            self.shortfall = (self.shortfall * rates[0] + other.shortfall * rates[1]) / total;
            self.rate = Some(total);
        }
        self.has_missed_rate |= other.has_missed_rate;
        self.connections += other.connections;
        self.duration = self.duration.max(other.duration);
        self.completed += other.completed;
        self.failed += other.failed;
        self.failures.add(&other.failures);
        for (status, count) in &other.status {
            *self.status.entry(*status).or_default() += count;
        }
        self.latency.merge(&other.latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_exactly_and_none_is_empty() {
        assert_eq!(shares(1000, &[3, 1]), Some(vec![750, 250]));
        assert_eq!(shares(10, &[1, 1]), Some(vec![5, 5]));
        assert_eq!(shares(2, &[100, 1]), Some(vec![1, 1]));
        assert_eq!(shares(2, &[1, 1, 1]), None);
        for total in 3..100 {
            for weights in [[1, 1, 1], [5, 3, 1], [1, 0xffff_ffff, 7]] {
                let shares = shares(total, &weights).unwrap();
                assert_eq!(shares.iter().sum::<u64>(), total);
                assert!(shares.iter().all(|share| *share > 0));
            }
        }
    }
}
