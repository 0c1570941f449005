//! Results of a run.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use forebay_stat::Latency;
use serde_json::{Value, json};

use crate::counts::latency_json;
use crate::{
    Arrivals, Failures, GrpcCounts, IterationCounts, Protocol, Rate, ReplayRun, Second,
    ServerCounts, Shard, ShardRun, SlowCounts, StageCounts,
};

/// Results of a run.
#[derive(Clone, Debug)]
// More than 20 fields: one for each member of the JSON object that `forebay bench` prints.
pub struct Outcome {
    /// URL that was requested.
    pub url: String,
    /// Method of the request.
    pub method: String,
    /// Time at which the run started.
    pub started_at: SystemTime,
    /// Wanted rate; `None` for a closed loop.
    pub rate: Option<Rate>,
    /// Share of the wanted rate that was missed: the delay of the plan at the end, divided by the
    /// duration; or the share of due requests by which the backlog grew in the second half of the run
    /// or of a stage, if this is more.
    pub shortfall: f64,
    /// Age of the oldest request that was still active at the end.
    pub oldest_in_flight: Duration,
    /// True if the run was cancelled.
    pub is_interrupted: bool,
    /// Counts of each second of the run. Empty for a turn of [`Turns`](crate::Turns).
    pub series: Vec<Second>,
    /// Counts of each stage of a ramp.
    pub stages: Vec<StageCounts>,
    /// Protocol of the run.
    pub protocol: Protocol,
    /// Number of connections.
    pub connections: usize,
    /// Maximum number of concurrent requests per connection.
    pub streams: usize,
    /// Number of load threads.
    pub threads: usize,
    /// Time from the start of the first load thread to the end of the last request.
    pub duration: Duration,
    /// Counts of requests.
    pub requests: Requests,
    /// Counts of each request of a mixed load; empty if all requests are equal.
    pub parts: Vec<PartCounts>,
    /// Counts of each server, if there are several.
    pub servers: Vec<ServerCounts>,
    /// Counts of the iterations of each scenario; empty without scenarios.
    pub iterations: Vec<IterationCounts>,
    /// Numbers of bytes received.
    pub bytes: Bytes,
    /// Latency of completed requests, from the due time to the last byte of the reply. In a closed
    /// loop, a request is due when its connection becomes free. The time to connect is included.
    pub latency: Latency,
    /// Counts and times of TLS handshakes; `None` without TLS.
    pub handshakes: Option<Handshakes>,
    /// CPU time of the load threads.
    pub client: ClientUsage,
    /// Description of the first failed request.
    pub first_failure: Option<String>,
    /// True if the run ended early because no connect succeeded within a whole timeout.
    pub gave_up: bool,
    /// Shard of this run, if several machines generated the load.
    pub shard: Option<ShardRun>,
    /// Log that was replayed.
    pub replay: Option<ReplayRun>,
    /// Results of slow peers.
    pub slow: Option<Box<SlowCounts>>,
}

/// Counts of one request of a mixed load.
#[derive(Clone, Debug)]
pub struct PartCounts {
    /// Name of the step of a scenario.
    pub name: Option<String>,
    /// URL of the request.
    pub url: String,
    /// Method of the request.
    pub method: String,
    /// Weight relative to the other requests of the mixed load.
    pub weight: u32,
    /// Number of completed requests.
    pub completed: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Failed requests by kind.
    pub failures: Failures,
    /// Mean latency of completed requests.
    pub mean: Duration,
    /// Histogram of the latencies; `None` if the load has too many different requests.
    pub latency: Option<Box<Latency>>,
}

/// Counts of requests. If a run of n requests was not cancelled, `completed + failed` is n.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Requests with at least one byte written.
    pub sent: u64,
    /// Requests sent again, because the server had closed an idle connection or an HTTP/2 server
    /// had not processed them (GOAWAY). `sent` does not include these requests, and they are no
    /// failures.
    pub resent: u64,
    /// Requests with a complete, well-formed reply that passed the check. Without a check, the
    /// reply may have any status.
    pub completed: u64,
    /// Failed requests: the sum of `failures`.
    pub failed: u64,
    /// In an open loop, the number of requests that were due before the end but never got a free
    /// connection.
    pub unsent: u64,
    /// Active requests: those without a reply when the run ended, which are neither completed nor
    /// failed.
    pub in_flight: u64,
    /// Failed requests by kind.
    pub failures: Failures,
    /// Complete replies, by status.
    pub status: BTreeMap<u16, u64>,
    /// Replies of gRPC; `None` with another protocol.
    pub grpc: Option<GrpcCounts>,
}

