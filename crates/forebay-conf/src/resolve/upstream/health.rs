//! Resolves `health`.

use std::time::Duration;

use crate::error::Problem;
use crate::file::{self, At};
use crate::key::no_effect;
use crate::plan::{Address, Backend, Health, Scheme, StatusRanges};
use crate::resolve::Resolution;
use crate::resolve::value::{required, text, time_above_zero, within};

pub(super) fn health(
    scheme: Scheme,
    typed: &At<file::Health>,
    to: &[Backend],
) -> Resolution<Health> {
    let path = if scheme == Scheme::Stream { without_request(typed)? } else { path(typed)? };
    let times = |typed: &Option<At<u32>>, default| match typed {
        Some(at) => within(at, 1..=1_000_000),
        None => Ok(default),
    };
    if let Some(at) = &typed.port
        && to.iter().any(|backend| matches!(backend.address, Address::Unix(_)))
    {
        let help = "leave it out: checks use the server's socket";
        return Err(no_effect(&at.span, "port", "on a Unix socket", help));
    }
    Ok(Health {
        path,
        statuses: match &typed.statuses {
            Some(at) => at.value.clone(),
            None => StatusRanges(vec![200..=399]),
        },
        body: typed.body.as_ref().map(|at| text(at).map(str::to_owned)).transpose()?,
        port: typed.port.as_ref().map(|at| within(at, 1..=u16::MAX)).transpose()?,
        interval: time_above_zero(&typed.interval, Duration::from_secs(5))?,
        timeout: time_above_zero(&typed.timeout, Duration::from_secs(2))?,
        rises: times(&typed.rises, 2)?,
        falls: times(&typed.falls, 3)?,
    })
}

fn path(typed: &At<file::Health>) -> Resolution<String> {
    let path = required(&typed.path, &typed.span, "path", "\"/healthz\"")?;
    let target = text(path)?;
    let is_plain = |b: u8| b.is_ascii_graphic() && b != b'#';
    if !target.starts_with('/') || !target.bytes().all(is_plain) {
        return Err(Problem::new(&path.span, format!("\"{target}\" is not a path"))
            .help("a path begins with a slash and is percent-encoded: \"/healthz\""));
    }
    Ok(target.to_owned())
}

/// Checks the keys for the servers of a stream, which Forebay checks without a request. The keys
/// `path`, `statuses` and `body` are errors. Returns an empty path.
fn without_request(typed: &At<file::Health>) -> Resolution<String> {
    let keys = [
        ("path", typed.path.as_ref().map(|at| &at.span)),
        ("statuses", typed.statuses.as_ref().map(|at| &at.span)),
        ("body", typed.body.as_ref().map(|at| &at.span)),
    ];
    match keys.into_iter().find_map(|(key, span)| Some((key, span?))) {
        Some((key, span)) => {
            let help = "leave it out: the check of a stream is a connection";
            Err(no_effect(span, key, "on the servers of a stream", help))
        }
        None => Ok(String::new()),
    }
}
