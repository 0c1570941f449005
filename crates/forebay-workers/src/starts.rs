//! The starts of an application's processes, by the thread of its supervisor: reports the first start,
//! and delays the next one after a failure.

use std::future::Future;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_process::{Severity, StartError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::stderr::WorkerLog;

/// The record of starts of an application's processes, and of pauses after failures.
pub(crate) struct Starts {
    app: String,
    sink: WorkerLog,
    /// Receives the result of the first start. `None` after the first starts of all processes.
    first: Option<First>,
    /// True if the result of the first start was sent.
    is_reported: bool,
    backoff: Backoff,
    /// No process is started before this time.
    not_before: Option<Instant>,
}

/// The consequence of a failed start.
pub(crate) enum Failed {
    /// A pause follows.
    Paused,
    /// The first start failed, or several starts failed one after the other, so that requests
    /// should not wait any more. Contains the reason.
    Loop(String),
}

/// The state of the pause between starts.
#[derive(PartialEq, Eq)]
pub(crate) enum Pause {
    None,
    /// A pause has just ended.
    Over,
    Lasts,
}

impl Starts {
    pub(crate) fn new(app: &str, log: WorkerLog, first: First) -> Starts {
        let backoff = Backoff::default();
        Starts {
            app: app.to_owned(),
            sink: log,
            first: Some(first),
            is_reported: false,
            backoff,
            not_before: None,
        }
    }

    pub(crate) fn log(&self, text: &str) {
        (self.sink)(Severity::Warn, &format!("[{}] {text}", self.app));
    }

    /// Sends the result of the first start: success, because a process is ready or no process is
    /// needed yet. Later calls send nothing.
    pub(crate) fn ready(&mut self) {
        self.report_first(Ok(()));
    }

    /// Lets [`FirstStart::wait_for_others`](FirstStart::wait_for_others) return,
    /// because the minimum number of processes is ready.
    pub(crate) fn all_ready(&mut self) {
        self.first = None;
    }

    /// Resets the backoff, because a process has done work or has run for some time.
    pub(crate) fn proved(&mut self) {
        self.backoff.succeeded();
    }

    /// Handles a failed start. `last_lines` is the last output of the process. Returns `Loop` if
    /// this was the application's first start, or after several consecutive failures. Otherwise
    /// returns `Paused`.
    pub(crate) fn failed(&mut self, text: &str, last_lines: &str) -> Failed {
        let separator = if last_lines.is_empty() { "" } else { "; it wrote: " };
        let text = format!("{text}{separator}{last_lines}");
        // Log a single line. Otherwise a program could write log lines that look like Forebay's
        // lines.
        self.log(&text.replace('\n', " | "));
        let delay = self.backoff.failed();
        self.not_before = Some(Instant::now() + delay);
        let is_first = !self.is_reported;
        self.report_first(Err(StartError::new(&self.app, text.clone())));
        self.first = None;
        if !is_first && !self.backoff.is_loop() {
            return Failed::Paused;
        }
        self.log(&format!("the next start is in {} ms", delay.as_millis()));
        Failed::Loop(text)
    }

    /// Returns true during the pause after a failed start.
    pub(crate) fn are_paused(&self) -> bool {
        self.not_before.is_some()
    }

    /// Returns the time at which the pause ends. Returns `None` if there is no pause.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.not_before
    }

    /// Ends the pause if its time is over at `now`. Returns the state of the pause.
    pub(crate) fn resume(&mut self, now: Instant) -> Pause {
        match self.not_before {
            None => Pause::None,
            Some(at) if at > now => Pause::Lasts,
            Some(_) => {
                self.not_before = None;
                Pause::Over
            }
        }
    }

    fn report_first(&mut self, outcome: Result<(), StartError>) {
        if let Some(first) = self.first.as_ref().filter(|_| !self.is_reported) {
            let _ = first.send(outcome);
        }
        self.is_reported = true;
    }
}

/// Returns `most`, reduced by a random part of up to a tenth. The different results keep processes
/// that started together from ending at the same time.
pub(crate) fn a_little_less(most: u64) -> u64 {
    (most - fastrand::u64(0..=most / 10)).max(1)
}

/// Returns the time at which a process that starts now reaches its age limit. The limit is
/// `max_age`, reduced by [`shortened`]. Returns `None` without `max_age`.
pub(crate) fn end_of(max_age: Option<Duration>) -> Option<Instant> {
    shortened(max_age).map(|age| Instant::now() + age)
}

