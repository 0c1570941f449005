//! The `Date` of replies, formatted once per second.

use std::cell::{Cell, RefCell};
use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock of one thread, updated at each tick.
pub struct Clock {
    second: Cell<u64>,
    date: RefCell<String>,
}

impl Default for Clock {
    /// Creates a clock that shows the current time.
    fn default() -> Self {
        let clock = Self { second: Cell::new(0), date: RefCell::default() };
        clock.tick();
        clock
    }
}

impl Clock {
    /// Updates the time, and formats the date if a new second has begun.
    pub fn tick(&self) {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second.replace(second) {
            *self.date.borrow_mut() = httpdate::fmt_http_date(now);
        }
    }

    /// Returns the seconds since 1970.
    pub fn second(&self) -> u64 {
        self.second.get()
    }

    /// Appends the `Date` field line (RFC 9110 section 6.6.1).
    pub fn append_date(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(self.date.borrow().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}