/// Numbers of bytes received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// All received bytes.
    pub read: u64,
    /// Bytes of bodies, without the framing.
    pub body: u64,
}

/// Counts and times of successful TLS handshakes.
#[derive(Clone, Debug, Default)]
pub struct Handshakes {
    /// Number of full handshakes: the server sent its certificate.
    pub full: u64,
    /// Number of handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Time of a handshake, from the connected socket to the client's last message; `None` if there
    /// were none.
    pub time: Option<Box<Latency>>,
}

/// CPU time of the load threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientUsage {
    /// User CPU time of all load threads.
    pub cpu_user: Duration,
    /// System CPU time of all load threads.
    pub cpu_system: Duration,
    /// True if every load thread was busy for more than 85 % of the time. The client may then limit
    /// the rate instead of the server.
    pub saturated: bool,
    /// Total duration of the turns with a saturated client.
    pub saturated_for: Duration,
}

/// Share of the wanted rate that a run may miss. A run with a larger share has missed the rate, if
/// the plan was also late by more than `BEHIND`.
const SHORTFALL: f64 = 0.05;
/// Delay of the plan that every run may have. In a short run, each pause of the machine delays the
/// plan by a large share of the duration.
const BEHIND: Duration = Duration::from_millis(100);
/// Delay that the scheduler of a machine may cause.
const SCHEDULING: Duration = Duration::from_millis(50);

/// Maximum age of an active request at the end of a run. An older request is overdue.
const OVERDUE: Duration = Duration::from_secs(1);

impl Default for Outcome {
    fn default() -> Self {
        Self {
            url: String::new(),
            method: "GET".to_owned(),
            started_at: SystemTime::UNIX_EPOCH,
            rate: None,
            shortfall: 0.0,
            oldest_in_flight: Duration::ZERO,
            is_interrupted: false,
            series: Vec::new(),
            stages: Vec::new(),
            protocol: Protocol::Http,
            connections: 1,
            streams: 1,
            threads: 1,
            duration: Duration::ZERO,
            requests: Requests::default(),
            parts: Vec::new(),
            servers: Vec::new(),
            iterations: Vec::new(),
            bytes: Bytes::default(),
            latency: Latency::new(),
            handshakes: None,
            client: ClientUsage::default(),
            first_failure: None,
            gave_up: false,
            shard: None,
            replay: None,
            slow: None,
        }
    }
}

impl Outcome {
    /// Returns the number of completed requests per second.
    pub fn rate_per_s(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds > 0.0 { self.requests.completed as f64 / seconds } else { 0.0 }
    }

    /// Returns the mean number of requests that were under way at once: by Little's law, the rate
    /// multiplied by the mean latency.
    pub fn concurrency(&self) -> f64 {
        self.rate_per_s() * self.latency.mean_us() / 1e6
    }

    /// Returns the CPU time (user and system) of the client in microseconds per completed request.
    pub fn cpu_us_per_request(&self) -> f64 {
        let cpu = (self.client.cpu_user + self.client.cpu_system).as_secs_f64() * 1e6;
        if self.requests.completed > 0 { cpu / self.requests.completed as f64 } else { 0.0 }
    }

    /// Returns the number of complete replies with a status of 400 or above. Returns 0 for
    /// scenarios, whose checks decide which replies are errors.
    pub fn error_replies(&self) -> u64 {
        if !self.iterations.is_empty() {
            // The steps' checks decide which replies are errors. Such replies already count as
            // failed requests.
            return 0;
        }
        self.requests.status.range(400..).map(|(_, count)| count).sum()
    }

