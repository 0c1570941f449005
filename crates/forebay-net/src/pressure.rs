//! The limit on connections: waiting clients, the thread that must close a connection, and the log
//! message.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Minimum interval of log messages about the limit.
const PERIOD: Duration = Duration::from_secs(10);

/// Value of a thread without a connection to close.
const NONE: u64 = u64::MAX - 1;

/// Value of a thread that has not scanned its connections since the limit came near.
const UNKNOWN: u64 = u64::MAX;

/// The thread with the first connection to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oldest {
    /// This thread.
    On(usize),
    /// All connections have requests in progress.
    Nowhere,
    /// A thread has not scanned its connections yet. It does so at its next tick.
    Unknown,
}

/// State of the limit on connections, shared by all threads.
pub struct Pressure {
    started: Instant,
    /// Number of connections that wait for room.
    waiting: AtomicUsize,
    /// Notified, while connections wait, when a connection has ended or a thread has none to close.
    changed: Notify,
    /// Rank of each thread's first connection to close (`Deadlines::oldest`).
    oldest: Vec<AtomicU64>,
    /// Number of connections closed since the last log message.
    closed: AtomicUsize,
    /// True if a connection had to wait because none could be closed.
    is_stuck: AtomicBool,
    /// Earliest time of the next log message, in milliseconds.
    next_line: AtomicU64,
}

/// A connection that waits for room.
pub struct WaitingConnection<'a>(&'a Pressure);

impl Drop for WaitingConnection<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WaitingConnection<'_> {
    /// Returns a future that completes at the next change.
    pub fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }
}

impl Pressure {
    pub fn new(threads: usize) -> Self {
        Self {
            // Reference point of `now`.
            started: Instant::now(),
            waiting: AtomicUsize::new(0),
            changed: Notify::new(),
            oldest: (0..threads).map(|_| AtomicU64::new(UNKNOWN)).collect(),
            closed: AtomicUsize::new(0),
            is_stuck: AtomicBool::new(false),
            next_line: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Registers a connection that waits for room.
    pub fn wait(&self) -> WaitingConnection<'_> {
        // Before the caller checks for room, because `notify` reads this after it has made room.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        WaitingConnection(self)
    }

    /// Wakes the connections that wait for room.
    pub fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// Stores the rank of a thread's first connection to close.
    pub fn publish(&self, thread: usize, oldest: Option<u64>) {
        self.oldest[thread].store(oldest.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Discards the rank while the limit is not near.
    pub fn forget(&self, thread: usize) {
        self.oldest[thread].store(UNKNOWN, Ordering::Relaxed);
    }

    /// Returns the thread with the first connection to close. The ranks of all threads for which
    /// `has_connections` is true must be known.
    pub fn oldest(&self, has_connections: impl Fn(usize) -> bool) -> Oldest {
        let mut found = (NONE, Oldest::Nowhere);
        for (thread, oldest) in self.oldest.iter().enumerate() {
            match oldest.load(Ordering::Relaxed) {
                UNKNOWN if has_connections(thread) => return Oldest::Unknown,
                oldest if oldest < found.0 => found = (oldest, Oldest::On(thread)),
                _ => {}
            }
        }
        found.1
    }

    /// Counts a connection that was closed to make room.
    pub fn count_closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a connection waits and none can be closed.
    pub fn set_stuck(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Returns the log message that is due, at most one per [`PERIOD`]. `most` is the limit on
    /// connections.
    pub fn line(&self, most: usize) -> Option<String> {
        if self.closed.load(Ordering::Relaxed) == 0 && !self.is_stuck.load(Ordering::Relaxed) {
            return None;
        }
        let (now, next) = (self.now(), self.next_line.load(Ordering::Relaxed));
        let after = now + PERIOD.as_millis() as u64;
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        if now < next || self.next_line.compare_exchange(next, after, set, get).is_err() {
            return None;
        }
        let closed = self.closed.swap(0, Ordering::Relaxed);
        let what = match (closed, self.is_stuck.swap(false, Ordering::Relaxed)) {
            (0, _) => "all of them have requests under way, and new ones wait".to_owned(),
            (1, _) => "1 idle connection was closed to admit another".to_owned(),
            (_, false) => format!("{closed} idle connections were closed to admit others"),
            (_, true) => format!(
                "{closed} idle connections were closed to admit others, and new ones waited as all others \
                 had requests under way"
            ),
        };
        Some(format!(
            "the limit of {most} connections is reached: {what}; raise `connections` in [server.limits] or \
             the limit on open files (ulimit -n, LimitNOFILE of systemd)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_with_the_oldest_is_asked() {
        let pressure = Pressure::new(3);
        assert_eq!(pressure.oldest(|_| false), Oldest::Nowhere);
        pressure.publish(1, Some(900));
        assert_eq!(pressure.oldest(|thread| thread == 2), Oldest::Unknown);
        assert_eq!(pressure.oldest(|thread| thread == 1), Oldest::On(1));
        pressure.publish(0, Some(20));
        pressure.publish(2, Some(21));
        assert_eq!(pressure.oldest(|_| true), Oldest::On(0));
        pressure.publish(0, None);
        assert_eq!(pressure.oldest(|_| true), Oldest::On(2));
        pressure.forget(1);
        assert_eq!(pressure.oldest(|_| true), Oldest::Unknown);
    }

    #[test]
    fn one_line_is_logged_in_a_period() {
        let pressure = Pressure::new(1);
        assert_eq!(pressure.line(10), None);
        (0..3).for_each(|_| pressure.count_closed());
        let line = pressure.line(10).unwrap();
        assert!(line.starts_with("the limit of 10 connections is reached: 3 idle connections"));
        pressure.count_closed();
        assert_eq!(pressure.line(10), None);
    }
}
