//! One process of a program. The supervisor and the holders of permits share this data.
//!
//! A process counts as hung if nothing was read from it on any of its connections within the time
//! limit. A single unanswered request says little about a process with a hundred requests. Reads
//! from a tunnel do not count.

use super::ProcessAddress;
use crate::error::Exit;
use crate::worker::{WorkerState, WorkerStatus};
use forebay_process::descendants::{Usage, is_exiting, usage_below};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of bytes of a request's target that are kept for the status.
const KEPT_OF_REQUEST: usize = 1024;

/// If the process is exiting, time limit for the report of its end. The kernel has to finish the
/// exit first.
const REPORT_OF_END: Duration = Duration::from_secs(1);
/// If the process is not exiting, time limit for the report of its end. A child of the program may
/// have ended, so that the program ends soon.
const REPORT_OF_NONE: Duration = Duration::from_millis(50);

/// The life of a process: the time of its last sign of life on any connection, and its end.
#[derive(Debug)]
pub struct Life {
    started: Instant,
    /// Time of the last sign of life, in ms since `started`.
    heard: AtomicU64,
    /// The program's process id; 0 until the guardian has reported it.
    pid: AtomicU32,
    end: watch::Sender<Option<InstanceEnd>>,
}

/// The kind of end that a process had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstanceEnd {
    /// The process was asked to end, or stopped by itself.
    Orderly,
    /// The process failed: it ended with an exit code other than 0, or by a signal other than
    /// SIGTERM.
    Crash,
}

impl InstanceEnd {
    pub(super) fn of(exit: Exit, was_stopped: bool) -> InstanceEnd {
        if was_stopped || exit.is_orderly() { InstanceEnd::Orderly } else { InstanceEnd::Crash }
    }
}

impl Life {
    fn new() -> Arc<Life> {
        Arc::new(Life {
            started: Instant::now(),
            heard: AtomicU64::new(0),
            pid: AtomicU32::new(0),
            end: watch::Sender::new(None),
        })
    }

    /// Records a sign of life.
    pub fn record(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(now, Ordering::Relaxed);
    }

    /// Returns true if the process, which has just closed a connection, has crashed. The connection
    /// closes before the guardian reports the end, so this function waits for the report. The
    /// function waits at most 1 s if the process is exiting, else 50 ms. Without a report, the
    /// function returns false.
    pub async fn has_crashed(&self) -> bool {
        let mut end = self.end.subscribe();
        let limit = if is_exiting(self.pid()) { REPORT_OF_END } else { REPORT_OF_NONE };
        let reported = tokio::time::timeout(limit, end.wait_for(Option::is_some)).await;
        matches!(reported, Ok(Ok(end)) if *end == Some(InstanceEnd::Crash))
    }

    /// Records the end of the process. Only the first report counts.
    pub(super) fn ended(&self, end: InstanceEnd) {
        self.end.send_if_modified(|known| known.is_none() && known.replace(end).is_none());
    }

    pub(super) fn last(&self) -> Instant {
        self.started + Duration::from_millis(self.heard.load(Ordering::Relaxed))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(super) fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }
}

/// Facts about one process.
#[derive(Debug)]
pub(super) struct Instance {
    /// Number of this process in its program. Unlike a process id, it is never reused.
    pub(super) id: u64,
    /// The name that clients see. The name is random, so that clients cannot guess the names of
    /// other processes.
    pub(super) name: String,
    pub(super) place: ProcessAddress,
    pub(super) started: Instant,
    /// The process is replaced after this many requests.
    pub(super) limit: u64,
    pub(super) guardian: u32,
    pub(super) requests: AtomicU64,
    pub(super) life: Arc<Life>,
    /// Keeps `place` from naming another socket: see [`Seat`](super::start::Seat).
    _inode: Option<Arc<OwnedFd>>,
    /// Method and target of the latest request.
    line: Mutex<Vec<u8>>,
}

impl Instance {
    pub(super) fn new(
        id: u64,
        (place, inode): (ProcessAddress, Option<Arc<OwnedFd>>),
        guardian: u32,
        limit: u64,
    ) -> Instance {
        Instance {
            id,
            name: format!("{:016x}", RandomState::new().hash_one(id)),
            place,
            started: Instant::now(),
            limit,
            guardian,
            requests: AtomicU64::new(0),
            life: Life::new(),
            _inode: inode,
            line: Mutex::default(),
        }
    }

    /// Counts a request and keeps its method and target.
    pub(super) fn begin_request(&self, method: &[u8], target: &[u8]) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.clear();
        line.extend_from_slice(method);
        line.push(b' ');
        line.extend_from_slice(&target[..target.len().min(KEPT_OF_REQUEST)]);
    }

    /// Returns the resources that the program and its descendants use.
    pub(super) fn usage(&self) -> Usage {
        usage_below(self.guardian as i32)
    }

    /// Returns the state of the process for `/status`. `under_way` is the number of its active
    /// requests.
    pub(super) fn status(&self, state: WorkerState, under_way: usize) -> WorkerStatus {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let line = String::from_utf8_lossy(&line);
        let Usage { rss, cpu } = self.usage();
        WorkerStatus {
            pid: self.life.pid(),
            state,
            requests: self.requests.load(Ordering::Relaxed),
            age: self.started.elapsed(),
            rss,
            cpu,
            prefetched: 0,
            current_request: match under_way {
                0 => None,
                1 => Some(line.into_owned()),
                more => Some(format!("{line} and {} more", more - 1)),
            },
        }
    }
}
