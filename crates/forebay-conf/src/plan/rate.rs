//! Rates: a number of requests in a period.

use std::num::{IntErrorKind, ParseIntError};
use std::ops::Range;
use std::time::Duration;

use crate::duration::parse_duration;
use crate::error::Problem;
use crate::key::{FromText, Resolution};

/// A number of requests in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of requests; at least one.
    pub requests: u32,
    /// The period; more than zero.
    pub period: Duration,
}

/// The longest period of a rate.
const LONGEST_PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);

impl FromText for Rate {
    /// Parses a rate such as "10/s" or "5/10s".
    fn from_text(rate: &str, span: &Range<usize>) -> Resolution<Self> {
        let wrong = |why: String| {
            Problem::new(span, why)
                .help("write requests and a time, such as \"10/s\", \"100/m\" or \"5/10s\"")
        };
        let unclear = || wrong(format!("\"{rate}\" is not a rate"));
        let (requests, period) = rate.split_once('/').ok_or_else(unclear)?;
        // nginx writes 10r/s, so an `r` after the number is accepted.
        let requests = requests.strip_suffix('r').unwrap_or(requests);
        let requests: u32 =
            requests.parse().map_err(|error: ParseIntError| match error.kind() {
                IntErrorKind::PosOverflow => {
                    wrong(format!("a rate has at most {} requests", u32::MAX))
                }
                _ => unclear(),
            })?;
        if requests == 0 {
            return Err(wrong("a rate of zero admits nobody".to_owned()));
        }
        let starts_with_digit = period.starts_with(|c: char| c.is_ascii_digit());
        let period = if starts_with_digit { period.to_owned() } else { format!("1{period}") };
        let period = parse_duration(&period).map_err(|_| unclear())?;
        if period.is_zero() || period > LONGEST_PERIOD {
            return Err(wrong("the time of a rate is above zero and at most 30 days".to_owned()));
        }
        Ok(Self { requests, period })
    }
}
