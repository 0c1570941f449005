//! Order and times of the requests of a log.

use std::collections::BTreeMap;
use std::time::Duration;

/// Requests of a log, with the times at which they were sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// Requests in the order of their times, each with its index and the time since the first one.
    pub entries: Vec<(u32, Duration)>,
    /// Lines or entries that cannot be sent, by reason. The value contains their number, and the
    /// position of the first one in the file.
    pub skipped: BTreeMap<&'static str, (u64, u64)>,
    /// Factor of the log's pace; `None` sends requests as fast as replies arrive, or at the rate of
    /// the run.
    pub speed: Option<f64>,
}

/// Summary of a log that a run replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayRun {
    /// Number of requests in the log that can be sent.
    pub requests: u64,
    /// Number of lines or entries that cannot be sent.
    pub skipped: u64,
    /// Factor of the log's pace; `None` if the log's times were not used.
    pub speed: Option<f64>,
}

impl Replay {
    /// Returns the number of requests that can be sent, and the number of lines that cannot.
    pub fn summary(&self) -> ReplayRun {
        let skipped = self.skipped.values().map(|(count, _)| count).sum();
        ReplayRun { requests: self.entries.len() as u64, skipped, speed: self.speed }
    }

    /// Returns the number of lines or entries that cannot be sent, with the reasons. Returns `None`
    /// if there are none.
    pub fn skipped_text(&self) -> Option<String> {
        let reasons = self.skipped.iter().map(|(why, (count, first))| match count {
            1 => format!("{first}: {why}"),
            _ => format!("{first} and {} more: {why}", count - 1),
        });
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        let count: u64 = self.skipped.values().map(|(count, _)| count).sum();
        (count > 0).then(|| format!("(not sent: {count}; number {reasons})"))
    }
}
