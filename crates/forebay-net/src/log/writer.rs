//! The thread that writes the logs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_conf as conf;
use forebay_conf::Level;

use super::message::LineKind;
use super::pattern::append_json_text;
use super::service::Service;
use super::target::{self, FileTarget, ServiceHandle, Target};
use super::{AccessLog, ErrorLog, LogQueue, LostAt, Message, Queued, Reopener, Style};
use crate::log_file::Owner;
use crate::log_opener::Opener;
use crate::log_rotation::compress;
use crate::trace::Tracer;

/// Before Forebay exits, it waits this long at most until the writer has written all queued
/// messages.
// The writer can block forever if its output is a full pipe that no process reads.
const ENDING: Duration = Duration::from_secs(5);

/// Handle to the thread that writes the logs. Dropping the handle ends the thread.
pub struct Writer {
    queue: LogQueue,
    style: Arc<Style>,
    /// Records traces, if they are enabled.
    tracer: Option<Tracer>,
    thread: Option<JoinHandle<()>>,
    /// Channel that disconnects when the thread has written everything.
    ended: Receiver<()>,
}

impl Writer {
    /// Opens the logs and starts the thread. New log files belong to `owner`.
    pub fn start(log: &conf::Log, owner: Option<Owner>) -> io::Result<Self> {
        let (queue, queued) = LogQueue::new();
        let targets = Targets::open(log, owner)?;
        let style = Arc::new(Style::new(log));
        let (for_thread, for_queue) = (style.clone(), queue.clone());
        let (ending, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            LogThread::new(for_queue, for_thread).run(&queued, targets);
            drop(ending);
        })?;
        let thread = Some(thread);
        let mut writer = Self { queue, style, tracer: None, thread, ended };
        writer.set_traces(log)?;
        Ok(writer)
    }

    /// Returns a handle to the error log.
    pub fn errors(&self) -> ErrorLog {
        ErrorLog { queue: self.queue.clone(), style: self.style.clone() }
    }

    /// Creates the access log of one thread.
    pub fn access(&self, log: &conf::Log) -> AccessLog {
        AccessLog::new(log, self.queue.clone(), self.tracer.clone())
    }

    /// Starts, changes or ends the export of traces. The change applies only to access logs that
    /// [`Writer::access`] creates after this call.
    pub fn set_traces(&mut self, log: &conf::Log) -> io::Result<()> {
        let current = self.tracer.as_ref().map(Tracer::settings);
        if current != log.traces.as_ref() {
            let start = |traces| {
                let errors = self.errors();
                Tracer::start(traces, move |level, line| errors.log(level, line))
            };
            self.tracer = log.traces.as_ref().map(start).transpose()?;
        }
        Ok(())
    }

    /// Returns a handle for another thread to reopen the access log.
    pub fn reopener(&self) -> Reopener {
        Reopener(self.queue.clone())
    }

    /// Opens the access logs of a new configuration. [`Writer::switch`] makes the writer use them.
    pub fn open(log: &conf::Log) -> io::Result<Targets> {
        Targets::open(log, None)
    }

    /// Makes the writer use `targets` from now on. Threads that have not changed their logs yet may
    /// send lines for former targets, which stay open. Call [`Self::retire`] afterwards.
    pub fn switch(&self, targets: Targets) {
        self.queue.order(Message::Switch(targets));
    }

    /// Closes the targets that the last switch replaced.
    pub fn retire(&self) {
        self.queue.order(Message::Retire);
    }

    /// Sets the process that reopens the logs if this process lacks the permission.
    pub fn set_opener(&self, opener: Opener) {
        self.queue.order(Message::Opener(opener));
    }

    /// Reopens the access log, for example after a rotation.
    pub fn reopen(&self) {
        self.queue.order(Message::Reopen);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(tracer) = self.tracer.take() {
            tracer.finish();
        }
        self.queue.order(Message::End);
        let has_ended = self.ended.recv_timeout(ENDING) == Err(RecvTimeoutError::Disconnected);
        if let Some(thread) = self.thread.take().filter(|_| has_ended) {
            let _ = thread.join();
        }
    }
}

/// The destination of an access log.
struct LogDestination {
    to: conf::AccessLog,
    target: Target,
    troubles: Troubles,
}

/// Destinations of all logs.
pub struct Targets {
    access: Vec<LogDestination>,
    /// Destinations before the last switch. Some threads may still have lines for them.
    former: Vec<LogDestination>,
    /// The service of the error log. `None` means standard error.
    errors: Option<ServiceHandle>,
    services: BTreeMap<conf::LogService, ServiceHandle>,
}

impl Targets {
    fn open(log: &conf::Log, owner: Option<Owner>) -> io::Result<Self> {
        let mut services = BTreeMap::new();
        // All logs of a service share its thread.
        let mut service = |to: &conf::LogService| {
            if let Some(known) = services.get(to) {
                return Ok(ServiceHandle::clone(known));
            }
            let started = ServiceHandle(Service::start(to, &log.sender)?);
            services.insert(to.clone(), started.clone());
            Ok(started)
        };
        let access = log.files().map(|file| {
            let target = target::open(&file, owner, &mut service)?;
            Ok(LogDestination { to: file.access, target, troubles: Troubles::default() })
        });
        let access = access.collect::<io::Result<_>>()?;
        let errors = log.error.as_ref().map(service).transpose()?;
        Ok(Self { access, former: Vec::new(), errors, services })
    }