/// Returns `most`, reduced by a random part of up to a tenth. Returns `None` without `most`.
pub(crate) fn shortened(most: Option<Duration>) -> Option<Duration> {
    most.map(|most| most.mul_f64(1.0 - fastrand::f64() / 10.0))
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Counts consecutive failed starts.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure. Returns the time until the next start: 0.1 s, doubled each time, at most
    /// 10 s.
    pub(crate) fn failed(&mut self) -> Duration {
        let delay = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(MAX_PAUSE);
        self.failures += 1;
        delay
    }

    /// Resets the count, because a worker has done work or has run for some time.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Returns true after three consecutive failures. Requests then fail instead of waiting for the
    /// next start.
    fn is_loop(&self) -> bool {
        self.failures >= 3
    }
}

// The thread of a supervisor.

/// Sender of the result of a supervisor's first start. The supervisor drops this sender when the
/// minimum number of processes is ready, or when a start fails.
pub(crate) type First = mpsc::Sender<Result<(), StartError>>;

/// The first start of an application, in progress or finished.
pub struct FirstStart {
    app: String,
    outcome: mpsc::Receiver<Result<(), StartError>>,
}

impl FirstStart {
    /// Waits until a process is ready or the first start has failed, for at most `limit`. Returns
    /// `None` after that time. Blocks. Returns the outcome of the first start only once.
    pub fn wait(&self, limit: Duration) -> Option<Result<(), StartError>> {
        match self.outcome.recv_timeout(limit) {
            Ok(outcome) => Some(outcome),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(self.supervisor_ended())),
        }
    }

    /// Waits as [`FirstStart::wait`] does, but without a limit.
    pub fn wait_for_end(&self) -> Result<(), StartError> {
        self.outcome.recv().unwrap_or_else(|_| Err(self.supervisor_ended()))
    }

    /// Waits until all processes of the minimum number are ready, or until a start fails, for at
    /// most `limit`. Call this after the first process is ready. Blocks.
    pub fn wait_for_others(&self, limit: Duration) {
        // No further result arrives, because `wait` has received the only one. This call returns
        // when the supervisor drops the sender.
        let _ = self.outcome.recv_timeout(limit);
    }

    fn supervisor_ended(&self) -> StartError {
        StartError::new(&self.app, "the supervisor thread ended")
    }
}

/// Starts a thread for the application `name`, which runs the future of `supervise`. Returns the
/// sender of commands, the thread, and the first start of a process.
pub(crate) fn start_thread<C, S, F>(
    name: &str,
    supervise: S,
) -> Result<(UnboundedSender<C>, JoinHandle<()>, FirstStart), StartError>
where
    C: Send + 'static,
    S: FnOnce(UnboundedReceiver<C>, First) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let fault = |what: String| StartError::new(name, what);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| fault(error.to_string()))?;
    let (commands, inbox) = unbounded_channel();
    let (first, outcome) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(format!("app {name}"))
        .spawn(move || LocalSet::new().block_on(&runtime, supervise(inbox, first)))
        .map_err(|error| fault(format!("cannot start a thread: {error}")))?;
    Ok((commands, thread, FirstStart { app: name.to_owned(), outcome }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn requests_do_not_wait_after_the_first_failure_nor_after_three() {
        let (first, reported) = mpsc::channel();
        let mut starts =
            Starts::new("a", Arc::new(|_: forebay_process::Severity, _: &str| {}), first);
        assert!(matches!(starts.failed("it ended", "why"), Failed::Loop(_)));
        assert!(starts.are_paused(), "the next attempt follows");
        let error = reported.recv().unwrap().unwrap_err().to_string();
        assert_eq!(reported.recv(), Err(mpsc::RecvError), "no other start is awaited");
        assert_eq!(error, "app a: it ended; it wrote: why");
        let (first, reported) = mpsc::channel();
        let mut starts =
            Starts::new("a", Arc::new(|_: forebay_process::Severity, _: &str| {}), first);
        starts.ready();
        starts.ready();
        assert_eq!(reported.recv(), Ok(Ok(())));
        assert_eq!(reported.try_recv(), Err(mpsc::TryRecvError::Empty), "the others start");
        starts.all_ready();
        assert_eq!(reported.recv(), Err(mpsc::RecvError));
        for _ in 0..2 {
            assert!(matches!(starts.failed("it ended", ""), Failed::Paused));
        }
        assert!(matches!(starts.failed("it ended", ""), Failed::Loop(why) if why == "it ended"));
        let end = starts.next().unwrap();
        assert!(starts.resume(end - Duration::from_millis(1)) == Pause::Lasts);
        assert!(starts.resume(end) == Pause::Over && !starts.are_paused());
        assert!(starts.resume(end) == Pause::None);
    }

    #[test]
    fn doubles_up_to_ten_seconds_and_starts_over() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..9).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert!(backoff.is_loop());
        backoff.succeeded();
        assert!(!backoff.is_loop());
        assert_eq!(backoff.failed().as_millis(), 100);
    }
}
