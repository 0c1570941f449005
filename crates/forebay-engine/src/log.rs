//! The access log and the error log, written by a thread of their own: no disk and no terminal is
//! slow enough to hold up a request.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_conf as conf;
use forebay_wire::http1::{Version, encode};

use crate::exchange::{Exchange, Request};
use crate::log_file::{self, Owner};
use crate::log_opener::Opener;

/// Bytes of log lines that one thread holds back at most while the writer is behind.
const HELD_BACK: usize = 4 << 20;
/// Bytes of log lines that are handed over before the next tick.
const HAND_OVER: usize = 64 << 10;
/// Bytes that all threads have handed over and the writer has not written, at most.
const QUEUED: usize = 16 << 20;
/// Bytes that a message counts for besides its text.
const OVERHEAD: usize = 64;
/// How long the writer may take at the end for what it has not written: nobody may read the pipe
/// that it writes to.
const ENDING: Duration = Duration::from_secs(5);

/// What the writer is told.
enum Message {
    Lines(Vec<u8>),
    Error(String),
    Reopen,
    Switch(Target),
    Opener(Opener),
    End,
}

impl Message {
    fn size(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.len() + OVERHEAD,
            Self::Error(line) => line.len() + OVERHEAD,
            Self::Reopen | Self::Switch(_) | Self::Opener(_) | Self::End => 0,
        }
    }
}

/// The way to the writer. Nobody ever waits for it, however long it takes.
#[derive(Clone)]
struct Queue {
    sender: Sender<Message>,
    queued: Arc<AtomicUsize>,
}

impl Queue {
    fn new() -> (Self, Queued) {
        let (sender, receiver) = channel();
        let queued = Arc::<AtomicUsize>::default();
        (Self { sender, queued: queued.clone() }, Queued { receiver, queued })
    }

    /// Gives it back where too much is queued.
    fn send(&self, message: Message) -> Result<(), Message> {
        let size = message.size();
        if self.queued.fetch_add(size, Ordering::Relaxed) + size > QUEUED && size > 0 {
            self.queued.fetch_sub(size, Ordering::Relaxed);
            return Err(message);
        }
        self.sender.send(message).map_err(|error| error.0)
    }

    /// What is no line always finds room: a signal each.
    fn order(&self, message: Message) {
        let _ = self.send(message);
    }
}

/// The writer's end of a [`Queue`].
struct Queued {
    receiver: Receiver<Message>,
    queued: Arc<AtomicUsize>,
}

impl Queued {
    /// To be called when a message of this size is done with.
    fn release(&self, size: usize) {
        self.queued.fetch_sub(size, Ordering::Relaxed);
    }
}

/// Has the access log opened anew.
pub(crate) struct Reopener(Queue);

impl Reopener {
    /// As [`Writer::reopen`].
    pub(crate) fn reopen(&self) {
        self.0.order(Message::Reopen);
    }
}

/// Where errors are told: a line each on standard error.
#[derive(Clone)]
pub struct ErrorLog(Queue);

impl ErrorLog {
    /// A log that is kept in memory: the first 16 MiB that nobody has asked for.
    pub fn kept() -> (Self, Kept) {
        let (queue, queued) = Queue::new();
        (Self(queue), Kept { queued, taken: RefCell::default() })
    }

    /// The access log of one thread, which goes where this goes.
    pub(crate) fn access(&self, log: &conf::Log) -> AccessLog {
        AccessLog::new(log, self.0.clone())
    }

    /// Says one thing. It is dropped when the writer is too far behind.
    pub fn say(&self, message: &str) {
        let _ = self.0.send(Message::Error(message.to_owned()));
    }
}

/// What was logged, kept for whoever asks instead of being written.
pub struct Kept {
    queued: Queued,
    taken: RefCell<(Vec<String>, Vec<String>)>,
}

impl Kept {
    /// The errors since this was asked last.
    pub fn errors(&self) -> Vec<String> {
        self.take();
        std::mem::take(&mut self.taken.borrow_mut().0)
    }

    /// The lines of the access log since this was asked last.
    pub fn access_lines(&self) -> Vec<String> {
        self.take();
        std::mem::take(&mut self.taken.borrow_mut().1)
    }

    fn take(&self) {
        let (errors, lines) = &mut *self.taken.borrow_mut();
        for message in self.queued.receiver.try_iter() {
            self.queued.release(message.size());
            match message {
                Message::Error(line) => errors.push(line),
                Message::Lines(text) => {
                    lines.extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
                }
                Message::Reopen | Message::Switch(_) | Message::Opener(_) | Message::End => {}
            }
        }
    }
}

