//! Resolves `forward_auth` of a route.

use std::time::Duration;

use super::fields::request_headers;
use super::template::Known;
use super::upstream::{Keys, of_route};
use super::value::{is_token, required, text, time_above_zero};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, Copied, File, OneOrMany, TextOr};
use crate::plan::{ForwardAuth, HostField, Proxy, Redirects, Scheme};

/// Default of `timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn forward_auth(
    context: &Context<'_>,
    file: &File,
    typed: &At<TextOr<file::ForwardAuth>>,
    known: Known<'_>,
) -> Resolution<ForwardAuth> {
    let short;
    let table = match &typed.value {
        TextOr::Text(url) => {
            let to = Some(typed.with(url.clone()));
            short = file::ForwardAuth { to, ..file::ForwardAuth::default() };
            &short
        }
        TextOr::Table(table) => table,
    };
    let example = "\"http://127.0.0.1:4180/oauth2/auth\"";
    let url = required(&table.to, &typed.span, "to", example)?;
    let (server, target) = divide(text(url)?);
    if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(Problem::new(&url.span, format!("\"{target}\" is not a path"))
            .help("percent-encode it, and leave out `#`"));
    }
    let to = Some(url.with(OneOrMany::One(TextOr::Text(server.to_owned()))));
    let upstream = of_route(context, file, Scheme::Http, &typed.span, &Keys::of(&to, &None))?;
    Ok(ForwardAuth {
        proxy: Proxy {
            upstream,
            host: match table.host {
                Some(file::HostField::Client) => HostField::Client,
                Some(file::HostField::Backend) | None => HostField::Backend,
            },
            // The server's redirects lead the client to other hosts, so they are not rewritten.
            redirect: Redirects::Off,
            strip_prefix: None,
            reply_timeout: Some(time_above_zero(&table.timeout, TIMEOUT)?),
            tunnel_idle: None,
        },
        target: target.to_owned(),
        copy: table.copy.as_ref().map_or(Ok(Vec::new()), copied)?,
        user: table.user.as_ref().map(|at| field_name(&at.with(&at.value))).transpose()?,
        request_headers: request_headers(&table.request_headers, known)?,
    })
}

/// Returns the names of request fields, each with the name of the answer's field.
fn copied(typed: &At<Copied>) -> Resolution<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    match &typed.value {
        Copied::Named(list) => {
            for at in typed.with(list.clone()).items() {
                let name = field_name(&at)?;
                pairs.push((name.clone(), name));
            }
        }
        Copied::Renamed(table) => {
            for (name, at) in table {
                let name = field_name(&at.with(name))?;
                if let Some((other, _)) =
                    pairs.iter().find(|(other, _)| other.eq_ignore_ascii_case(&name))
                {
                    let message = format!("{other} and {name} are one header");
                    return Err(Problem::new(&at.span, message).help("give each header once"));
                }
                pairs.push((name, field_name(&at.with(&at.value))?));
            }
        }
    }
    Ok(pairs)
}

/// Splits a URL into two parts: the server, and the path with the query. Without a path, the second
/// part is `/`.
pub(super) fn divide(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    match url[start..].find(['/', '?']) {
        // The text after `unix:` is the path of a socket, so the URL has no path for requests.
        _ if url.starts_with("unix:") => (url, "/"),
        Some(at) if url[start + at..].starts_with('/') => url.split_at(start + at),
        _ => (url, "/"),
    }
}

/// Checks the name of a request field in `copy`, which gets its value from an answer or from a
/// claim of a token.
pub(super) fn field_name(at: &At<&String>) -> Resolution<String> {
    let name = text(at)?;
    // These fields frame the message, or belong to the connection, so `copy` must not set them.
    const REFUSED: [&str; 9] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let is_plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !is_token(name) || !is_plain(name) || REFUSED.contains(&&*name.to_ascii_lowercase()) {
        return Err(Problem::new(&at.span, format!("\"{name}\" cannot be copied"))
            .help("name a field such as \"Remote-User\": letters, digits and hyphens"));
    }
    Ok(name.to_owned())
}
