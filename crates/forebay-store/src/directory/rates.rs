//! The counts of a rate limit in a file.
//!
//! The file consists of records of two numbers (8 bytes each, big-endian):
//!
//! | first number | second number |
//! |---|---|
//! | hash of a process's name | [`MARK`], hours since 1970 (20 bits), number of its last batch |
//! | hash of a key | due time in microseconds since 1970 |
//!
//! The numbers of batches and the due times are in one file, so that a rename changes both or none.
//! A network file system may rename the file and still report an error. Forebay then sends the
//! batch again, and its number shows that it is in the file already. A version of Forebay without
//! batch numbers reads such a record as a due time in the far future, and keeps the record.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::backend::{Batch, Count};

/// Bit of the second number that marks a number of a batch.
const MARK: u64 = 1 << 63;
/// Number of low bits that contain the number of the batch.
const NUMBER_BITS: u32 = 43;
const MOST_BATCHES: u64 = (1 << NUMBER_BITS) - 1;
/// Life of the number of a process's last batch, in hours, as in Redis.
const BATCH_LIFE: u64 = 24;
/// Maximum number of processes in the file. The processes with the latest batches are kept.
const MOST_PROCESSES: usize = 1000;

/// The last batch of a process: its number, and the hour when it was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Added {
    hour: u64,
    number: u64,
}

/// Parsed file of one rate limit: the last batch of each process, and the due time of each key.
#[derive(Debug, Default)]
struct RateFile {
    added: BTreeMap<u64, Added>,
    due: BTreeMap<u64, u64>,
}

impl RateFile {
    /// Parses the content of a file. Leaves out due times that have passed, and batches that are
    /// older than [`BATCH_LIFE`] hours.
    fn parse(file: &[u8], now: u64, hour: u64) -> Self {
        let mut counts = Self::default();
        let (records, _) = file.as_chunks::<16>();
        for record in records {
            let (first, second) = record.split_at(8);
            let number =
                |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            let (key, value) = (number(first), number(second));
            if value & MARK == 0 {
                if value > now {
                    counts.due.insert(key, value);
                }
                continue;
            }
            let value = value & !MARK;
            let added = Added { hour: value >> NUMBER_BITS, number: value & MOST_BATCHES };
            // Accept the next hour, because the clocks of the machines may differ by a few seconds.
            if added.hour <= hour + 1 && added.hour + BATCH_LIFE >= hour {
                counts.added.insert(key, added);
            }
        }
        counts
    }

    fn encode(self) -> Vec<u8> {
        let mut added: Vec<_> = self.added.into_iter().collect();
        added.sort_by_key(|(_, added)| std::cmp::Reverse(added.hour));
        added.truncate(MOST_PROCESSES);
        let added = added.into_iter().map(|(process, Added { hour, number })| {
            (process, MARK | hour << NUMBER_BITS | number)
        });
        let record = |(key, value): (u64, u64)| [key.to_be_bytes(), value.to_be_bytes()].concat();
        added.chain(self.due).flat_map(record).collect()
    }
}

/// Adds the counts of a batch to the content of a file. Returns the new content, and for each count
/// the time from `now` until its key is due (GCRA). If the file already has this batch, or a later
/// batch of the same process, adds nothing and returns `None` instead of the content.
pub fn advance(
    before: &[u8],
    batch: &Batch<'_>,
    now: Duration,
) -> (Option<Vec<u8>>, Vec<Duration>) {
    let hour = now.as_secs() / 3600;
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let now = micros(now);
    let mut file = RateFile::parse(before, now, hour);
    let process = hash(batch.owner);
    let is_new = file.added.get(&process).is_none_or(|last| last.number < batch.number);
    let mut ahead = Vec::with_capacity(batch.counts.len());
    for Count { key, step, most } in batch.counts {
        let step = if is_new { micros(*step) } else { 0 };
        let at = file.due.get(key).copied().unwrap_or(now);
        let at = at.saturating_add(step).min(now.saturating_add(micros(*most)));
        file.due.insert(*key, at);
        ahead.push(Duration::from_micros(at - now));
    }
    if !is_new {
        return (None, ahead);
    }
    file.added.insert(process, Added { hour, number: batch.number & MOST_BATCHES });
    (Some(file.encode()), ahead)
}

