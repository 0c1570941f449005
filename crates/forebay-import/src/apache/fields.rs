//! Translates changes to replies (fields, expiry, compression), and limits.

use super::Cx;
use super::includes::includes;
use super::media::{self, is_type};
use super::sections::{all, last, settle};
use super::syntax::{Directive, is};
use crate::draft::DraftRoute;
use crate::keys;
use crate::template::literal;
use crate::units::{duration, is_media_type};
use crate::value::{Table, Value};

/// The directives about the fields and the bodies of replies.
const READ: [&str; 13] = [
    "AddDefaultCharset",
    "AddOutputFilter",
    "AddOutputFilterByType",
    "AddType",
    "ExpiresActive",
    "ExpiresByType",
    "ExpiresDefault",
    "ForceType",
    "Header",
    "LimitRequestBody",
    "RequestHeader",
    "SetOutputFilter",
    "XBitHack",
];

/// Adds the keys for the directives of `layers`, the sections that apply to a route.
pub fn decorate(cx: &mut Cx<'_>, layers: &[&[Directive]], route: &mut DraftRoute) {
    // Mark these lines as read: the code below translates each line or adds a note. A line without
    // an effect on a fixed reply gets neither a key nor a note.
    settle(layers, &READ);
    let is_fixed = ["respond", "redirect"].iter().any(|key| route.keys.get(key).is_some());
    for directive in all(layers, "Header") {
        header(cx, directive, route);
    }
    for directive in all(layers, "RequestHeader").into_iter().filter(|_| !is_fixed) {
        request_header(cx, directive, route);
    }
    let active = last(layers, "ExpiresActive");
    let is_active = active.is_some_and(|active| active.arg(0).eq_ignore_ascii_case("on"));
    let has_expires = is_active && !is_fixed;
    if let Some(expires) = last(layers, "ExpiresDefault").filter(|_| has_expires) {
        match access_plus(&expires.args.join(" ")) {
            Some(time) => route.keys.set("expires", time),
            None => {
                let next = "write a time since the request, such as expires = \"30d\"";
                route.comments.push(cx.note(expires, next));
            }
        }
    }
    for expires in all(layers, "ExpiresByType").into_iter().filter(|_| has_expires) {
        match access_plus(&expires.args.get(1..).unwrap_or_default().join(" ")) {
            Some(time) if cx.keys.has("Expires", "types") && is_media_type(expires.arg(0)) => {
                let default = match route.keys.get("expires") {
                    Some(Value::Table(_)) => None,
                    other => other.cloned(),
                };
                if default.is_some() {
                    route.keys.remove("expires");
                }
                let table = route.keys.table("expires");
                table.set_some("default", default);
                table.table("types").set(&expires.arg(0).to_ascii_lowercase(), time);
            }
            _ => {
                let next = "write a time since the request in `types` of `expires`";
                route.comments.push(cx.note(expires, next));
            }
        }
    }
    let compressed = all(layers, "AddOutputFilterByType");
    let mut types: Vec<&str> = Vec::new();
    for directive in compressed.iter().filter(|_| !is_fixed) {
        let is_compression =
            directive.arg(0).contains("DEFLATE") || directive.arg(0).contains("BROTLI");
        if is_compression {
            types.extend(
                directive.args[1..].iter().map(String::as_str).filter(|kind| is_type(kind)),
            );
        } else {
            route.comments.push(cx.note(directive, "change the text in the application"));
        }
    }
    types.sort_unstable();
    types.dedup();
    if !types.is_empty() {
        route.keys.set("compress", Table::default().with("types", types));
    }
    if !is_fixed {
        includes(cx, layers, route);
        media::decorate(cx, layers, route);
    }
    if let Some(directive) = last(layers, "LimitRequestBody").filter(|_| !is_fixed) {
        let Ok(limit) = directive.arg(0).parse::<u64>() else {
            route.comments.push(cx.note(directive, "write the size in `max_body`"));
            return;
        };
        let limit = if limit == 0 { None } else { Some(limit) };
        // The route of a FastCGI program has the limit of mod_fcgid. Apache applies both limits.
        let own = match route.keys.get("max_body") {
            Some(Value::Number(own)) => Some(*own),
            _ => None,
        };
        let least = limit.into_iter().chain(own).min();
        let limit = least.map_or_else(|| Value::from("unlimited"), Value::Number);
        route.keys.set("max_body", limit);
    }
}

