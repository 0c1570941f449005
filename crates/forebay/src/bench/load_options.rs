//! Options of `bench` that change the load: raw bytes, a log to replay, stages, and a common start.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use forebay_lab::Interrupt;
use forebay_load::{Part, Ramp, RampStage, Replay, ReplyEnd, Url, read_replay};
use jiff::Timestamp;

use super::number;

/// Parses the end of a reply: a number of bytes, `up-to:BYTES`, `text:END` or `close`. In END, `\\n`, `\\r`,
/// `\\t`, `\\0` and `\\xHH` are bytes.
pub fn reply_end(text: &str) -> Result<ReplyEnd, String> {
    if text == "close" {
        return Ok(ReplyEnd::Close);
    }
    if let Some(end) = text.strip_prefix("text:") {
        let bytes = unescape(end)?;
        return if bytes.is_empty() {
            Err("write the last bytes of a reply after text:".to_owned())
        } else {
            Ok(ReplyEnd::Pattern(bytes))
        };
    }
    let (number, end): (_, fn(u64) -> ReplyEnd) = match text.strip_prefix("up-to:") {
        Some(number) => (number, ReplyEnd::UpTo),
        None => (text, ReplyEnd::Length),
    };
    match super::number::count::<u64>(number) {
        Ok(length) if length > 0 => Ok(end(length)),
        _ => Err("write a number of bytes above 0, up-to:BYTES, text:END or close".to_owned()),
    }
}

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let (byte, length) = match escape.as_bytes().first() {
            Some(b'n') => (b'\n', 1),
            Some(b'r') => (b'\r', 1),
            Some(b't') => (b'\t', 1),
            Some(b'0') => (0, 1),
            Some(b'\\') => (b'\\', 1),
            Some(b'x') => {
                let digits = escape.get(1..3).filter(|digits| !digits.starts_with('+'));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                (byte.ok_or("write two hexadecimal digits after \\x")?, 3)
            }
            _ => return Err("after \\, write n, r, t, 0, xHH or another \\".to_owned()),
        };
        out.push(byte);
        rest = &escape[length..];
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// Speed of a replay, as a multiple of the speed of the log. With `None`, the log does not
/// determine when requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(Option<f64>);

impl Speed {
    /// Returns the default speed, which is 1. If `is_unpaced` is true, the default is `None`,
    /// because another option sets the pace.
    pub fn default_of(is_unpaced: bool) -> Self {
        Self((!is_unpaced).then_some(1.0))
    }
}

/// Parses `2`, `0.5`, `2x` or `max`.
pub fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed(None));
    }
    let digits = text.strip_suffix('x').unwrap_or(text);
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match digits.parse::<f64>() {
        Ok(factor) if is_plain && factor > 1e-6 && factor < 1e9 => Ok(Speed(Some(factor))),
        _ => Err("write a factor greater than 0, such as 2 or 0.5, or max".to_owned()),
    }
}

/// Reads a log. Prints the number of lines that cannot be sent, with the reasons.
pub fn read(file: &Path, url: &Url, Speed(speed): Speed) -> Result<(Vec<Part>, Replay), String> {
    let wrong = |why: String| format!("--replay {}: {why}", file.display());
    let open = File::open(file).map_err(|error| wrong(error.to_string()))?;
    let (parts, replay) =
        read_replay(BufReader::with_capacity(1 << 16, open), url).map_err(wrong)?;
    if let Some(text) = replay.skipped_text() {
        let _ = writeln!(io::stderr(), "forebay bench: {}", wrong(text));
    }
    Ok((parts, Replay { speed, ..replay }))
}

/// Parses `TIME:TARGET`, such as `30s:100`.
pub fn parse(text: &str) -> Result<RampStage, String> {
    let wrong = || format!("{text:?} is no stage: write TIME:TARGET, such as 30s:100");
    let (time, target) = text.split_once(':').ok_or_else(wrong)?;
    Ok(RampStage { time: number::parse(time)?, target: number::rate(target)? })
}

