//! State of a running load, for code that observes or cancels it.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Requests, Second};

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

/// Counts that the load threads post about once per second. A view takes them.
// A load thread holds the lock only for a `push`, once per second. The view holds the lock only to
// swap two vectors, and not while it draws.
#[derive(Debug, Default)]
pub struct LiveCounts(Mutex<Vec<ThreadSeconds>>);

/// Counts of one load thread.
#[derive(Clone, Debug)]
pub struct ThreadSeconds {
    /// Index of the thread.
    pub thread: usize,
    /// Index of the first second in `seconds`, from the start of the run.
    pub first: usize,
    /// Seconds that have ended since the thread's previous post.
    pub seconds: Vec<Second>,
    /// Counts of the thread since the start of the run.
    pub requests: Requests,
    /// Description of the thread's first failed request.
    pub first_failure: Option<String>,
}

/// Maximum number of posts that are kept. If the view no longer takes them, newer posts are dropped.
const MOST_POSTS: usize = 100_000;

impl LiveCounts {
    /// Adds the counts of a thread. Drops the counts if `MOST_POSTS` earlier posts were not taken
    /// yet.
    pub(crate) fn post(&self, counts: ThreadSeconds) {
        let mut posts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if posts.len() < MOST_POSTS {
            posts.push(counts);
        }
    }

    /// Takes all counts that were posted since the previous call.
    pub fn take(&self) -> Vec<ThreadSeconds> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
