//! Translates Caddy's placeholders to Forebay's.

use super::Cx;
use super::matchers::Condition;
use crate::template::{join, literal};

/// Returns a text with Forebay's placeholders; `None` if one has no counterpart.
pub fn fill(cx: &Cx<'_>, text: &str, of: Option<&Condition>) -> Option<String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        join(&mut out, before)?;
        let Some((name, behind)) = after.split_once('}') else {
            return join(&mut out, &literal(&rest[before.len()..], cx.keys)).map(|()| out);
        };
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !is_name {
            out.push('{');
            rest = after;
            continue;
        }
        join(&mut out, &placeholder(cx, name, of)?)?;
        rest = behind;
    }
    join(&mut out, rest).map(|()| out)
}

/// Returns Forebay's placeholder for one of Caddy's. Returns `None` if there is no counterpart.
fn placeholder(cx: &Cx<'_>, name: &str, of: Option<&Condition>) -> Option<String> {
    let fixed = match name {
        "uri" | "http.request.uri" | "http.request.orig_uri" => "{uri}",
        "path" | "http.request.uri.path" | "http.request.orig_uri.path" => "{path}",
        "query" | "http.request.uri.query" => "{query}",
        "host" | "http.request.host" => "{host}",
        "hostport" | "http.request.hostport" => "{host}{requested_port}",
        _ => "",
    };
    if !fixed.is_empty() {
        return Some(fixed.into());
    }
    if let Some(group) = name.strip_prefix("re.").or_else(|| name.strip_prefix("http.regexp.")) {
        let number = group.rsplit('.').next()?.parse().ok()?;
        return crate::template::group(number, of?.found.as_ref()?);
    }
    if !cx.keys.has_placeholders() {
        return None;
    }
    let named = |start: &str| name.strip_prefix(start).filter(|rest| !rest.is_empty());
    if let Some(field) = named("header.").or_else(|| named("http.request.header.")) {
        return Some(format!("{{header.{field}}}"));
    }
    if let Some(cookie) = named("cookie.").or_else(|| named("http.request.cookie.")) {
        return Some(format!("{{cookie.{cookie}}}"));
    }
    if let Some(parameter) = named("query.").or_else(|| named("http.request.uri.query.")) {
        return Some(format!("{{query.{parameter}}}"));
    }
    let fixed = match name {
        "scheme" | "http.request.scheme" => "{scheme}",
        "method" | "http.request.method" => "{method}",
        "port" | "http.request.port" => "{port}",
        "remote_host" | "client_ip" | "http.request.remote.host" => "{client}",
        "remote_port" | "http.request.remote.port" => "{client_port}",
        "http.auth.user.id" => "{user}",
        "http.request.uuid" => "{request_id}",
        "tls_client_subject" | "http.request.tls.client.subject" => "{tls.subject}",
        _ => return None,
    };
    Some(fixed.into())
}
