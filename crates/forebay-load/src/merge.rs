//! A load that several machines share: how it is divided among them, and how their results add up.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::outcome::timestamp;
use crate::series::add_series;
use crate::{Outcome, PartCounts, Rate, SlowCounts};

/// Sum of the results of several machines.
#[derive(Clone, Debug)]
pub struct Merged {
    /// Results as if one machine had generated the whole load. The duration is the time from the
    /// first start to the last end.
    pub outcome: Outcome,
    /// Results of each machine.
    pub shards: Vec<ShardResult>,
    /// Reasons not to trust the sum, in addition to those of the outcome.
    pub doubts: Vec<String>,
}

/// Results of one machine.
#[derive(Clone, Debug)]
pub struct ShardResult {
    /// Name of the file with the results.
    pub name: String,
    /// The shard; `None` if the run was started without one.
    pub run: Option<ShardRun>,
    /// Time at which the run started.
    pub started_at: SystemTime,
    /// Duration of the run.
    pub duration: Duration,
    /// Number of completed requests.
    pub completed: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// CPU time of the load threads, divided by the duration and by the number of threads.
    pub busy: f64,
    /// True if the load threads were busy for most of the time, so that the machine may have
    /// limited the rate.
    pub is_saturated: bool,
    /// Missed share of the wanted rate, if more than 5 % were missed.
    pub missed: Option<f64>,
}

/// Maximum number of results.
const MOST_RESULTS: usize = 8192;
/// Maximum of each count. The sums then fit into 64 bits.
const HIGHEST_COUNT: u64 = 1 << 50;
/// Maximum duration and CPU time of a run, in seconds.
const LONGEST_S: f64 = 366.0 * 86_400.0;
/// Maximum time between two starts, in seconds. Runs that started further apart are no shards of
/// one load.
const WIDEST_S: f64 = 86_400.0;
/// Share of the time during which all machines must load the server together. With a smaller share,
/// the sum of their results is doubtful.
const TOGETHER: f64 = 0.95;
/// A start counts as late if its delay exceeds both `LATE` and the share `LATE_SHARE` of the
/// duration.
const LATE: Duration = Duration::from_millis(100);
const LATE_SHARE: f64 = 0.05;

/// Adds up results, each with a name for messages.
///
/// # Errors
/// Returns an error message if the results are not those of one load, for example because they have
/// different URLs or one shard occurs twice.
pub fn merge(results: Vec<(String, Outcome)>) -> Result<Merged, String> {
    if results.len() > MOST_RESULTS {
        return Err(format!("at most {MOST_RESULTS} results can be merged"));
    }
    let Some(first) = results.first() else { return Err("no results are given".to_owned()) };
    for (name, outcome) in &results {
        check_counts(outcome).map_err(|why| format!("{name}: {why}"))?;
        check_same(&first.1, outcome).map_err(|why| format!("{name}: {why} {}", first.0))?;
    }
    let mut doubts = check_shards(&results)?;
    let shards: Vec<_> = results.iter().map(|(name, run)| ShardResult::of(name, run)).collect();
    doubts.extend(shards.iter().flat_map(ShardResult::doubts));
    let window = Window::of(&results)?;
    doubts.extend(window.doubt());
    Ok(Merged { outcome: sum(results, &window), shards, doubts })
}

impl Merged {
    /// Returns all reasons not to trust the figures.
    pub fn problems(&self) -> Vec<String> {
        self.doubts.iter().cloned().chain(self.outcome.problems()).collect()
    }

    /// Converts the sum to JSON with the schema `forebay.bench/1`, with the results of each machine
    /// in `shards`.
    pub fn to_json(&self) -> Value {
        let mut json = self.outcome.to_json();
        json["problems"] = json!(self.problems());
        json["shards"] = self.shards.iter().map(ShardResult::to_json).collect();
        json
    }
}

impl ShardResult {
    fn of(name: &str, outcome: &Outcome) -> Self {
        let cpu = (outcome.client.cpu_user + outcome.client.cpu_system).as_secs_f64();
        let time = outcome.duration.as_secs_f64() * outcome.threads.max(1) as f64;
        Self {
            name: name.to_owned(),
            run: outcome.shard.clone(),
            started_at: outcome.started_at,
            duration: outcome.duration,
            completed: outcome.requests.completed,
            failed: outcome.requests.failed,
            busy: cpu / time.max(1e-9),
            is_saturated: outcome.client.saturated,
            missed: outcome.has_missed_rate().then_some(outcome.shortfall),
        }
    }

