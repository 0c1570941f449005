//! The access log and the error log.
//!
//! A separate thread writes both, so that a slow disk or terminal never delays a request.

mod access;
mod message;
mod pattern;
mod service;
mod target;
mod writer;

pub use access::{AccessLog, ConnectionEnd, ConnectionEntry};
pub use pattern::{LogEntry, append_json_text};
pub use writer::{Targets, Writer};

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_conf as conf;
use forebay_conf::Level;
use forebay_process::Severity;

use crate::log_opener::Opener;

#[cfg(any(test, feature = "memory"))]
use std::cell::RefCell;

#[cfg(any(test, feature = "memory"))]
use crate::trace::Tracer;

/// Maximum number of bytes that all threads have queued and the writer has not written yet.
const QUEUED: usize = 16 << 20;
/// Bytes that a queued message is assumed to need in addition to its text.
const OVERHEAD: usize = 64;

/// A message to the writer.
enum Message {
    /// Lines for the access log with this number and destination. A reload may give the number to
    /// another log.
    Lines(usize, Arc<conf::AccessLog>, Vec<u8>),
    Error(Level, String),
    Reopen,
    Switch(Targets),
    /// No thread still uses the logs that the last switch replaced.
    Retire,
    Opener(Opener),
    /// The compression of an old file of the log with this path has ended.
    Compressed(PathBuf, io::Result<()>),
    End,
}

impl Message {
    fn size(&self) -> usize {
        match self {
            Self::Lines(_, _, lines) => lines.len() + OVERHEAD,
            Self::Error(_, line) => line.len() + OVERHEAD,
            Self::Reopen
            | Self::Switch(_)
            | Self::Retire
            | Self::Opener(_)
            | Self::Compressed(..)
            | Self::End => 0,
        }
    }
}

/// Sending end of the queue to the writer. Sending never blocks.
#[derive(Clone)]
struct LogQueue {
    sender: Sender<Message>,
    queued: Arc<AtomicUsize>,
}

impl LogQueue {
    fn new() -> (Self, Queued) {
        let (sender, receiver) = channel();
        let queued = Arc::<AtomicUsize>::default();
        (Self { sender, queued: queued.clone() }, Queued { receiver, queued })
    }

    /// Sends a message, or returns the message if the queue is full.
    fn send(&self, message: Message) -> Result<(), Message> {
        let size = message.size();
        if self.queued.fetch_add(size, Ordering::Relaxed) + size > QUEUED && size > 0 {
            self.queued.fetch_sub(size, Ordering::Relaxed);
            return Err(message);
        }
        self.sender.send(message).map_err(|error| error.0)
    }

    /// Sends a command to the writer. Commands count as 0 bytes, so even a full queue accepts them.
    fn order(&self, message: Message) {
        let _ = self.send(message);
    }
}

/// Receiving end of a [`LogQueue`].
struct Queued {
    receiver: Receiver<Message>,
    queued: Arc<AtomicUsize>,
}

impl Queued {
    /// Subtracts a processed message of this size from the queue's total.
    fn release(&self, size: usize) {
        self.queued.fetch_sub(size, Ordering::Relaxed);
    }
}

/// Handle that makes the writer reopen the access log.
pub struct Reopener(LogQueue);

impl Reopener {
    /// See [`Writer::reopen`].
    pub fn reopen(&self) {
        self.0.order(Message::Reopen);
    }
}

/// A handle to the error log. The writer sends its lines to standard error or to a log service.
#[derive(Clone)]
pub struct ErrorLog {
    queue: LogQueue,
    style: Arc<Style>,
}

/// Settings of the error log, shared by all its handles. A reload changes them.
#[derive(Default)]
struct Style {
    /// The least severe level that is logged.
    level: AtomicU8,
    is_json: AtomicBool,
}

impl Style {
    fn new(log: &conf::Log) -> Self {
        let style = Self::default();
        style.set(log);
        style
    }

    fn set(&self, log: &conf::Log) {
        self.level.store(log.level as u8, Ordering::Relaxed);
        self.is_json.store(log.error_format == conf::ErrorFormat::Json, Ordering::Relaxed);
    }
}

impl ErrorLog {
    /// Returns a log in memory and its reader. The log holds at most 16 MiB of unread lines.
    #[cfg(any(test, feature = "memory"))]
    pub fn kept() -> (Self, Kept) {
        let (queue, queued) = LogQueue::new();
        let style = Arc::new(Style::new(&conf::Log::default()));
        (Self { queue, style }, Kept { queued, taken: RefCell::default() })
    }

    /// Creates the access logs of one thread, which use the writer of this error log.
    #[cfg(any(test, feature = "memory"))]
    pub fn access(&self, log: &conf::Log) -> AccessLog {
        let start = |traces: &conf::Traces| {
            let errors = self.clone();
            Tracer::start(traces, move |level, line| errors.log(level, line)).ok()
        };
        let tracer = log.traces.as_ref().and_then(start);
        AccessLog::new(log, self.queue.clone(), tracer)
    }

    /// Uses the level and format of `log` from now on.
    pub fn configure(&self, log: &conf::Log) {
        self.style.set(log);
    }

