//! The standard error of one worker or program. Each line goes to the log. The last lines are kept,
//! to explain why the worker ended early.

use crate::sys;
use forebay_process::{OutputLines, Severity};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const LINES_KEPT: usize = 20;
/// Maximum number of bytes that are read before other tasks run.
const BURST: usize = 256 * 1024;

/// The function that logs the lines of all workers of an application, and the supervisor's messages,
/// which are warnings.
pub(crate) type WorkerLog = Arc<dyn Fn(Severity, &str) + Send + Sync>;

/// The pipe with the standard error of one worker or program.
pub(crate) struct Stderr {
    fd: AsyncFd<Arc<OwnedFd>>,
    prefix: String,
    log: WorkerLog,
    text: RefCell<Text>,
}

#[derive(Default)]
struct Text {
    lines: OutputLines,
    last: VecDeque<String>,
}

impl Stderr {
    /// Registers `fd`, the non-blocking reading end of the pipe.
    pub(crate) fn new(fd: OwnedFd, prefix: String, log: WorkerLog) -> io::Result<Stderr> {
        let fd = sys::register(fd, Interest::READABLE)?;
        Ok(Stderr { fd, prefix, log, text: RefCell::default() })
    }

    /// Logs lines until all processes have closed the writing end.
    pub(crate) async fn follow(&self) {
        while let Ok(mut guard) = self.fd.readable().await {
            match self.take_burst() {
                Ok(true) => return,
                Ok(false) => tokio::task::yield_now().await,
                Err(_) => guard.clear_ready(),
            }
        }
    }

    /// Logs what is in the pipe now, even an incomplete last line.
    pub(crate) fn catch_up(&self) {
        let _ = self.take_burst();
        let Text { lines, last } = &mut *self.text.borrow_mut();
        lines.end(|line| self.emit(line, last));
    }

    /// Returns the last lines, joined by newlines.
    pub(crate) fn last_lines(&self) -> String {
        Vec::from(self.text.borrow().last.clone()).join("\n")
    }

    /// Reads and logs up to [`BURST`] bytes. Returns true at the end of the pipe, and an error if
    /// there is nothing to read now.
    fn take_burst(&self) -> Result<bool, Errno> {
        let mut chunk = [0; 8 * 1024];
        let mut taken = 0;
        while taken < BURST {
            let read = match rustix::io::read(&self.fd, &mut chunk) {
                Ok(0) => return Ok(true),
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            taken += read;
            let Text { lines, last } = &mut *self.text.borrow_mut();
            lines.push(&chunk[..read], |line| self.emit(line, last));
        }
        Ok(false)
    }

    fn emit(&self, line: &str, last: &mut VecDeque<String>) {
        let (level, line) = Severity::of_line(line);
        (self.log)(level, &format!("{} {line}", self.prefix));
        if last.len() == LINES_KEPT {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    }
}
