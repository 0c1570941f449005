//! State of the limit on client connections: the waiting connections, the thread that closes a
//! connection for them, and the log message.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Minimum interval between log messages about the limit.
const PERIOD: Duration = Duration::from_secs(10);

/// Value in the list `oldest` for a thread that has no connection to close.
const NONE: u64 = u64::MAX - 1;

/// Value in the list `oldest` for a thread with an unknown rank. The thread has not scanned its
/// connections since their number came near the limit.
const UNKNOWN: u64 = u64::MAX;

/// The thread that must close the next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oldest {
    /// The thread with this index.
    On(usize),
    /// All connections have requests in progress.
    Nowhere,
    /// A thread has not scanned its connections yet, and does so at its next tick.
    Unknown,
}

/// State of the limit on connections, shared by all threads.
pub struct Pressure {
    /// Time of creation. The method `now` counts from this time.
    started: Instant,
    /// Number of new connections that wait for another connection to end.
    waiting: AtomicUsize,
    /// Notified when a connection has ended or a thread has no connection to close. Notified only
    /// while connections wait.
    changed: Notify,
    /// Rank of the connection that each thread would close first (`Deadlines::oldest`).
    oldest: Vec<AtomicU64>,
    /// Number of connections closed since the last log message.
    closed: AtomicUsize,
    /// True if a connection had to wait because none could be closed.
    is_stuck: AtomicBool,
    /// Earliest time of the next log message, in milliseconds.
    next_line: AtomicU64,
}

/// A new connection that waits for another connection to end.
pub struct WaitingConnection<'a>(&'a Pressure);

impl Drop for WaitingConnection<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WaitingConnection<'_> {
    /// Returns a future that completes at the next [`Pressure::notify`].
    pub fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }
}

impl Pressure {
    pub fn new(threads: usize) -> Self {
        Self {
            started: Instant::now(),
            waiting: AtomicUsize::new(0),
            changed: Notify::new(),
            oldest: (0..threads).map(|_| AtomicU64::new(UNKNOWN)).collect(),
            closed: AtomicUsize::new(0),
            is_stuck: AtomicBool::new(false),
            next_line: AtomicU64::new(0),
        }
    }

    /// Returns the milliseconds since `started`.
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Registers a new connection that waits for another connection to end.
    pub fn wait(&self) -> WaitingConnection<'_> {
        // Increment before the caller checks the limit. If a connection ends after that check,
        // `notify` then sees that a connection waits.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        WaitingConnection(self)
    }

    /// Wakes the waiting connections.
    pub fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// Stores the rank of the connection that `thread` would close first. Connections with a
    /// smaller rank close earlier. `oldest` is `None` if the thread has no connection to close.
    pub fn publish(&self, thread: usize, oldest: Option<u64>) {
        self.oldest[thread].store(oldest.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Forgets the rank that a thread has published, because the number of connections is not near
    /// the limit.
    pub fn forget(&self, thread: usize) {
        self.oldest[thread].store(UNKNOWN, Ordering::Relaxed);
    }

    /// Returns the thread that must close the next connection. Returns `Unknown` if a thread has
    /// connections (`has_connections`) but has not published its rank. Returns `Nowhere` if no
    /// thread has a connection to close.
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

    /// Records that a new connection waits, because no other connection can be closed for it.
    pub fn set_stuck(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Returns the log message if one is due, at most one per [`PERIOD`]. `most` is the limit on
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
