//! Resolves `on_demand` of `[site.tls.acme]`.

use std::time::Duration;

use super::effect::no_effect;
use super::limit::parse_rate;
use super::path::file;
use super::value::{host_and_port, required, text, time_above_zero, within};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, Table};
use crate::plan::{Acme, AskUrl, BackendTls, OnDemand};

const BURST: u32 = 20;
const CONCURRENT: usize = 4;
const WAIT: Duration = Duration::from_secs(20);
const CERTIFICATES: usize = 10_000;

/// Checks the settings. `acme` has no host names, because the names are not known in advance.
pub(super) fn on_demand(
    context: &Context<'_>,
    typed: &At<Table<file::OnDemand>>,
    acme: Acme,
) -> Resolution<OnDemand> {
    let ask = required(&typed.ask, &typed.span, "ask", "\"http://127.0.0.1:3000/may-have\"")?;
    let (orders, period) = match &typed.rate {
        Some(at) => parse_rate(at)?,
        None => (100, Duration::from_secs(3600)),
    };
    let count = |typed: &Option<At<usize>>, default, range| {
        typed.as_ref().map_or(Ok(default), |at| within(at, range))
    };
    let mut ask = ask_url(ask)?;
    match (&mut ask.tls, &typed.ca) {
        (Some(tls), Some(at)) => tls.ca = Some(file(context, at)?),
        (None, Some(at)) => {
            let help = "leave it out, or set `ask` to an https:// URL";
            return Err(no_effect(&at.span, "ca", "without an https:// `ask`", help));
        }
        (_, None) => {}
    }
    Ok(OnDemand {
        acme,
        ask,
        orders,
        period,
        burst: typed.burst.as_ref().map_or(BURST, |at| at.value),
        concurrent: count(&typed.concurrent, CONCURRENT, 1..=100)?,
        wait: time_above_zero(&typed.wait, WAIT)?,
        certificates: count(&typed.certificates, CERTIFICATES, 1..=10_000_000)?,
    })
}

/// Parses the URL of the service that permits names.
fn ask_url(typed: &At<String>) -> Resolution<AskUrl> {
    let url = text(typed)?;
    let wrong = |why: &str| {
        Problem::new(&typed.span, format!("\"{url}\" cannot be asked: {why}"))
            .help("write the URL of your application, such as \"http://127.0.0.1:3000/may-have\"")
    };
    let (rest, port, tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80, None),
        (None, Some(rest)) => (rest, 443, Some(BackendTls::default())),
        (None, None) => return Err(wrong("no http:// or https:// URL")),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let is_url = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
    if !path.bytes().all(is_url) {
        return Err(wrong("its path has other characters than a URL"));
    }
    let host = if host_and_port(authority) {
        authority.to_owned()
    } else if host_and_port(&format!("{authority}:{port}")) {
        format!("{authority}:{port}")
    } else {
        return Err(wrong("no host"));
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let separator = if path.contains('?') { '&' } else { '?' };
    let target = format!("{slash}{path}{separator}domain=");
    Ok(AskUrl { host, tls, authority: authority.to_owned(), target })
}
