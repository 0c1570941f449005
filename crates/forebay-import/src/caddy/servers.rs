//! Translates `reverse_proxy`, and calls the translation of other directives that answer requests.

use super::addresses::url;
use super::around::Around;
use super::needless::is_needless;
use super::rewrites::fill;
use super::syntax::Directive;
use super::{Cx, files};
use crate::draft::DraftRoute;
use crate::units::duration;
use crate::value::{Table, Value};

/// Returns true for a directive that restricts access.
pub fn is_gate(name: &str) -> bool {
    ["basic_auth", "basicauth", "forward_auth", "authenticate", "authorize", "jwtauth", "security"]
        .contains(&name)
}

/// Returns the routes of a directive that passes requests on, or that sends files.
pub fn answer(
    cx: &mut Cx<'_>,
    directive: &Directive,
    args: &[String],
    route: DraftRoute,
    here: &mut Around<'_>,
) -> Vec<DraftRoute> {
    match directive.name.as_str() {
        "reverse_proxy" => proxy(cx, directive, args, route, here),
        "php_fastcgi" => files::php(cx, directive, args, route, here),
        "metrics" => {
            cx.draft.server.set("admin", "127.0.0.1:9900");
            let mut route = route.respond(404);
            route.comments.push(
                "Forebay's own figures are at `admin` of [server]: /status and /metrics.".into(),
            );
            vec![route]
        }
        _ => files::file_server(cx, directive, args, route, here),
    }
}

fn proxy(
    cx: &mut Cx<'_>,
    directive: &Directive,
    args: &[String],
    mut route: DraftRoute,
    here: &Around<'_>,
) -> Vec<DraftRoute> {
    let mut servers: Vec<String> = args.to_vec();
    let mut table = Table::default();
    let is_other = |line: &&Directive| line.name == "transport" && line.arg(0) != "http";
    if let Some(transport) = directive.inside().iter().find(is_other) {
        let next = "this is no HTTP server: write `fastcgi` or another key in the route";
        let comment = cx.note(transport, next);
        directive.settle_all();
        return vec![route.closed(comment)];
    }
    let is_option = |inner: &&Directive| !is_needless("reverse_proxy", &inner.name);
    for inner in directive.inside().iter().filter(is_option) {
        inner.settle();
        option(cx, inner, (&mut servers, &mut table), &mut route);
    }
    let urls: Option<Vec<String>> = servers.iter().map(|server| url(server)).collect();
    let Some(urls) = urls.filter(|urls| !urls.is_empty() && urls.len() <= 64) else {
        let comment = cx.note(directive, "write the addresses of the servers in `proxy`");
        return vec![route.closed(comment)];
    };
    let is_tls = table.get("over_tls").is_some();
    table.remove("over_tls");
    let urls: Vec<String> = urls
        .into_iter()
        .map(|url| if is_tls { url.replacen("http://", "https://", 1) } else { url })
        .collect();
    let mut all = Table::default();
    match &urls[..] {
        [url] => all.set("to", url.as_str()),
        urls => all.set("to", Value::List(weighted(cx, directive, urls))),
    }
    all.set_some("strip_prefix", here.strip.as_deref().filter(|prefix| !prefix.is_empty()));
    all.0.extend(table.0);
    let value = if all.0.len() == 1 && urls.len() == 1 { all.0.remove(0).1 } else { all.into() };
    route.keys.set("proxy", value);
    vec![route]
}

