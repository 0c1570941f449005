//! Results of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_stat::Latency;
use serde_json::{Value, json};

use crate::Protocol;

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The requested URL.
    pub url: String,
    /// Protocol of the run.
    pub protocol: Protocol,
    /// Number of connections.
    pub connections: usize,
    /// Maximum number of concurrent requests per connection.
    pub streams: usize,
    /// Number of load threads.
    pub threads: usize,
    /// Time from the start of the first thread to the end of the last request.
    pub duration: Duration,
    /// Counts of requests.
    pub requests: Requests,
    /// Bytes received.
    pub bytes: Bytes,
    /// Latency of completed requests, from the due time to the last byte of the reply. In a closed
    /// loop, a request is due when its connection is free. Connecting is included.
    pub latency: Latency,
    /// TLS handshakes; `None` without TLS.
    pub handshakes: Option<Handshakes>,
    /// Resources used by the load threads.
    pub client: Client,
    /// Error of the first failed request.
    pub first_failure: Option<String>,
    /// The run ended early because no connect succeeded during a whole timeout.
    pub gave_up: bool,
}

/// Counts of requests. In a run of n requests that was not cancelled, `completed + failed` is n.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Requests with at least one byte written.
    pub sent: u64,
    /// Requests sent again because the server closed the kept-alive connection before the first
    /// byte of the reply. They are not counted in `sent` and are not failures.
    pub resent: u64,
    /// Requests with a complete, well-formed reply of any status that passed the check.
    pub completed: u64,
    /// Failed requests: the sum of `failures`.
    pub failed: u64,
    /// Open loop only: requests that were due before the end but never got a free connection.
    pub unsent: u64,
    /// Failed requests by kind.
    pub failures: Failures,
    /// Complete replies by status.
    pub status: BTreeMap<u16, u64>,
}

/// Failed requests by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// The connect failed.
    pub connect: u64,
    /// The connection ended before the reply was complete.
    pub read: u64,
    /// The request could not be written.
    pub write: u64,
    /// No complete reply within the timeout.
    pub timeout: u64,
    /// The reply violated the protocol.
    pub protocol: u64,
    /// The reply did not pass the check.
    pub check: u64,
}

/// Bytes received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// All bytes received.
    pub read: u64,
    /// Body bytes without the framing.
    pub body: u64,
}

/// Successful TLS handshakes.
#[derive(Clone, Debug, Default)]
pub struct Handshakes {
    /// Number of full handshakes, with certificate and signature.
    pub full: u64,
    /// Number of handshakes that resumed a session.
    pub resumed: u64,
    /// Time from the connected socket to the client's last message; `None` without handshakes.
    pub time: Option<Box<Latency>>,
}

/// Resources used by the load threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// User time over all load threads.
    pub cpu_user: Duration,
    /// System time over all load threads.
    pub cpu_system: Duration,
    /// Every load thread was busy for more than 85 % of the time, polling without events excluded.
    /// The rate may then be limited by the client instead of the server.
    pub saturated: bool,
}

/// Percentiles of the report, with their names in JSON.
const PERCENTILES: [(&str, f64); 6] =
    [("p50", 50.0), ("p75", 75.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0), ("p99_9", 99.9)];

impl Outcome {
    /// Returns completed requests per second.
    pub fn rate_per_s(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds > 0.0 { self.requests.completed as f64 / seconds } else { 0.0 }
    }

    /// Returns client CPU time, user and system, in microseconds per completed request.
    pub fn cpu_us_per_request(&self) -> f64 {
        let cpu = (self.client.cpu_user + self.client.cpu_system).as_secs_f64() * 1e6;
        if self.requests.completed > 0 { cpu / self.requests.completed as f64 } else { 0.0 }
    }

    /// Returns the number of complete replies with a status of 400 or above.
    pub fn error_replies(&self) -> u64 {
        self.requests.status.range(400..).map(|(_, count)| count).sum()
    }

    /// Adds up the turns of one load; `None` without turns. The client counts as saturated if it
    /// was saturated for more than half of the time.
    pub fn sum(turns: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut turns = turns.into_iter();
        let mut sum = turns.next()?;
        let mut saturated = if sum.client.saturated { sum.duration } else { Duration::ZERO };
        for turn in turns {
            saturated += if turn.client.saturated { turn.duration } else { Duration::ZERO };
            sum.duration += turn.duration;
            sum.requests.add(&turn.requests);
            sum.bytes.read += turn.bytes.read;
            sum.bytes.body += turn.bytes.body;
            sum.latency.merge(&turn.latency);
            match (&mut sum.handshakes, turn.handshakes) {
                (Some(sum), Some(turn)) => sum.add(&turn),
                (sum, turn) => *sum = sum.take().or(turn),
            }
            sum.client.cpu_user += turn.client.cpu_user;
            sum.client.cpu_system += turn.client.cpu_system;
            sum.first_failure = sum.first_failure.or(turn.first_failure);
            sum.gave_up |= turn.gave_up;
        }
        sum.client.saturated = saturated * 2 > sum.duration;
        Some(sum)
    }

    /// Returns the outcome in the schema `forebay.bench/1`. Latencies are null if none was
    /// recorded.
    pub fn to_json(&self) -> Value {
        let Requests { sent, resent, completed, failed, unsent, failures, status } = &self.requests;
        let status: serde_json::Map<_, _> =
            status.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
        json!({
            "schema": "forebay.bench/1",
            "url": self.url,
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
                "failures": {
                    "connect": failures.connect,
                    "read": failures.read,
                    "write": failures.write,
                    "timeout": failures.timeout,
                    "protocol": failures.protocol,
                    "check": failures.check,
                },
                "status": status,
            },
            "first_failure": self.first_failure,
            "gave_up": self.gave_up,
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
        })
    }
}

