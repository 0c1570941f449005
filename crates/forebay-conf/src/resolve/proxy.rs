//! Resolves a route to HTTP servers, with its changes to requests and replies.

use super::upstream::{Keys, of_route};
use super::value::{optional_time_above_zero, text};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, File, TextOr};
use crate::plan::{HostField, Proxy, Redirects, Scheme};

/// Checks `proxy` and adds the defaults.
pub(super) fn proxy(
    context: &Context<'_>,
    file: &File,
    typed: &At<TextOr<file::Proxy>>,
) -> Resolution<Proxy> {
    let default = Proxy::new(Vec::new());
    let table = match &typed.value {
        TextOr::Text(url) => {
            let to = Some(typed.with(file::OneOrMany::One(TextOr::Text(url.clone()))));
            let keys = Keys::of(&to, &None);
            return Ok(Proxy {
                upstream: of_route(context, file, Scheme::Http, &typed.span, &keys)?,
                ..default
            });
        }
        TextOr::Table(table) => table,
    };
    Ok(Proxy {
        upstream: of_route(context, file, Scheme::Http, &typed.span, &table.into())?,
        host: host_field(table.host),
        strip_prefix: strip_prefix(&table.strip_prefix)?,
        redirect: match table.redirect {
            Some(file::Redirects::Off) => Redirects::Off,
            Some(file::Redirects::Rewrite) | None => Redirects::Rewrite,
        },
        reply_timeout: optional_time_above_zero(&table.reply_timeout)?,
        tunnel_idle: optional_time_above_zero(&table.tunnel_idle)?,
    })
}

pub(super) fn host_field(typed: Option<file::HostField>) -> HostField {
    match typed {
        Some(file::HostField::Backend) => HostField::Backend,
        Some(file::HostField::Client) | None => HostField::Client,
    }
}

pub(super) fn strip_prefix(typed: &Option<At<String>>) -> Resolution<Option<String>> {
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
