//! Results of the iterations of a scenario.

use forebay_stat::Latency;
use serde_json::{Value, json};

use crate::latency_json::latency_json;

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
