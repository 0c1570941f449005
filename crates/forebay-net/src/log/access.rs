//! The access logs of one thread.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use forebay_conf::{self as conf, Level};

use super::connection::ConnectionEntry;
use super::journal::append_fields;
use super::lost::LostAt;
use super::pattern::{LogEntry, Pattern};
use super::{LogQueue, Message};
use crate::trace::Tracer;

/// Maximum bytes of lines that a thread keeps for each log while the writer's queue is full.
const HELD_BACK: usize = 4 << 20;

/// Size of the collected lines at which a thread passes them to the writer without waiting for the
/// next tick.
const HAND_OVER: usize = 64 << 10;

/// The access logs of one thread. The logs collect lines, and pass the lines to the writer at each
/// tick (100 ms).
pub struct AccessLog {
    /// The logs by number: first the log of `[log]`, then the logs of sites and routes.
    logs: Vec<Collected>,
    /// Records traces, if they are enabled.
    tracer: Option<Tracer>,
    lost: Cell<u64>,
    queue: LogQueue,
}

/// The format and the collected lines of one log.
struct Collected {
    to: Arc<conf::AccessLog>,
    pattern: Option<Pattern>,
    /// True if the log goes to the journal, whose messages have fields.
    has_fields: bool,
    lines: RefCell<Vec<u8>>,
    /// Time of the last line in seconds since 1970, and the formatted text of this time.
    time: RefCell<(u64, String)>,
}

impl AccessLog {
    pub(super) fn new(log: &conf::Log, queue: LogQueue, tracer: Option<Tracer>) -> Self {
        let collected = |file: conf::LogFile| {
            let pattern = match (&file.access, &file.format) {
                (conf::AccessLog::Off, _) => None,
                (_, conf::Format::Json) => Some(Pattern::Json),
                (_, conf::Format::Common) => Some(Pattern::common()),
                (_, conf::Format::Combined) => Some(Pattern::combined()),
                (_, conf::Format::Pattern(pattern)) => Some(Pattern::parse(pattern)),
            };
            let has_fields =
                matches!(file.access, conf::AccessLog::Service(conf::LogService::Journal(_)));
            let (lines, time) = Default::default();
            let to = Arc::new(file.access);
            Collected { to, pattern, has_fields, lines, time }
        };
        let logs = log.files().map(collected).collect();
        Self { logs, tracer, lost: Cell::new(0), queue }
    }

    /// Passes the collected lines to the writer, and uses the logs of `other` from now on.
    pub fn replace(&mut self, other: Self) {
        self.hand_over();
        (self.logs, self.tracer) = (other.logs, other.tracer);
    }

    /// Returns true if at least one log or the tracer is enabled.
    pub(crate) fn is_on(&self) -> bool {
        self.tracer.is_some() || self.logs.iter().any(|log| log.pattern.is_some())
    }

    /// Returns the tracer, if traces are enabled.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// Returns true if a log or a trace contains times of the steps of requests.
    pub(crate) fn needs_steps(&self) -> bool {
        self.tracer.is_some()
            || self.logs.iter().any(|log| log.pattern.as_ref().is_some_and(Pattern::needs_steps))
    }

    /// Returns true if no line is waiting to be passed to the writer.
    pub fn is_empty(&self) -> bool {
        self.logs.iter().all(|log| log.lines.borrow().is_empty())
    }

    /// Appends the line of a finished request to the log with this number.
    pub fn record(&self, number: usize, entry: &LogEntry<'_>) {
        self.append(number, |log, pattern, time, lines| {
            pattern.append(entry, time, lines);
            if log.has_fields {
                append_fields(entry, lines);
            }
        });
    }

    /// Appends the line of a finished connection of a `[[stream]]` to the log with this number.
    pub fn record_connection(&self, number: usize, entry: &ConnectionEntry<'_>) {
        self.append(number, |_, pattern, time, lines| match pattern {
            Pattern::Json => entry.append_json(time, lines),
            Pattern::Parts(_) => entry.append_text(time, lines),
        });
    }

    /// Calls `write` to append a line to the log with this number. Does nothing if this log is off.
    /// If too many lines wait, drops and counts the line.
    #[inline]
    fn append(&self, number: usize, write: impl FnOnce(&Collected, &Pattern, &str, &mut Vec<u8>)) {
        let Some(log) = self.logs.get(number) else { return };
        let Some(pattern) = &log.pattern else { return };
        let mut lines = log.lines.borrow_mut();
        if lines.len() > HELD_BACK {
            self.lost.set(self.lost.get() + 1);
            LostAt::Queue.count(1);
            return;
        }
        log.refresh_time(pattern);
        write(log, pattern, &log.time.borrow().1, &mut lines);
        lines.push(b'\n');
        if lines.len() >= HAND_OVER {
            drop(lines);
            self.hand_over_one(number, log);
        }
    }

    /// Passes the lines to the writer, or keeps them if the writer's queue is full.
    pub fn hand_over(&self) {
        for (number, log) in self.logs.iter().enumerate() {
            self.hand_over_one(number, log);
        }
    }

    fn hand_over_one(&self, number: usize, log: &Collected) {
        let lines = std::mem::take(&mut *log.lines.borrow_mut());
        if lines.is_empty() {
            return;
        }
        match self.queue.send(Message::Lines(number, log.to.clone(), lines)) {
            Err(Message::Lines(_, _, lines)) => *log.lines.borrow_mut() = lines,
            _ if self.lost.get() > 0 => {
                let lost = self.lost.take();
                let text = format!("the access log is too slow: {lost} lines were lost");
                let _ = self.queue.send(Message::Error(Level::Warn, text));
            }
            _ => {}
        }
    }
}

impl Collected {
    fn refresh_time(&self, pattern: &Pattern) {
        let now = jiff::Timestamp::now();
        let mut time = self.time.borrow_mut();
        if time.0 != now.as_second() as u64 {
            let zoned = now.to_zoned(jiff::tz::TimeZone::system());
            *time = (now.as_second() as u64, zoned.strftime(pattern.time_format()).to_string());
        }
    }
}
