//! Translates directives that change requests or replies, or that restrict access.

use super::Cx;
use super::addresses::url;
use super::around::Layer;
use super::rewrites::fill;
use super::servers::{header_up, is_gate, remove};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::template::literal;
use crate::units::decimal_bytes;
use crate::value::{Table, Value};

/// Sets the keys of a directive that changes requests or replies, or that restricts access.
pub fn layer(cx: &mut Cx<'_>, directive: &Directive, args: &[String], layer: &mut Layer) {
    match directive.name.as_str() {
        "encode" => {
            layer.keys.set("compress", encode(directive, args));
        }
        "header" => header(cx, directive, args, layer),
        "request_header" => {
            let inner = directive.with_words(directive.name.clone(), args.to_vec());
            let mut route = DraftRoute::new(&directive.place, "", Matcher::default());
            header_up(cx, &inner, &mut Table::default(), &mut route);
            layer.keys.0.extend(route.keys.0);
        }
        "request_body" => {
            let limit = directive.inside().iter().find(|inner| inner.name == "max_size");
            limit.iter().for_each(|limit| limit.settle());
            let limit = limit.map_or(args.get(1).map_or("", String::as_str), |inner| inner.arg(0));
            match decimal_bytes(limit) {
                // In Caddy, 0 means that there is no limit.
                Some(0) => layer.keys.set("max_body", "unlimited"),
                Some(limit) => layer.keys.set("max_body", limit.to_string()),
                None if limit.is_empty() => {}
                None => layer.closed = Some(cx.note(directive, "write the limit in `max_body`")),
            }
        }
        "log_skip" | "skip_log" => layer.keys.set("log", false),
        "basic_auth" | "basicauth" => {
            let users =
                directive.inside().iter().map(|user| user.name.as_str()).collect::<Vec<_>>();
            let next = format!(
                "write a file with a line NAME:HASH for each user ({}), then basic_auth = {{ file = \"FILE\" }}",
                users.join(", ")
            );
            layer.closed = Some(cx.note(directive, next));
        }
        "forward_auth" => forward_auth(cx, directive, args, layer),
        "log" | "log_name" | "log_append" => {
            cx.note(directive, "write [log] with access = \"FILE\"");
        }
        // The module `sites` reads these lines.
        "tls" | "bind" => {}
        "tracing" => drop(cx.note(directive, "traces of all sites go to `endpoint` of [traces]")),
        "push" => drop(cx.note(directive, "browsers ignore pushed replies: remove the line")),
        "import" => {
            layer.closed =
                Some(cx.note(directive, "the file does not exist: copy it here, and import again"));
        }
        name if is_gate(name) => {
            layer.closed = Some(
                cx.note(directive, "write the rule with `allow`, `basic_auth` or `forward_auth`"),
            );
        }
        "templates" | "intercept" | "map" | "handle_errors" | "vars" => {
            cx.note(directive, "Forebay has no such directive: let the application do it");
        }
        "method" | "invoke" => {
            // Close the layer. Without `method`, the server would get another method. Without
            // `invoke`, requests would skip the access rules of the invoked route.
            layer.closed = Some(cx.note(directive, "write routes for these requests"));
        }
        name => {
            let next = if OF_VERSION_1.contains(&name) {
                "this line is of Caddy 1: convert the file to Caddy 2, and import it again"
            } else {
                "Forebay has no such directive: look for a key in the configuration reference, or remove the line"
            };
            let comment = cx.note(directive, next);
            // A directive of a plugin may restrict access, so close the routes.
            if !HARMLESS.contains(&name) {
                layer.closed = Some(comment);
            }
        }
    }
}

/// Returns the key `compress` for `encode`.
fn encode(directive: &Directive, args: &[String]) -> Value {
    let (mut kinds, mut table): (Vec<&str>, _) = (Vec::new(), Table::default());
    let mut add = |name: &str| {
        let known = ["zstd", "gzip", "br"].into_iter().find(|known| *known == name);
        if let Some(known) = known.filter(|known| !kinds.contains(known)) {
            kinds.push(known);
        }
        known.is_some()
    };
    for name in args {
        add(name);
    }
    for inner in directive.inside() {
        if add(&inner.name) {
            inner.settle();
        } else if inner.name == "minimum_length"
            && let Ok(bytes) = inner.arg(0).parse::<u64>()
        {
            inner.settle();
            table.set("min_size", bytes.to_string());
        }
    }
    if !kinds.is_empty() {
        table.0.insert(0, ("algorithms".into(), kinds.into()));
    }
    if table.is_empty() { Value::Bool(true) } else { table.into() }
}