impl Outcome {
    /// Parses the output of [`to_json`](Self::to_json). Only the nanoseconds of durations are lost.
    ///
    /// # Errors
    /// Returns the name of the first field that is missing or of the wrong type.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let (requests, client) = (&json["requests"], &json["client"]);
        let protocol = text(json, "protocol")?;
        let histogram = text(json, "histogram")?;
        Ok(Self {
            url: text(json, "url")?.to_owned(),
            protocol: Protocol::named(protocol).ok_or_else(|| "protocol".to_owned())?,
            connections: count(json, "connections")? as usize,
            streams: count(json, "streams")? as usize,
            threads: count(json, "threads")? as usize,
            duration: seconds(json, "duration_s")?,
            requests: Requests::from_json(requests)?,
            bytes: Bytes {
                read: count(&json["bytes"], "read")?,
                body: count(&json["bytes"], "body")?,
            },
            latency: Latency::decode(histogram).map_err(|error| format!("histogram: {error}"))?,
            handshakes: match &json["handshakes"] {
                Value::Null => None,
                handshakes => Some(Handshakes::from_json(handshakes)?),
            },
            client: Client {
                cpu_user: seconds(client, "cpu_user_s")?,
                cpu_system: seconds(client, "cpu_system_s")?,
                saturated: flag(client, "saturated")?,
            },
            first_failure: json["first_failure"].as_str().map(str::to_owned),
            gave_up: flag(json, "gave_up")?,
        })
    }
}

impl Handshakes {
    /// Counts one handshake.
    pub(crate) fn record(&mut self, is_resumed: bool, time: Duration) {
        *(if is_resumed { &mut self.resumed } else { &mut self.full }) += 1;
        self.time.get_or_insert_default().record(time);
    }

    /// Adds the counts of another turn or thread.
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
        let failures = &json["failures"];
        let by_status = json["status"].as_object().ok_or("status")?;
        let status =
            by_status.iter().map(|(status, count)| Some((status.parse().ok()?, count.as_u64()?)));
        Ok(Self {
            sent: count(json, "sent")?,
            resent: count(json, "resent")?,
            completed: count(json, "completed")?,
            failed: count(json, "failed")?,
            unsent: count(json, "unsent")?,
            failures: Failures {
                connect: count(failures, "connect")?,
                read: count(failures, "read")?,
                write: count(failures, "write")?,
                timeout: count(failures, "timeout")?,
                protocol: count(failures, "protocol")?,
                check: count(failures, "check")?,
            },
            status: status.collect::<Option<_>>().ok_or("status")?,
        })
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.resent += other.resent;
        self.completed += other.completed;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.failures.add(&other.failures);
        for (status, count) in &other.status {
            *self.status.entry(*status).or_default() += count;
        }
    }
}

impl Failures {
    /// Adds the counts of another turn or thread.
    pub(crate) fn add(&mut self, other: &Self) {
        self.connect += other.connect;
        self.read += other.read;
        self.write += other.write;
        self.timeout += other.timeout;
        self.protocol += other.protocol;
        self.check += other.check;
    }

    /// Returns the number of failed requests.
    pub fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }

    /// Returns the counts with the names of their kinds.
    pub fn by_kind(&self) -> [(&'static str, u64); 6] {
        [
            ("connect", self.connect),
            ("read", self.read),
            ("write", self.write),
            ("timeout", self.timeout),
            ("protocol", self.protocol),
            ("check", self.check),
        ]
    }
}

fn latency_json(latency: &Latency) -> Value {
    let known = |value: Value| if latency.is_empty() { Value::Null } else { value };
    let mut object = serde_json::Map::new();
    object.insert("mean".to_owned(), known(json!(latency.mean_us())));
    object.insert("sd".to_owned(), known(json!(latency.sd_us())));
    object.insert("min".to_owned(), known(json!(latency.min_us())));
    object.insert("max".to_owned(), known(json!(latency.max_us())));
    for (name, percent) in PERCENTILES {
        object.insert(name.to_owned(), known(json!(latency.percentile_us(percent))));
    }
    Value::Object(object)
}

fn count(json: &Value, name: &str) -> Result<u64, String> {
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
        let outcome = Outcome {
            url: "https://127.0.0.1:1/".to_owned(),
            protocol: Protocol::H2,
            connections: 3,
            streams: 7,
            threads: 2,
            duration: Duration::from_micros(1_234_567),
            requests: Requests {
                sent: 500,
                completed: 499,
                failed: 1,
                failures: Failures { timeout: 1, ..Failures::default() },
                status: [(200, 498), (404, 1)].into(),
                ..Requests::default()
            },
            bytes: Bytes { read: 10, body: 5 },
            latency,
            handshakes: Some(handshakes),
            client: Client { cpu_user: Duration::from_millis(3), ..Client::default() },
            first_failure: Some("it broke".to_owned()),
            gave_up: true,
        };
        let json = outcome.to_json();
        assert_eq!(Outcome::from_json(&json).unwrap().to_json(), json);
        let mut wrong = json.clone();
        wrong["requests"]["failures"]["write"] = json!("many");
        assert_eq!(Outcome::from_json(&wrong).unwrap_err(), "write");
        assert!(Outcome::from_json(&json!(null)).is_err());
    }
}
