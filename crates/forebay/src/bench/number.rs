//! Parses numbers on the command line, which may have a suffix: `100k`, `1.5M`.

use std::time::Duration;

const SUFFIXES: [(char, f64); 4] = [('k', 1e3), ('K', 1e3), ('M', 1e6), ('G', 1e9)];

/// Parses a number of connections or requests: `500`, `1k`, `2M`.
pub fn count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let wrong = || format!("{text:?} is not a number: write digits, such as 500, 10k or 1M");
    let number = scaled(text).ok_or_else(wrong)?;
    // Above 2^53, `f64` cannot represent every whole number exactly.
    if number.fract() != 0.0 || number > (1u64 << 53) as f64 {
        return Err(wrong());
    }
    T::try_from(number as u64).map_err(|_| format!("{text} is too large"))
}

/// Parses a rate in requests per second: `100`, `2.5k`, `100/s` or `600/m`.
pub fn rate(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a rate: write requests per second, such as 500 or 10k");
    let (number, per) = match text.split_once('/') {
        None | Some((_, "s")) => (text.trim_end_matches("/s"), 1.0),
        Some((number, "m")) => (number, 60.0),
        Some(_) => return Err(wrong()),
    };
    scaled(number).map(|number| number / per).ok_or_else(wrong)
}

/// Parses a percentage: `5%` or `5` is 0.05.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_start_matches("+-").trim_start_matches('±').trim_end_matches('%');
    match number.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent / 100.0),
        _ => Err("write a percentage greater than 0, such as 3%".to_owned()),
    }
}

fn scaled(text: &str) -> Option<f64> {
    let found = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(*suffix));
    let (digits, scale) = match found {
        Some((_, scale)) => (&text[..text.len() - 1], *scale),
        None => (text, 1.0),
    };
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| is_plain)?;
    // The rounding removes errors of binary fractions: 2.01 * 1000 is a little less than 2,010.
    Some((number * scale * 1e6).round() / 1e6)
}

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
    fn suffixes_multiply() {
        let cases = [("0", 0), ("17", 17), ("1k", 1000), ("2.3k", 2300), ("1.5M", 1_500_000)];
        for (text, number) in cases {
            assert_eq!(count::<u64>(text), Ok(number), "{text}");
        }
        assert_eq!(count::<usize>("1k"), Ok(1000));
        let rates = ["100k", "0.5", "1000/s", "600/m", "10k/s"].map(|text| rate(text).unwrap());
        assert_eq!(rates, [100_000.0, 0.5, 1000.0, 10.0, 10_000.0]);
    }

    #[test]
    fn percents_are_taken_as_people_write_them() {
        for text in ["3", "3%", "+-3%", "±3 %"] {
            assert_eq!(percent(text), Ok(0.03), "{text}");
        }
        for text in ["", "0", "-3%", "100%", "x", "nan"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "k", "-1", "+1", "1.5", "1e3", "1 k", "1kk", "nan", "10000000G", "x"] {
            assert!(count::<u64>(text).is_err(), "{text}");
        }
        assert!(count::<u32>("5G").unwrap_err().contains("too large"));
        for text in ["", "/s", "5/h", "inf", "-5", "5//s", "5/s/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}

#[cfg(test)]
mod duration_tests {
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