/// Directives of Caddy 1 that Caddy 2 does not have.
const OF_VERSION_1: [&str; 10] = [
    "browse",
    "errors",
    "ext",
    "fastcgi",
    "gzip",
    "internal",
    "minify",
    "proxy",
    "timeouts",
    "websocket",
];

/// Directives that do not restrict access to the replies of other directives.
const HARMLESS: [&str; 11] = [
    "acme_server",
    "cache",
    "copy_response",
    "copy_response_headers",
    "exec",
    "fs",
    "git",
    "prometheus",
    "rate_limit",
    "replace",
    "replace_response",
];

/// Translates `header [MATCHER] [+|-|?]NAME [VALUE]`, also with a block of such lines.
fn header(cx: &mut Cx<'_>, directive: &Directive, args: &[String], layer: &mut Layer) {
    let mut lines: Vec<(String, &[String], &Directive)> = Vec::new();
    if let Some((name, values)) = args.split_first() {
        lines.push((name.clone(), values, directive));
    }
    for inner in directive.inside().iter().filter(|inner| inner.name != "match") {
        inner.settle();
        lines.push((inner.name.clone(), &inner.args, inner));
    }
    for (typed, values, line) in lines {
        let name = typed.trim_start_matches(['+', '-', '?', '>']);
        let is_name = !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let is_ours = [
            "connection",
            "content-length",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ]
        .contains(&name.to_ascii_lowercase().as_str());
        if name == "defer" {
            continue;
        }
        let if_missing = typed.starts_with('?');
        let has_key = cx.keys.has("ReplyField", "if_missing");
        // `NAME TEXT OTHER` replaces a text in the field, and has no translation.
        if !is_name || is_ours || values.len() > 1 || if_missing && !has_key {
            cx.note(line, "write the field in `set_headers`");
            continue;
        }
        if typed.starts_with('-') {
            remove(&mut layer.keys, name);
            continue;
        }
        let value = values.first().cloned().unwrap_or_default();
        let filled = fill(cx, &value, None);
        let filled = filled
            .filter(|filled| cx.keys.has_placeholders() || *filled == literal(&value, cx.keys));
        let Some(filled) = filled else {
            cx.note(line, "write a fixed value in `set_headers`");
            continue;
        };
        let plain: String = filled.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let repeats = typed.starts_with('+') && cx.keys.route("add_headers");
        let table = layer.keys.table(if repeats { "add_headers" } else { "set_headers" });
        if if_missing && table.get(name).is_some() {
            // The field is set in any case.
        } else if if_missing {
            table.set(name, Table::default().with("value", plain.trim()).with("if_missing", true));
        } else {
            table.set(name, plain.trim());
        }
        if cx.keys.route("always") {
            layer.keys.set("always", true);
        }
    }
}

/// Translates `forward_auth`. Closes the layer if Forebay cannot express the directive.
fn forward_auth(cx: &mut Cx<'_>, directive: &Directive, args: &[String], layer: &mut Layer) {
    let server = args.first().and_then(|server| url(server));
    let inner = |name: &str| directive.inside().iter().find(|inner| inner.name == name);
    let path = inner("uri").map_or("/", |uri| uri.arg(0));
    let is_known =
        directive.inside().iter().all(|line| matches!(line.name.as_str(), "uri" | "copy_headers"));
    let Some(server) = server.filter(|_| cx.keys.route("forward_auth") && is_known) else {
        let next =
            "let a server decide with `forward_auth = { to = \"URL\" }`, if this version has it";
        layer.closed = Some(cx.note(directive, next));
        return;
    };
    directive.settle_all();
    let mut table = Table::default().with("to", format!("{server}{path}"));
    let mut copied: Vec<String> = Vec::new();
    if let Some(copy) = inner("copy_headers") {
        copied.extend(copy.args.iter().cloned());
        copied.extend(copy.inside().iter().map(|line| line.name.clone()));
    }
    if copied.iter().any(|name| name.contains('>')) {
        let mut renamed = Table::default();
        for name in &copied {
            let (from, to) = name.split_once('>').unwrap_or((name, name));
            renamed.set(to, from);
        }
        table.set("copy", renamed);
    } else if !copied.is_empty() {
        table.set("copy", copied);
    }
    layer.keys.set("forward_auth", table);
}
