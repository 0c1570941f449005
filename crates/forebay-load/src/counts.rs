//! Counts of requests, iterations and stages, and latencies, in the results of a run.

use std::time::Duration;

use forebay_stat::Latency;
use serde_json::{Value, json};

use crate::{Ramp, RampStage};

/// Percentiles in the report, with their names in JSON.
const PERCENTILES: [(&str, f64); 6] =
    [("p50", 50.0), ("p75", 75.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0), ("p99_9", 99.9)];

/// Returns mean, standard deviation, minimum, maximum and percentiles. Each of them is null if
/// there are no latencies.
pub(crate) fn latency_json(latency: &Latency) -> Value {
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

impl Failures {
    pub(crate) fn to_json(&self) -> Value {
        self.by_kind().into_iter().map(|(kind, count)| (kind.to_owned(), json!(count))).collect()
    }

    pub(crate) fn from_json(json: &Value) -> Result<Self, String> {
        let count = |name: &str| json[name].as_u64().ok_or_else(|| name.to_owned());
        Ok(Self {
            connect: count("connect")?,
            read: count("read")?,
            write: count("write")?,
            timeout: count("timeout")?,
            protocol: count("protocol")?,
            check: count("check")?,
        })
    }

    /// Adds the counts of another thread, or of another part of the run.
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

    /// Returns each kind of failure with its count.
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

/// Counts of the iterations of one scenario.
#[derive(Clone, Debug, Default)]
pub struct IterationCounts {
    /// Name of the scenario.
    pub name: String,
    /// Weight relative to the other scenarios.
    pub weight: u32,
    /// Iterations whose steps all passed.
    pub completed: u64,
    /// Iterations with a failed step.
    pub failed: u64,
    /// Iterations that the end of the run interrupted.
    pub interrupted: u64,
    /// Times of completed iterations, from their due time to the last reply. Pauses between steps
    /// are included.
    pub time: Box<Latency>,
}

impl IterationCounts {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "weight": self.weight,
            "completed": self.completed,
            "failed": self.failed,
            "interrupted": self.interrupted,
            "time_us": latency_json(&self.time),
            "histogram": self.time.encode(),
        })
    }

    pub(crate) fn from_json(json: &Value) -> Result<Self, String> {
        let count = |name: &str| json[name].as_u64().ok_or_else(|| format!("iterations: {name}"));
        let histogram = json["histogram"].as_str().unwrap_or_default();
        let time = Latency::decode(histogram).map_err(|error| format!("iterations: {error}"))?;
        Ok(Self {
            name: json["name"].as_str().ok_or("iterations: name")?.to_owned(),
            weight: count("weight")?.try_into().map_err(|_| "iterations: weight")?,
            completed: count("completed")?,
            failed: count("failed")?,
            interrupted: count("interrupted")?,
            time: Box::new(time),
        })
    }

    /// Adds the counts of the same scenario on another machine.
    pub(crate) fn add(&mut self, other: &Self) {
        self.completed += other.completed;
        self.failed += other.failed;
        self.interrupted += other.interrupted;
        self.time.merge(&other.time);
    }
}

/// Counts of the requests that ended in one stage.
#[derive(Clone, Debug)]
pub struct StageCounts {
    /// Value at the start of the stage: requests per second, or connections.
    pub from: f64,
    /// Planned duration, and value at the end.
    pub stage: RampStage,
    /// Duration. In an interrupted run, it can be shorter than planned.
    pub duration: Duration,
    /// Number of completed requests.
    pub completed: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Latencies of completed requests.
    pub latency: Box<Latency>,
}

/// Counts of one stage and one load thread.
#[derive(Debug, Default)]
pub(crate) struct StageTally {
    pub completed: u64,
    pub failed: u64,
    pub latency: Box<Latency>,
}

impl StageCounts {
    /// Returns the stages of a run that took `duration`, with the counts of all threads.
    pub(crate) fn of(ramp: &Ramp, duration: Duration, threads: Vec<Vec<StageTally>>) -> Vec<Self> {
        let (mut start, mut from) = (Duration::ZERO, ramp.from);
        let empty = |stage: &RampStage| {
            let counts = Self {
                from,
                stage: *stage,
                duration: duration.saturating_sub(start).min(stage.time),
                completed: 0,
                failed: 0,
                latency: Box::default(),
            };
            (start, from) = (start + stage.time, stage.target);
            counts
        };
        let mut stages: Vec<_> = ramp.stages.iter().map(empty).collect();
        for thread in threads {
            for (sum, tally) in stages.iter_mut().zip(thread) {
                sum.completed += tally.completed;
                sum.failed += tally.failed;
                sum.latency.merge(&tally.latency);
            }
        }
        stages
    }

    /// Returns the number of completed requests per second.
    pub fn rate_per_s(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds > 0.0 { self.completed as f64 / seconds } else { 0.0 }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "from": self.from,
            "target": self.stage.target,
            "time_s": self.stage.time.as_secs_f64(),
            "duration_s": self.duration.as_secs_f64(),
            "completed": self.completed,
            "failed": self.failed,
            "rate_per_s": self.rate_per_s(),
            "latency_us": latency_json(&self.latency),
            "histogram": self.latency.encode(),
        })
    }

    /// Parses the stages of a result. Results of older versions have none.
    pub(crate) fn all_from_json(json: &Value) -> Result<Vec<Self>, String> {
        let stages = json.as_array().map_or(&[][..], Vec::as_slice);
        stages
            .iter()
            .map(|stage| Self::from_json(stage).ok_or_else(|| "stages".to_owned()))
            .collect()
    }

    fn from_json(json: &Value) -> Option<Self> {
        let time = |name: &str| Duration::try_from_secs_f64(json[name].as_f64()?).ok();
        Some(Self {
            from: json["from"].as_f64()?,
            stage: RampStage { time: time("time_s")?, target: json["target"].as_f64()? },
            duration: time("duration_s")?,
            completed: json["completed"].as_u64()?,
            failed: json["failed"].as_u64()?,
            latency: Box::new(Latency::decode(json["histogram"].as_str()?).ok()?),
        })
    }

    /// Adds the counts of the same stage on another machine.
    pub(crate) fn add(&mut self, other: &Self) {
        self.duration = self.duration.max(other.duration);
        self.completed += other.completed;
        self.failed += other.failed;
        self.latency.merge(&other.latency);
    }
}