    /// Returns true if messages of this level are logged.
    pub fn is_logged(&self, level: Level) -> bool {
        level as u8 <= self.style.level.load(Ordering::Relaxed)
    }

    /// Logs a message if its level is logged. Discards the message if the queue is full.
    pub fn log(&self, level: Level, message: &str) {
        let is_lost = self.is_logged(level)
            && self.queue.send(Message::Error(level, message.to_owned())).is_err();
        if is_lost {
            LostAt::Queue.count(1);
        }
    }

    /// Logs a failure of Forebay itself, or another failure that the administrator must repair.
    pub fn error(&self, message: &str) {
        self.log(Level::Error, message);
    }

    /// Logs a fault of a backend or application, or a setting without effect.
    pub fn warn(&self, message: &str) {
        self.log(Level::Warn, message);
    }

    /// Logs a line of an application's output.
    pub fn output(&self, severity: Severity, line: &str) {
        let level = match severity {
            Severity::Error => Level::Error,
            Severity::Warn => Level::Warn,
            Severity::Info => Level::Info,
            Severity::Debug => Level::Debug,
        };
        self.log(level, line);
    }

    /// Logs a change of state, or a fault of a client.
    pub fn info(&self, message: &str) {
        self.log(Level::Info, message);
    }
}

/// Lines that a [`Kept`] has received but not returned: those of the error log, and those of the
/// access logs. Each line of an access log has the number of its log.
#[cfg(any(test, feature = "memory"))]
type Taken = (Vec<String>, Vec<(usize, String)>);

/// Reader of a log in memory.
#[cfg(any(test, feature = "memory"))]
pub struct Kept {
    queued: Queued,
    taken: RefCell<Taken>,
}

#[cfg(any(test, feature = "memory"))]
impl Kept {
    /// Returns the error lines since the last call.
    pub fn errors(&self) -> Vec<String> {
        self.take();
        std::mem::take(&mut self.taken.borrow_mut().0)
    }

    /// Returns the access log lines since the last call.
    pub fn access_lines(&self) -> Vec<String> {
        self.take();
        let lines = std::mem::take(&mut self.taken.borrow_mut().1);
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// Returns the access log lines since the last call, each with the number of its log.
    pub fn numbered_lines(&self) -> Vec<(usize, String)> {
        self.take();
        std::mem::take(&mut self.taken.borrow_mut().1)
    }

    fn take(&self) {
        let (errors, lines) = &mut *self.taken.borrow_mut();
        for message in self.queued.receiver.try_iter() {
            self.queued.release(message.size());
            match message {
                Message::Error(_, line) => errors.push(line),
                Message::Lines(number, _, text) => {
                    let text = String::from_utf8_lossy(&text);
                    lines.extend(text.lines().map(|line| (number, line.to_owned())));
                }
                Message::Reopen
                | Message::Switch(_)
                | Message::Retire
                | Message::Opener(_)
                | Message::Compressed(..)
                | Message::End => {}
            }
        }
    }
}

/// The place where log lines were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostAt {
    /// The queue to the thread that writes the logs was full.
    Queue,
    /// A file or standard output could not be written.
    File,
    /// A syslog server was unreachable or too slow.
    Syslog,
    /// The journal was unreachable or too slow.
    Journal,
}

static LINES: [AtomicU64; LostAt::ALL.len()] = [const { AtomicU64::new(0) }; LostAt::ALL.len()];

impl LostAt {
    /// All places.
    pub const ALL: [Self; 4] = [Self::Queue, Self::File, Self::Syslog, Self::Journal];

    /// Returns the name of the place in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::File => "file",
            Self::Syslog => "syslog",
            Self::Journal => "journald",
        }
    }

    /// Counts lost lines.
    fn count(self, lines: u64) {
        LINES[self as usize].fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the number of lines lost here since the start of the process.
    pub fn lines(self) -> u64 {
        LINES[self as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_a_hanging_writer_are_bounded_and_delay_no_signal() {
        let (errors, kept) = ErrorLog::kept();
        let line = "x".repeat(64 << 10);
        for _ in 0..1000 {
            errors.error(&line);
        }
        Reopener(errors.queue.clone()).reopen();
        let last = kept.queued.receiver.try_iter().last();
        assert!(matches!(last, Some(Message::Reopen)));
        assert_eq!(kept.queued.queued.load(Ordering::Relaxed) / (line.len() + OVERHEAD), 255);
        let (errors, kept) = ErrorLog::kept();
        (0..1000).for_each(|_| errors.error(&line));
        assert_eq!(kept.errors().len(), QUEUED / (line.len() + OVERHEAD));
        errors.error("again");
        assert_eq!(kept.errors(), ["again"]);
    }

    #[test]
    fn levels_after_the_configured_one_are_not_logged() {
        use conf::Level::{Debug, Error, Info, Warn};
        for (level, logged) in [(Error, 1), (Warn, 2), (Info, 3), (Debug, 4)] {
            let (errors, kept) = ErrorLog::kept();
            errors.configure(&conf::Log { level, ..conf::Log::default() });
            for level in [Error, Warn, Info, Debug] {
                errors.log(level, "x");
            }
            assert_eq!(kept.errors().len(), logged, "{level:?}");
        }
    }
}