/// Translates `Header [always] set|append|add|merge|unset NAME VALUE`.
fn header(cx: &mut Cx<'_>, directive: &Directive, route: &mut DraftRoute) {
    let mut args = &directive.args[..];
    let mut always = false;
    if let Some(first) =
        args.first().filter(|first| matches!(first.as_str(), "always" | "onsuccess"))
    {
        always = first == "always";
        args = &args[1..];
    }
    let word = |at: usize| args.get(at).map_or("", String::as_str);
    let (action, name, value) = (word(0).to_ascii_lowercase(), word(1), word(2));
    if name.eq_ignore_ascii_case("set-cookie") && action.starts_with("edit") {
        let attributes = added_attributes(value, word(3)).filter(|_| args.len() == 4);
        match attributes.filter(|_| cx.keys.route("cookies")) {
            Some(attributes) => {
                let cookies = route.keys.table("cookies");
                attributes.into_iter().for_each(|(key, value)| cookies.set(key, value));
            }
            None => {
                let next = "write the attributes that cookies lack in `cookies`";
                route.comments.push(cx.note(directive, next));
            }
        }
        return;
    }
    // Browsers ignore this field in replies over http.
    let is_hsts = name.eq_ignore_ascii_case("strict-transport-security");
    let is_https = |text: &str| {
        let text = text.to_ascii_lowercase().replace([' ', '"', '\''], "");
        ["env=https", "expr=%{https}==on"].contains(&text.as_str())
    };
    let args = match args {
        [before @ .., last] if is_hsts && before.len() == 3 && is_https(last) => before,
        args => args,
    };
    let has_condition = args.len() > 3 || is_condition(word(2)) && action == "unset";
    let is_name = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
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
    if !is_name || is_ours || has_condition {
        let next = "a field of every reply is written in `set_headers`";
        route.comments.push(cx.note(directive, next));
        return;
    }
    match action.as_str() {
        "unset" => {
            let mut list = match route.keys.get("remove_headers") {
                Some(Value::List(list)) => list.clone(),
                _ => Vec::new(),
            };
            if !list.contains(&Value::from(name)) {
                list.push(name.into());
            }
            route.keys.set("remove_headers", Value::List(list));
        }
        "set" | "append" | "add" | "merge" | "setifempty"
            if !has_variable(value) && !value.contains("expr=") =>
        {
            let value = value.replace("%%", "%");
            let value: String =
                value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let value = literal(value.trim(), cx.keys);
            let mut table = Table::default().with("value", value.clone());
            if always && cx.keys.route("always") {
                table.set("always", true);
            }
            if action == "setifempty" && cx.keys.has("ReplyField", "if_missing") {
                table.set("if_missing", true);
            }
            // A further field of the same name means the same as a further value in a list.
            let repeats = matches!(action.as_str(), "add" | "append" | "merge")
                && cx.keys.route("add_headers");
            let fields = route.keys.table(if repeats { "add_headers" } else { "set_headers" });
            if action == "setifempty" && fields.get(name).is_some() {
                return;
            }
            let value = match fields.get(name).filter(|_| repeats && table.0.len() == 1) {
                Some(Value::Text(other)) => {
                    Table::default().with("value", vec![other.clone(), value]).into()
                }
                _ if table.0.len() == 1 => Value::from(value),
                _ => Value::Table(table),
            };
            fields.set(name, value);
        }
        _ => {
            let next = "write a fixed value in `set_headers`";
            route.comments.push(cx.note(directive, next));
        }
    }
}

/// Returns true if Apache replaces a part of the value, such as `%{NAME}e` or `%D`.
fn has_variable(value: &str) -> bool {
    value
        .replace("%%", "")
        .split('%')
        .skip(1)
        .any(|rest| rest.starts_with(['{', 't', 'D', 'l', 'i', 'b', 's', 'B']))
}

/// The attributes that `Header edit Set-Cookie FROM TO` appends to each cookie, as keys of `cookies`.
/// `None`: the line changes cookies in another way.
fn added_attributes(from: &str, to: &str) -> Option<Vec<(&'static str, Value)>> {
    let rest = match from {
        "^(.*)$" | "(.*)" | "^(.+)$" | "(.+)" => to.strip_prefix("$1")?,
        "$" => to,
        _ => return None,
    };
    let attribute = |text: &str| match text.trim().to_ascii_lowercase().as_str() {
        "secure" => Some(("secure", true.into())),
        "httponly" => Some(("http_only", true.into())),
        "samesite=strict" => Some(("same_site", "strict".into())),
        "samesite=lax" => Some(("same_site", "lax".into())),
        "samesite=none" => Some(("same_site", "none".into())),
        _ => None,
    };
    let parts = rest.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(attribute).collect()
}

