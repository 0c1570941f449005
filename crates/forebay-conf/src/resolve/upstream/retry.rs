//! Resolves `retry`, and lists of statuses.

use std::ops::RangeInclusive;

use crate::error::Problem;
use crate::file::{self, At, OneOrMany, StatusText, Table};
use crate::plan::{StatusRanges, StatusRetry, Upstream};
use crate::resolve::Resolution;
use crate::resolve::value::{method, within};

/// The methods that change nothing on a server (RFC 9110 section 9.2.1), except TRACE and those of
/// WebDAV.
const SAFE: [&str; 4] = ["GET", "HEAD", "OPTIONS", "QUERY"];

/// Checks `retry` and adds the defaults.
pub(super) fn retry(typed: &At<Table<file::StatusRetry>>) -> Resolution<StatusRetry> {
    Ok(StatusRetry {
        statuses: match &typed.statuses {
            Some(at) => statuses(at, 400)?,
            None => StatusRanges(vec![502..=502, 503..=503, 504..=504]),
        },
        methods: match &typed.methods {
            Some(at) => at.items().iter().map(method).collect::<Resolution<_>>()?,
            None => SAFE.map(str::to_owned).to_vec(),
        },
        attempts: match &typed.attempts {
            Some(at) => within(at, 2..=Upstream::MOST as u32)?,
            None => 3,
        },
        budget: typed.budget.as_ref().map_or(Ok(10), percentage)?,
    })
}

/// Returns a set of statuses from `least` to 599.
pub(super) fn statuses(typed: &At<OneOrMany<StatusText>>, least: u16) -> Resolution<StatusRanges> {
    let range = |item: At<&StatusText>| {
        let text = item.value.0.as_str();
        let range = parse(text)
            .filter(|range| !range.is_empty() && *range.start() >= least && *range.end() <= 599);
        range.ok_or_else(|| {
            Problem::new(&item.span, format!("\"{text}\" is not a status or a range of statuses"))
                .help(format!("write statuses from {least} to 599, such as 503 or \"500-504\""))
        })
    };
    let ranges = typed.items().into_iter().map(range).collect::<Resolution<Vec<_>>>()?;
    if ranges.is_empty() {
        return Err(Problem::new(&typed.span, "this list is empty")
            .help("give at least one status, or leave it out for the default"));
    }
    Ok(StatusRanges(ranges))
}

/// Returns the statuses of "503", "500-504" or "5xx". Returns `None` for any other text.
fn parse(text: &str) -> Option<RangeInclusive<u16>> {
    let status = |text: &str| {
        let is_status = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
        is_status.then(|| text.parse().ok()).flatten()
    };
    if let Some(class) = text.strip_suffix("xx") {
        let class = status(&format!("{class}00"))?;
        return Some(class..=class + 99);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(status(first)?..=status(last)?)
}

/// Returns a whole percentage from 1 to 100.
fn percentage(typed: &At<String>) -> Resolution<u32> {
    let number = typed.strip_suffix('%').and_then(|number| number.parse().ok());
    number.filter(|number| (1..=100).contains(number)).ok_or_else(|| {
        Problem::new(&typed.span, format!("\"{}\" is not a percentage", typed.value))
            .help("write a whole number from 1 to 100 and a percent sign, such as \"10%\"")
    })
}