    /// Returns the number of the shard and the name of its machine. If the result is not of a
    /// shard, returns the file's name.
    pub fn label(&self) -> String {
        match &self.run {
            Some(ShardRun { shard, host, .. }) => {
                format!("shard {}/{} on {host}", shard.number, shard.count)
            }
            None => self.name.clone(),
        }
    }

    /// Returns the number of completed requests per second.
    pub fn rate_per_s(&self) -> f64 {
        self.completed as f64 / self.duration.as_secs_f64().max(1e-9)
    }

    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let label = self.label();
        if self.is_saturated {
            doubts.push(format!(
                "{label} was saturated: its load threads were busy for more than 85 % of the time \
                 ({:.0} % of CPU)",
                self.busy * 100.0
            ));
        }
        if let Some(missed) = self.missed {
            doubts.push(format!("{label} missed its rate by {:.0} %", missed * 100.0));
        }
        let late = self.run.as_ref().map_or(Duration::ZERO, |run| run.late);
        if late > LATE.max(self.duration.mul_f64(LATE_SHARE)) {
            doubts.push(format!("{label} started {:.1} s late", late.as_secs_f64()));
        }
        doubts
    }

    fn to_json(&self) -> Value {
        let run = self.run.as_ref();
        json!({
            "name": self.name,
            "number": run.map(|run| run.shard.number),
            "count": run.map(|run| run.shard.count),
            "host": run.map(|run| run.host.as_str()),
            "late_s": run.map(|run| run.late.as_secs_f64()),
            "started_at": timestamp(self.started_at),
            "duration_s": self.duration.as_secs_f64(),
            "completed": self.completed,
            "failed": self.failed,
            "rate_per_s": self.rate_per_s(),
            "client_cpu_share": self.busy,
            "saturated": self.is_saturated,
            "rate_missed": self.missed,
        })
    }
}

/// Times of all runs, in seconds since 1970.
struct Window {
    first_start: f64,
    last_start: f64,
    first_end: f64,
    last_end: f64,
}

impl Window {
    fn times(results: &[(String, Outcome)]) -> Self {
        let times = results.iter().map(|(_, run)| {
            let start = since_1970(run.started_at);
            (start, start + run.duration.as_secs_f64())
        });
        let (starts, ends): (Vec<f64>, Vec<f64>) = times.unzip();
        let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |times: &[f64]| times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self {
            first_start: least(&starts),
            last_start: most(&starts),
            first_end: least(&ends),
            last_end: most(&ends),
        }
    }

    fn of(results: &[(String, Outcome)]) -> Result<Self, String> {
        let window = Self::times(results);
        if window.last_start - window.first_start > WIDEST_S {
            return Err("the runs started more than a day apart, so they are not one load; to \
                        compare two runs, use `forebay bench --against`"
                .to_owned());
        }
        Ok(window)
    }

    fn duration(&self) -> f64 {
        self.last_end - self.first_start
    }

    /// Returns a message if the machines loaded the server together for too short a time. Otherwise
    /// returns `None`.
    fn doubt(&self) -> Option<String> {
        let together = (self.first_end - self.last_start).max(0.0);
        let share = together / self.duration().max(1e-9);
        (share < TOGETHER).then(|| {
            format!(
                "the machines loaded the server together for only {:.0} % of the time: use \
                 --start-at, and synchronize their clocks",
                share * 100.0
            )
        })
    }
}

fn since_1970(time: SystemTime) -> f64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(error) => -error.duration().as_secs_f64(),
    }
}