/// Translates `RequestHeader set|unset NAME VALUE`.
fn request_header(cx: &mut Cx<'_>, directive: &Directive, route: &mut DraftRoute) {
    let mut args = directive.args.iter().map(String::as_str);
    let first = args.next().unwrap_or("");
    let action = if first == "early" { args.next().unwrap_or("") } else { first };
    let (name, value) = (args.next().unwrap_or("").replace('_', "-"), args.next().unwrap_or(""));
    // Forebay sends the addresses and the scheme of the client by itself, so these lines need no
    // key.
    let is_fixed = action.eq_ignore_ascii_case("set") && !value.contains('%') && !value.is_empty();
    if name.eq_ignore_ascii_case("x-forwarded-for")
        || name.eq_ignore_ascii_case("x-forwarded-proto") && !is_fixed
    {
        return;
    }
    if keys::is_own(&name) {
        if !action.eq_ignore_ascii_case("unset") {
            let next = "Forebay sets or removes this field itself: remove the line";
            route.comments.push(cx.note(directive, next));
        }
        return;
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !cx.keys.route("request_headers") || name.is_empty() || !name.bytes().all(is_name) {
        let next = "write it in `request_headers` if this version has it";
        route.comments.push(cx.note(directive, next));
        return;
    }
    let has_condition = args.any(is_condition);
    let value = match (action.to_ascii_lowercase().as_str(), value) {
        ("unset", _) => String::new(),
        ("set" | "append" | "add", value) if !has_condition => match placeholder(value, cx) {
            Some(value) => value,
            None => {
                let next = "the value has no placeholder, so the client's own field is removed";
                route.comments.push(cx.note(directive, next));
                String::new()
            }
        },
        _ => {
            let next = "the value depends on a condition, so the field is removed: write it in \
                        `request_headers` of a route with `when`";
            route.comments.push(cx.note(directive, next));
            // Keep the value of an earlier line that applies to all requests.
            if route.keys.table("request_headers").get(&name).is_some() {
                return;
            }
            String::new()
        }
    };
    route.keys.table("request_headers").set(&name, value);
}

/// Returns true for the last argument of `Header` or `RequestHeader` if it is a condition.
fn is_condition(argument: &str) -> bool {
    argument.starts_with("env=") || argument.starts_with("expr=")
}

/// Replaces `%{REMOTE_ADDR}s` and similar variables by placeholders. Returns `None` if a variable
/// has no placeholder, or if the value contains other text beside the variable.
fn placeholder(value: &str, cx: &Cx<'_>) -> Option<String> {
    if !value.contains("%{") && !value.contains("expr=") {
        return Some(literal(value, cx.keys));
    }
    let inner = value.trim_start_matches("expr=").strip_prefix("%{")?;
    let (name, end) = inner.split_once('}')?;
    let is_whole = matches!(end, "" | "s" | "e");
    let found = match name {
        "REMOTE_ADDR" => "{client}",
        "REMOTE_USER" => "{user}",
        "REQUEST_SCHEME" => "{scheme}",
        "HTTP_HOST" => "{host}{requested_port}",
        "SERVER_NAME" => "{host}",
        "SERVER_PORT" => "{port}",
        "REQUEST_URI" => "{path}",
        "UNIQUE_ID" => "{request_id}",
        "SSL_CLIENT_S_DN" => "{tls.subject}",
        _ => return None,
    };
    is_whole.then(|| found.to_owned())
}

/// Translates a time such as `access plus 1 month 2 days` or `A2592000`. Returns `None` for other
/// times, for example after `modification`.
fn access_plus(text: &str) -> Option<String> {
    let text = text.trim_matches('"').to_ascii_lowercase();
    if let Some(seconds) = text.strip_prefix('a').filter(|rest| rest.parse::<u64>().is_ok()) {
        return duration(seconds);
    }
    let rest = text.strip_prefix("access").or_else(|| text.strip_prefix("now"))?;
    let rest = rest.trim().strip_prefix("plus").unwrap_or(rest).trim();
    let mut words = rest.split_whitespace();
    let mut seconds: u64 = 0;
    while let Some(number) = words.next() {
        let number: u64 = number.parse().ok()?;
        let unit = match words.next()?.trim_end_matches('s') {
            "second" => 1,
            "minute" => 60,
            "hour" => 3_600,
            "day" => 86_400,
            "week" => 604_800,
            "month" => 2_592_000,
            "year" => 31_536_000,
            _ => return None,
        };
        seconds = seconds.checked_add(number.checked_mul(unit)?)?;
    }
    duration(&seconds.to_string())
}

/// Returns true if a directive of the layers runs PHP inside Apache.
pub fn runs_php(layers: &[&[Directive]]) -> bool {
    let is_php = |directive: &&Directive| {
        (is(directive, "SetHandler") || is(directive, "AddHandler") || is(directive, "AddType"))
            && directive.arg(0).contains("php")
    };
    layers.iter().copied().flatten().any(|directive| is_php(&directive))
}