/// Returns a ramp of the rate, from `rate` through the targets of the stages. If `rate` is `None`,
/// returns a ramp of the number of connections, from `connections`.
pub fn ramp(
    stages: &[RampStage],
    rate: Option<f64>,
    connections: Option<usize>,
) -> Result<Ramp, String> {
    if rate.is_none()
        && let Some(stage) = stages.iter().find(|stage| stage.target.fract() != 0.0)
    {
        return Err(format!(
            "--stages: {} is no number of connections: write a whole number, or add -r for rates",
            stage.target
        ));
    }
    let from = rate.unwrap_or(connections.unwrap_or(0) as f64);
    Ok(Ramp { from, stages: stages.to_vec() })
}

#[cfg(test)]
mod replay_tests {
    use super::*;

    #[test]
    fn speeds_are_factors_or_max() {
        for (text, factor) in [("2", Some(2.0)), ("0.5x", Some(0.5)), ("max", None)] {
            assert_eq!(speed(text), Ok(Speed(factor)), "{text}");
        }
        for text in ["", "0", "-1", "x", "nan", "inf", "1e3", "MAX"] {
            assert!(speed(text).is_err(), "{text}");
        }
    }
}

#[cfg(test)]
mod stages_tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stages_are_times_and_targets() {
        let stage = |ms, target| Ok(RampStage { time: Duration::from_millis(ms), target });
        assert_eq!(parse("30s:100"), stage(30_000, 100.0));
        assert_eq!(parse("1.5m:2k"), stage(90_000, 2000.0));
        assert_eq!(parse("0:0.5"), stage(0, 0.5));
        for text in ["", "30s", ":5", "5:", "x:5", "5:x", "5:-1", "5:1:2", "-5:1", "5:nan", "5:inf"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

// Option `--start-at`: waits for the common start of several machines.

/// Interval between two checks for an interrupt.
const POLL: Duration = Duration::from_millis(20);

/// Longest wait for the start, and longest time after the planned start. Other times are typing
/// errors.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 86_400);
const LATEST: Duration = Duration::from_secs(3600);

/// Parses a time with a time zone, such as `2026-11-27T10:00:00Z`, or seconds since 1970, such as
/// `1795773600` or `@1795773600`.
pub fn parse_start(text: &str) -> Result<SystemTime, String> {
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
pub fn check_start(start: SystemTime) -> Result<(), String> {
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
pub fn wait_for_start(start: SystemTime, interrupt: &Interrupt) -> bool {
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
    fn the_end_of_a_reply_is_read() {
        assert_eq!(reply_end("close"), Ok(ReplyEnd::Close));
        assert_eq!(reply_end("2k"), Ok(ReplyEnd::Length(2000)));
        assert_eq!(reply_end("up-to:256"), Ok(ReplyEnd::UpTo(256)));
        let pattern = ReplyEnd::Pattern(b"a\r\n\xff\\".to_vec());
        assert_eq!(reply_end(r"text:a\r\n\xff\\"), Ok(pattern));
        for wrong in [
            "",
            "0",
            "-1",
            "up-to:0",
            "up-to:",
            "text:",
            "text:\\",
            "text:\\x+1",
            "text:\\xé",
            "end",
        ] {
            assert!(reply_end(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_a_zone_or_are_seconds() {
        let at = |ms| Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!(parse_start("1700000000"), at(1_700_000_000_000));
        assert_eq!(parse_start("@1700000000.5"), at(1_700_000_000_500));
        assert_eq!(parse_start("2023-11-14T22:13:20Z"), at(1_700_000_000_000));
        assert_eq!(parse_start("2023-11-14T23:13:20+01:00"), at(1_700_000_000_000));
        for text in ["", "@", ".", "1.2.3", "10:00", "2023-11-14T22:13:20", "1e9", "-5", "tomorrow"]
        {
            assert!(parse_start(text).is_err(), "{text}");
        }
        assert!(parse_start("999999999999999999999").is_err());
        assert!(check_start(SystemTime::UNIX_EPOCH).unwrap_err().contains("an hour ago"));
        assert!(check_start(SystemTime::now() + LONGEST_WAIT * 2).is_err());
        assert_eq!(check_start(SystemTime::now()), Ok(()));
    }
}
