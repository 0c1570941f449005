//! Parses times on the command line: a number with a unit, or a number of seconds.

use std::time::Duration;

const UNITS: [(&str, f64); 5] =
    [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Maximum time in seconds. Longer times are typing errors. The limit also prevents an overflow of
/// the clock.
const LONGEST_S: f64 = 366.0 * 86_400.0;

/// Parses `10s`, `500ms`, `1.5m`, `250us` or `1h`; `10` is 10 s.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a time: write a number and a unit, such as 10s or 500ms");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = if unit.is_empty() { "s" } else { unit };
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| plain).ok_or_else(wrong)? * scale;
    if seconds > LONGEST_S {
        return Err(format!("{text} is more than a year"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        for (text, ms) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1.5s", 1500),
            ("2000us", 2),
            ("0s", 0),
            ("10", 10_000),
            ("0.5", 500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "s", ".", "10 s", "-1s", "+1s", "1e3s", "infs", "nans", "1..2s", "9999h9"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("99999h").unwrap_err().contains("year"));
    }
}
