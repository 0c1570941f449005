//! State of a running load, for code that observes or cancels it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::LiveCounts;

/// State of a running load, shared with the code that observes or cancels it.
#[derive(Debug, Default)]
pub struct Control {
    /// Ends the run early when it is set to true. The outcome then covers the time so far.
    pub cancelled: Arc<AtomicBool>,
    /// Number of requests completed so far. Each thread adds its count about every 50 ms.
    pub completed: AtomicU64,
    /// Number of requests failed so far, updated like `completed`.
    pub failed: AtomicU64,
    /// Counts of each second, for a view of the running load; `None` without a view.
    pub live: Option<LiveCounts>,
}
