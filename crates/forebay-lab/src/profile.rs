//! Results of profile trials: the CPU time of servers, by call stack.

mod functions;
mod lines;
mod script;
mod stacks;

pub use functions::{Function, functions};
pub use script::fold;
pub use stacks::{KERNEL, Node, Stacks};

/// Result of a configuration's profile trial. The trial has no influence on other results.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Number of samples per second of CPU time.
    pub frequency: u32,
    /// Number of requests that were completed while samples were taken; `None` if unknown.
    pub requests: Option<u64>,
    /// Call stacks with their numbers of samples.
    pub stacks: Stacks,
    /// Processing steps that the server reports in `Server-Timing` fields, with their median times
    /// in milliseconds.
    pub timings: Vec<(String, f64)>,
    /// Reasons why stacks are missing, and other notes.
    pub notes: Vec<String>,
}

impl Profile {
    /// Returns an empty profile, with the reason why it is empty.
    pub fn none(why: String) -> Self {
        Self { notes: vec![why], ..Self::default() }
    }

    /// Returns the CPU time that one sample represents, in microseconds per request. Returns `None`
    /// if the number of requests or the sampling frequency is 0 or unknown.
    pub fn us_per_request(&self) -> Option<f64> {
        let requests = self.requests.filter(|&requests| requests > 0 && self.frequency > 0)?;
        Some(1e6 / f64::from(self.frequency) / requests as f64)
    }
}