    /// Returns reasons not to trust the figures, except failed requests and replies with an error
    /// status.
    pub fn problems(&self) -> Vec<String> {
        let Requests { completed, in_flight, unsent, .. } = self.requests;
        let mut problems = Vec::new();
        if self.gave_up {
            problems.push("the run ended early: no further connection could be made".to_owned());
        }
        // A server may close every slow connection. A run without completed requests is then valid.
        let is_closing = self.slow.as_ref().is_some_and(|slow| !slow.closed.is_empty());
        if completed == 0 && !is_closing {
            problems.push("no request was completed".to_owned());
        }
        if self.has_missed_rate() {
            let wanted = match self.rate {
                Some(rate) => format!("the wanted rate of {} {}/s", rate.per_second, self.unit()),
                None => "the pace of the replay".to_owned(),
            };
            let mut text = format!("{wanted} was missed by {:.0} %", self.shortfall * 100.0);
            if unsent > 0 {
                let unit = self.unit();
                text += &format!(" ({unsent} {unit} were due and not sent)");
            } else if in_flight > 0 {
                text += &format!(" ({in_flight} requests had no reply at the end)");
            }
            problems.push(text);
        }
        problems.extend(self.servers.iter().flat_map(ServerCounts::problems));
        if self.is_overdue() && self.slow.is_none() {
            problems.push(format!(
                "{in_flight} requests were in flight at the end, one of them for {:.1} s",
                self.oldest_in_flight.as_secs_f64()
            ));
        }
        problems
    }

    /// Returns the unit of the wanted rate: `iterations` for scenarios, otherwise `requests`.
    pub fn unit(&self) -> &'static str {
        if self.iterations.is_empty() { "requests" } else { "iterations" }
    }

    /// Returns the time of the start according to RFC 3339, in UTC and with milliseconds.
    pub fn started(&self) -> String {
        timestamp(self.started_at)
    }

    /// Returns true if requests were due at planned times: with a rate, or at the pace of a log.
    pub fn is_open_loop(&self) -> bool {
        self.rate.is_some() || self.replay.as_ref().is_some_and(|replay| replay.speed.is_some())
    }

    /// Returns true if the load missed more than 5 % of the wanted rate, and was more than 100 ms
    /// late at its end.
    pub fn has_missed_rate(&self) -> bool {
        self.shortfall > SHORTFALL && self.behind() > BEHIND
    }

    /// Returns a message if the load missed more than 5 % of the wanted rate, but is so short that a
    /// pause of this machine can be the reason.
    pub fn rate_doubt(&self) -> Option<String> {
        let is_doubtful =
            self.shortfall > SHORTFALL && (SCHEDULING..=BEHIND).contains(&self.behind());
        is_doubtful.then(|| {
            let percent = self.shortfall * 100.0;
            format!(
                "the rate was missed by {percent:.0} %, in a run of {:.2?}: use a longer one (-d)",
                self.duration
            )
        })
    }

    fn behind(&self) -> Duration {
        self.duration.mul_f64(self.shortfall.clamp(0.0, 1.0))
    }

    /// Returns true if a request was overdue at the end: active for more than a second, and for
    /// more than twice the longest latency.
    fn is_overdue(&self) -> bool {
        let slowest = Duration::from_micros(self.latency.max_us());
        self.oldest_in_flight > OVERDUE.max(slowest * 2)
    }

    /// Adds up the turns of one load. The client counts as saturated if it was saturated for more
    /// than half of the total duration. Returns `None` if there are no turns.
    pub fn sum(turns: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut turns = turns.into_iter();
        let mut sum = turns.next()?;
        let mut missed = sum.duration.mul_f64(sum.shortfall);
        for turn in turns {
            sum.client.saturated_for += turn.client.saturated_for;
            sum.duration += turn.duration;
            sum.requests.add(&turn.requests);
            sum.bytes.read += turn.bytes.read;
            sum.bytes.body += turn.bytes.body;
            sum.latency.merge(&turn.latency);
            match (&mut sum.handshakes, turn.handshakes) {
                (Some(sum), Some(turn)) => sum.add(&turn),
                (sum, turn) => *sum = sum.take().or(turn),
            }
            SlowCounts::add(&mut sum.slow, turn.slow);
            sum.client.cpu_user += turn.client.cpu_user;
            sum.client.cpu_system += turn.client.cpu_system;
            sum.first_failure = sum.first_failure.or(turn.first_failure);
            sum.gave_up |= turn.gave_up;
            sum.is_interrupted |= turn.is_interrupted;
            sum.oldest_in_flight = sum.oldest_in_flight.max(turn.oldest_in_flight);
            missed += turn.duration.mul_f64(turn.shortfall);
        }
        sum.client.saturated = sum.client.saturated_for * 2 > sum.duration;
        sum.shortfall = missed.as_secs_f64() / sum.duration.as_secs_f64().max(1e-9);
        Some(sum)
    }

    /// Converts the outcome to JSON with the schema `forebay.bench/1`. Latencies are null if none
    /// was recorded.
    pub fn to_json(&self) -> Value {
        let Requests { sent, resent, completed, failed, unsent, in_flight, failures, status, grpc } =
            &self.requests;
        json!({
            "schema": "forebay.bench/1",
            "version": env!("CARGO_PKG_VERSION"),
            "started_at": timestamp(self.started_at),
            "url": self.url,
            "method": self.method,
            "protocol": self.protocol.to_string(),
            "connections": self.connections,
            "streams": self.streams,
            "threads": self.threads,
            "duration_s": self.duration.as_secs_f64(),
            "requests": {
                "sent": sent,
                "resent": resent,
                "completed": completed,
                "failed": failed,
                "unsent": unsent,
                "in_flight": in_flight,
                "failures": failures.to_json(),
                "status": status_json(status),
                "grpc": grpc.as_ref().map(GrpcCounts::to_json),
            },
            "requests_by_url": self.parts.iter().map(PartCounts::to_json).collect::<Vec<_>>(),
            "servers": self.servers.iter().map(ServerCounts::to_json).collect::<Vec<_>>(),
            "iterations": self.iterations.iter().map(IterationCounts::to_json).collect::<Vec<_>>(),
            "first_failure": self.first_failure,
            "gave_up": self.gave_up,
            "interrupted": self.is_interrupted,
            "problems": self.problems(),
            "requested_rate": self.rate.map(|rate| rate.per_second),
            "arrivals": self.rate.map(|rate| rate.arrivals.name()),
            "rate_shortfall": self.is_open_loop().then_some(self.shortfall),
            "oldest_in_flight_s": self.oldest_in_flight.as_secs_f64(),
            "stages": self.stages.iter().map(StageCounts::to_json).collect::<Vec<_>>(),
            "series": self.series.iter().map(second_json).collect::<Vec<_>>(),
            "rate_per_s": self.rate_per_s(),
            "bytes": { "read": self.bytes.read, "body": self.bytes.body },
            "latency_us": latency_json(&self.latency),
            "handshakes": self.handshakes.as_ref().map(Handshakes::to_json),
            "client": {
                "cpu_user_s": self.client.cpu_user.as_secs_f64(),
                "cpu_system_s": self.client.cpu_system.as_secs_f64(),
                "cpu_us_per_request": self.cpu_us_per_request(),
                "saturated": self.client.saturated,
            },
            "histogram": self.latency.encode(),
            "shard": self.shard.as_ref().map(shard_json),
            "replay": self.replay.as_ref().map(|replay| json!({
                "requests": replay.requests,
                "skipped": replay.skipped,
                "speed": replay.speed,
            })),
            "slow_peers": self.slow.as_ref().map(|counts| counts.to_json()),
        })
    }
}