    /// Returns the destination of collected lines. `number` and `to` are the number and
    /// configuration of their log when the lines were collected. After a reload, the number may
    /// belong to another log, so the configuration decides. Returns `None` if no open log has this
    /// configuration.
    fn find(&mut self, number: usize, to: &conf::AccessLog) -> Option<&mut LogDestination> {
        if self.access.get(number).is_some_and(|found| found.to == *to) {
            return self.access.get_mut(number);
        }
        self.access.iter_mut().chain(&mut self.former).find(|found| found.to == *to)
    }

    /// Waits until the services have taken all lines, for a limited time.
    fn finish(mut self) {
        (self.access, self.former, self.errors) = (Vec::new(), Vec::new(), None);
        self.services.into_values().for_each(|service| service.0.finish());
    }
}

/// Returns a line of the error log.
fn error_line(level: Level, message: &str, style: &Style) -> Vec<u8> {
    let now = jiff::Zoned::now();
    if !style.is_json.load(Ordering::Relaxed) {
        let now = now.strftime("%Y-%m-%d %H:%M:%S");
        return format!("{now} {level} forebay: {message}\n").into_bytes();
    }
    let time = now.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z");
    let mut line = format!("{{\"time\":\"{time}\",\"level\":\"{level}\",\"message\":").into_bytes();
    line.push(b'"');
    append_json_text(message.as_bytes(), &mut line);
    line.push(b'"');
    line.extend_from_slice(b"}\n");
    line
}

/// Returns true if standard error is a stream of the journal of systemd.
fn is_stderr_journal() -> bool {
    // The service manager sets the variable to device and inode of the stream. A shell may have
    // redirected standard error since then, so compare both numbers.
    let Ok(variable) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(found) = rustix::fs::fstat(io::stderr().as_fd()) else { return false };
    variable == format!("{}:{}", found.st_dev, found.st_ino)
}

/// Puts the priority for the journal before each line (`sd-daemon(3)`).
fn with_priorities(lines: &[u8], kind: LineKind) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let _ = write!(out, "<{}>", kind.severity());
        out.extend_from_slice(line);
    }
    out
}

/// The thread that writes the logs.
struct LogThread {
    queue: LogQueue,
    style: Arc<Style>,
    opener: Option<Opener>,
    /// Paths of logs with an old file that is being compressed. Several logs may have one path.
    compressing: BTreeSet<PathBuf>,
}

impl LogThread {
    fn new(queue: LogQueue, style: Arc<Style>) -> Self {
        Self { queue, style, opener: None, compressing: BTreeSet::new() }
    }

    fn run(mut self, queued: &Queued, mut targets: Targets) {
        let is_journal = is_stderr_journal();
        while let Ok(message) = queued.receiver.recv() {
            let size = message.size();
            match message {
                Message::Lines(number, to, lines) => match targets.find(number, &to) {
                    Some(found) => {
                        found.troubles.write(&mut found.target, lines, self.opener.as_mut());
                        self.compress_old(&mut found.target);
                    }
                    // After a reload, a thread has used its old log for so long that the writer has
                    // closed this log. The lines of the thread are lost.
                    None => LostAt::Queue.count(memchr::memchr_iter(b'\n', &lines).count() as u64),
                },
                Message::Error(level, line) => {
                    self.write_error(level, &line, &targets, is_journal);
                }
                Message::Reopen => {
                    let files = targets.access.iter_mut();
                    for file in files.filter_map(|found| found.target.file()) {
                        file.reopen(self.opener.as_mut());
                    }
                }
                Message::Opener(other) => self.opener = Some(other),
                Message::Switch(others) => {
                    let former = std::mem::replace(&mut targets, others).access;
                    targets.former = former;
                }
                Message::Retire => targets.former.clear(),
                Message::Compressed(path, outcome) => {
                    self.compressing.remove(&path);
                    for LogDestination { target, .. } in &mut targets.access {
                        if let Some(file) = target.file() {
                            file.end_compression(&path, &outcome, self.opener.as_mut());
                        }
                        self.compress_old(target);
                    }
                }
                Message::End => {
                    targets.finish();
                    return;
                }
            }
            queued.release(size);
        }
    }

    fn write_error(&self, level: Level, message: &str, targets: &Targets, is_journal: bool) {
        let kind = LineKind::Error(level);
        if let Some(service) = &targets.errors {
            return service.0.send(kind, service_line(level, message, &self.style));
        }
        let line = error_line(level, message, &self.style);
        let marked = is_journal.then(|| with_priorities(&line, kind));
        let _ = io::stderr().write_all(&marked.unwrap_or(line));
    }