/// Checks that the counts are plausible, because files can be damaged.
fn check_counts(outcome: &Outcome) -> Result<(), String> {
    let requests = &outcome.requests;
    let counts = [requests.sent, requests.resent, requests.completed, requests.failed];
    let counts = counts.into_iter().chain([requests.unsent, requests.in_flight]);
    let counts = counts.chain([outcome.bytes.read, outcome.bytes.body]);
    let counts = counts.chain([outcome.connections, outcome.threads].map(|n| n as u64));
    let counts = counts.chain(requests.failures.by_kind().map(|(_, count)| count));
    let counts = counts.chain(requests.status.values().copied());
    let grpc = requests.grpc.iter().flat_map(|grpc| grpc.status.values().chain([&grpc.messages]));
    let counts = counts.chain(grpc.copied());
    let counts = counts.chain(outcome.series.iter().flat_map(|s| [s.completed, s.failed]));
    let handshakes = outcome.handshakes.iter().flat_map(|h| [h.full, h.resumed]);
    let counts = counts.chain(handshakes);
    let iterations = outcome.iterations.iter();
    let counts = counts.chain(iterations.flat_map(|i| [i.completed, i.failed, i.interrupted]));
    let counts = counts.chain(outcome.stages.iter().flat_map(|s| [s.completed, s.failed]));
    let servers =
        outcome.servers.iter().flat_map(|s| [s.completed, s.failed, s.connections as u64]);
    let counts = counts.chain(servers);
    let counts = counts.chain(outcome.servers.iter().flat_map(|s| s.status.values().copied()));
    let kinds = outcome.servers.iter().flat_map(|s| s.failures.by_kind().map(|(_, n)| n));
    let counts = counts.chain(kinds);
    let kinds = outcome.parts.iter().flat_map(|part| part.failures.by_kind().map(|(_, n)| n));
    let counts = counts.chain(kinds);
    let parts = outcome.parts.iter().flat_map(|part| [part.completed, part.failed]);
    if counts.chain(parts).any(|count| count > HIGHEST_COUNT) {
        return Err("a count is too large".to_owned());
    }
    let times = [outcome.duration, outcome.client.cpu_user, outcome.client.cpu_system];
    if times.iter().any(|time| time.as_secs_f64() > LONGEST_S) {
        return Err("a time is more than a year".to_owned());
    }
    if requests.failures.total() != requests.failed {
        return Err("the kinds of failures do not add up to the failed requests".to_owned());
    }
    if outcome.latency.count() != requests.completed {
        return Err("the histogram does not have as many latencies as there are completed \
                    requests"
            .to_owned());
    }
    Ok(())
}

/// Checks that two results are of the same load. An error text ends with `than`, and the caller
/// appends the name of the first result.
fn check_same(first: &Outcome, other: &Outcome) -> Result<(), String> {
    let key =
        |part: &PartCounts| (part.name.clone(), part.url.clone(), part.method.clone(), part.weight);
    let scenarios = |run: &Outcome| -> Vec<_> {
        run.iterations.iter().map(|counts| (counts.name.clone(), counts.weight)).collect()
    };
    if first.url != other.url || first.method != other.method {
        return Err(format!("it measured {} {}, another request than", other.method, other.url));
    }
    if first.protocol != other.protocol || first.streams != other.streams {
        return Err("it used another protocol, or other streams, than".to_owned());
    }
    if first.replay != other.replay {
        return Err("it replayed another log, or at another speed, than".to_owned());
    }
    let stages =
        |run: &Outcome| -> Vec<_> { run.stages.iter().map(|s| (s.from, s.stage)).collect() };
    if stages(first) != stages(other) {
        return Err("it had other stages than".to_owned());
    }
    if scenarios(first) != scenarios(other) {
        return Err("it performed other scenarios than".to_owned());
    }
    if !first.parts.iter().map(key).eq(other.parts.iter().map(key)) {
        return Err("it mixed other requests, or other weights, than".to_owned());
    }
    let servers =
        |run: &Outcome| -> Vec<_> { run.servers.iter().map(|s| s.server.clone()).collect() };
    if servers(first) != servers(other) {
        return Err("it loaded other servers than".to_owned());
    }
    if first.rate.map(|rate| rate.arrivals) != other.rate.map(|rate| rate.arrivals) {
        return Err("it had another distribution of requests in time than".to_owned());
    }
    Ok(())
}

/// Fails if a shard occurs twice, or if the shards belong to different loads. Otherwise returns
/// warnings: one if shards are missing, and one if only some of the results are shards.
fn check_shards(results: &[(String, Outcome)]) -> Result<Vec<String>, String> {
    let mut seen: BTreeMap<u32, &str> = BTreeMap::new();
    let mut whole = None;
    for (name, outcome) in results {
        let Some(ShardRun { shard, .. }) = &outcome.shard else { continue };
        if let Some(other) = seen.insert(shard.number, name) {
            let (number, count) = (shard.number, shard.count);
            return Err(format!("{other} and {name} are both shard {number}/{count}"));
        }
        let load = (shard.count, shard.connections, shard.requests, shard.rate);
        if whole.get_or_insert(load) != &load {
            return Err(format!("{name}: it is a shard of another load than the first one"));
        }
    }
    let Some((count, ..)) = whole else { return Ok(Vec::new()) };
    let mut doubts = Vec::new();
    let missing: Vec<_> = (1..=count).filter(|number| !seen.contains_key(number)).collect();
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().take(10).map(ToString::to_string).collect();
        let more = if missing.len() > 10 { ", ..." } else { "" };
        doubts.push(format!(
            "{} of {count} shards are missing: {}{more}",
            missing.len(),
            names.join(", ")
        ));
    }
    if seen.len() < results.len() {
        doubts.push("some results are shards, and others are not".to_owned());
    }
    Ok(doubts)
}