impl Outcome {
    /// Parses the output of [`to_json`](Self::to_json). Durations may lose nanoseconds.
    ///
    /// # Errors
    /// Returns the name of the first field that is missing or of the wrong type.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let (requests, client) = (&json["requests"], &json["client"]);
        let protocol = text(json, "protocol")?;
        let histogram = text(json, "histogram")?;
        Ok(Self {
            url: text(json, "url")?.to_owned(),
            // A field with a default is missing in reports of older versions.
            method: json["method"].as_str().unwrap_or("GET").to_owned(),
            started_at: started_at(json).unwrap_or(SystemTime::UNIX_EPOCH),
            rate: rate(json),
            shortfall: json["rate_shortfall"].as_f64().unwrap_or(0.0),
            oldest_in_flight: seconds(json, "oldest_in_flight_s").unwrap_or_default(),
            is_interrupted: json["interrupted"] == true,
            series: series(json),
            stages: StageCounts::all_from_json(&json["stages"])?,
            protocol: Protocol::named(protocol).ok_or_else(|| "protocol".to_owned())?,
            connections: count(json, "connections")? as usize,
            streams: count(json, "streams")? as usize,
            threads: count(json, "threads")? as usize,
            duration: seconds(json, "duration_s")?,
            requests: Requests::from_json(requests)?,
            parts: parts(json)?,
            servers: servers(json)?,
            iterations: iterations(json)?,
            bytes: Bytes {
                read: count(&json["bytes"], "read")?,
                body: count(&json["bytes"], "body")?,
            },
            latency: Latency::decode(histogram).map_err(|error| format!("histogram: {error}"))?,
            handshakes: match &json["handshakes"] {
                Value::Null => None,
                handshakes => Some(Handshakes::from_json(handshakes)?),
            },
            client: ClientUsage {
                cpu_user: seconds(client, "cpu_user_s")?,
                cpu_system: seconds(client, "cpu_system_s")?,
                saturated: flag(client, "saturated")?,
                saturated_for: Duration::ZERO,
            },
            first_failure: json["first_failure"].as_str().map(str::to_owned),
            gave_up: flag(json, "gave_up")?,
            shard: shard(&json["shard"])?,
            replay: replay(&json["replay"])?,
            slow: SlowCounts::from_json(&json["slow_peers"])?.map(Box::new),
        })
    }
}

