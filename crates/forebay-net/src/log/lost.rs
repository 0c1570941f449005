//! Counters of lost log lines, for the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

/// The place where log lines were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostAt {
    /// The queue to the thread that writes the logs was full.
    Queue,
    /// A file or standard output could not be written.
    File,
    /// A syslog server was unreachable or too slow.
    Syslog,
    /// The journal was unreachable or too slow.
    Journal,
}

static LINES: [AtomicU64; LostAt::ALL.len()] = [const { AtomicU64::new(0) }; LostAt::ALL.len()];

impl LostAt {
    /// All places.
    pub const ALL: [Self; 4] = [Self::Queue, Self::File, Self::Syslog, Self::Journal];

    /// Returns the name of the place in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::File => "file",
            Self::Syslog => "syslog",
            Self::Journal => "journald",
        }
    }

    /// Counts lost lines.
    pub(super) fn count(self, lines: u64) {
        LINES[self as usize].fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the number of lines lost here since the start of the process.
    pub fn lines(self) -> u64 {
        LINES[self as usize].load(Ordering::Relaxed)
    }
}
