//! A route to HTTP servers: where they are, and how requests are shared out among them.

use std::time::Duration;

use super::app_server::max_connections;
use super::value::{optional_time_above_zero, required, text, time_above_zero, within};
use super::{Context, Outcome, peer};
use crate::error::Problem;
use crate::file::{self, At, Table, TextOr};
use crate::plan::{Backend, Balance, Health, HostField, Proxy, ProxyHeader, Redirects, Sticky};

pub(super) fn proxy(context: &Context<'_>, typed: &At<TextOr<file::Proxy>>) -> Outcome<Proxy> {
    let table = match &typed.value {
        TextOr::Text(url) => {
            return Ok(Proxy::new(vec![peer::backend(context, &typed.with(url))?]));
        }
        TextOr::Table(table) => table,
    };
    let default = Proxy::new(backends(context, table, typed)?);
    let sticky = match &table.sticky {
        Some(at) => Some(sticky(at, &default.to)?),
        None => None,
    };
    Ok(Proxy {
        balance: match table.balance {
            Some(file::Balance::LeastConnections) => Balance::LeastConnections,
            Some(file::Balance::RoundRobin) | None => Balance::RoundRobin,
        },
        sticky,
        max_fails: match &table.max_fails {
            Some(at) => within(at, 0..=1_000_000)?,
            None => default.max_fails,
        },
        fail_timeout: time_above_zero(&table.fail_timeout, default.fail_timeout)?,
        health: table.health.as_ref().map(health).transpose()?,
        host: host_field(table.host),
        strip_prefix: strip_prefix(&table.strip_prefix)?,
        redirect: match table.redirect {
            Some(file::Redirects::Off) => Redirects::Off,
            Some(file::Redirects::Rewrite) | None => Redirects::Rewrite,
        },
        keepalive: match &table.keepalive {
            Some(at) => within(at, 0..=1_000_000)?,
            None => default.keepalive,
        },
        max_connections: max_connections(&table.max_connections)?,
        send_proxy: send_proxy(table)?,
        connect_timeout: optional_time_above_zero(&table.connect_timeout)?,
        reply_timeout: optional_time_above_zero(&table.reply_timeout)?,
        ..default
    })
}

pub(super) fn host_field(typed: Option<file::HostField>) -> HostField {
    match typed {
        Some(file::HostField::Backend) => HostField::Backend,
        Some(file::HostField::Client) | None => HostField::Client,
    }
}

fn send_proxy(table: &file::Proxy) -> Outcome<Option<ProxyHeader>> {
    let Some(at) = &table.send_proxy else { return Ok(None) };
    if let Some(keepalive) = table.keepalive.as_ref().filter(|keepalive| keepalive.value > 0) {
        return Err(Problem::new(&keepalive.span, "no connection is kept with `send_proxy`")
            .label("keeps none")
            .also(&at.span, "each connection is one client's")
            .help("leave `keepalive` out"));
    }
    Ok(Some(match at.value {
        file::ProxyHeader::V1 => ProxyHeader::V1,
        file::ProxyHeader::V2 => ProxyHeader::V2,
    }))
}

fn backends(
    context: &Context<'_>,
    table: &file::Proxy,
    whole: &At<TextOr<file::Proxy>>,
) -> Outcome<Vec<Backend>> {
    let typed = required(&table.to, &whole.span, "to", "\"http://127.0.0.1:3000\"")?;
    let items = typed.items();
    if items.is_empty() {
        let problem = Problem::new(&typed.span, "this list is empty");
        return Err(problem.help("give at least one address"));
    }
    if items.len() > Proxy::MOST {
        let message = format!("{} servers are too many for one route", items.len());
        return Err(Problem::new(&typed.span, message)
            .help(format!("a route has {} at the most", Proxy::MOST)));
    }
    let to: Vec<_> = items.iter().map(|at| backend(context, at)).collect::<Outcome<_>>()?;
    if to.iter().all(|backend| backend.backup) {
        return Err(Problem::new(&typed.span, "every server of this route is a backup")
            .help("leave `backup` out of one at least"));
    }
    for (index, backend) in to.iter().enumerate() {
        let same = |other: &Backend| other.route.is_some() && other.route == backend.route;
        if to[..index].iter().any(same) {
            let route = backend.route.as_deref().unwrap_or_default();
            return Err(Problem::new(&items[index].span, format!("a second route \"{route}\""))
                .help("give each server a `route` of its own"));
        }
    }
    Ok(to)
}