impl PartCounts {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "url": self.url,
            "method": self.method,
            "weight": self.weight,
            "completed": self.completed,
            "failed": self.failed,
            "failures": self.failures.to_json(),
            "mean_us": (self.completed > 0).then_some(self.mean.as_secs_f64() * 1e6),
            "latency_us": self.latency.as_deref().map_or(Value::Null, latency_json),
            "histogram": self.latency.as_deref().map(Latency::encode),
        })
    }

    fn from_json(json: &Value) -> Result<Self, String> {
        let histogram = json["histogram"].as_str().map(Latency::decode).transpose();
        let us = json["mean_us"].as_f64().unwrap_or(0.0);
        let failures = Some(&json["failures"]).filter(|failures| !failures.is_null());
        Ok(Self {
            name: json["name"].as_str().map(str::to_owned),
            // Reports of older versions do not have this field.
            failures: failures.map_or(Ok(Failures::default()), Failures::from_json)?,
            url: text(json, "url")?.to_owned(),
            method: text(json, "method")?.to_owned(),
            weight: count(json, "weight")?.try_into().map_err(|_| "weight".to_owned())?,
            completed: count(json, "completed")?,
            failed: count(json, "failed")?,
            mean: Duration::try_from_secs_f64(us / 1e6).map_err(|_| "mean_us".to_owned())?,
            latency: histogram.map_err(|error| format!("histogram: {error}"))?.map(Box::new),
        })
    }

    /// Adds the counts of the same request on another machine.
    pub(crate) fn add(&mut self, other: Self) {
        let all = (self.completed + other.completed).max(1) as f64;
        let weighted = |part: &Self| part.mean.as_secs_f64() * (part.completed as f64 / all);
        self.mean = Duration::from_secs_f64(weighted(self) + weighted(&other));
        self.completed += other.completed;
        self.failed += other.failed;
        self.failures.add(&other.failures);
        match (&mut self.latency, other.latency) {
            (Some(latency), Some(other)) => latency.merge(&other),
            (latency, _) => *latency = None,
        }
    }
}

impl Handshakes {
    /// Counts one handshake.
    pub(crate) fn record(&mut self, is_resumed: bool, time: Duration) {
        *(if is_resumed { &mut self.resumed } else { &mut self.full }) += 1;
        self.time.get_or_insert_default().record(time);
    }

    /// Adds the counts of another thread, or of another part of the run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.full += other.full;
        self.resumed += other.resumed;
        if let Some(time) = &other.time {
            self.time.get_or_insert_default().merge(time);
        }
    }

    fn to_json(&self) -> Value {
        let time = self.time.as_deref().map_or(Value::Null, latency_json);
        let histogram = self.time.as_deref().map(Latency::encode);
        json!({
            "full": self.full,
            "resumed": self.resumed,
            "time_us": time,
            "histogram": histogram,
        })
    }

    fn from_json(json: &Value) -> Result<Self, String> {
        let time = json["histogram"].as_str().map(Latency::decode).transpose();
        Ok(Self {
            full: count(json, "full")?,
            resumed: count(json, "resumed")?,
            time: time.map_err(|error| format!("handshakes: {error}"))?.map(Box::new),
        })
    }
}

impl Requests {
    fn from_json(json: &Value) -> Result<Self, String> {
        Ok(Self {
            sent: count(json, "sent")?,
            resent: count(json, "resent")?,
            completed: count(json, "completed")?,
            failed: count(json, "failed")?,
            unsent: count(json, "unsent")?,
            // Reports of older versions do not have this field.
            in_flight: json["in_flight"].as_u64().unwrap_or(0),
            failures: Failures::from_json(&json["failures"])?,
            status: status_of(json)?,
            // Reports of older versions do not have this field.
            grpc: match &json["grpc"] {
                Value::Null => None,
                grpc => Some(GrpcCounts::from_json(grpc)?),
            },
        })
    }

