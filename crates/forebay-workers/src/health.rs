//! How an application is at one moment.

use crate::worker::WorkerStatus;

/// An application at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Its processes, by age.
    pub workers: Vec<WorkerStatus>,
    /// Requests that wait for one.
    pub waiting: usize,
    /// Processes that were started since the application was, the first ones included.
    pub starts: u64,
    /// Processes that crashed: they ended though nobody had asked them to.
    pub crashes: u64,
    /// Where processes end as soon as they are started: how, with what they wrote last.
    pub crash_loop: Option<String>,
    /// What was asked for and cannot be done on this machine.
    pub note: Option<String>,
}
