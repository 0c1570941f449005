//! One process of a program, as supervisor and seats share it.

use super::Place;
use crate::descendants::memory_below;
use crate::worker::{WorkerState, WorkerStatus};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest request line that is kept to be shown.
const KEPT_OF_REQUEST: usize = 1024;

/// When a process was last heard of, on whatever connection.
#[derive(Debug)]
pub struct Life {
    started: Instant,
    /// In ms since the start.
    heard: AtomicU64,
}

impl Life {
    fn new() -> Arc<Life> {
        Arc::new(Life { started: Instant::now(), heard: AtomicU64::new(0) })
    }

    /// The process has said something.
    pub fn note(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(now, Ordering::Relaxed);
    }

    pub(super) fn last(&self) -> Instant {
        self.started + Duration::from_millis(self.heard.load(Ordering::Relaxed))
    }
}

/// The facts about one process.
#[derive(Debug)]
pub(super) struct Instance {
    /// Counts processes of this program; process ids may come again.
    pub(super) id: u64,
    pub(super) place: Place,
    pub(super) started: Instant,
    /// Replaced after this many requests.
    pub(super) limit: u64,
    /// Replaced then.
    pub(super) replace_at: Option<Instant>,
    pub(super) guard: u32,
    /// The program's process id; 0 until the guard has told it.
    pub(super) pid: AtomicU32,
    pub(super) requests: AtomicU64,
    pub(super) life: Arc<Life>,
    /// Method and target of the request that began last.
    line: Mutex<Vec<u8>>,
}

impl Instance {
    pub(super) fn new(
        id: u64,
        place: Place,
        guard: u32,
        limit: u64,
        replace_at: Option<Instant>,
    ) -> Instance {
        Instance {
            id,
            place,
            started: Instant::now(),
            limit,
            replace_at,
            guard,
            pid: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            life: Life::new(),
            line: Mutex::default(),
        }
    }

    /// Counts a request and keeps what names it.
    pub(super) fn begin_request(&self, method: &[u8], target: &[u8]) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.clear();
        line.extend_from_slice(method);
        line.push(b' ');
        line.extend_from_slice(&target[..target.len().min(KEPT_OF_REQUEST)]);
    }

    pub(super) fn has_served(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    /// Resident memory of the program and all that it has started, in bytes.
    pub(super) fn memory(&self) -> u64 {
        memory_below(self.guard as i32)
    }

    pub(super) fn status(&self, state: WorkerState, under_way: usize) -> WorkerStatus {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let line = String::from_utf8_lossy(&line);
        WorkerStatus {
            pid: self.pid.load(Ordering::Relaxed),
            state,
            requests: self.requests.load(Ordering::Relaxed),
            age: self.started.elapsed(),
            rss: self.memory(),
            ahead: 0,
            current_request: match under_way {
                0 => None,
                1 => Some(line.into_owned()),
                more => Some(format!("{line} and {} more", more - 1)),
            },
        }
    }
}