    /// Adds the counts of another turn or trial.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.resent += other.resent;
        self.completed += other.completed;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.in_flight += other.in_flight;
        self.failures.add(&other.failures);
        for (status, count) in &other.status {
            *self.status.entry(*status).or_default() += count;
        }
        if let Some(grpc) = &other.grpc {
            self.grpc.get_or_insert_default().add(grpc);
        }
    }
}

/// Converts counts by status to a JSON object.
pub(crate) fn status_json(status: &BTreeMap<u16, u64>) -> Value {
    let counts = status.iter().map(|(status, count)| (status.to_string(), json!(count)));
    Value::Object(counts.collect())
}

/// Parses the counts by status in the field `status`.
pub(crate) fn status_of(json: &Value) -> Result<BTreeMap<u16, u64>, String> {
    let by_status = json["status"].as_object().ok_or("status")?;
    let counts =
        by_status.iter().map(|(status, count)| Some((status.parse().ok()?, count.as_u64()?)));
    counts.collect::<Option<_>>().ok_or_else(|| "status".to_owned())
}

fn second_json(second: &Second) -> Value {
    let latency = second.latency();
    let known = |value: u64| (!latency.is_empty()).then_some(value);
    let percentile = |percent: f64| known(latency.percentile_us(percent));
    json!({
        "completed": second.completed,
        "failed": second.failed,
        "latency_us": {
            "p50": percentile(50.0),
            "p90": percentile(90.0),
            "p99": percentile(99.0),
            "max": known(latency.max_us()),
        },
        "histogram": known(0).map(|_| &second.histogram),
    })
}

fn series(json: &Value) -> Vec<Second> {
    let second = |json: &Value| {
        let histogram = json["histogram"].as_str().unwrap_or_default().to_owned();
        let (completed, failed) = (json["completed"].as_u64()?, json["failed"].as_u64()?);
        Some(Second { completed, failed, histogram })
    };
    json["series"].as_array().into_iter().flatten().filter_map(second).collect()
}

/// Parses the counts of the iterations. Reports of older versions have none.
fn iterations(json: &Value) -> Result<Vec<IterationCounts>, String> {
    json["iterations"].as_array().into_iter().flatten().map(IterationCounts::from_json).collect()
}

/// Parses the counts of each server. Reports of older versions have none.
fn servers(json: &Value) -> Result<Vec<ServerCounts>, String> {
    json["servers"].as_array().into_iter().flatten().map(ServerCounts::from_json).collect()
}

/// Parses the counts of each request of a mixed load. Returns no counts for a report of `compare`,
/// which does not contain them.
fn parts(json: &Value) -> Result<Vec<PartCounts>, String> {
    json["requests_by_url"].as_array().into_iter().flatten().map(PartCounts::from_json).collect()
}

fn shard_json(run: &ShardRun) -> Value {
    let ShardRun { shard, host, late } = run;
    json!({
        "number": shard.number,
        "count": shard.count,
        "host": host,
        "late_s": late.as_secs_f64(),
        "connections": shard.connections,
        "requests": shard.requests,
        "requested_rate": shard.rate,
    })
}

fn replay(json: &Value) -> Result<Option<ReplayRun>, String> {
    if json.is_null() {
        return Ok(None);
    }
    let [requests, skipped] = [count(json, "requests")?, count(json, "skipped")?];
    Ok(Some(ReplayRun { requests, skipped, speed: json["speed"].as_f64() }))
}

fn shard(json: &Value) -> Result<Option<ShardRun>, String> {
    if json.is_null() {
        return Ok(None);
    }
    let [number, count] = [count(json, "number")?, count(json, "count")?];
    let shard: Shard = format!("{number}/{count}").parse().map_err(|_| "shard".to_owned())?;
    let shard = Shard {
        connections: json["connections"].as_u64().ok_or("connections")? as usize,
        requests: json["requests"].as_u64(),
        rate: json["requested_rate"].as_f64(),
        ..shard
    };
    let host = text(json, "host")?.to_owned();
    Ok(Some(ShardRun { shard, host, late: seconds(json, "late_s")? }))
}

fn rate(json: &Value) -> Option<Rate> {
    let arrivals = if json["arrivals"] == "even" { Arrivals::Even } else { Arrivals::Poisson };
    Some(Rate { per_second: json["requested_rate"].as_f64()?, arrivals })
}