/// Returns a list for the key `to`: the servers, with the weights or the order of `lb_policy`.
fn weighted(cx: &mut Cx<'_>, directive: &Directive, urls: &[String]) -> Vec<Value> {
    let policy = directive.inside().iter().find(|line| line.name == "lb_policy");
    let plain = || urls.iter().map(|url| Value::from(url.as_str())).collect();
    let Some(policy) = policy else { return plain() };
    let server = |url: &String| Table::default().with("url", url.as_str());
    match policy.arg(0) {
        "first" => {
            if urls.len() > 2 {
                cx.note(policy, "the servers after the first one get requests in turn");
            }
            let backup = |url: &String| Value::Table(server(url).with("backup", true));
            let first = Value::from(urls[0].as_str());
            std::iter::once(first).chain(urls[1..].iter().map(backup)).collect()
        }
        "weighted_round_robin" => {
            let weights: Option<Vec<u64>> =
                policy.args[1..].iter().map(|weight| weight.parse().ok()).collect();
            let weights = weights.filter(|all| {
                all.len() == urls.len() && all.iter().all(|weight| (1..=256).contains(weight))
            });
            let Some(weights) = weights else {
                cx.note(policy, "write the `weight` of each server in `to`");
                return plain();
            };
            let server = |(url, weight)| Value::Table(server(url).with("weight", weight));
            urls.iter().zip(weights).map(server).collect()
        }
        _ => plain(),
    }
}

/// Translates a line within `reverse_proxy`.
fn option(
    cx: &mut Cx<'_>,
    inner: &Directive,
    (servers, table): (&mut Vec<String>, &mut Table),
    route: &mut DraftRoute,
) {
    match inner.name.as_str() {
        "to" => servers.extend(inner.args.iter().cloned()),
        "lb_policy" => match inner.arg(0) {
            // The function `weighted` reads `first` and `weighted_round_robin`.
            "round_robin" | "random" | "first" | "weighted_round_robin" => {}
            "least_conn" => table.set("balance", "least-connections"),
            "random_choose" if ["", "2"].contains(&inner.arg(1)) => {
                table.set("balance", "random-two");
            }
            "ip_hash" | "client_ip_hash" => table.set("balance", "hash"),
            "uri_hash" => {
                table.set("balance", "hash");
                table.set("hash_key", "{uri}");
            }
            "header" => {
                table.set("balance", "hash");
                table.set("hash_key", format!("{{header.{}}}", inner.arg(1)));
            }
            "cookie" => {
                let name = if inner.arg(1).is_empty() { "lb" } else { inner.arg(1) };
                table.set("sticky", Table::default().with("cookie", name));
            }
            _ => drop(
                cx.note(inner, "requests go to each server in turn: see `balance` and `sticky`"),
            ),
        },
        "health_uri" | "health_path" => {
            let path = inner.arg(0).split('?').next().unwrap_or("/").to_owned();
            table.table("health").set("path", path);
        }
        "health_status" => {
            let text = inner.arg(0);
            table.table("health").set("statuses", vec![text]);
        }
        "health_port" => {
            table.table("health").set_some("port", inner.arg(0).parse::<u64>().ok());
        }
        // In Caddy, the text is a regular expression. Forebay looks for a plain text, so translate
        // only texts without special characters.
        "health_body" if !inner.arg(0).contains(|c: char| r"\.+*?()|[]{}^$".contains(c)) => {
            table.table("health").set("body", inner.arg(0));
        }
        "health_interval" => table.table("health").set_some("interval", time(cx, inner)),
        "health_timeout" => table.table("health").set_some("timeout", time(cx, inner)),
        "fail_duration" => table.set_some("fail_timeout", time(cx, inner)),
        "max_fails" => match inner.arg(0).parse::<u64>() {
            Ok(number) => table.set("max_fails", number),
            Err(_) => drop(cx.note(inner, "write the number in `max_fails`")),
        },
        "header_up" => header_up(cx, inner, table, route),
        "header_down" => {
            let name = inner.arg(0);
            match (name.strip_prefix('-'), inner.args.len()) {
                (Some(name), _) => remove(&mut route.keys, name),
                (None, 2) => match fill(cx, inner.arg(1), None) {
                    Some(value) => {
                        let value = if name.starts_with('?') {
                            let table = Table::default().with("value", value);
                            table.with("if_missing", true).into()
                        } else {
                            Value::from(value)
                        };
                        let repeats = name.starts_with('+') && cx.keys.route("add_headers");
                        let key = if repeats { "add_headers" } else { "set_headers" };
                        let table = route.keys.table(key);
                        let field = name.trim_start_matches(['+', '>', '?']);
                        if !name.starts_with('?') || table.get(field).is_none() {
                            table.set(field, value);
                        }
                    }
                    None => drop(cx.note(inner, "write a fixed value in `set_headers`")),
                },
                _ => drop(cx.note(inner, "write a fixed value in `set_headers`")),
            }
        }
        "transport" => inner.inside().iter().for_each(|line| transport(cx, line, table)),
        _ => drop(cx.note(inner, "see the keys of `proxy`, or remove the line")),
    }
}

