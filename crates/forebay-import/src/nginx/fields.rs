//! Translates changes to replies (fields, expiry, compression), logs and limits.

use super::Cx;
use super::bodies::bodies;
use super::cache::cache;
use super::scope::Scope;
use super::syntax::Directive;
use super::upstreams::{BackendProtocol, to};
use super::variables::Variables;
use super::{logs, names, value_maps};
use crate::draft::DraftRoute;
use crate::units::{duration, is_media_type, size};
use crate::value::{Table, Value};

/// Fields that belong to the connection. Forebay does not let a configuration set them.
const FRAMING: [&str; 7] =
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Fields that a reply may have several times.
const REPEATED: [&str; 4] = ["set-cookie", "link", "vary", "www-authenticate"];

/// Adds keys to a route for the fields, expiry, compression, logs and limits of its scope. Does
/// nothing on the second call for a route.
pub fn decorate(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) {
    let scope = variables.scope;
    if std::mem::replace(&mut route.is_decorated, true) {
        return;
    }
    reply_fields(cx, variables, route);
    expires(cx, scope, route);
    cookies(cx, scope, route);
    charset(cx, scope, route);
    if let Some(compress) = compress(scope) {
        let is_fixed = ["respond", "redirect"].iter().any(|key| route.keys.get(key).is_some());
        if cx.site_compress.as_ref() != Some(&compress) && !is_fixed {
            route.keys.set("compress", compress);
        }
    } else if cx.site_compress.is_some() {
        route.keys.set("compress", false);
    }
    logs::route(cx, scope, route);
    let limit = scope.value("client_max_body_size").map(max_body);
    if limit != cx.site_max_body {
        route.keys.set_some("max_body", limit);
    }
    rate_limit(cx, variables, route);
    concurrency_limit(cx, variables, route);
    cache(cx, variables, route);
    bandwidth(cx, scope, route);
    timeouts(cx, scope, route);
    mirror(cx, scope, route);
    bodies(cx, variables, route);
}

fn charset(cx: &mut Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    let Some(directive) = scope.nearest("charset").filter(|found| found.arg(0) != "off") else {
        return;
    };
    if !cx.keys.route("charset") || directive.arg(0).contains('$') {
        let next = "write one character set in `charset`";
        route.comments.push(cx.note(directive, next));
    } else if route.keys.get("redirect").is_none() {
        route.keys.set("charset", directive.arg(0));
    }
}

/// Translates `client_body_timeout` and `send_timeout` of a server or location. The values of the
/// block `http` are in `[server.timeouts]`.
fn timeouts(cx: &Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    let is_redirect = route.keys.get("redirect").is_some();
    let mut table = Table::default();
    for (name, key) in [("client_body_timeout", "body_idle"), ("send_timeout", "write")] {
        let Some(own) = scope.value(name).filter(|own| cx.http.value(name) != Some(*own)) else {
            continue;
        };
        table.set_some(key, duration(own).filter(|time| time != "0s"));
    }
    if !table.is_empty() && !is_redirect && cx.keys.route("timeouts") {
        route.keys.set("timeouts", table);
    }
}

fn bandwidth(cx: &mut Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    let Some(directive) = scope.nearest("limit_rate") else { return };
    let rate = match size(directive.arg(0)) {
        Some(rate) if rate == "0" => return,
        Some(rate) => rate,
        None => {
            let next = "write the bytes per second in `bandwidth_limit`";
            return route.comments.push(cx.note(directive, next));
        }
    };
    match scope.value("limit_rate_after").and_then(size).filter(|after| after != "0") {
        Some(after) => {
            let table = Table::default().with("rate", rate).with("after", after);
            route.keys.set("bandwidth_limit", table);
        }
        None => route.keys.set("bandwidth_limit", rate),
    }
}

