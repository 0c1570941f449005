//! Resolves `mirror` of a route.

use std::time::Duration;

use super::proxy::host_field;
use super::upstream::{Keys, of_route};
use super::value::{required, size, time_above_zero, within};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, File, OneOrMany, TextOr};
use crate::plan::{Mirror, Proxy, Redirects, Scheme};

/// Default of `max_body`. Forebay keeps this much of a body in memory even without a mirror.
const MAX_BODY: u64 = 64 * 1024;
/// The largest accepted `max_body`. Forebay keeps the copies of bodies in memory.
const LARGEST_BODY: u64 = 64 * 1024 * 1024;
/// Default of `max_requests`.
const MAX_REQUESTS: usize = 64;
/// Default of `timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The value of `per_million` that selects all requests.
const MILLION: f64 = 1e6;

pub(super) fn mirror(
    context: &Context<'_>,
    file: &File,
    typed: &At<TextOr<file::Mirror>>,
) -> Resolution<Mirror> {
    let short;
    let table = match &typed.value {
        TextOr::Text(url) => {
            let to = Some(typed.with(OneOrMany::One(TextOr::Text(url.clone()))));
            short = file::Mirror { to, ..file::Mirror::default() };
            &short
        }
        TextOr::Table(table) => table,
    };
    required(&table.to, &typed.span, "to", "\"http://127.0.0.1:8001\"")?;
    let keys = Keys::of(&table.to, &None);
    let upstream = of_route(context, file, Scheme::Http, &typed.span, &keys)?;
    let timeout = time_above_zero(&table.timeout, TIMEOUT)?;
    let max_requests = table.max_requests.as_ref();
    Ok(Mirror {
        proxy: Proxy {
            upstream,
            host: host_field(table.host),
            redirect: Redirects::Off,
            strip_prefix: None,
            reply_timeout: Some(timeout),
            tunnel_idle: None,
        },
        per_million: table.percent.as_ref().map_or(Ok(MILLION as u32), per_million)?,
        max_body: max_body(&table.max_body)?,
        max_requests: max_requests.map_or(Ok(MAX_REQUESTS), |at| within(at, 1..=100_000))?,
        timeout,
        credentials: table.credentials.as_ref().is_some_and(|at| at.value),
    })
}

fn per_million(typed: &At<f64>) -> Resolution<u32> {
    let number = (typed.value * (MILLION / 100.0)).round();
    // NaN is outside of the range, so it is an error, too.
    if (1.0..=MILLION).contains(&number) {
        return Ok(number as u32);
    }
    Err(Problem::new(&typed.span, format!("{} is not a percentage of requests", typed.value))
        .help("give a number from 0.0001 to 100, or leave `mirror` out"))
}

fn max_body(typed: &Option<file::Size>) -> Resolution<usize> {
    let bytes = size(typed)?.unwrap_or(MAX_BODY);
    match typed {
        Some(at) if bytes > LARGEST_BODY => {
            Err(Problem::new(&at.span, "copies of bodies this large do not fit into memory")
                .help("the most is \"64M\""))
        }
        _ => Ok(usize::try_from(bytes).unwrap_or(usize::MAX)),
    }
}
