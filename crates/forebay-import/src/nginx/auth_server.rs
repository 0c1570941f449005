//! Translates the location of `auth_request`: the server that decides, and the fields that it gets.

use super::backends::STANDARD;
use super::scope::Scope;
use super::variables::{Piece, Variables, split};
use super::{Cx, files_of};
use crate::fixed_fields::{self, Fixed};
use crate::template::{join, literal};
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
pub fn table(cx: &Cx<'_>, outer: &Scope<'_>, path: &str) -> Result<Table, String> {
    const NEXT: &str =
        "let a server decide with `forward_auth = { to = \"URL\" }`, if this version has it";
    let mut locations = outer.every("location");
    let location = locations
        .find(|location| location.args.last().is_some_and(|last| last == path))
        .filter(|_| cx.keys.route("forward_auth"))
        .ok_or(NEXT)?;
    location.settle();
    let scope = outer.of(location);
    let is_decision = |name: &str| DECIDE.contains(&name);
    if scope.own().iter().any(|inner| is_decision(&inner.name)) {
        return Err(NEXT.into());
    }
    for kind in ["fastcgi", "scgi", "uwsgi"] {
        if let Some(pass) = scope.of_own(&format!("{kind}_pass")) {
            return program(cx, (outer, &scope), path, (kind, pass.arg(0)));
        }
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

/// Parameters whose values nginx takes from the client's request, although its question has the
/// path of the location. Forebay's own values describe the question.
const OF_QUESTION: [&str; 8] = [
    "CONTENT_LENGTH",
    "DOCUMENT_URI",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REQUEST_METHOD",
    "REQUEST_URI",
    "SCRIPT_NAME",
];

/// Returns the table `forward_auth` for a location with `fastcgi_pass`, `scgi_pass` or
/// `uwsgi_pass`. `outer` is the scope of `auth_request`, and `scope` that of the location. The text
/// of an error says what the user must do.
fn program(
    cx: &Cx<'_>,
    (outer, scope): (&Scope<'_>, &Scope<'_>),
    path: &str,
    (kind, address): (&str, &str),
) -> Result<Table, String> {
    let next = |what: &str| {
        format!("{what} has no translation: write `forward_auth` with `{kind}` and `params`")
    };
    let address = address.strip_prefix("uwsgi://").unwrap_or(address);
    let address = with_server(scope, &format!("tcp://{address}")).ok_or_else(|| next(address))?;
    let address = address.trim_start_matches("tcp://");
    if address.contains(['$', '{']) || address.contains("://") {
        return Err(next(address));
    }
    if scope.value(&format!("{kind}_pass_request_headers")) == Some("off") {
        return Err(next(&format!("{kind}_pass_request_headers")));
    }
    if ["fastcgi_split_path_info", "alias"].iter().any(|name| scope.of_own(name).is_some()) {
        return Err(next("the path of the script"));
    }
    // Mark the directive as read: `forward_auth` never sends a body.
    scope.of_own(&format!("{kind}_pass_request_body"));
    let mut server = Table::default().with("to", address);
    if kind == "fastcgi" {
        server.set("mount", "");
    }
    for (directive, key) in [("uwsgi_modifier1", "modifier1"), ("uwsgi_modifier2", "modifier2")] {
        let number = scope.value(directive).and_then(|text| text.parse::<u8>().ok());
        server.set_some(key, number.map(u64::from).filter(|_| kind == "uwsgi"));
    }
    let mut table = Table::default().with(kind, server).with("path", path);
    let time = scope.value(&format!("{kind}_read_timeout")).and_then(duration);
    table.set_some("timeout", time.filter(|time| time != "0s"));
    let name = scope.value("server_name").filter(|name| !name.contains(['*', '_', '~', '$']));
    let variables =
        Variables { scope, keys: cx.keys, found: None, server_name: name, scheme: None };
    let root = files_of::root(cx, scope);
    let params = scope.all(&format!("{kind}_param"));
    for (at, param) in params.iter().enumerate() {
        let (key, value) = (param.arg(0), param.arg(1));
        // Of two parameters with the same name, applications read the last one.
        if params[at + 1..].iter().any(|later| later.arg(0) == key) {
            continue;
        }
        let standard = STANDARD.iter().find(|(standard, _)| *standard == key);
        let own = standard.filter(|_| !OF_QUESTION.contains(&key) && key != "SCRIPT_FILENAME");
        let whole = param.args[1.min(param.args.len())..].join(" ");
        if own.is_some_and(|(_, usual)| usual.is_empty() || usual.contains(&&*whole)) {
            continue;
        }
        if key == "CONTENT_LENGTH" {
            // The question has no body.
            continue;
        }
        if param.args.len() > 2 {
            return Err(next(key));
        }
        let mut filled = String::new();
        for piece in split(value) {
            let part = match piece {
                Piece::Text(text) => literal(text, cx.keys),
                Piece::Variable("uri" | "document_uri" | "fastcgi_script_name") => {
                    literal(path, cx.keys)
                }
                Piece::Variable("args" | "query_string" | "is_args" | "fastcgi_path_info") => {
                    continue;
                }
                Piece::Variable("document_root" | "realpath_root") => literal(&root, cx.keys),
                Piece::Variable("request_filename") => literal(&format!("{root}{path}"), cx.keys),
                Piece::Variable(name) => {
                    of_client(&variables, (outer, scope), name).map_err(|name| next(&name))?
                }
            };
            join(&mut filled, &part).ok_or_else(|| next(key))?;
        }
        table.table("params").set(key, filled);
    }
    Ok(table)
}

/// Returns the value of a variable in the client's request, as nginx's subrequest for
/// `auth_request` has it. An error is the name of a variable that differs there, or that has no
/// placeholder.
fn of_client(
    variables: &Variables<'_, '_>,
    (outer, scope): (&Scope<'_>, &Scope<'_>),
    name: &str,
) -> Result<String, String> {
    let text = format!("${{{name}}}");
    let is_set_here =
        |set: &super::Directive| set.name == "set" && set.arg(0).strip_prefix('$') == Some(name);
    if scope.own().iter().any(is_set_here) {
        return Err(text);
    }
    // The subrequest has the variables that the client's request has set.
    let of_outer = Variables { scope: outer, ..*variables };
    match of_outer.constant(name) {
        Some("$uri$is_args$args" | "$request_uri") => Ok("{uri}".to_owned()),
        Some(_) => of_outer.fill(&text),
        None if is_of_client(name, scope) => variables.fill(&text),
        None => Err(text),
    }
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