    /// If an old file of the log waits for its compression, compresses it on another thread.
    fn compress_old(&mut self, target: &mut Target) {
        // Compress only one old file of each log at a time, because `end_compression` identifies
        // the compression by the path of the log.
        let is_free = |file: &&mut FileTarget| !self.compressing.contains(file.path());
        let Some(file) = target.file().filter(is_free) else { return };
        let Some(compression) = file.begin_compression(self.opener.as_mut()) else { return };
        let (queue, path) = (self.queue.clone(), file.path().to_owned());
        let thread = std::thread::Builder::new().name("log-compress".into());
        let own_path = path.clone();
        let started = thread.spawn(move || {
            // On Linux, this changes the priority of the thread alone.
            let _ = rustix::process::nice(10);
            let outcome = compress(compression);
            queue.order(Message::Compressed(own_path, outcome));
        });
        match started {
            Ok(_) => drop(self.compressing.insert(path)),
            Err(error) => file.end_compression(&path, &Err(error), self.opener.as_mut()),
        }
    }
}

/// Returns a message for a log service. A text message has no time and level, because the service
/// adds them. A message in JSON contains both.
fn service_line(level: Level, message: &str, style: &Style) -> Vec<u8> {
    if style.is_json.load(Ordering::Relaxed) {
        return error_line(level, message, style);
    }
    format!("{message}\n").into_bytes()
}

/// State of failed writes, for example on a full disk.
#[derive(Default)]
struct Troubles {
    lost: usize,
    /// True if the last write was incomplete, so that the file may end in the middle of a line.
    is_torn: bool,
}

impl Troubles {
    fn write(&mut self, target: &mut Target, mut lines: Vec<u8>, opener: Option<&mut Opener>) {
        let count = memchr::memchr_iter(b'\n', &lines).count().max(1);
        if self.is_torn {
            // End the incomplete line first, so that it does not merge with the next one.
            lines.insert(0, b'\n');
        }
        let outcome = target.write(lines, opener);
        match outcome {
            Ok(()) => {
                if self.lost > 0 {
                    let lost = self.lost;
                    let line = "forebay: the access log is written again; lines lost: up to";
                    let _ = writeln!(io::stderr(), "{line} {lost}");
                }
                *self = Self::default();
            }
            Err(error) => {
                if self.lost == 0 {
                    let line = "forebay: the access log cannot be written, its lines are lost:";
                    let _ = writeln!(io::stderr(), "{line} {error}");
                }
                self.lost += count;
                LostAt::File.count(count as u64);
                self.is_torn = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::access::{ConnectionEnd, ConnectionEntry};

    #[test]
    fn a_line_has_time_level_and_message_in_text_and_in_json() {
        let mut log = conf::Log::default();
        let line = |log: &conf::Log| {
            let line = error_line(Level::Warn, "it said \"no\"", &Style::new(log));
            String::from_utf8(line).unwrap()
        };
        let text = line(&log);
        assert!(text.ends_with(" warn forebay: it said \"no\"\n"), "{text}");
        log.error_format = conf::ErrorFormat::Json;
        let json = line(&log);
        let rest = json.strip_prefix("{\"time\":\"").expect("the time first");
        let (time, rest) = rest.split_once('"').unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
        assert_eq!(rest, ",\"level\":\"warn\",\"message\":\"it said \\\"no\\\"\"}\n");
    }

    #[test]
    fn no_line_goes_to_a_log_that_got_the_number_of_another_one() {
        let tmp = tempfile::tempdir().unwrap();
        let path = |name: &str| tmp.path().join(name);
        let log = |names: &[&str]| {
            let file = |name: &&str| conf::LogFile {
                access: conf::AccessLog::Path(path(name)),
                format: conf::Format::Combined,
                rotate: None,
            };
            conf::Log { others: names.iter().map(file).collect(), ..conf::Log::default() }
        };
        let entry = |name| ConnectionEntry {
            protocol: "TCP",
            client: forebay_wire::ClientAddress::Unix,
            server_name: Some(name),
            backend: None,
            end: ConnectionEnd::Closed,
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        };
        let (before, after) = (log(&["a", "b"]), log(&["b", "c"]));
        let writer = Writer::start(&before, None).unwrap();
        let (slow, mut fast) = (writer.access(&before), writer.access(&before));
        writer.switch(Writer::open(&after).unwrap());
        fast.replace(writer.access(&after));
        let lines = [(&slow, 1, "a"), (&slow, 2, "b"), (&fast, 1, "b"), (&fast, 2, "c")];
        for (thread, number, name) in lines {
            thread.record_connection(number, &entry(name));
            thread.hand_over();
        }
        writer.retire();
        drop(writer);
        for (name, count) in [("a", 1), ("b", 2), ("c", 1)] {
            let text = std::fs::read_to_string(path(name)).unwrap();
            assert_eq!(text.matches(&format!("\"TCP {name}\"")).count(), count, "{text}");
            assert_eq!(text.lines().count(), count, "{text}");
        }
    }
}
