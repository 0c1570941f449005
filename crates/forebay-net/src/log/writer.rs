//! The thread that writes the logs.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_conf::{self as conf, Level};

use super::pattern::append_json_text;
use super::{AccessLog, ErrorLog, LogQueue, Message, Queued, Reopener, Style};
use crate::log_file::{self, Owner};
use crate::log_opener::Opener;

/// Before Forebay exits, it waits this long at most until the writer has written all queued
/// messages.
// The writer can block forever if its output is a full pipe that no process reads.
const ENDING: Duration = Duration::from_secs(5);

/// Handle to the thread that writes the logs. Dropping the handle ends the thread.
pub struct Writer {
    queue: LogQueue,
    style: Arc<Style>,
    thread: Option<JoinHandle<()>>,
    /// Channel that disconnects when the thread has written everything.
    ended: Receiver<()>,
}

impl Writer {
    /// Opens the logs and starts the thread. A log file that it creates belongs to `owner`.
    pub fn start(log: &conf::Log, owner: Option<Owner>) -> io::Result<Self> {
        let (queue, queued) = LogQueue::new();
        let targets = open_all(log, owner)?;
        let style = Arc::new(Style::new(log));
        let for_thread = style.clone();
        let (ending, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            write_all(&queued, targets, &for_thread);
            drop(ending);
        })?;
        Ok(Self { queue, style, thread: Some(thread), ended })
    }

    /// Returns a handle to the error log.
    pub fn errors(&self) -> ErrorLog {
        ErrorLog { queue: self.queue.clone(), style: self.style.clone() }
    }

    /// Creates the access log of one thread.
    pub fn access(&self, log: &conf::Log) -> AccessLog {
        AccessLog::new(log, self.queue.clone())
    }

    /// Returns a handle for another thread to reopen the access log.
    pub fn reopener(&self) -> Reopener {
        Reopener(self.queue.clone())
    }

    /// Opens the access logs of a new configuration. [`Writer::switch`] makes the writer use them.
    pub fn open(log: &conf::Log) -> io::Result<Vec<Target>> {
        open_all(log, None)
    }

    /// Makes the writer use `targets` for all further lines.
    pub fn switch(&self, targets: Vec<Target>) {
        self.queue.order(Message::Switch(targets));
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
        self.queue.order(Message::End);
        let has_ended = self.ended.recv_timeout(ENDING) == Err(RecvTimeoutError::Disconnected);
        if let Some(thread) = self.thread.take().filter(|_| has_ended) {
            let _ = thread.join();
        }
    }
}

fn open_all(log: &conf::Log, owner: Option<Owner>) -> io::Result<Vec<Target>> {
    log.files().map(|file| Target::open(&file.access, owner)).collect()
}

/// Destination of access log lines.
pub enum Target {
    Off,
    Stdout,
    File(PathBuf, File),
}

impl Target {
    fn open(access: &conf::AccessLog, owner: Option<Owner>) -> io::Result<Self> {
        Ok(match access {
            conf::AccessLog::Off => Self::Off,
            conf::AccessLog::Stdout => Self::Stdout,
            conf::AccessLog::Path(path) => {
                let file = log_file::open(path, owner);
                let context = |error: io::Error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                };
                Self::File(path.clone(), file.map_err(context)?)
            }
        })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Off => Ok(()),
            Self::Stdout => io::stdout().lock().write_all(lines),
            Self::File(_, file) => file.write_all(lines),
        }
    }

    /// Opens the file again, through `opener` if this process lacks the permission. After an error,
    /// keeps the old file.
    fn reopen(&mut self, opener: Option<&mut Opener>) {
        if let Self::File(path, _) = self {
            let opener = opener.filter(|opener| opener.is_for(path));
            let reopened = match (Self::open(&conf::AccessLog::Path(path.clone()), None), opener) {
                (Err(error), Some(opener)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    opener.open(path).map(|file| Self::File(path.clone(), file))
                }
                (reopened, _) => reopened,
            };
            match reopened {
                Ok(reopened) => *self = reopened,
                Err(error) => {
                    let line = format!(
                        "forebay: cannot reopen the access log, keeping the old file: {error}"
                    );
                    let _ = writeln!(io::stderr(), "{line}");
                }
            }
        }
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

fn write_all(queued: &Queued, targets: Vec<Target>, style: &Style) {
    let mut outputs = outputs(targets);
    let mut opener: Option<Opener> = None;
    while let Ok(message) = queued.receiver.recv() {
        let size = message.size();
        match message {
            // After a reload with fewer logs, lines of the last tick may have the number of a
            // removed log.
            Message::Lines(number, lines) => {
                if let Some((target, troubles)) = outputs.get_mut(number) {
                    troubles.write(target, &lines);
                }
            }
            Message::Error(level, line) => {
                let _ = io::stderr().write_all(&error_line(level, &line, style));
            }
            Message::Reopen => {
                outputs.iter_mut().for_each(|(target, _)| target.reopen(opener.as_mut()));
            }
            Message::Opener(other) => opener = Some(other),
            Message::Switch(others) => outputs = self::outputs(others),
            Message::End => return,
        }
        queued.release(size);
    }
}

fn outputs(targets: Vec<Target>) -> Vec<(Target, Troubles)> {
    targets.into_iter().map(|target| (target, Troubles::default())).collect()
}

/// State of failed writes, for example on a full disk.
#[derive(Default)]
struct Troubles {
    lost: usize,
    /// True if the last write was incomplete, so that the file may end in the middle of a line.
    is_torn: bool,
}

impl Troubles {
    fn write(&mut self, target: &mut Target, lines: &[u8]) {
        // End the incomplete line first, so that it does not merge with the next one.
        let outcome = if self.is_torn {
            target.write(b"\n").and_then(|()| target.write(lines))
        } else {
            target.write(lines)
        };
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
                self.lost += memchr::memchr_iter(b'\n', lines).count().max(1);
                self.is_torn = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