/// The thread that writes the logs.
pub struct Writer {
    queue: Queue,
    thread: Option<JoinHandle<()>>,
    /// Hangs up when the thread has written all.
    ended: Receiver<()>,
}

impl Writer {
    /// Opens the access log, which is made for `owner` unless it is there, and starts the thread.
    pub fn start(access: &conf::AccessLog, owner: Option<Owner>) -> io::Result<Self> {
        let (queue, queued) = Queue::new();
        let target = Target::open(access, owner)?;
        let (ending, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            write_all(&queued, target);
            drop(ending);
        })?;
        Ok(Self { queue, thread: Some(thread), ended })
    }

    /// Where errors are told.
    pub fn errors(&self) -> ErrorLog {
        ErrorLog(self.queue.clone())
    }

    /// The access log of one thread.
    pub fn access(&self, log: &conf::Log) -> AccessLog {
        AccessLog::new(log, self.queue.clone())
    }

    /// What has the access log opened anew on another thread.
    pub(crate) fn reopener(&self) -> Reopener {
        Reopener(self.queue.clone())
    }

    /// Opens another access log, which is used from [`Writer::switch`] on.
    pub fn open(access: &conf::AccessLog) -> io::Result<Target> {
        Target::open(access, None)
    }

    /// From now on writes lines there.
    pub fn switch(&self, target: Target) {
        self.queue.order(Message::Switch(target));
    }

    /// From now on a log that this process may not open is opened by that one.
    pub fn set_opener(&self, opener: Opener) {
        self.queue.order(Message::Opener(opener));
    }

    /// Opens the access log anew, as after a rotation.
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

/// Where lines are written.
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

    fn reopen(&mut self, opener: Option<&mut Opener>) {
        if let Self::File(path, _) = self {
            let opener = opener.filter(|opener| opener.is_for(path));
            let reopened = match (Self::open(&conf::AccessLog::Path(path.clone()), None), opener) {
                (Err(error), Some(opener)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    opener.open().map(|file| Self::File(path.clone(), file))
                }
                (reopened, _) => reopened,
            };
            match reopened {
                Ok(reopened) => *self = reopened,
                Err(error) => {
                    let line = format!("forebay: the access log stays open as it was: {error}");
                    let _ = writeln!(io::stderr(), "{line}");
                }
            }
        }
    }
}

fn write_all(queued: &Queued, mut target: Target) {
    let mut troubles = Troubles::default();
    let mut opener: Option<Opener> = None;
    while let Ok(message) = queued.receiver.recv() {
        let size = message.size();
        match message {
            Message::Lines(lines) => troubles.write(&mut target, &lines),
            Message::Error(line) => {
                let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S");
                let _ = writeln!(io::stderr(), "{now} forebay: {line}");
            }
            Message::Reopen => target.reopen(opener.as_mut()),
            Message::Opener(other) => opener = Some(other),
            Message::Switch(other) => target = other,
            Message::End => return,
        }
        queued.release(size);
    }
}

/// What a full disk has cost so far.
#[derive(Default)]
struct Troubles {
    lost: usize,
    /// The file may end in the middle of a line.
    is_torn: bool,
}

