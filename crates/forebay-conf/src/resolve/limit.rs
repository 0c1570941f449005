//! Resolves the limits of a route.

use std::num::{IntErrorKind, ParseIntError};
use std::time::Duration;

use super::Resolution;
use super::template::{Known, shared_key, template};
use super::value::{required, text, within};
use crate::duration::parse_duration;
use crate::error::Problem;
use crate::file::{self, At, OneOrMany};
use crate::plan::{ConcurrencyLimit, RateLimit};

/// The longest time that a request may wait with `delay`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The longest period of a rate.
const LONGEST_PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) fn rate_limits(
    typed: &Option<At<OneOrMany<file::RateLimit>>>,
    known: Known<'_>,
) -> Resolution<Vec<RateLimit>> {
    let items = typed.as_ref().map(At::items).unwrap_or_default();
    items.iter().map(|at| rate_limit(at, known)).collect()
}

/// Checks one rate limit. By default, the limit counts requests by client address, and `burst` is
/// one less than the number of requests in the rate: 9 for "10/s".
fn rate_limit(typed: &At<&file::RateLimit>, known: Known<'_>) -> Resolution<RateLimit> {
    let rate = required(&typed.rate, &typed.span, "rate", "\"10/s\"")?;
    let (requests, period) = parse_rate(rate)?;
    let key = match &typed.key {
        Some(at) => shared_key(at, known)?,
        None => template("{client}", typed, known)?,
    };
    let burst = typed.burst.as_ref().map_or(requests - 1, |at| at.value);
    let delay = typed.delay.as_ref().is_some_and(|at| at.value);
    let limit = RateLimit { requests, period, burst, key, delay };
    match &typed.delay {
        Some(at) if delay && limit.ahead() > LONGEST_WAIT => {
            let longest = limit.ahead().as_secs();
            Err(Problem::new(&at.span, format!("a request could wait for {longest} s")).help(
                "lower `burst`, so that requests wait for at most 60 s, or leave `delay` out",
            ))
        }
        _ => Ok(limit),
    }
}

pub(super) fn concurrency_limits(
    typed: &Option<At<OneOrMany<file::ConcurrencyLimit>>>,
    known: Known<'_>,
) -> Resolution<Vec<ConcurrencyLimit>> {
    let limit = |at: &At<&file::ConcurrencyLimit>| {
        let key = match &at.key {
            Some(key) => shared_key(key, known)?,
            None => template("{client}", at, known)?,
        };
        let max = within(required(&at.max, &at.span, "max", "8")?, 1..=1_000_000)?;
        Ok(ConcurrencyLimit { max, key })
    };
    typed.as_ref().map(At::items).unwrap_or_default().iter().map(limit).collect()
}

/// Returns the number of requests and the period of a rate such as "10/s" or "5/10s".
pub(super) fn parse_rate(typed: &At<String>) -> Resolution<(u32, Duration)> {
    let rate = text(typed)?;
    let wrong = |why: String| {
        Problem::new(&typed.span, why)
            .help("write requests and a time, such as \"10/s\", \"100/m\" or \"5/10s\"")
    };
    let unclear = || wrong(format!("\"{rate}\" is not a rate"));
    let (requests, period) = rate.split_once('/').ok_or_else(unclear)?;
    // nginx writes 10r/s, so an `r` after the number is accepted.
    let requests = requests.strip_suffix('r').unwrap_or(requests);
    let requests: u32 = requests.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => wrong(format!("a rate has at most {} requests", u32::MAX)),
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
    Ok((requests, period))
}
