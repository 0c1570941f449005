//! Results of profile trials: CPU time of servers by call stack.

mod functions;
mod lines;
mod script;
mod stacks;

pub use functions::{Function, functions};
pub use script::fold;
pub use stacks::{KERNEL, Node, Stacks};

/// Result of a configuration's profile trial, which has no influence on other results.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Samples per second of CPU time.
    pub frequency: u32,
    /// Requests completed while samples were taken; `None` if unknown.
    pub requests: Option<u64>,
    /// The sampled stacks.
    pub stacks: Stacks,
    /// Steps that the server itself times in `Server-Timing` fields, with their medians in
    /// milliseconds.
    pub timings: Vec<(String, f64)>,
    /// Reasons for missing stacks, and other notes.
    pub notes: Vec<String>,
}

impl Profile {
    /// Returns an empty profile with the reason.
    pub fn none(why: String) -> Self {
        Self { notes: vec![why], ..Self::default() }
    }

    /// Returns the CPU time per sample in microseconds per request; `None` if the number of
    /// requests is unknown.
    pub fn us_per_request(&self) -> Option<f64> {
        let requests = self.requests.filter(|&requests| requests > 0 && self.frequency > 0)?;
        Some(1e6 / f64::from(self.frequency) / requests as f64)
    }
}
