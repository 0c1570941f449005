//! What an application writes to the error stream of one request: it goes to the log, up to a
//! bound.

use std::cell::Cell;

use forebay_engine::Thread;

/// Bytes of error output that are logged for one request.
const LOGGED: usize = 64 * 1024;

/// The error stream of one request.
pub struct Stderr {
    /// How much of it still is logged.
    left: Cell<usize>,
}

impl Default for Stderr {
    fn default() -> Self {
        Self { left: Cell::new(LOGGED) }
    }
}

impl Stderr {
    /// Logs what the application `name` has written.
    pub fn log(&self, thread: &Thread, name: &str, text: &[u8]) {
        let left = self.left.get();
        if left == 0 {
            return;
        }
        let text = &text[..text.len().min(left)];
        self.left.set(left - text.len());
        for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            thread.errors.say(&format!("{name}: {}", String::from_utf8_lossy(line)));
        }
        if self.left.get() == 0 {
            thread.errors.say(&format!("{name}: more error output is not logged"));
        }
    }
}
