//! Translates directives that change requests or replies, or that restrict access.

use super::Cx;
use super::addresses::url;
use super::around::Layer;
use super::fill::fill;
use super::servers::{header_up, is_gate, remove};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::template::literal;
use crate::value::{Table, Value};

/// Sets the keys of a directive that changes requests or replies, or that restricts access.
pub fn layer(cx: &mut Cx<'_>, directive: &Directive, args: &[String], layer: &mut Layer) {
    match directive.name.as_str() {
        "encode" => {
            let mut kinds: Vec<&str> = Vec::new();
            let inner = directive.inside().iter().map(|inner| &inner.name);
            for kind in args.iter().chain(inner) {
                match kind.as_str() {
                    "zstd" => kinds.push("zstd"),
                    "gzip" => kinds.push("gzip"),
                    "br" => kinds.push("br"),
                    _ => {}
                }
            }
            kinds.dedup();
            let value = if kinds.is_empty() {
                Value::Bool(true)
            } else {
                Table::default().with("algorithms", kinds).into()
            };
            layer.keys.set("compress", value);
        }
        "header" => header(cx, directive, args, layer),
        "request_header" => {
            let inner = Directive {
                name: directive.name.clone(),
                args: args.to_vec(),
                block: None,
                place: directive.place.clone(),
                settled: directive.settled.clone(),
            };
            let mut route = DraftRoute::new(&directive.place, "", Matcher::default());
            header_up(cx, &inner, &mut Table::default(), &mut route);
            layer.keys.0.extend(route.keys.0);
        }
        "request_body" => {
            let limit = directive.inside().iter().find(|inner| inner.name == "max_size");
            let limit = limit.map_or(args.get(1).map_or("", String::as_str), |inner| inner.arg(0));
            match bytes(limit) {
                Some(limit) => layer.keys.set("max_body", limit),
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
        "tls" | "bind" | "vars" | "tracing" | "push" | "" => {}
        "import" => {
            layer.closed =
                Some(cx.note(directive, "the file does not exist: copy it here, and import again"));
        }
        name if is_gate(name) => {
            layer.closed = Some(
                cx.note(directive, "write the rule with `allow`, `basic_auth` or `forward_auth`"),
            );
        }
        "templates" | "intercept" | "map" | "method" | "handle_errors" | "invoke" => {
            cx.note(directive, "Forebay has no such directive: let the application do it");
        }
        name => {
            let next = "Forebay has no such directive: look for a key in the configuration reference, or remove the line";
            let comment = cx.note(directive, next);
            // A directive of a plugin may restrict access, so close the routes.
            if !HARMLESS.contains(&name) {
                layer.closed = Some(comment);
            }
        }
    }
}

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

/// Returns the number of bytes of a size, such as `10MB`. In Caddy, MB is a power of ten.
fn bytes(text: &str) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return None,
    };
    let all = number.checked_mul(unit).filter(|all| *all < 1 << 40)?;
    // In Caddy, 0 means that there is no limit.
    Some(if all == 0 { "unlimited".into() } else { all.to_string() })
}

/// Translates `header [MATCHER] [+|-|?]NAME [VALUE]`, also with a block of such lines.
fn header(cx: &mut Cx<'_>, directive: &Directive, args: &[String], layer: &mut Layer) {
    let mut lines: Vec<(String, Option<String>)> = Vec::new();
    if let Some(name) = args.first() {
        lines.push((name.clone(), args.get(1).cloned()));
    }
    for inner in directive.inside() {
        lines.push((inner.name.clone(), inner.args.first().cloned()));
    }
    for (typed, value) in lines {
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
        if name == "defer" || name == "match" {
            continue;
        }
        if !is_name || is_ours {
            cx.note(directive, "write fields of replies in `set_headers`");
            continue;
        }
        if typed.starts_with('-') {
            remove(&mut layer.keys, name);
            continue;
        }
        let value = value.unwrap_or_default();
        let filled = fill(cx, &value, None);
        let filled = filled
            .filter(|filled| cx.keys.has_placeholders() || *filled == literal(&value, cx.keys));
        let Some(filled) = filled else {
            cx.note(directive, "write a fixed value in `set_headers`");
            continue;
        };
        let plain: String = filled.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let repeats = typed.starts_with('+') && cx.keys.route("add_headers");
        let table = layer.keys.table(if repeats { "add_headers" } else { "set_headers" });
        table.set(name, plain.trim());
        if cx.keys.route("always") {
            layer.keys.set("always", true);
        }
    }
}

/// Translates `forward_auth`. Closes the layer if Forebay cannot express it.
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
