//! Translates `proxy_pass` and the other directives that pass requests to servers.

use super::auth_copies::{field_of_parameter, is_copied};
use super::files_of::Alias;
use super::here::Here;
use super::locations::LocationKind;
use super::scope::Scope;
use super::syntax::Directive;
use super::upstreams::{BackendProtocol, to};
use super::variables::{Variables, has_variables};
use super::{Cx, files_of, value_maps};
use crate::draft::DraftRoute;
use crate::files;
use crate::keys::{self, Fixed};
use crate::template;
use crate::template::{Mount, mount};
use crate::units::duration;
use crate::value::{Table, Value};

/// Sets the key `proxy` of a route. The text of an error says what the user must do.
pub fn proxy(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    here: &Here<'_, '_>,
    pass: &Directive,
    route: &mut DraftRoute,
) -> Result<(), String> {
    let url = pass.arg(0);
    proxy_to(cx, variables, here, (url, super::variables::has_variables(url)), route)
}

/// Sets the key `proxy` of a route for the URL of a `proxy_pass`. With variables in the URL, its
/// path replaces the whole path of the request (`replaces_path`). The text of an error says what
/// the user must do.
pub fn proxy_to(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    here: &Here<'_, '_>,
    (url_text, replaces_path): (&str, bool),
    route: &mut DraftRoute,
) -> Result<(), String> {
    let text = fill_address(variables, url_text)?;
    let Url { protocol, address, path } = url(&text)?;
    let servers = to(cx, &address, protocol)?;
    let mut table = Table::default().with("to", servers.as_str());
    let is_rewritten = route.keys.get("rewrite").is_some();
    match path {
        // With variables in the URL, nginx replaces the whole path and the query.
        Some(path) if replaces_path => {
            replace_all(cx, &path, route)?;
        }
        Some(path) => replace_prefix(cx, here, &path, &mut table, route)?,
        None if url_text.ends_with("$request_uri") && route.keys.get("rewrite").is_some() => {
            return Err("the server gets the client's path: remove `rewrite`".into());
        }
        None => {}
    }
    request_fields(cx, variables, is_rewritten, &mut table, route);
    options(cx, variables, (&servers, protocol), &mut table, route);
    let value = if table.0.len() == 1 { table.0.remove(0).1 } else { Value::Table(table) };
    route.keys.set("proxy", value);
    Ok(())
}

