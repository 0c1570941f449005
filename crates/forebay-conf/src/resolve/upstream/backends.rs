//! Resolves the servers in `to`. The user types each server as an address or as a table.

use std::ops::Range;

use super::{GROUP, To};
use crate::error::Problem;
use crate::file::{self, At, TextOr};
use crate::plan::{Activation, Address, Backend, Scheme, Upstream};
use crate::resolve::value::{required, text, within};
use crate::resolve::{Context, Resolution, peer};
use crate::suggest;

/// Checks `to`, which must have at least one address.
pub(super) fn backends(
    context: &Context<'_>,
    scheme: Scheme,
    table: &Range<usize>,
    typed: &Option<To>,
) -> Resolution<Vec<Backend>> {
    let typed = required(typed, table, "to", example(scheme))?;
    let items = typed.items();
    if items.is_empty() {
        let problem = Problem::new(&typed.span, "this list is empty");
        return Err(problem.help("give at least one address"));
    }
    if items.len() > Upstream::MOST {
        let message = format!("{} servers are too many", items.len());
        return Err(Problem::new(&typed.span, message)
            .help(format!("a route or group has at most {}", Upstream::MOST)));
    }
    let mut to: Vec<_> =
        items.iter().map(|at| backend(context, scheme, at)).collect::<Resolution<_>>()?;
    if to.iter().all(|backend| backend.backup) {
        return Err(Problem::new(&typed.span, "every server here is a backup")
            .help("leave `backup` out of at least one"));
    }
    let takes_all = |to: &Backend| to.activation == Activation::Active && !to.backup;
    if !to.iter().any(takes_all) {
        return Err(Problem::new(&typed.span, "no server here takes new clients")
            .help("leave `activation` out of at least one that is not a backup"));
    }
    all_have_names_of_their_own(&items, &to)?;
    for (index, item) in items.iter().enumerate() {
        to[index].redirect = redirect(item.value, index, &to)?;
    }
    Ok(to)
}

fn all_have_names_of_their_own(
    items: &[At<&TextOr<file::Backend>>],
    to: &[Backend],
) -> Resolution<()> {
    for (index, backend) in to.iter().enumerate() {
        let same = |other: &Backend| other.route.is_some() && other.route == backend.route;
        if to[..index].iter().any(same) {
            let route = backend.route.as_deref().unwrap_or_default();
            return Err(Problem::new(&items[index].span, format!("a second route \"{route}\""))
                .help("give each server a `route` of its own"));
        }
    }
    Ok(())
}

/// Returns the index of the server that replaces the server at `index`, because its `redirect`
/// names the other server's `route`. Returns `None` without `redirect`. Returns an error if no
/// other server in `to` has this `route`.
fn redirect(
    typed: &TextOr<file::Backend>,
    index: usize,
    to: &[Backend],
) -> Resolution<Option<usize>> {
    let TextOr::Table(file::Backend { redirect: Some(at), .. }) = typed else { return Ok(None) };
    let name = text(at)?;
    match to.iter().position(|backend| backend.route.as_deref() == Some(name)) {
        Some(itself) if itself == index => {
            Err(Problem::new(&at.span, "this server replaces itself")
                .help("name the `route` of another server, or leave `redirect` out"))
        }
        Some(other) => Ok(Some(other)),
        None => {
            let problem =
                Problem::new(&at.span, format!("no server here has the route \"{name}\""));
            let routes = to.iter().filter_map(|backend| backend.route.as_deref());
            Err(match suggest::nearest(name, routes) {
                Some(near) => problem.label(format!("did you mean \"{near}\"?")),
                None => problem,
            }
            .help("`redirect` is the `route` of another server of this `to`"))
        }
    }
}

fn example(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Http => "\"http://127.0.0.1:3000\"",
        Scheme::Fastcgi => "\"unix:/run/php/php-fpm.sock\"",
        Scheme::Scgi | Scheme::Uwsgi => "\"unix:app.sock\"",
        Scheme::Ajp => "\"127.0.0.1:8009\"",
        Scheme::Stream => "\"127.0.0.1:5432\"",
    }
}

/// Checks one entry of `to`: an address, or a table with options.
fn backend(
    context: &Context<'_>,
    scheme: Scheme,
    typed: &At<&TextOr<file::Backend>>,
) -> Resolution<Backend> {
    let table = match typed.value {
        TextOr::Text(place) => return server(context, scheme, &typed.with(place)),
        TextOr::Table(table) => table,
    };
    let url = required(&table.url, &typed.span, "url", example(scheme))?;
    let default = server(context, scheme, &url.with(&url.value))?;
    let route = match &table.route {
        Some(at) => {
            let route = text(at)?;
            if !route.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
                return Err(Problem::new(&at.span, format!("\"{route}\" cannot be a route"))
                    .help("a route consists of letters, digits, `-` and `_`"));
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
        distance: match &table.distance {
            Some(at) => within(at, 0..=1_000_000)?,
            None => default.distance,
        },
        activation: table.activation.unwrap_or_default(),
        route,
        ..default
    })
}

fn server(context: &Context<'_>, scheme: Scheme, typed: &At<&String>) -> Resolution<Backend> {
    if typed.value.starts_with(GROUP) {
        let message = format!("\"{}\" names a group, not a server", typed.value);
        return Err(Problem::new(&typed.span, message)
            .help(format!("a group is all that `to` of a route names: to = \"{}\"", typed.value)));
    }
    if scheme == Scheme::Http {
        return peer::backend(context, typed);
    }
    let by_tls = typed.value.strip_prefix("tls://").filter(|_| scheme == Scheme::Stream);
    let Some(host) = by_tls else {
        let address = peer::address(context, typed)?;
        let authority = address.to_string();
        return Ok(Backend::new(scheme, address, authority));
    };
    let address = peer::address(context, &typed.with(host))?;
    if matches!(address, Address::Unix(_)) {
        return Err(Problem::new(&typed.span, "tls:// is for a host and a port")
            .help("a Unix socket needs no TLS: leave off tls://"));
    }
    let authority = address.to_string();
    Ok(Backend { https: true, ..Backend::new(scheme, address, authority) })
}
