//! The counts of a rate limit in a file.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::Count;

/// Adds `counts` to the content of a file. Returns the new content, and the time from `now` to the
/// new due time of each key. Keys whose due time has passed are removed.
pub fn advance(before: &[u8], counts: &[Count], now: Duration) -> (Vec<u8>, Vec<Duration>) {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let now = micros(now);
    let (records, _) = before.as_chunks::<16>();
    let mut due: BTreeMap<u64, u64> = records
        .iter()
        .map(|record| {
            let (key, due) = record.split_at(8);
            let number =
                |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            (number(key), number(due))
        })
        .filter(|(_, due)| *due > now)
        .collect();
    let mut ahead = Vec::with_capacity(counts.len());
    for count in counts {
        let at = due.get(&count.key).copied().unwrap_or(now).max(now);
        let most = now.saturating_add(micros(count.most));
        let at = at.saturating_add(micros(count.step)).min(most);
        due.insert(count.key, at);
        ahead.push(Duration::from_micros(at - now));
    }
    let record = |(key, due): (u64, u64)| [key.to_be_bytes(), due.to_be_bytes()].concat();
    (due.into_iter().flat_map(record).collect(), ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_old_keys_disappear() {
        let second = Duration::from_secs(1);
        let count = |key, step| Count { key, step, most: second * 10 };
        let now = second * 1000;
        let (file, ahead) = advance(b"", &[count(1, second), count(2, second * 20)], now);
        assert_eq!(ahead, [second, second * 10]);
        let (file, ahead) = advance(&file, &[count(1, second * 2)], now + second / 2);
        assert_eq!(ahead, [second * 5 / 2]);
        let (file, ahead) = advance(&file, &[count(3, Duration::ZERO)], now + second * 20);
        assert_eq!((file.len(), &ahead[..]), (16, &[Duration::ZERO][..]));
        // Garbage at the end, or instead of everything.
        let (_, ahead) = advance(&[0xff; 37], &[count(1, second), count(u64::MAX, second)], now);
        assert_eq!(ahead, [second, second * 10], "no key is further ahead than permitted");
    }
}