/// Translates `mirror` to a mirror at the server of the location that `mirror` names. Forebay keeps
/// the path of the request.
fn mirror(cx: &mut Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    let all: Vec<&Directive> = scope.all("mirror");
    let Some(&directive) = all.iter().find(|mirror| mirror.arg(0) != "off") else { return };
    if let Some(second) = all.iter().filter(|mirror| mirror.arg(0) != "off").nth(1) {
        route.comments.push(cx.note(second, "a route has one mirror: the first one is used"));
    }
    let path = directive.arg(0);
    let location = scope
        .every("location")
        .find(|location| location.args.last().is_some_and(|last| last == path));
    let pass = location
        .and_then(|location| location.inside().iter().find(|inner| inner.name == "proxy_pass"));
    location.into_iter().chain(pass).for_each(Directive::settle);
    let is_same_path = |rest: &str| matches!(rest, "" | "$request_uri");
    let server = pass.and_then(|pass| {
        let (scheme, rest) = pass.arg(0).split_once("://")?;
        let end = rest.find(['/', '$']).unwrap_or(rest.len());
        let (address, path) = rest.split_at(end);
        let protocol = match scheme {
            "https" => BackendProtocol::Https,
            _ => BackendProtocol::Http,
        };
        is_same_path(path).then(|| to(cx, address, protocol).ok()).flatten()
    });
    let Some(server) = server else {
        let next = "write the server that gets the copies: mirror = { to = \"http://HOST:PORT\" }";
        return route.comments.push(cx.note(directive, next));
    };
    // nginx copies all fields, also those with credentials.
    let mut table = Table::default().with("to", server).with("credentials", true);
    if scope.value("mirror_request_body") == Some("off") {
        table.set("max_body", "0");
    }
    route.keys.set("mirror", table);
}

/// Returns the limit on request bodies in Forebay's form. If the text is not a size, returns
/// nginx's default.
pub fn max_body(text: &str) -> String {
    match size(text) {
        Some(size) if size == "0" => "unlimited".into(),
        Some(size) => size,
        None => "1MiB".into(),
    }
}

/// Translates `add_header` and similar directives, which change the fields of replies.
fn reply_fields(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) {
    let fields = variables.scope.all("add_header");
    let is_always = |field: &&Directive| field.arg(2) == "always";
    let all_always = !fields.is_empty() && fields.iter().all(is_always);
    let has_always = cx.keys.route("always");
    if all_always && has_always {
        route.keys.set("always", true);
    }
    for field in fields {
        let name = field.arg(0);
        let lower = name.to_ascii_lowercase();
        if FRAMING.contains(&lower.as_str()) {
            route.comments.push(cx.note(field, "Forebay sets this field itself: remove the line"));
            continue;
        }
        let is_changed = ["rewrite", "fallback_to"].iter().any(|key| route.keys.get(key).is_some());
        if is_changed && (field.arg(1).contains("$uri") || field.arg(1).contains("$document_uri")) {
            let next = "{path} is the path after `rewrite`: write another value if it must be the \
                        client's path";
            route.comments.push(cx.note(field, next));
        }
        let value = match text_of(cx, variables, field.arg(1)) {
            Ok(value) if value.is_empty() => continue,
            Ok(value) => value,
            Err(unknown) => {
                let next = if unknown == "$upstream_cache_status" {
                    "Forebay sends Cache-Status with this information: remove the line".into()
                } else {
                    format!("{unknown} has no placeholder: write a fixed value in `set_headers`")
                };
                route.comments.push(cx.note(field, next));
                continue;
            }
        };
        let value = if has_always && !all_always && field.arg(2) == "always" {
            Value::from(Table::default().with("value", value).with("always", true))
        } else {
            Value::from(value)
        };
        let repeats = REPEATED.contains(&lower.as_str()) && cx.keys.route("add_headers");
        let key = if repeats { "add_headers" } else { "set_headers" };
        let table = route.keys.table(key);
        let is_set = table.0.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        if is_set {
            route.comments.push(cx.note(field, "the field is set already: join both values"));
        } else {
            table.set(name, value);
        }
    }
    for hidden in variables.scope.any(&["proxy_hide_header", "fastcgi_hide_header"]) {
        let mut list = match route.keys.get("remove_headers") {
            Some(Value::List(list)) => list.clone(),
            _ => Vec::new(),
        };
        if !FRAMING.contains(&hidden.arg(0).to_ascii_lowercase().as_str()) {
            list.push(hidden.arg(0).into());
            route.keys.set("remove_headers", Value::List(list));
        }
    }
}