/// Replaces the variables in an address by their values. An address such as `$backend` stays if the
/// variable has no value, because a `split_clients` block may set the variable. Returns an error if
/// another variable has no value, or if a client would choose the host. The error says what the
/// user must do.
fn fill_address(variables: &Variables<'_, '_>, text: &str) -> Result<String, String> {
    let next = |name: &str| format!("write the address that {name} stands for");
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let rest = if super::variables::has_variables(rest) && !rest.starts_with('$') {
        variables.fill(rest).map_err(|name| next(&name))?
    } else if rest.starts_with('$') {
        // Keep the variable: a later step looks for a `split_clients` block that sets it.
        variables.fill(rest).unwrap_or_else(|_| rest.to_owned())
    } else {
        rest.to_owned()
    };
    // `$request_uri` after the host passes the target unchanged, as Forebay does, so remove
    // `{uri}`.
    let rest = rest.strip_suffix("{uri}").filter(|host| !host.contains('/')).unwrap_or(&rest);
    let (host, _) = rest.split_once(['/', '?']).unwrap_or((rest, ""));
    if host.contains('{') {
        return Err("the client would choose the server: write its address in `proxy`".into());
    }
    Ok(if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") })
}

/// The parts of a URL.
struct Url {
    protocol: BackendProtocol,
    address: String,
    path: Option<String>,
}

/// Parses the URL of `proxy_pass` or `grpc_pass`. The text of an error says what the user must
/// write in the configuration.
fn url(text: &str) -> Result<Url, String> {
    let (scheme, rest) = text.split_once("://").ok_or("write the URL of a server in `proxy`")?;
    let protocol = match scheme.to_ascii_lowercase().as_str() {
        "http" => BackendProtocol::Http,
        "https" | "grpcs" => BackendProtocol::Https,
        "grpc" => BackendProtocol::H2c,
        _ => return Err("write the URL of a server in `proxy`: http://, https:// or h2c://".into()),
    };
    if let Some(socket) = rest.strip_prefix("unix:") {
        let (socket, path) = match socket.split_once(':') {
            Some((socket, path)) => (socket, Some(path.to_owned())),
            None => (socket, None),
        };
        return Ok(Url { protocol, address: format!("unix:{socket}"), path });
    }
    match rest.find(['/', '?']) {
        Some(at) => {
            let (address, path) = rest.split_at(at);
            let slash = if path.starts_with('?') { "/" } else { "" };
            Ok(Url { protocol, address: address.into(), path: Some(format!("{slash}{path}")) })
        }
        None => Ok(Url { protocol, address: rest.into(), path: None }),
    }
}

/// Replaces the path and the query by those of a `proxy_pass` with variables. `target` has
/// placeholders. The text of an error says what the user must do.
fn replace_all(cx: &Cx<'_>, target: &str, route: &mut DraftRoute) -> Result<(), String> {
    // After `rewrite`, `$1` is a group of `rewrite`, and no longer a group of the location's
    // expression.
    if route.keys.get("rewrite").is_some() || !cx.keys.route("rewrite") {
        return Err("write the path that the server gets in `rewrite`".into());
    }
    let (mut to, has_query) = template::without_query(target);
    if !has_query && !to.contains("{query}") && !to.contains("{uri}") {
        // A final question mark drops the client's query.
        to.push('?');
    }
    // A remaining `$` begins a variable that has no placeholder.
    if to.contains('$') || !template::is_rewrite_target(&to) {
        return Err(format!("\"{to}\" is no path: write the server's path in `rewrite`"));
    }
    route.keys.set("rewrite", to);
    Ok(())
}

/// Adds the key that replaces the location's prefix in the path by `path` of the `proxy_pass`. Does
/// nothing if the route has the key `rewrite`. The text of an error says what the user must write
/// in the configuration.
fn replace_prefix(
    cx: &Cx<'_>,
    here: &Here<'_, '_>,
    path: &str,
    table: &mut Table,
    route: &mut DraftRoute,
) -> Result<(), String> {
    if route.keys.get("rewrite").is_some() {
        return Ok(());
    }
    if cx.keys.has("Proxy", "decode_path") {
        table.set("decode_path", true);
    }
    let prefix = here.path().unwrap_or("/");
    match mount(prefix, path, here.is_exact(), cx.keys)? {
        Mount::Same => {}
        Mount::Strip(prefix) => table.set("strip_prefix", prefix),
        Mount::Rewrite(to) => route.keys.set("rewrite", to),
    }
    Ok(())
}

/// Translates the fields that nginx sends to the server. `is_rewritten` is true if nginx's
/// `rewrite` has changed the path. Then `$uri` is the new path, too.
fn request_fields(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    is_rewritten: bool,
    table: &mut Table,
    route: &mut DraftRoute,
) {
    let lost: &[&str] = match (route.keys.get("rewrite"), is_rewritten) {
        (None, _) => &[],
        (Some(_), true) => &["{rest}"],
        (Some(_), false) => &["{rest}", "{path}"],
    };
    let fields = variables.scope.any(&["proxy_set_header", "grpc_set_header"]);
    let host = fields.iter().find(|field| field.arg(0).eq_ignore_ascii_case("host"));
    match host.map(|field| field.arg(1)) {
        Some("$proxy_host") | None => table.set("host", "backend"),
        Some(text) if text.contains("$host") || text.contains("$http_host") => {}
        Some("$server_name") => {
            if let Some(field) = host {
                let next = "servers get the client's Host, which may be another name if this site \
                            answers for unknown hosts: add a site before it that refuses them";
                route.comments.push(cx.note(field, next));
            }
        }
        Some(_) => {
            table.set("host", "backend");
            if let Some(field) = host {
                let next = "servers get the host of their own URL: write that host in `to`";
                route.comments.push(cx.note(field, next));
            }
        }
    }
    for field in fields {
        let fixed = keys::of(field.arg(0), field.arg(1));
        match fixed {
            Some(Fixed::Sent) => continue,
            Some(Fixed::Own) => {
                if !field.arg(1).is_empty() {
                    let next = "Forebay sets or removes this field itself: remove the line";
                    route.comments.push(cx.note(field, next));
                }
                continue;
            }
            Some(Fixed::SentOtherwise) | None => {}
        }
        let name = field.arg(0).replace('_', "-");
        if !cx.keys.route("request_headers") {
            let next = "write it in `request_headers` if this version has it";
            route.comments.push(cx.note(field, next));
            continue;
        }
        // The key `copy` of `forward_auth` already sets this field, so the line needs no other key.
        if is_copied(variables.scope, &name, field.arg(1)) {
            continue;
        }
        let filled = value_maps::fill(cx, variables, field.arg(1));
        let value = match filled.and_then(|value| of_client(value, field.arg(1), lost)) {
            Ok(value) => value,
            Err(unknown) => {
                let effect = match fixed {
                    Some(_) => "Forebay sends its own value",
                    None => "the client's own field is removed",
                };
                let next = format!("{unknown} has no placeholder, so {effect}");
                route.comments.push(cx.note(field, next));
                if fixed.is_some() {
                    continue;
                }
                String::new()
            }
        };
        route.keys.table("request_headers").set(&name, value);
    }
}

/// Returns `value`, or an error with `text` if `value` contains a placeholder of `lost`. After
/// `rewrite`, the placeholders in `lost` are parts of Forebay's new path. nginx would send the same
/// parts of the old path.
fn of_client(value: String, text: &str, lost: &[&str]) -> Result<String, String> {
    if lost.iter().any(|placeholder| value.contains(placeholder)) {
        return Err(format!("after `rewrite`, {text}"));
    }
    Ok(value)
}

/// Adds the time limit for replies of a FastCGI, SCGI or uwsgi application. `table_of` is the name
/// of the table in the schema, and `name` is the name of nginx's directive.
fn reply_timeout(
    cx: &Cx<'_>,
    scope: &Scope<'_>,
    (table_of, name): (&str, &str),
    table: &mut Table,
) {
    let time = scope.value(name).and_then(duration).filter(|time| time != "0s");
    table.set_some("reply_timeout", time.filter(|_| cx.keys.has(table_of, "reply_timeout")));
}

/// Adds the time limit for connecting to a group of applications. Forebay has this key only for
/// groups. Without a group, does not mark the line as read, so that it gets a note later.
fn connect_timeout(cx: &mut Cx<'_>, scope: &Scope<'_>, name: &str, servers: &str) {
    let Some(group) = servers.strip_prefix('@') else { return };
    let time = scope.value(name).and_then(duration).filter(|time| time != "0s");
    let mut groups = cx.draft.upstreams.iter_mut();
    if let (Some(time), Some((_, keys))) = (time, groups.find(|(name, _)| name == group)) {
        keys.set("connect_timeout", time);
    }
}

/// Adds the keys for time limits, redirects, retries, buffering and TLS of a backend.
fn options(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    (servers, protocol): (&str, BackendProtocol),
    table: &mut Table,
    route: &mut DraftRoute,
) {
    let scope = variables.scope;
    let time = |name: &str| scope.value(name).and_then(duration).filter(|time| time != "0s");
    table.set_some(
        "reply_timeout",
        time("proxy_read_timeout").or_else(|| time("grpc_read_timeout")),
    );
    if scope.value("proxy_redirect") == Some("off") {
        table.set("redirect", "off");
    }
    let is_usual = |redirect: &&Directive| matches!(redirect.arg(0), "off" | "default");
    for other in scope.all("proxy_redirect").into_iter().filter(|found| !is_usual(found)) {
        let next =
            "redirects to the server's own address are rewritten by themselves; others are not";
        route.comments.push(cx.note(other, next));
    }
    let mut of_servers = Table::default();
    of_servers.set_some("connect_timeout", time("proxy_connect_timeout"));
    if protocol == BackendProtocol::Https {
        let tls = tls(cx, variables, route);
        if !tls.is_empty() {
            of_servers.set("tls", tls);
        }
    }
    let group = servers.strip_prefix('@');
    let next = scope.nearest("proxy_next_upstream").filter(|words| words.arg(0) == "off");
    let once = scope.nearest("proxy_next_upstream_tries").filter(|tries| tries.arg(0) == "1");
    if let Some(directive) = next.or(once) {
        let next = "Forebay sends a request to another server after a failed connection if it is \
                    safe to resend; no key turns this off";
        route.comments.push(cx.note(directive, next));
    }
    if group.is_some() {
        of_servers.set_some("retry", retry(scope));
    }
    let group = cx.draft.upstreams.iter_mut().find(|(name, _)| Some(name.as_str()) == group);
    let keys = group.map_or(table, |(_, keys)| keys);
    of_servers.0.into_iter().for_each(|(key, value)| keys.set(&key, value));
    if scope.value("proxy_buffering") == Some("on") {
        route.keys.set("buffer", true);
    }
    if scope.value("proxy_request_buffering") == Some("on") {
        route.keys.set("request_buffering", true);
    }
    on_abort(scope, "proxy", route);
}

/// Sets `on_abort` if nginx's directive for this kind of backend differs from Forebay's default.
fn on_abort(scope: &Scope<'_>, kind: &str, route: &mut DraftRoute) {
    match (kind, scope.value(&format!("{kind}_ignore_client_abort"))) {
        ("proxy", Some("on")) => route.keys.set("on_abort", "finish"),
        ("fastcgi" | "scgi" | "uwsgi", Some("off")) => route.keys.set("on_abort", "stop"),
        _ => {}
    }
}

/// Returns the table `retry` for the statuses of `proxy_next_upstream`. Words such as `error` and
/// `timeout` need no key. Returns `None` if there are no statuses, or if nginx makes only one
/// attempt.
fn retry(scope: &Scope<'_>) -> Option<Table> {
    let words = &scope.nearest("proxy_next_upstream")?.args;
    let status = |word: &String| word.strip_prefix("http_")?.parse::<u64>().ok();
    let statuses: Vec<_> = words.iter().filter_map(status).collect();
    if statuses.is_empty() {
        return None;
    }
    // The methods that nginx resends. The list has no methods of WebDAV.
    let mut methods = vec!["GET", "HEAD", "OPTIONS", "PUT", "DELETE"];
    if words.iter().any(|word| word == "non_idempotent") {
        methods.extend(["POST", "PATCH"]);
    }
    let mut retry = Table::default().with("statuses", statuses).with("methods", methods);
    let tries = scope.value("proxy_next_upstream_tries").and_then(|n| n.parse::<u64>().ok());
    if tries == Some(1) {
        return None;
    }
    // Without a limit, nginx tries every server of the group. Forebay allows at most 64 attempts.
    retry.set("attempts", tries.filter(|tries| (2..=64).contains(tries)).unwrap_or(64));
    Some(retry)
}

/// Returns the TLS keys for a backend. Adds a comment if nginx does not verify the backend's
/// certificate.
fn tls(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) -> Table {
    let scope = variables.scope;
    let mut tls = Table::default();
    if !scope.is_on("proxy_ssl_verify")
        && let Some(pass) = scope.nearest("proxy_pass").or_else(|| scope.nearest("grpc_pass"))
    {
        let text = "nginx accepts any certificate of this server. Forebay verifies it: name its \
                    authority with tls = { ca = \"FILE\" } if it is not a public one.";
        route.comments.push(format!("{}: {text}", pass.place));
    }
    for (name, key) in [
        ("proxy_ssl_trusted_certificate", "ca"),
        ("proxy_ssl_certificate", "client_certificate"),
        ("proxy_ssl_certificate_key", "client_key"),
    ] {
        let Some(directive) = scope.nearest(name) else { continue };
        let file = files::below(&cx.dir, directive.arg(0));
        if files::is_readable(&file) {
            tls.set(key, file);
        } else {
            let next = format!("the file {file} cannot be read here: add {key} to `tls`");
            route.comments.push(cx.note(directive, next));
        }
    }
    let name = scope.value("proxy_ssl_name").filter(|name| !name.contains('$'));
    tls.set_some("server_name", name);
    tls
}

/// Sets the key `fastcgi` of a route. The text of an error says what the user must do.
pub fn fastcgi(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    here: &Here<'_, '_>,
    pass: &Directive,
    route: &mut DraftRoute,
) -> Result<(), String> {
    let address = fill_address(variables, pass.arg(0))?;
    let servers = to(cx, &address, BackendProtocol::Plain)?;
    let scope = variables.scope;
    let alias = Alias::of(scope);
    let root = match &alias {
        // The value of `$document_root`.
        Some(alias) => trimmed(alias.directive.arg(0)).to_owned(),
        None => files_of::root(cx, scope),
    };
    let params = scope.all("fastcgi_param");
    let script = params.iter().find(|param| param.arg(0) == "SCRIPT_FILENAME");
    let script = script.map_or("$document_root$fastcgi_script_name", |param| param.arg(1));
    let mut table = Table::default().with("to", servers.as_str());
    reply_timeout(cx, scope, ("Fastcgi", "fastcgi_read_timeout"), &mut table);
    connect_timeout(cx, scope, "fastcgi_connect_timeout", &servers);
    on_abort(scope, "fastcgi", route);
    if let Some(mount) = fastcgi_mount(cx, here, scope, route) {
        table.set("mount", mount);
        table.set_some("root", Some(trimmed(&root)).filter(|root| root.starts_with('/')));
        parameters(cx, variables, "fastcgi_param", &mut table, route);
        route.keys.set("fastcgi", table);
        return Ok(());
    }
    let text = script.replace("$realpath_root", "$document_root");
    let text = match (text.as_str(), &alias) {
        ("$request_filename", None) => "$document_root$fastcgi_script_name",
        (text, None) if names_script(here, text) => "$document_root$fastcgi_script_name",
        (text, _) => text,
    };
    let exact = here.path().filter(|_| here.is_exact());
    if let ("$request_filename", Some(alias), Some(path)) = (text, &alias, exact) {
        one_script(cx, &alias.file(path).unwrap_or_else(|| text.to_owned()), &mut table, route)?;
    } else if let ("$request_filename", Some(alias)) = (text, &alias) {
        let of_alias = scripts_of_alias(alias).ok_or(
            "write the directory of the scripts in `root` of `fastcgi`, and the path of the \
             location in `strip_prefix`",
        )?;
        of_alias.0.into_iter().for_each(|(key, value)| table.set(&key, value));
    } else if let Some(dir) = text.strip_suffix("$fastcgi_script_name") {
        let dir = dir.replace("$document_root", &root);
        if dir.contains('$') || !dir.starts_with('/') {
            return Err("write the directory of the scripts in `root` of `fastcgi`".into());
        }
        table.set("root", trimmed(&dir));
    } else {
        one_script(cx, &text.replace("$document_root", &root), &mut table, route)?;
    }
    table.set_some("index", scope.value("fastcgi_index").filter(|name| *name != "index.php"));
    let index = scope.value("fastcgi_index");
    let is_php = index.is_none_or(|name| name.ends_with(".php"))
        && (address.contains("php") || cx.is_php(&address));
    if !is_php && here.matcher.suffixes.is_empty() {
        table.set("scripts", "*");
        // nginx looks for no file here, so the application finds its pages itself.
        let finds_pages = index.is_some_and(|name| !name.ends_with(".php"));
        if finds_pages && scope.peek_own("try_files").is_none() {
            table.set("must_exist", false);
        }
    } else if !here.matcher.suffixes.is_empty() && here.matcher.suffixes[..] != [".php"] {
        table.set("scripts", here.matcher.suffixes.clone());
    }
    parameters(cx, variables, "fastcgi_param", &mut table, route);
    route.keys.set("fastcgi", table);
    Ok(())
}

/// Returns the keys of `fastcgi` that find the scripts of an alias. Returns `None` if these keys
/// cannot map the paths of the location to the files of the alias.
fn scripts_of_alias(alias: &Alias<'_>) -> Option<Table> {
    let (prefix, dir) = (alias.prefix?, alias.directive.arg(0));
    // With `location /a/` and `alias /dir`, nginx joins both to `/dirx.php`.
    let is_joined = prefix.ends_with('/') && !dir.ends_with('/');
    if is_joined || has_variables(dir) || !dir.starts_with('/') {
        return None;
    }
    let dir = trimmed(dir);
    if let Some(root) = files_of::alias_as_root(prefix, dir) {
        return Some(Table::default().with("root", root));
    }
    // With `location /a` and `alias /d`, nginx also maps `/ab.php` to `/db.php`. Forebay does not: it
    // answers 404.
    let prefix = prefix.trim_end_matches('/');
    Some(Table::default().with("root", dir).with("strip_prefix", prefix))
}

/// Returns the prefix of the path that becomes SCRIPT_NAME. For an application with script files,
/// returns `None`, and adds a comment if nginx finds PATH_INFO in another way than Forebay.
fn fastcgi_mount(
    cx: &mut Cx<'_>,
    here: &Here<'_, '_>,
    scope: &Scope<'_>,
    route: &mut DraftRoute,
) -> Option<String> {
    let params = scope.all("fastcgi_param");
    // Of two parameters with the same name, applications read the last one.
    let param = |name: &str| params.iter().rev().find(|param| param.arg(0) == name).copied();
    let value = |name: &str| param(name).map(|param| param.arg(1));
    let has_file = param("SCRIPT_FILENAME").is_some();
    let split = scope.nearest("fastcgi_split_path_info");
    let fixed = split.and_then(|split| fixed_script(split.arg(0)));
    let is_whole = |text: &str| matches!(text, "$fastcgi_script_name" | "$uri" | "$document_uri");
    let info = value("PATH_INFO").unwrap_or_default();
    match (value("SCRIPT_NAME"), fixed) {
        (None | Some(""), _) if is_whole(info) && !has_file && split.is_none() => {
            return Some(String::new());
        }
        (None | Some("$fastcgi_script_name"), Some(script))
            if info == "$fastcgi_path_info" && !has_file && is_below(here.path(), &script) =>
        {
            return Some(script);
        }
        _ => {}
    }
    let split = split.filter(|split| !split.arg(0).contains("\\."));
    let is_usual = info.is_empty() || info.contains("path_info");
    for directive in split.into_iter().chain(param("PATH_INFO").filter(|_| !is_usual)) {
        let next = "Forebay finds the path info after the file of a script: write `mount` in \
                    `fastcgi` for an application without script files";
        route.comments.push(cx.note(directive, next));
    }
    None
}

/// Returns true for `$document_root$sc` in a location such as `~ ^(?<sc>/.*\.psgi)(?:$|/)`: the group
/// is the path of the script, without path info.
fn names_script(here: &Here<'_, '_>, text: &str) -> bool {
    let LocationKind::Regex { text: expression, .. } = here.location.kind else { return false };
    let group = expression.strip_prefix("^(?<").and_then(|rest| rest.split_once(">/.*\\."));
    group.is_some_and(|(name, rest)| {
        let end = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        text.strip_prefix("$document_root$") == Some(name)
            && end.len() < rest.len()
            && matches!(end, ")(?:$|/)" | ")(?:/|$)" | ")(/|$)" | ")($|/)" | ")$")
    })
}

/// Returns the script of an expression such as `^(/munin)(.*)`. Returns `None` if the first group
/// matches more than one text.
fn fixed_script(expression: &str) -> Option<String> {
    let (script, rest) = expression.strip_prefix("^(")?.split_once(")(")?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_".contains(&byte);
    let is_script = script.starts_with('/')
        && !script.ends_with('/')
        && script.bytes().all(is_plain)
        && crate::pattern::is_path(script);
    let is_rest = matches!(rest.trim_end_matches('$'), ".*)" | ".+)" | "/.*)" | "/.+)" | "|/.*)");
    (is_script && is_rest).then(|| script.to_owned())
}

/// Returns true if a location's path is `script`, or a path below it.
fn is_below(path: Option<&str>, script: &str) -> bool {
    let rest = path.and_then(|path| path.strip_prefix(script));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn trimmed(dir: &str) -> &str {
    if dir.len() > 1 { dir.trim_end_matches('/') } else { dir }
}

/// Sends all paths of a route to the script `file`. The text of an error says what the user must
/// do.
fn one_script(
    cx: &Cx<'_>,
    file: &str,
    table: &mut Table,
    route: &mut DraftRoute,
) -> Result<(), String> {
    let Some((dir, name)) = file.rsplit_once('/').filter(|_| !file.contains('$')) else {
        return Err("write the directory of the scripts in `root` of `fastcgi`".into());
    };
    table.set("root", if dir.is_empty() { "/" } else { dir });
    if route.matcher.paths[..] == [format!("/{name}")] {
        return Ok(());
    }
    if !cx.keys.route("rewrite") {
        return Err(format!("name the script {name} in the path of the request"));
    }
    route.keys.set("rewrite", template::literal(&format!("/{name}"), cx.keys));
    Ok(())
}

/// CGI variables that Forebay sends by itself, each with the values of nginx that have the same
/// effect. An empty list means all values, because other functions read these variables.
pub(super) const STANDARD: [(&str, &[&str]); 29] = [
    ("SCRIPT_FILENAME", &[]),
    ("SCRIPT_NAME", &[]),
    ("PATH_INFO", &[]),
    ("PATH_TRANSLATED", &[]),
    ("QUERY_STRING", &["$query_string", "$args"]),
    ("REQUEST_METHOD", &["$request_method"]),
    ("CONTENT_TYPE", &["$content_type", "$http_content_type"]),
    ("CONTENT_LENGTH", &["$content_length", "$http_content_length"]),
    ("REQUEST_URI", &["$request_uri"]),
    ("DOCUMENT_URI", &["$document_uri", "$uri"]),
    ("DOCUMENT_ROOT", &["$document_root", "$realpath_root"]),
    ("SERVER_PROTOCOL", &["$server_protocol"]),
    ("REQUEST_SCHEME", &["$scheme"]),
    ("HTTPS", &["$https", "$https if_not_empty"]),
    ("GATEWAY_INTERFACE", &[]),
    ("SERVER_SOFTWARE", &[]),
    ("REMOTE_ADDR", &["$remote_addr"]),
    ("REMOTE_PORT", &["$remote_port"]),
    ("REMOTE_USER", &["$remote_user"]),
    ("SERVER_ADDR", &["$server_addr"]),
    ("SERVER_PORT", &["$server_port"]),
    ("SERVER_NAME", &["$host", "$http_host"]),
    ("REDIRECT_STATUS", &[]),
    ("HTTP_PROXY", &[]),
    ("HTTP_HOST", &["$host", "$http_host"]),
    ("SCGI", &["1"]),
    ("UWSGI_SCHEME", &["$scheme"]),
    ("AUTH_USER", &["$remote_user"]),
    ("HTTP_X_FORWARDED_PROTO", &["$http_x_forwarded_proto"]),
];

/// The variables of [`STANDARD`] that may have a fixed value.
const REPLACEABLE: [&str; 10] = [
    "AUTH_USER",
    "DOCUMENT_ROOT",
    "HTTPS",
    "HTTP_HOST",
    "HTTP_X_FORWARDED_PROTO",
    "REMOTE_USER",
    "REQUEST_SCHEME",
    "SERVER_ADDR",
    "SERVER_NAME",
    "SERVER_PORT",
];

/// Translates the parameters of a FastCGI, SCGI or uwsgi server.
fn parameters(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    name: &str,
    table: &mut Table,
    route: &mut DraftRoute,
) {
    let params = variables.scope.all(name);
    for (at, param) in params.iter().enumerate() {
        let (key, value) = (param.arg(0), param.args[1.min(param.args.len())..].join(" "));
        // Of two parameters with the same name, applications read the last one.
        if params[at + 1..].iter().any(|later| later.arg(0) == key) {
            continue;
        }
        let standard = STANDARD.iter().find(|(standard, _)| *standard == key);
        let is_usual =
            standard.is_some_and(|(_, usual)| usual.is_empty() || usual.contains(&&*value));
        if is_usual && !REPLACEABLE.contains(&key) || standard.is_some() && value.is_empty() {
            continue;
        }
        let is_replaceable = standard.is_none() || REPLACEABLE.contains(&key);
        if let Some(fixed) = fixed_value(variables, param.arg(1)).filter(|_| is_replaceable) {
            table.table("params").set(key, fixed);
            continue;
        }
        let is_copied = field_of_parameter(key)
            .is_some_and(|field| is_copied(variables.scope, &field, param.arg(1)));
        if is_usual || is_copied && standard.is_none() {
            continue;
        }
        let next = match key {
            "HTTPS" => {
                "Forebay sends HTTPS=on for clients with TLS: write a fixed value in `params`, or \
                 name the proxy before Forebay in `trusted_proxies`"
                    .to_owned()
            }
            "REMOTE_ADDR" | "REMOTE_PORT" => {
                "Forebay sends the client's own address: name the proxy before Forebay in \
                 `trusted_proxies`"
                    .to_owned()
            }
            _ if is_replaceable => format!("write a fixed value of {key} in `params`"),
            _ => format!("Forebay sends its own value of {key}: remove the line"),
        };
        route.comments.push(cx.note(param, next));
        if key.starts_with("HTTP_") && standard.is_none() {
            // Send an empty parameter, so that the client's own field does not take the place of
            // nginx's value.
            table.table("params").set(key, "");
        }
    }
}

/// Returns a text without variables, or the value of `$server_name`, which is the same for all
/// requests of a server. An application may build links from it, so it must not become the
/// client's Host.
fn fixed_value(variables: &Variables<'_, '_>, text: &str) -> Option<String> {
    if text == "$server_name" {
        let name = variables.scope.value("server_name").unwrap_or_default();
        return (!name.contains(['*', '~', '$'])).then(|| name.to_owned());
    }
    (!has_variables(text)).then(|| text.to_owned())
}

/// Sets the key `scgi` or `uwsgi` of a route. The text of an error says what the user must do.
pub fn app_server(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    pass: &Directive,
    route: &mut DraftRoute,
) -> Result<(), String> {
    let address = fill_address(variables, pass.arg(0))?;
    let address = address.strip_prefix("uwsgi://").unwrap_or(&address);
    let servers = to(cx, address, BackendProtocol::Plain)?;
    let kind = pass.name.trim_end_matches("_pass");
    let mut table = Table::default().with("to", servers.as_str());
    let name = format!("{kind}_param");
    let params = variables.scope.all(&name);
    let mount = params.iter().find(|param| param.arg(0) == "SCRIPT_NAME").map(|param| param.arg(1));
    let is_mount = |path: &&str| {
        path.starts_with('/') && path.len() > 1 && !path.contains(['$', '*', '?', '%'])
    };
    table.set_some("mount", mount.filter(is_mount));
    let table_of = if kind == "scgi" { "Scgi" } else { "Uwsgi" };
    let limit = format!("{kind}_read_timeout");
    reply_timeout(cx, variables.scope, (table_of, &limit), &mut table);
    connect_timeout(cx, variables.scope, &format!("{kind}_connect_timeout"), &servers);
    for (directive, key) in [("uwsgi_modifier1", "modifier1"), ("uwsgi_modifier2", "modifier2")] {
        let number = variables.scope.value(directive).and_then(|text| text.parse::<u8>().ok());
        table.set_some(key, number.map(u64::from).filter(|_| kind == "uwsgi"));
    }
    parameters(cx, variables, &name, &mut table, route);
    on_abort(variables.scope, kind, route);
    route.keys.set(kind, table);
    Ok(())
}
