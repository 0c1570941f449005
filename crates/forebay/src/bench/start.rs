//! Option `--start-at`: waits for the common start of several machines.

use std::thread;
use std::time::{Duration, SystemTime};

use forebay_lab::Interrupt;
use jiff::Timestamp;

/// Interval between two checks for an interrupt.
const POLL: Duration = Duration::from_millis(20);

/// Longest wait for the start, and longest time after the planned start. Other times are typing
/// errors.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 86_400);
const LATEST: Duration = Duration::from_secs(3600);

/// Parses a time with a time zone, such as `2026-11-27T10:00:00Z`, or seconds since 1970, such as
/// `1795773600` or `@1795773600`.
pub fn parse(text: &str) -> Result<SystemTime, String> {
    let wrong = || {
        format!(
            "{text:?} is not a time: write seconds since 1970, as `date +%s` does, or a time with \
             a zone, such as 2026-11-27T10:00:00Z"
        )
    };
    let digits = text.strip_prefix('@').unwrap_or(text);
    if digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        let seconds = digits.parse::<f64>().ok().filter(|seconds| *seconds < 1e11);
        let since = Duration::try_from_secs_f64(seconds.ok_or_else(wrong)?).map_err(|_| wrong())?;
        return Ok(SystemTime::UNIX_EPOCH + since);
    }
    text.parse::<Timestamp>().map(SystemTime::from).map_err(|_| wrong())
}

/// Checks that the start is at most a week in the future, and at most an hour in the past.
pub fn check(start: SystemTime) -> Result<(), String> {
    let now = SystemTime::now();
    let ahead = start.duration_since(now).unwrap_or_default();
    let past = now.duration_since(start).unwrap_or_default();
    if ahead > LONGEST_WAIT {
        return Err("--start-at: the time is more than a week ahead".to_owned());
    }
    if past > LATEST {
        return Err(
            "--start-at: the time passed more than an hour ago: check the clock, or choose \
                    a later time"
                .to_owned(),
        );
    }
    Ok(())
}

/// Waits for `start`. Returns false if a signal ended the wait.
pub fn wait(start: SystemTime, interrupt: &Interrupt) -> bool {
    // The loop reads the clock each time, because the clock may be set during the wait.
    while let Ok(left) = start.duration_since(SystemTime::now()) {
        if interrupt.is_set() {
            return false;
        }
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(POLL));
    }
    !interrupt.is_set()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_zone_or_are_seconds() {
        let at = |ms| Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!(parse("1700000000"), at(1_700_000_000_000));
        assert_eq!(parse("@1700000000.5"), at(1_700_000_000_500));
        assert_eq!(parse("2023-11-14T22:13:20Z"), at(1_700_000_000_000));
        assert_eq!(parse("2023-11-14T23:13:20+01:00"), at(1_700_000_000_000));
        for text in ["", "@", ".", "1.2.3", "10:00", "2023-11-14T22:13:20", "1e9", "-5", "tomorrow"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("999999999999999999999").is_err());
        assert!(check(SystemTime::UNIX_EPOCH).unwrap_err().contains("an hour ago"));
        assert!(check(SystemTime::now() + LONGEST_WAIT * 2).is_err());
        assert_eq!(check(SystemTime::now()), Ok(()));
    }
}
