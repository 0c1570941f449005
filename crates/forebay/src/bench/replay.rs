//! Options `--replay` and `--speed`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;

use forebay_load::{Part, Replay, Url, read_replay};

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

#[cfg(test)]
mod tests {
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