fn hash(owner: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    owner.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn count(key: u64, step: Duration) -> Count {
        Count { key, step, most: SECOND * 10 }
    }

    fn batch<'a>(owner: &'a str, number: u64, counts: &'a [Count]) -> Batch<'a> {
        Batch { owner, number, counts }
    }

    /// Adds a batch that the file does not have.
    fn add(file: &[u8], batch: Batch<'_>, now: Duration) -> (Vec<u8>, Vec<Duration>) {
        let (file, ahead) = advance(file, &batch, now);
        (file.expect("the batch is new"), ahead)
    }

    #[test]
    fn counts_add_up_and_old_keys_disappear() {
        let counts = [count(1, SECOND), count(2, SECOND * 20)];
        let (file, ahead) = add(b"", batch("a", 1, &counts), NOW);
        assert_eq!(ahead, [SECOND, SECOND * 10]);
        let counts = [count(1, SECOND * 2)];
        let (file, ahead) = add(&file, batch("a", 2, &counts), NOW + SECOND / 2);
        assert_eq!(ahead, [SECOND * 5 / 2]);
        let counts = [count(3, Duration::ZERO)];
        let (file, ahead) = add(&file, batch("b", 1, &counts), NOW + SECOND * 20);
        // The batches of two processes, and a key.
        assert_eq!((file.len(), &ahead[..]), (3 * 16, &[Duration::ZERO][..]));
        // Garbage at the end, or instead of everything.
        for byte in [0x7f, 0xff] {
            let counts = [count(1, SECOND), count(0x7f7f_7f7f_7f7f_7f7f, SECOND)];
            let (_, ahead) = add(&[byte; 37], batch("a", 1, &counts), NOW);
            let most = if byte == 0x7f { SECOND * 10 } else { SECOND };
            assert_eq!(ahead, [SECOND, most], "no key is further ahead than permitted");
        }
    }

    #[test]
    fn a_batch_that_is_sent_again_is_added_once() {
        let counts = [count(1, SECOND), count(2, SECOND * 20)];
        let (file, first) = add(b"", batch("a", 7, &counts), NOW);
        // Another machine adds a batch before that.
        let (file, _) = add(&file, batch("b", 1, &[count(1, SECOND * 3)]), NOW);
        let (again, ahead) = advance(&file, &batch("a", 7, &counts), NOW);
        assert_eq!((again, &ahead[..]), (None, &[SECOND * 4, first[1]][..]));
        let (again, _) = advance(&file, &batch("a", 6, &counts), NOW);
        assert_eq!(again, None);
        let (_, ahead) = add(&file, batch("a", 8, &counts[..1]), NOW);
        assert_eq!(ahead, [SECOND * 5]);
    }

    #[test]
    fn numbers_of_ended_processes_disappear() {
        let mut counts = RateFile::default();
        let hour = NOW.as_secs() / 3600;
        for process in 0..MOST_PROCESSES as u64 + 50 {
            counts.added.insert(process, Added { hour, number: MOST_BATCHES });
        }
        let file = counts.encode();
        assert_eq!(file.len(), MOST_PROCESSES * 16);
        let (file, _) = add(&file, batch("a", 1, &[]), NOW + 3600 * SECOND);
        assert_eq!(file.len(), MOST_PROCESSES * 16);
        assert_eq!(advance(&file, &batch("a", 1, &[]), NOW + 3600 * SECOND).0, None);
        let day = NOW + SECOND * 3600 * 26;
        let (file, _) = add(&file, batch("b", 1, &[]), day);
        assert_eq!(file.len(), 16);
        // A number that is too large does not overflow into the hour.
        let (file, _) = add(&file, batch("b", u64::MAX, &[]), day);
        assert_eq!(advance(&file, &batch("b", 1, &[]), day).0, None);
    }
}