fn backend(context: &Context<'_>, typed: &At<&TextOr<file::Upstream>>) -> Outcome<Backend> {
    let table = match typed.value {
        TextOr::Text(url) => return peer::backend(context, &typed.with(url)),
        TextOr::Table(table) => table,
    };
    let url = required(&table.url, &typed.span, "url", "\"http://127.0.0.1:3000\"")?;
    let default = peer::backend(context, url)?;
    let route = match &table.route {
        Some(at) => {
            let route = text(at)?;
            if !route.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
                return Err(Problem::new(&at.span, format!("\"{route}\" cannot be a route"))
                    .help("a route is of letters, digits, `-` and `_`"));
            }
            Some(route.to_owned())
        }
        None => None,
    };
    Ok(Backend {
        weight: match &table.weight {
            Some(at) => within(at, 1..=256)?,
            None => default.weight,
        },
        backup: table.backup.unwrap_or(false),
        route,
        ..default
    })
}

fn sticky(typed: &At<Table<file::Sticky>>, to: &[Backend]) -> Outcome<Sticky> {
    let cookie = sticky_cookie(&typed.cookie, &typed.span)?;
    let routes = typed.routes.unwrap_or(false);
    if routes && let Some(without) = to.iter().find(|backend| backend.route.is_none()) {
        let message = format!("the server {} has no route", without.authority);
        return Err(Problem::new(&typed.span, message)
            .help("write { url = \"...\", route = \"...\" } in `to`, as its jvmRoute says"));
    }
    Ok(Sticky { cookie, routes })
}

/// The name of a cookie that Forebay reads.
pub(super) fn sticky_cookie(
    typed: &Option<At<String>>,
    table: &std::ops::Range<usize>,
) -> Outcome<String> {
    let cookie = required(typed, table, "cookie", "\"JSESSIONID\"")?;
    let name = text(cookie)?;
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if !name.bytes().all(is_token) {
        return Err(Problem::new(&cookie.span, format!("\"{name}\" cannot name a cookie"))
            .help("a name is of letters, digits and some signs, such as \"JSESSIONID\""));
    }
    Ok(name.to_owned())
}

fn health(typed: &At<Table<file::Health>>) -> Outcome<Health> {
    let path = required(&typed.path, &typed.span, "path", "\"/healthz\"")?;
    let target = text(path)?;
    let is_plain = |b: u8| b.is_ascii_graphic() && b != b'#';
    if !target.starts_with('/') || !target.bytes().all(is_plain) {
        return Err(Problem::new(&path.span, format!("\"{target}\" is not a path"))
            .help("a path begins with a slash and is percent-encoded: \"/healthz\""));
    }
    let times = |typed: &Option<At<u32>>, default| match typed {
        Some(at) => within(at, 1..=1_000_000),
        None => Ok(default),
    };
    Ok(Health {
        path: target.to_owned(),
        interval: time_above_zero(&typed.interval, Duration::from_secs(5))?,
        timeout: time_above_zero(&typed.timeout, Duration::from_secs(2))?,
        rises: times(&typed.rises, 2)?,
        falls: times(&typed.falls, 3)?,
    })
}

pub(super) fn strip_prefix(typed: &Option<At<String>>) -> Outcome<Option<String>> {
    match typed {
        Some(at) if !text(at)?.starts_with('/') => {
            Err(Problem::new(&at.span, format!("\"{}\" is not a path", at.value))
                .help(format!("a path begins with a slash: \"/{}\"", at.value)))
        }
        Some(at) if at.contains(['*', '?', '#']) => {
            Err(Problem::new(&at.span, format!("\"{}\" is not a path", at.value))
                .help("give the plain beginning of the path, such as \"/shop\""))
        }
        typed => Ok(typed.as_ref().map(|at| at.value.clone())),
    }
}
