//! Results of the stages of a ramp.

use std::time::Duration;

use forebay_stat::Latency;
use serde_json::{Value, json};

use crate::latency_json::latency_json;
use crate::{Ramp, RampStage};

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