/// Formats a time according to RFC 3339, in UTC and with milliseconds.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

fn started_at(json: &Value) -> Option<SystemTime> {
    json["started_at"].as_str()?.parse::<jiff::Timestamp>().ok().map(SystemTime::from)
}

pub(crate) fn count(json: &Value, name: &str) -> Result<u64, String> {
    json[name].as_u64().ok_or_else(|| name.to_owned())
}

fn text<'a>(json: &'a Value, name: &str) -> Result<&'a str, String> {
    json[name].as_str().ok_or_else(|| name.to_owned())
}

fn flag(json: &Value, name: &str) -> Result<bool, String> {
    json[name].as_bool().ok_or_else(|| name.to_owned())
}

fn seconds(json: &Value, name: &str) -> Result<Duration, String> {
    let seconds = json[name].as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_read_back_as_it_was_written() {
        let mut latency = Latency::new();
        (1..500).for_each(|us| latency.record_us(us * us));
        let mut handshakes = Handshakes::default();
        handshakes.record(false, Duration::from_micros(900));
        handshakes.record(true, Duration::from_micros(500));
        let shard: Shard = "2/3".parse().unwrap();
        let outcome = Outcome {
            url: "https://127.0.0.1:1/".to_owned(),
            method: "PUT".to_owned(),
            started_at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            rate: Some(Rate { per_second: 50.5, arrivals: Arrivals::Even }),
            shortfall: 0.25,
            oldest_in_flight: Duration::from_millis(1500),
            is_interrupted: true,
            series: vec![
                Second { completed: 499, failed: 0, histogram: latency.encode() },
                Second { completed: 0, failed: 1, histogram: String::new() },
            ],
            stages: Vec::new(),
            protocol: Protocol::H2,
            connections: 3,
            streams: 7,
            threads: 2,
            duration: Duration::from_micros(1_234_567),
            requests: Requests {
                sent: 500,
                completed: 499,
                failed: 1,
                in_flight: 2,
                failures: Failures { timeout: 1, ..Failures::default() },
                status: [(200, 498), (404, 1)].into(),
                ..Requests::default()
            },
            bytes: Bytes { read: 10, body: 5 },
            iterations: vec![IterationCounts {
                name: "buyer".to_owned(),
                weight: 2,
                completed: 3,
                failed: 1,
                interrupted: 4,
                time: Box::new(latency.clone()),
            }],
            servers: vec![ServerCounts {
                server: "h:81".to_owned(),
                connections: 2,
                rate: Some(50.0),
                shortfall: 0.25,
                has_missed_rate: true,
                duration: Duration::from_secs(2),
                completed: 3,
                failed: 1,
                failures: Failures { read: 1, ..Failures::default() },
                status: BTreeMap::from([(200, 2), (404, 1)]),
                latency: Box::new(latency.clone()),
            }],
            parts: vec![PartCounts {
                name: Some("login".to_owned()),
                failures: Failures { check: 1, ..Failures::default() },
                url: "https://127.0.0.1:1/a".to_owned(),
                method: "PUT".to_owned(),
                weight: 3,
                completed: 499,
                failed: 1,
                mean: Duration::from_millis(2),
                latency: Some(Box::new(latency.clone())),
            }],
            latency,
            handshakes: Some(handshakes),
            client: ClientUsage { cpu_user: Duration::from_millis(3), ..ClientUsage::default() },
            first_failure: Some("it broke".to_owned()),
            gave_up: true,
            shard: Some(ShardRun {
                shard: Shard { connections: 8, rate: Some(0.5), ..shard.clone() },
                host: "h".to_owned(),
                late: Duration::from_millis(250),
            }),
            replay: Some(ReplayRun { requests: 8, skipped: 1, speed: Some(2.0) }),
            slow: None,
        };
        let json = outcome.to_json();
        assert_eq!(Outcome::from_json(&json).unwrap().to_json(), json);
        for (pointer, value) in [("/shard/number", json!(4)), ("/shard/late_s", json!(-1))] {
            let mut wrong = json.clone();
            *wrong.pointer_mut(pointer).unwrap() = value;
            assert!(Outcome::from_json(&wrong).is_err(), "{pointer}");
        }
        let mut wrong = json.clone();
        wrong["requests"]["failures"]["write"] = json!("many");
        assert_eq!(Outcome::from_json(&wrong).unwrap_err(), "write");
        assert!(Outcome::from_json(&json!(null)).is_err());
    }
}
