//! The access log and the error log, written by a thread of their own: no disk and no terminal is
//! slow enough to hold up a request.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_conf as conf;

use crate::log_opener::Opener;

mod access;
mod pattern;
mod writer;

pub use access::AccessLog;
pub use pattern::Entry;
pub use writer::Writer;

use writer::Target;

/// Bytes that all threads have handed over and the writer has not written, at most.
const QUEUED: usize = 16 << 20;
/// Bytes that a message counts for besides its text.
const OVERHEAD: usize = 64;

/// A message to the writer.
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

/// The error log: a line each on standard error.
#[derive(Clone)]
pub struct ErrorLog(Queue);

impl ErrorLog {
    /// A log that is kept in memory: the first 16 MiB that nobody has taken.
    pub fn kept() -> (Self, Kept) {
        let (queue, queued) = Queue::new();
        (Self(queue), Kept { queued, taken: RefCell::default() })
    }

    /// The access log of one thread, which goes where this goes.
    pub(crate) fn access(&self, log: &conf::Log) -> AccessLog {
        AccessLog::new(log, self.0.clone())
    }

    /// Logs a line, which is dropped when the writer is too far behind.
    pub fn log(&self, message: &str) {
        let _ = self.0.send(Message::Error(message.to_owned()));
    }
}

/// What was logged, kept for its reader instead of being written.
pub struct Kept {
    queued: Queued,
    taken: RefCell<(Vec<String>, Vec<String>)>,
}

impl Kept {
    /// The errors since the last call.
    pub fn errors(&self) -> Vec<String> {
        self.take();
        std::mem::take(&mut self.taken.borrow_mut().0)
    }

    /// The lines of the access log since the last call.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_writer_that_hangs_is_bounded_in_bytes_and_stops_no_signal() {
        let (errors, kept) = ErrorLog::kept();
        let line = "x".repeat(64 << 10);
        for _ in 0..1000 {
            errors.log(&line);
        }
        Reopener(errors.0.clone()).reopen();
        let last = kept.queued.receiver.try_iter().last();
        assert!(matches!(last, Some(Message::Reopen)));
        assert_eq!(kept.queued.queued.load(Ordering::Relaxed) / (line.len() + OVERHEAD), 255);
        let (errors, kept) = ErrorLog::kept();
        (0..1000).for_each(|_| errors.log(&line));
        assert_eq!(kept.errors().len(), QUEUED / (line.len() + OVERHEAD));
        errors.log("again");
        assert_eq!(kept.errors(), ["again"]);
    }
}
