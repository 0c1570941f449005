//! Error stream of one request: its lines go to the log, escaped and limited.

use std::cell::{Cell, RefCell};

use forebay_net::log::ErrorLog;
use forebay_net::thread::Thread;
use forebay_process::{OutputLines, Severity};

/// Bytes of error output to log per request.
const LOGGED: usize = 64 * 1024;

/// Error stream of one request. Dropping it logs an unfinished last line.
pub struct Stderr {
    /// Bytes that may still be logged.
    left: Cell<usize>,
    /// The unfinished line, the log, and the application's name, which precedes each line.
    lines: RefCell<Option<(OutputLines, ErrorLog, String)>>,
}

impl Default for Stderr {
    fn default() -> Self {
        Self { left: Cell::new(LOGGED), lines: RefCell::default() }
    }
}

impl Stderr {
    /// Logs output of the application `name`. A line may arrive in any number of pieces. After
    /// `LOGGED` bytes, logs that further output is not logged.
    pub fn log(&self, thread: &Thread, name: &str, text: &[u8]) {
        let left = self.left.get();
        if left == 0 {
            return;
        }
        let text = &text[..text.len().min(left)];
        self.left.set(left - text.len());
        let mut lines = self.lines.borrow_mut();
        let begin = || (OutputLines::default(), thread.errors.clone(), name.to_owned());
        let (lines, errors, name) = lines.get_or_insert_with(begin);
        lines.push(text, |line| log_line(errors, name, line));
        if self.left.get() == 0 {
            lines.end(|line| log_line(errors, name, line));
            errors.warn(&format!("{name}: further error output is not logged"));
        }
    }
}

/// Logs a line. Ignores empty lines, because some applications end each record with one.
fn log_line(errors: &ErrorLog, name: &str, line: &str) {
    if !line.is_empty() {
        let (level, line) = Severity::of_line(line);
        errors.output(level, &format!("{name}: {line}"));
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        if let Some((lines, errors, name)) = self.lines.get_mut() {
            lines.end(|line| log_line(errors, name, line));
        }
    }
}
