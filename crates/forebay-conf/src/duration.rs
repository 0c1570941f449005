//! Parses durations such as `250ms`, `5s`, `10m`, `1h30m` and `30d`.

use std::time::Duration;

/// The longest accepted duration: 100 years, so that the sum of a time and a duration never
/// overflows.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * DAY);

/// Parses numbers with units, in any order: `1h30m`, `0.5s`, `30d`.
///
/// Units: `us`, `ms`, `s`, `m` (minutes), `h`, `d`, `w`. The error completes a sentence, such as
/// "is empty".
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("is empty".into());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (part, after) = one(rest)?;
        nanos += part;
        if nanos > LONGEST.as_nanos() {
            return Err("is longer than 100 years".into());
        }
        rest = after.trim_start();
    }
    Ok(Duration::new((nanos / NANOS) as u64, (nanos % NANOS) as u32))
}

const DAY: u64 = 24 * 60 * 60;
const NANOS: u128 = 1_000_000_000;

/// Parses one number with its unit. Returns the number of nanoseconds, and the text after the unit.
/// Returns an error without a number or a known unit.
fn one(text: &str) -> Result<(u128, &str), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if digits == 0 {
        return Err(format!("has no number before \"{text}\""));
    }
    if digits > 15 {
        return Err("is longer than 100 years".into());
    }
    let (whole, mut rest) = text.split_at(digits);
    let mut fraction = "";
    if let Some(behind) = rest.strip_prefix('.') {
        let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
        if digits == 0 || digits > 9 {
            return Err("needs one to nine digits after the point".into());
        }
        (fraction, rest) = behind.split_at(digits);
    }
    let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    let (unit, after) = rest.split_at(letters);
    let unit_nanos: u128 = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS,
        "m" => 60 * NANOS,
        "h" => 3600 * NANOS,
        "d" => u128::from(DAY) * NANOS,
        "w" => 7 * u128::from(DAY) * NANOS,
        "" if after.starts_with(' ') => return Err("has a blank before its unit".into()),
        "" => return Err("has no unit".into()),
        other => return Err(format!("has an unknown unit \"{other}\"")),
    };
    let number = |digits: &str| digits.parse::<u128>().unwrap_or(0);
    let scale = 10_u128.pow(fraction.len() as u32);
    Ok((number(whole) * unit_nanos + number(fraction) * unit_nanos / scale, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_type() {
        for (text, millis) in [
            ("250ms", 250),
            ("5s", 5_000),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("30d", 2_592_000_000),
            ("2w", 1_209_600_000),
            ("0.5s", 500),
            ("1.25m", 75_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("7us"), Ok(Duration::from_micros(7)));
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", " ", "5", "s", "-5s", "5 s", "5S", "5sec", "1.s", ".5s", "5s,", "1e3s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_duration("36501d").is_err());
        assert!(parse_duration(&"9".repeat(400)).is_err());
        assert!(parse_duration(&format!("{}d", "9".repeat(15))).is_err());
    }
}