/// Translates a line within `transport http`.
fn transport(cx: &mut Cx<'_>, line: &Directive, table: &mut Table) {
    match line.name.as_str() {
        "tls" => table.set("over_tls", true),
        "tls_insecure_skip_verify" => {
            table.set("over_tls", true);
            table.table("tls").set("verify", false);
        }
        "tls_server_name" => table.table("tls").set("server_name", line.arg(0)),
        "dial_timeout" => table.set_some("connect_timeout", time(cx, line)),
        "response_header_timeout" | "read_timeout" => {
            table.set_some("reply_timeout", time(cx, line).filter(|time| time != "0s"));
        }
        "versions" if line.args.iter().any(|v| v == "h2c") => table.set("http_version", "2"),
        "proxy_protocol" => table.set("send_proxy", line.arg(0)),
        name if is_needless("transport", name) => {}
        _ => drop(cx.note(line, "see the keys of `proxy`")),
    }
    line.settle();
}

/// Returns the first argument of a line as a time. Adds a note and returns `None` if the argument
/// is not a time.
fn time(cx: &mut Cx<'_>, line: &Directive) -> Option<String> {
    let time = duration(line.arg(0));
    if time.is_none() {
        cx.note(line, "write one time, such as \"30s\"");
    }
    time
}

/// Caddy's placeholders of the host that the client named, without and with its port.
const HOSTS: [&str; 4] = ["{host}", "{hostport}", "{http.request.host}", "{http.request.hostport}"];

/// Translates `header_up [-|+]NAME VALUE`.
pub fn header_up(cx: &mut Cx<'_>, inner: &Directive, table: &mut Table, route: &mut DraftRoute) {
    let (name, value) = (inner.arg(0), inner.arg(1));
    if name.eq_ignore_ascii_case("host") {
        if value.contains("upstream") {
            table.set("host", "backend");
        } else if !HOSTS.iter().any(|host| value.contains(host)) {
            table.set("host", "backend");
            route.comments.push(
                cx.note(inner, "servers get the host of their own URL: write that host in `to`"),
            );
        }
        return;
    }
    let bare = name.trim_start_matches(['-', '+', '?']).replace('_', "-");
    let lower = bare.to_ascii_lowercase();
    if ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "upgrade", "connection"]
        .contains(&lower.as_str())
        && !name.starts_with('-')
    {
        let usual = ["remote", "client_ip", "{scheme}", "X-Forwarded-"];
        let is_usual = usual.iter().chain(&HOSTS).any(|usual| value.contains(usual));
        if !is_usual && !["upgrade", "connection"].contains(&lower.as_str()) {
            route.comments.push(cx.note(inner, "Forebay sends its own value of this field"));
        }
        return;
    }
    if !cx.keys.route("request_headers")
        || bare.is_empty()
        || bare.contains('*')
        || inner.args.len() > 2
    {
        route.comments.push(cx.note(inner, "write it in `request_headers` if this version has it"));
        return;
    }
    let value = if name.starts_with('-') { Some(String::new()) } else { fill(cx, value, None) };
    let value = value.unwrap_or_else(|| {
        let next = "the value has no placeholder, so the client's own field is removed";
        route.comments.push(cx.note(inner, next));
        String::new()
    });
    route.keys.table("request_headers").set(&bare, value);
}

/// Adds the field `name` to the key `remove_headers`.
pub fn remove(keys: &mut Table, name: &str) {
    let mut list = match keys.get("remove_headers") {
        Some(Value::List(list)) => list.clone(),
        _ => Vec::new(),
    };
    list.push(name.into());
    keys.set("remove_headers", Value::List(list));
}