impl Troubles {
    fn write(&mut self, target: &mut Target, lines: &[u8]) {
        // What was cut off stays a line of its own.
        let outcome = match self.is_torn {
            true => target.write(b"\n").and_then(|()| target.write(lines)),
            false => target.write(lines),
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

const COMMON: &str = "%h %l %u %t \"%r\" %>s %b";
const COMBINED: &str = "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"";

/// The access log of one thread: lines gather here and are handed over a few times a second.
pub struct AccessLog {
    pattern: Option<Pattern>,
    lines: RefCell<Vec<u8>>,
    lost: Cell<u64>,
    time: RefCell<(u64, String)>,
    queue: Queue,
}

impl AccessLog {
    fn new(log: &conf::Log, queue: Queue) -> Self {
        let pattern = match (&log.access, &log.format) {
            (conf::AccessLog::Off, _) => None,
            (_, conf::Format::Json) => Some(Pattern::Json),
            (_, conf::Format::Common) => Some(Pattern::parse(COMMON)),
            (_, conf::Format::Combined) => Some(Pattern::parse(COMBINED)),
            (_, conf::Format::Pattern(pattern)) => Some(Pattern::parse(pattern)),
        };
        let (lines, time) = (RefCell::default(), RefCell::default());
        Self { pattern, lines, lost: Cell::new(0), time, queue }
    }

    /// From now on logs as `other` says; what is held back stays.
    pub(crate) fn replace(&mut self, other: Self) {
        self.hand_over();
        self.pattern = other.pattern;
    }

    /// Whether anything is logged.
    pub(crate) fn is_on(&self) -> bool {
        self.pattern.is_some()
    }

    /// Notes a request that has been answered.
    pub(crate) fn record(&self, exchange: &Exchange, took: Duration) {
        let Some(pattern) = &self.pattern else { return };
        let mut lines = self.lines.borrow_mut();
        if lines.len() > HELD_BACK {
            self.lost.set(self.lost.get() + 1);
            return;
        }
        self.refresh_time();
        let entry =
            Entry { exchange, micros: took.as_micros() as u64, time: &self.time.borrow().1 };
        pattern.append(&entry, &mut lines);
        lines.push(b'\n');
        if lines.len() >= HAND_OVER {
            drop(lines);
            self.hand_over();
        }
    }

    /// Gives the lines to the writer; keeps them while the writer is behind.
    pub(crate) fn hand_over(&self) {
        let lines = std::mem::take(&mut *self.lines.borrow_mut());
        if lines.is_empty() {
            return;
        }
        match self.queue.send(Message::Lines(lines)) {
            Err(Message::Lines(lines)) => *self.lines.borrow_mut() = lines,
            _ if self.lost.get() > 0 => {
                let lost = self.lost.take();
                let text = format!("the access log is too slow: {lost} lines were lost");
                let _ = self.queue.send(Message::Error(text));
            }
            _ => {}
        }
    }

    fn refresh_time(&self) {
        let now = jiff::Timestamp::now();
        let mut time = self.time.borrow_mut();
        if time.0 != now.as_second() as u64 {
            let zoned = now.to_zoned(jiff::tz::TimeZone::system());
            *time = (now.as_second() as u64, zoned.strftime("%d/%b/%Y:%H:%M:%S %z").to_string());
        }
    }
}

struct Entry<'a> {
    exchange: &'a Exchange,
    micros: u64,
    time: &'a str,
}

/// What a line is made of.
enum Pattern {
    Json,
    Parts(Vec<Part>),
}

enum Part {
    Text(String),
    Header(String),
    Directive(u8),
}

impl Pattern {
    /// Reads Apache's `%` directives; what it does not know stays as it is.
    fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            parts.push(Part::Text(rest[..at].to_owned()));
            let tail = rest[at + 1..].trim_start_matches(['>', '<']);
            if let Some((name, after)) = tail.strip_prefix('{').and_then(|t| t.split_once("}i")) {
                parts.push(Part::Header(name.to_owned()));
                rest = after;
                continue;
            }
            let mut letters = tail.chars();
            match letters.next() {
                Some('%') => parts.push(Part::Text("%".into())),
                Some(letter) if letter.is_ascii_alphabetic() => {
                    parts.push(Part::Directive(letter as u8));
                }
                other => parts
                    .push(Part::Text(format!("%{}", other.map_or(String::new(), String::from)))),
            }
            rest = letters.as_str();
        }
        parts.push(Part::Text(rest.to_owned()));
        Self::Parts(parts)
    }

    fn append(&self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Json => append_json(entry, out),
            Self::Parts(parts) => {
                for part in parts {
                    match part {
                        Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                        Part::Header(name) => append_header(entry, name, out),
                        Part::Directive(letter) => append_directive(*letter, entry, out),
                    }
                }
            }
        }
    }
}

fn append_directive(letter: u8, entry: &Entry<'_>, out: &mut Vec<u8>) {
    let request = &entry.exchange.request;
    let reply = &entry.exchange.reply;
    match letter {
        b'h' | b'a' => {
            let _ = write!(out, "{}", request.client.ip().to_canonical());
        }
        b'u' if !request.user.is_empty() => append_escaped(&request.user, out),
        b'A' => {
            let _ = write!(out, "{}", request.server.ip().to_canonical());
        }
        b't' => {
            let _ = write!(out, "[{}]", entry.time);
        }
        b'r' => append_request_line(request, out),
        b's' => encode::decimal(out, u64::from(reply.status())),
        b'b' if reply.body_bytes() == 0 => out.push(b'-'),
        b'b' | b'B' => encode::decimal(out, reply.body_bytes()),
        b'D' => encode::decimal(out, entry.micros),
        b'T' => encode::decimal(out, entry.micros / 1_000_000),
        b'm' => append_escaped(request.method(), out),
        b'U' => append_escaped(&request.path, out),
        b'q' => {
            if let Some(query) = request.query() {
                out.push(b'?');
                append_escaped(query, out);
            }
        }
        b'H' => out.extend_from_slice(protocol(request)),
        b'v' | b'V' => {
            let authority = request.head.authority.map(|span| span.of(&request.bytes));
            append_escaped(authority.filter(|a| !a.is_empty()).unwrap_or(b"-"), out);
        }
        b'p' => encode::decimal(out, u64::from(request.server.port())),
        b'P' => encode::decimal(out, u64::from(std::process::id())),
        _ => out.push(b'-'),
    }
}

