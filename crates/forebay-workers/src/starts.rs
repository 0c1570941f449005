//! Tracks the starts of an application's processes: reports the first start, and delays the next
//! one after a failure.

use crate::backoff::Backoff;
use crate::stderr::WorkerLog;
use crate::thread::First;
use forebay_process::{Severity, StartError};
use std::time::Duration;
use tokio::time::Instant;

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

    /// Lets [`FirstStart::wait_for_others`](crate::thread::FirstStart::wait_for_others) return,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

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
}
