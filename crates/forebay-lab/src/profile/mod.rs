//! What profile trials show: where servers spend their processor time, by call stack.

mod functions;
mod lines;
mod script;
mod stacks;

pub use functions::{Function, functions};
pub use script::fold;
pub use stacks::{KERNEL, Node, Stacks};

/// What came of a configuration's profile trial, which counts for nothing else.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Samples per second of processor time.
    pub frequency: u32,
    /// Requests completed while samples were taken; none where that is not known.
    pub requests: Option<u64>,
    /// The stacks that were sampled.
    pub stacks: Stacks,
    /// Steps that the server itself times in `Server-Timing` fields, with their medians in milliseconds.
    pub timings: Vec<(String, f64)>,
    /// Why there are no stacks, and what else is to be known.
    pub notes: Vec<String>,
}

impl Profile {
    /// One that shows nothing, and why.
    pub fn none(why: String) -> Self {
        Self { notes: vec![why], ..Self::default() }
    }

    /// Processor time of a sample in microseconds per request; none where requests are not known.
    pub fn us_per_request(&self) -> Option<f64> {
        let requests = self.requests.filter(|&requests| requests > 0 && self.frequency > 0)?;
        Some(1e6 / f64::from(self.frequency) / requests as f64)
    }
}
