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
    /// Returns the time from the start at which request `number` of the log is due. After its last
    /// entry, the log starts again. Returns `None` if the log does not determine the times.
    pub(crate) fn due(&self, number: u64) -> Option<Duration> {
        let length = self.entries.len() as u64;
        let (lap, position) = (number / length, number % length);
        let (_, time) = self.entries[position as usize];
        let time = time.as_secs_f64() + self.period() * lap as f64;
        Some(Duration::try_from_secs_f64(time / self.speed?).unwrap_or(Duration::MAX))
    }

    /// Returns the time in seconds from one start of the log to the next: the time of its last
    /// request, plus the mean gap between its requests. Returns 1 for a log with a single request.
    fn period(&self) -> f64 {
        let length = self.entries.last().map_or(0.0, |(_, time)| time.as_secs_f64());
        match self.entries.len() {
            0 | 1 => 1.0,
            count => length + (length / (count - 1) as f64).max(1e-3),
        }
    }

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