/// Adds up results of runs that began at about the same time.
pub(crate) fn add_up(results: Vec<(String, Outcome)>) -> Outcome {
    let window = Window::times(&results);
    sum(results, &window)
}

/// Adds up the results.
fn sum(results: Vec<(String, Outcome)>, window: &Window) -> Outcome {
    let wanted = |run: &Outcome| run.rate.map_or(0.0, |rate| rate.per_second);
    let total: f64 = results.iter().map(|(_, run)| wanted(run)).sum();
    let whole = results[0].1.shard.as_ref().and_then(|run| run.shard.rate);
    let missed: f64 = results.iter().map(|(_, run)| wanted(run) * run.shortfall).sum();
    let first = &results[0].1;
    let mut sum = Outcome {
        url: first.url.clone(),
        method: first.method.clone(),
        protocol: first.protocol,
        streams: first.streams,
        rate: first.rate.map(|rate| Rate { per_second: whole.unwrap_or(total), ..rate }),
        shortfall: if total > 0.0 { missed / total } else { first.shortfall },
        started_at: first.started_at,
        replay: first.replay.clone(),
        connections: 0,
        threads: 0,
        duration: Duration::from_secs_f64(window.duration().max(0.0)),
        parts: Vec::new(),
        ..Outcome::default()
    };
    for (name, run) in results {
        let offset = (since_1970(run.started_at) - window.first_start).round().max(0.0);
        add_series(&mut sum.series, run.series, offset as usize);
        sum.started_at = sum.started_at.min(run.started_at);
        sum.connections += run.connections;
        sum.threads += run.threads;
        sum.requests.add(&run.requests);
        sum.bytes.read += run.bytes.read;
        sum.bytes.body += run.bytes.body;
        sum.latency.merge(&run.latency);
        match (&mut sum.handshakes, run.handshakes) {
            (Some(sum), Some(run)) => sum.add(&run),
            (sum, run) => *sum = sum.take().or(run),
        }
        SlowCounts::add(&mut sum.slow, run.slow);
        sum.client.cpu_user += run.client.cpu_user;
        sum.client.cpu_system += run.client.cpu_system;
        sum.client.saturated |= run.client.saturated;
        sum.oldest_in_flight = sum.oldest_in_flight.max(run.oldest_in_flight);
        sum.is_interrupted |= run.is_interrupted;
        sum.gave_up |= run.gave_up;
        let failure = run.first_failure.map(|why| format!("{why} ({name})"));
        sum.first_failure = sum.first_failure.or(failure);
        if sum.parts.is_empty() {
            sum.parts = run.parts;
        } else {
            sum.parts.iter_mut().zip(run.parts).for_each(|(sum, part)| sum.add(part));
        }
        if sum.servers.is_empty() {
            sum.servers = run.servers;
        } else {
            sum.servers.iter_mut().zip(&run.servers).for_each(|(sum, run)| sum.add(run));
        }
        if sum.stages.is_empty() {
            sum.stages = run.stages;
        } else {
            sum.stages.iter_mut().zip(&run.stages).for_each(|(sum, run)| sum.add(run));
        }
        if sum.iterations.is_empty() {
            sum.iterations = run.iterations;
        } else {
            let both = sum.iterations.iter_mut().zip(&run.iterations);
            both.for_each(|(sum, run)| sum.add(run));
        }
    }
    sum
}

