//! What an application writes to the error stream of one request: it goes to the log, up to a
//! bound.

use std::cell::{Cell, RefCell};

use forebay_engine::{ErrorLog, Thread};

/// Bytes of error output that are logged for one request.
const LOGGED: usize = 64 * 1024;

/// The error stream of one request. Dropping it logs a last line that has no end.
pub struct Stderr {
    /// How much of it still is logged.
    left: Cell<usize>,
    /// A line whose end has not come yet, with the name in front, and where it is to be logged.
    line: RefCell<Option<(ErrorLog, Vec<u8>)>>,
}

impl Default for Stderr {
    fn default() -> Self {
        Self { left: Cell::new(LOGGED), line: RefCell::default() }
    }
}

impl Stderr {
    /// Logs what the application `name` has written. A line may come in any pieces.
    pub fn log(&self, thread: &Thread, name: &str, text: &[u8]) {
        let left = self.left.get();
        if left == 0 {
            return;
        }
        let text = &text[..text.len().min(left)];
        self.left.set(left - text.len());
        for piece in text.split_inclusive(|&b| b == b'\n') {
            let content = piece.strip_suffix(b"\n").unwrap_or(piece);
            if !content.is_empty() {
                let begin = || (thread.errors.clone(), format!("{name}: ").into_bytes());
                self.line.borrow_mut().get_or_insert_with(begin).1.extend_from_slice(content);
            }
            if content.len() < piece.len() {
                self.end_line();
            }
        }
        if self.left.get() == 0 {
            self.end_line();
            thread.errors.log(&format!("{name}: more error output is not logged"));
        }
    }

    fn end_line(&self) {
        if let Some((errors, line)) = self.line.take() {
            errors.log(&String::from_utf8_lossy(&line));
        }
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        self.end_line();
    }
}