fn append_request_line(request: &Request, out: &mut Vec<u8>) {
    if request.head.target.is_empty() {
        // It could not be read; its first line shows what it was.
        let line = request.bytes.split(|&b| b == b'\n').next().unwrap_or_default();
        return append_escaped(&line.trim_ascii_end()[..line.trim_ascii_end().len().min(200)], out);
    }
    append_escaped(request.method(), out);
    out.push(b' ');
    append_escaped(request.head.target.of(&request.bytes), out);
    out.push(b' ');
    out.extend_from_slice(protocol(request));
}

fn protocol(request: &Request) -> &'static [u8] {
    match request.head.version {
        Version::Http10 => b"HTTP/1.0",
        Version::Http11 => b"HTTP/1.1",
    }
}

fn append_header(entry: &Entry<'_>, name: &str, out: &mut Vec<u8>) {
    match header(&entry.exchange.request, name) {
        Some(value) => append_escaped(value, out),
        None => out.push(b'-'),
    }
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a [u8]> {
    let bytes = &request.bytes;
    let mut fields = request.head.fields.iter();
    let field = fields.find(|f| f.name.of(bytes).eq_ignore_ascii_case(name.as_bytes()))?;
    Some(field.value.of(bytes))
}

/// As Apache: quotes, backslashes and what cannot be printed are escaped, so that no client can
/// forge a line.
fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x20..=0x7e => out.push(byte),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
}

fn append_json(entry: &Entry<'_>, out: &mut Vec<u8>) {
    let request = &entry.exchange.request;
    let reply = &entry.exchange.reply;
    let host = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
    let _ = write!(out, "{{\"time\":\"{}\",\"client\":\"{}\"", entry.time, request.client.ip());
    if !request.user.is_empty() {
        out.extend_from_slice(b",\"user\":\"");
        append_json_text(&request.user, out);
        out.push(b'"');
    }
    for (key, value) in [
        ("method", request.method()),
        ("host", host),
        ("target", request.asked_target()),
        ("protocol", protocol(request)),
        ("referer", header(request, "referer").unwrap_or_default()),
        ("user_agent", header(request, "user-agent").unwrap_or_default()),
    ] {
        let _ = write!(out, ",\"{key}\":\"");
        append_json_text(value, out);
        out.push(b'"');
    }
    let _ = write!(
        out,
        ",\"status\":{},\"body_bytes\":{},\"duration_us\":{}}}",
        reply.status(),
        reply.body_bytes(),
        entry.micros
    );
}

fn append_json_text(bytes: &[u8], out: &mut Vec<u8>) {
    for letter in String::from_utf8_lossy(bytes).chars() {
        match letter {
            '"' | '\\' => out.extend_from_slice(&[b'\\', letter as u8]),
            '\u{0}'..='\u{1f}' | '\u{7f}' => {
                let _ = write!(out, "\\u{:04x}", letter as u32);
            }
            _ => {
                let _ = write!(out, "{letter}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_writer_that_hangs_is_bounded_in_bytes_and_stops_no_signal() {
        let (errors, kept) = ErrorLog::kept();
        let line = "x".repeat(64 << 10);
        for _ in 0..1000 {
            errors.say(&line);
        }
        Reopener(errors.0.clone()).reopen();
        let last = kept.queued.receiver.try_iter().last();
        assert!(matches!(last, Some(Message::Reopen)));
        assert_eq!(kept.queued.queued.load(Ordering::Relaxed) / (line.len() + OVERHEAD), 255);
        let (errors, kept) = ErrorLog::kept();
        (0..1000).for_each(|_| errors.say(&line));
        assert_eq!(kept.errors().len(), QUEUED / (line.len() + OVERHEAD));
        errors.say("again");
        assert_eq!(kept.errors(), ["again"]);
    }
}
