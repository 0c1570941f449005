//! Translates the location of `auth_request`: the server that decides, and the fields that it gets.

use super::Cx;
use super::scope::Scope;
use super::variables::{Piece, Variables, split};
use crate::fixed_fields::{self, Fixed};
use crate::units::duration;
use crate::value::Table;

/// Directives of the location that decide about requests themselves. Forebay asks the server
/// directly, so it would ignore these directives.
const DECIDE: [&str; 5] = ["if", "return", "rewrite", "try_files", "limit_except"];

/// Variables whose values belong to nginx's request for the location, not to the client's request.
const OF_SUBREQUEST: [&str; 8] = [
    "args",
    "document_uri",
    "fastcgi_script_name",
    "is_args",
    "query_string",
    "request_body",
    "request_filename",
    "uri",
];

/// Returns the table `forward_auth` for the location with this path, which `auth_request` names.
/// The text of an error says what the user must do.
pub fn table(cx: &Cx<'_>, scope: &Scope<'_>, path: &str) -> Result<Table, String> {
    const NEXT: &str =
        "let a server decide with `forward_auth = { to = \"URL\" }`, if this version has it";
    let mut locations = scope.every("location");
    let location = locations
        .find(|location| location.args.last().is_some_and(|last| last == path))
        .filter(|_| cx.keys.route("forward_auth"))
        .ok_or(NEXT)?;
    location.settle();
    let scope = scope.of(location);
    let is_decision = |name: &str| DECIDE.contains(&name);
    if scope.own().iter().any(|inner| is_decision(&inner.name)) {
        return Err(NEXT.into());
    }
    let pass = scope.of_own("proxy_pass").ok_or(NEXT)?;
    let url = with_server(&scope, pass.arg(0)).ok_or(NEXT)?;
    let has_path = url.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    let url = if has_path { url } else { format!("{url}{path}") };
    if url.contains('$') || !url.starts_with("http") {
        return Err(NEXT.into());
    }
    if scope.value("proxy_pass_request_headers") == Some("off") {
        return Err("the server of `forward_auth` would get the client's fields: check that it \
                    does not believe them, and write `forward_auth`"
            .into());
    }
    // Mark the directive as read: `forward_auth` never sends a body.
    scope.of_own("proxy_pass_request_body");
    let mut table = Table::default().with("to", url);
    let time = scope.value("proxy_read_timeout").and_then(duration).filter(|time| time != "0s");
    table.set_some("timeout", time);
    fields(cx, &scope, &mut table)?;
    Ok(table)
}

/// Adds the fields that nginx sends to the server. The text of an error says what the user must do.
fn fields(cx: &Cx<'_>, scope: &Scope<'_>, table: &mut Table) -> Result<(), String> {
    let name = scope.value("server_name").filter(|name| !name.contains(['*', '_', '~', '$']));
    let variables =
        Variables { scope, keys: cx.keys, found: None, server_name: name, scheme: None };
    for field in scope.all("proxy_set_header") {
        let (name, value) = (field.arg(0).replace('_', "-"), field.arg(1));
        let next = |unknown: &str| {
            format!("{unknown} in the field {name} has no translation: write `forward_auth`")
        };
        if name.eq_ignore_ascii_case("host") {
            match value {
                "$proxy_host" => {}
                "$host" | "$http_host" => table.set("host", "client"),
                other => return Err(next(other)),
            }
            continue;
        }
        match fixed_fields::of(&name, value) {
            Some(Fixed::Sent) => continue,
            Some(Fixed::Own) if value.is_empty() => continue,
            Some(Fixed::Own) => return Err(next(value)),
            Some(Fixed::SentOtherwise) | None => {}
        }
        let of_subrequest = split(value).into_iter().find_map(|piece| match piece {
            Piece::Variable(name) if !is_of_client(name, scope) => Some(name),
            _ => None,
        });
        if let Some(unknown) = of_subrequest {
            return Err(next(unknown));
        }
        let value = variables.fill(value).map_err(|unknown| next(&unknown))?;
        table.table("request_headers").set(&name, value);
    }
    Ok(())
}

/// Returns true if a variable has the same value in the client's request and in nginx's subrequest
/// for `auth_request`.
fn is_of_client(name: &str, scope: &Scope<'_>) -> bool {
    let is_set = |set: &super::Directive| set.arg(0).strip_prefix('$') == Some(name);
    !OF_SUBREQUEST.contains(&name)
        && !name.starts_with("arg_")
        // If a block sets the variable, its value may differ between the two requests.
        && !scope.every("set").any(is_set)
}

/// Replaces the name of an `upstream` in a URL by the address of its server. Returns `None` if the
/// `upstream` does not have exactly one server, or if the URL has no scheme.
fn with_server(scope: &Scope<'_>, url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (name, path) = rest.split_at(end);
    let Some(upstream) = scope.every("upstream").find(|upstream| upstream.arg(0) == name) else {
        return Some(url.to_owned());
    };
    upstream.settle_all();
    let mut servers = upstream.inside().iter().filter(|inner| inner.name == "server");
    match (servers.next(), servers.next()) {
        (Some(only), None) => Some(format!("{scheme}://{}{path}", only.arg(0))),
        _ => None,
    }
}