/// Returns the value of a field with placeholders and without control characters. An error is the
/// name of a variable without a placeholder.
fn text_of(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, text: &str) -> Result<String, String> {
    let filled = value_maps::fill(cx, variables, text)?;
    let plain: String = filled.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Ok(plain.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Translates `expires`. Does nothing for redirects, and for fixed replies with another status than
/// 200, 201, 204 or 206.
fn expires(cx: &mut Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    let Some(directive) = scope.nearest("expires") else { return };
    let text = directive.args.join(" ");
    // nginx adds the fields to replies with these statuses, and to redirects. The translation does
    // not add them to redirects.
    let is_other = match route.keys.get("respond") {
        Some(Value::Table(reply)) => {
            !matches!(reply.get("status"), Some(Value::Number(200 | 201 | 204 | 206)))
        }
        _ => route.keys.get("redirect").is_some(),
    };
    match text.as_str() {
        _ if is_other => {}
        "off" => {}
        "max" => route.keys.set("expires", "3650d"),
        "epoch" => route.keys.table("set_headers").set("Cache-Control", "no-cache"),
        negative if negative.starts_with('-') => {
            route.keys.table("set_headers").set("Cache-Control", "no-cache");
        }
        time => match duration(time) {
            Some(time) => route.keys.set("expires", time),
            None => match expires_by_type(cx, time).filter(|_| cx.keys.has("Expires", "types")) {
                Some(table) => route.keys.set("expires", table),
                None => {
                    let next =
                        "write a time such as expires = \"30d\", or times by type in `types`";
                    route.comments.push(cx.note(directive, next));
                }
            },
        },
    }
}

/// Translates `proxy_cookie_flags ~ FLAG...`, which holds for all cookies.
fn cookies(cx: &mut Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    if !cx.keys.route("cookies") || route.keys.get("proxy").is_none() {
        return;
    }
    for directive in scope.all("proxy_cookie_flags") {
        let flag = |flag: &String| match flag.to_ascii_lowercase().as_str() {
            "secure" => Some(("secure", Value::from(true))),
            "httponly" => Some(("http_only", true.into())),
            "samesite=strict" => Some(("same_site", "strict".into())),
            "samesite=lax" => Some(("same_site", "lax".into())),
            "samesite=none" => Some(("same_site", "none".into())),
            _ => None,
        };
        let flags: Option<Vec<_>> = directive.args.iter().skip(1).map(flag).collect();
        match flags.filter(|_| matches!(directive.arg(0), "~" | "~." | "~.*")) {
            Some(flags) => {
                let cookies = route.keys.table("cookies");
                flags.into_iter().for_each(|(key, value)| cookies.set(key, value));
            }
            None => {
                let next = names::next_step("proxy_cookie_flags");
                route.comments.push(cx.note(directive, next));
            }
        }
    }
}

/// The times by media type of `map $sent_http_content_type $variable`. `None`: there is no such map,
/// or one of its lines has another form.
fn expires_by_type(cx: &Cx<'_>, variable: &str) -> Option<Table> {
    let map = cx
        .http
        .every("map")
        .find(|map| map.arg(1) == variable && map.arg(0) == "$sent_http_content_type")?;
    let time = |text: &str| match text {
        "max" => Some("3650d".to_owned()),
        "epoch" => Some("0s".to_owned()),
        text if text.starts_with('-') => Some("0s".to_owned()),
        text => duration(text),
    };
    let mut table = Table::default();
    let mut types = Table::default();
    for line in map.inside() {
        let is_off = line.arg(0) == "off";
        match line.name.as_str() {
            "default" if is_off => {}
            "default" => table.set("default", time(line.arg(0))?),
            _ if is_off => return None,
            name => {
                // `~image/` finds the text anywhere, which for a type and its slash is the beginning.
                let pattern = match name.trim_start_matches("~*").trim_start_matches(['~', '^']) {
                    kind if kind.len() == name.len() => kind.to_owned(),
                    kind => format!("{}*", kind.strip_suffix('/').map(|kind| format!("{kind}/"))?),
                };
                if !is_media_type(&pattern) {
                    return None;
                }
                types.set(&pattern, time(line.arg(0))?);
            }
        }
    }
    table.set("types", types);
    Some(table)
}

/// Returns the value of Forebay's key `compress` for an nginx block. Returns `None` if `gzip` is
/// off.
pub fn compress(scope: &Scope<'_>) -> Option<Value> {
    if !scope.is_on("gzip") {
        return None;
    }
    let min_size = scope.value("gzip_min_length").and_then(size);
    let mut types = vec!["text/html".to_owned()];
    if let Some(directive) = scope.nearest("gzip_types") {
        if directive.args.iter().any(|kind| kind == "*") {
            return Some(Value::Bool(true));
        }
        let is_type = |kind: &&String| {
            let is_part = |part: &str| {
                !part.is_empty()
                    && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+._".contains(&b))
            };
            kind.split_once('/').is_some_and(|(main, sub)| is_part(main) && is_part(sub))
        };
        for kind in directive.args.iter().filter(is_type) {
            if !types.contains(kind) {
                types.push(kind.clone());
            }
        }
    }
    let mut table = Table::default().with("types", types);
    table.set_some("min_size", min_size);
    Some(table.into())
}

/// Adds the limits on the rate of requests.
fn rate_limit(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) {
    let mut tables = Vec::new();
    for limit in variables.scope.all("limit_req") {
        match rate(cx, variables, limit).filter(|_| cx.keys.route("rate_limit")) {
            Some(table) => tables.push(table),
            None => {
                let next = "the rate of requests is not limited: write `rate_limit` if this version has it";
                route.comments.push(cx.note(limit, next));
            }
        }
    }
    match tables.len() {
        0 => {}
        1 => route.keys.set("rate_limit", tables.remove(0)),
        _ => route.keys.set("rate_limit", tables),
    }
}

/// Adds the limits on requests that run at once. nginx counts connections with such a request, and
/// no idle ones.
fn concurrency_limit(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) {
    let mut tables = Vec::new();
    for limit in variables.scope.all("limit_conn") {
        let zone = zone_of(cx, "limit_conn_zone", limit.arg(0));
        let key = zone.and_then(|zone| variables.fill(zone.arg(0)).ok());
        let max = limit.arg(1).parse::<u64>().ok().filter(|max| *max > 0);
        match key.zip(max).filter(|_| cx.keys.route("concurrency_limit")) {
            Some((key, max)) => tables.push(Table::default().with("max", max).with("key", key)),
            None => {
                let next = "the requests at once are not limited: write `concurrency_limit`";
                route.comments.push(cx.note(limit, next));
            }
        }
    }
    match tables.len() {
        0 => {}
        1 => route.keys.set("concurrency_limit", tables.remove(0)),
        _ => route.keys.set("concurrency_limit", tables),
    }
}

/// Maximum time that a request may wait in Forebay, in seconds.
const LONGEST_WAIT: u64 = 60;

/// Returns the limit of `limit_req zone=NAME burst=N [nodelay]`. Returns `None` if the zone or one
/// of its values has no translation.
fn rate(cx: &Cx<'_>, variables: &Variables<'_, '_>, limit: &Directive) -> Option<Table> {
    let argument = |name: &str| limit.args.iter().find_map(|arg| arg.strip_prefix(name));
    let zone = zone_of(cx, "limit_req_zone", argument("zone=")?)?;
    let key = variables.fill(zone.arg(0)).ok()?;
    let rate = zone.args.iter().find_map(|arg| arg.strip_prefix("rate="))?;
    let (requests, unit) = rate.split_once("r/")?;
    let requests: u64 = requests.parse().ok().filter(|requests| *requests > 0)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        _ => return None,
    };
    let burst: u64 = argument("burst=").map_or(Some(0), |burst| burst.parse().ok())?;
    let mut table = Table::default().with("rate", format!("{requests}/{unit}"));
    table.set("burst", burst);
    table.set("key", key);
    let waits = burst > 0 && !limit.args.iter().any(|arg| arg == "nodelay");
    if waits && burst.saturating_mul(seconds) / requests < LONGEST_WAIT {
        table.set("delay", true);
    }
    Some(table)
}

/// Returns the zone with this name, or `None` if there is none.
fn zone_of<'a>(cx: &Cx<'a>, kind: &str, name: &str) -> Option<&'a Directive> {
    let is_zone = |directive: &&Directive| {
        directive.args.iter().any(|arg| {
            arg.strip_prefix("zone=").is_some_and(|zone| zone.split(':').next() == Some(name))
        })
    };
    cx.http.every(kind).find(is_zone)
}
