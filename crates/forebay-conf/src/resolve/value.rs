//! Resolves values that have the same form in every table: durations, sizes, counts, texts and
//! variables.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::Resolution;
use crate::error::Problem;
use crate::file::{At, Size, Time};
use crate::key::{self, FromText, Method};
pub(super) use crate::key::{is_token, required};

/// Returns true if the text is a host name or an address, with a port.
pub(super) fn host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_name),
    };
    digits && port.parse::<u16>().is_ok_and(|port| port > 0) && is_host
}

pub(super) fn time(typed: &Option<Time>, default: Duration) -> Resolution<Duration> {
    Ok(optional_time(typed)?.unwrap_or(default))
}

/// Returns a duration of more than zero, or the default.
pub(super) fn time_above_zero(typed: &Option<Time>, default: Duration) -> Resolution<Duration> {
    Ok(optional_time_above_zero(typed)?.unwrap_or(default))
}

/// Returns a duration of more than zero, or `None` if the user typed none.
pub(super) fn optional_time_above_zero(typed: &Option<Time>) -> Resolution<Option<Duration>> {
    match (typed, optional_time(typed)?) {
        (Some(at), Some(time)) => key::above_zero(time, &at.span).map(Some),
        (_, time) => Ok(time),
    }
}

pub(super) fn optional_time(typed: &Option<Time>) -> Resolution<Option<Duration>> {
    let Some(at) = typed else { return Ok(None) };
    key::duration(&at.0, &at.span).map(Some)
}

/// Returns a size in bytes, or `None` if the user typed none.
pub(super) fn size(typed: &Option<Size>) -> Resolution<Option<u64>> {
    let Some(at) = typed else { return Ok(None) };
    key::size(&at.0, &at.span).map(Some)
}

/// Returns a size in bytes, or `None` if the user typed none. For `"unlimited"`, returns
/// `u64::MAX`.
pub(super) fn size_or_unlimited(typed: &Option<Size>) -> Resolution<Option<u64>> {
    match typed {
        Some(at) if at.0 == "unlimited" => Ok(Some(u64::MAX)),
        _ => size(typed),
    }
}

/// Returns the number if it is within the range.
pub(super) fn within<T: PartialOrd + Display + Copy>(
    typed: &At<T>,
    range: RangeInclusive<T>,
) -> Resolution<T> {
    key::within(typed.value, range, &typed.span)
}

/// Returns the text if it is not empty and contains no control characters.
pub(super) fn text(typed: &At<impl AsRef<str>>) -> Resolution<&str> {
    key::plain(typed.value.as_ref(), &typed.span)
}

/// Returns the text if it contains no control characters.
pub(super) fn no_control<'t, T>(text: &'t str, typed: &At<T>) -> Resolution<&'t str> {
    key::no_control(text, &typed.span)
}

/// Returns environment variables or FastCGI parameters, if their names and values are valid.
pub(super) fn variables(
    typed: &BTreeMap<String, At<String>>,
) -> Resolution<BTreeMap<String, String>> {
    for (name, value) in typed {
        if name.is_empty() || name.contains(['=', '\0']) {
            let problem = Problem::new(&value.span, format!("\"{name}\" cannot name a variable"));
            return Err(problem.help("a name is not empty and has no `=` in it"));
        }
        if value.contains('\0') {
            let problem =
                Problem::new(&value.span, format!("the value of {name} holds a zero byte"));
            return Err(problem.help("leave it out: no variable can hold one"));
        }
    }
    Ok(typed.iter().map(|(name, value)| (name.clone(), value.value.clone())).collect())
}

/// Returns a request method, if the text is one.
pub(super) fn method(typed: &At<impl AsRef<str>>) -> Resolution<String> {
    Method::from_text(text(typed)?, &typed.span)
}