// Division of a load among several machines.

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
const MAX_SHARDS: u32 = 4096;

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
            Some((number, count)) if number <= count && count <= MAX_SHARDS => {
                Ok(Self { number, count, connections: 0, requests: None, rate: None })
            }
            _ => Err(format!(
                "write I/N, such as 1/4, with N from 1 to {MAX_SHARDS} and I at most N"
            )),
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
    use crate::{Arrivals, Failures, IterationCounts, Requests, Second};

    /// Returns the outcome of shard `number` of three. It started `start_ms` after the first one.
    fn shard(number: u32, start_ms: u64) -> (String, Outcome) {
        let shard = Shard { number, count: 3, connections: 30, requests: None, rate: Some(300.0) };
        let run = ShardRun { shard, host: format!("h{number}"), late: Duration::ZERO };
        let mut outcome = Outcome {
            url: "http://h/".to_owned(),
            started_at: SystemTime::UNIX_EPOCH
                + Duration::from_millis(1_700_000_000_000 + start_ms),
            rate: Some(Rate { per_second: 100.0, arrivals: Arrivals::Poisson }),
            duration: Duration::from_secs(100),
            connections: 10,
            shard: Some(run),
            ..Outcome::default()
        };
        (1..=1000).for_each(|us| outcome.latency.record_us(us * u64::from(number)));
        let failures = Failures { timeout: u64::from(number), ..Failures::default() };
        outcome.requests =
            Requests { completed: 1000, failed: failures.timeout, failures, ..Requests::default() };
        let (completed, failed) = (500, 0);
        let second = || Second { completed, failed, histogram: outcome.latency.encode() };
        outcome.series = vec![second(), Second { failed: u64::from(number), ..second() }];
        outcome.iterations = vec![IterationCounts {
            name: "buyer".to_owned(),
            weight: 1,
            completed: 1000,
            failed: u64::from(number),
            interrupted: 1,
            time: Box::new(outcome.latency.clone()),
        }];
        (format!("{number}.json"), outcome)
    }

    #[test]
    fn sums_are_exact() {
        let merged = merge(vec![shard(3, 0), shard(1, 1100), shard(2, 40)]).unwrap();
        assert_eq!(merged.doubts, [""; 0]);
        let sum = &merged.outcome;
        assert_eq!((sum.requests.completed, sum.requests.failures.timeout), (3000, 6));
        assert_eq!((sum.connections, sum.rate.unwrap().per_second), (30, 300.0));
        let mut latency = forebay_stat::Latency::new();
        for n in 1..=3 {
            latency.merge(&shard(n, 0).1.latency);
        }
        assert_eq!(sum.latency.encode(), latency.encode());
        let counts: Vec<_> = sum.series.iter().map(|s| (s.completed, s.failed)).collect();
        assert_eq!(counts, [(1000, 0), (1500, 5), (500, 1)]);
        let iterations = &sum.iterations[0];
        let counts = (iterations.completed, iterations.failed, iterations.interrupted);
        assert_eq!(counts, (3000, 6, 3));
        assert_eq!(iterations.time.encode(), latency.encode());
        assert!((sum.duration.as_secs_f64() - 101.1).abs() < 1e-3);
        // The JSON of a sum can be merged again.
        let again = Outcome::from_json(&merged.to_json()).unwrap();
        assert_eq!(again.requests, sum.requests);
        assert_eq!(again.series, sum.series);
    }

    #[test]
    fn a_saturated_late_or_missing_shard_is_named() {
        let (mut busy, mut behind, mut late) = (shard(1, 0), shard(2, 0), shard(3, 0));
        busy.1.client.saturated = true;
        behind.1.shortfall = 0.5;
        late.1.shard.as_mut().unwrap().late = Duration::from_secs(6);
        let doubts = merge(vec![busy, behind, late]).unwrap().doubts;
        assert!(doubts[0].starts_with("shard 1/3 on h1 was saturated"), "{doubts:?}");
        assert_eq!(doubts[1], "shard 2/3 on h2 missed its rate by 50 %");
        assert_eq!(doubts[2], "shard 3/3 on h3 started 6.0 s late");
        let doubts = merge(vec![shard(2, 0), shard(1, 30_000)]).unwrap().doubts;
        assert_eq!(doubts[0], "1 of 3 shards are missing: 3");
        assert!(doubts[1].contains("together for only 54 %"), "{doubts:?}");
    }

    #[test]
    fn results_of_different_loads_are_refused() {
        let wrong = |change: fn(&mut Outcome), why: &str| {
            let mut other = shard(2, 0);
            change(&mut other.1);
            let error = merge(vec![shard(1, 0), other]).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        wrong(|run| run.url = "http://h/b".to_owned(), "2.json: it measured GET http://h/b");
        wrong(|run| run.shard.as_mut().unwrap().shard.number = 1, "1.json and 2.json are both");
        wrong(|run| run.shard.as_mut().unwrap().shard.connections = 31, "of another load");
        wrong(|run| run.requests.completed = 999, "the histogram does not have");
        wrong(|run| run.requests.failures.read = 5, "do not add up");
        wrong(|run| run.iterations[0].name = "reader".to_owned(), "performed other scenarios");
        wrong(|run| run.iterations[0].failed = u64::MAX, "a count is too large");
        wrong(|run| run.bytes.read = u64::MAX, "a count is too large");
        let too_many = |run: &mut Outcome| {
            let many = crate::Handshakes { full: u64::MAX, ..Default::default() };
            run.handshakes = Some(many);
        };
        wrong(too_many, "a count is too large");
        wrong(|run| run.duration = Duration::MAX, "more than a year");
        wrong(|run| run.started_at = SystemTime::UNIX_EPOCH, "more than a day apart");
        assert!(merge(Vec::new()).is_err());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1", "0/4", "5/4", "1/0", "+1/4", "1/4097", "1/4/5", "a/b", "-1/4"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
