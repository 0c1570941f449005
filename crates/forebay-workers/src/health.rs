//! The health of an application.

use crate::worker::WorkerStatus;

/// The state of an application at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The processes, the oldest first.
    pub workers: Vec<WorkerStatus>,
    /// Requests that wait for a process.
    pub waiting: usize,
    /// Processes started so far, including the first ones.
    pub starts: u64,
    /// Processes that crashed. A crash is an end that was not requested.
    pub crashes: u64,
    /// Set if processes end right after their start. Contains the reason and their last output.
    pub crash_loop: Option<String>,
    /// A message about a configured setting that this machine does not support.
    pub note: Option<String>,
}
