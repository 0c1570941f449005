//! Translates `upstream` blocks to groups of backends.

use super::Cx;
use super::syntax::Directive;
use crate::units::duration;
use crate::value::{Table, Value};

/// The protocol of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendProtocol {
    Http,
    Https,
    H2c,
    /// FastCGI, SCGI or uwsgi, whose addresses have no scheme.
    Plain,
    /// TCP or UDP (`stream`).
    Stream,
    /// TCP with TLS (`stream`).
    StreamTls,
}

impl BackendProtocol {
    /// Returns the address of a server in Forebay's form.
    fn url(self, address: &str) -> String {
        let scheme = match self {
            Self::Http => "http://",
            Self::Https => "https://",
            Self::H2c => "h2c://",
            Self::Stream => "",
            Self::StreamTls => "tls://",
            Self::Plain if address.starts_with("unix:") || has_port(address) => "",
            Self::Plain => return format!("{address}:80"),
        };
        if address.starts_with("unix:") { address.to_owned() } else { format!("{scheme}{address}") }
    }
}

fn has_port(address: &str) -> bool {
    let after_host = address.rsplit(']').next().unwrap_or_default();
    after_host.contains(':')
}

/// Returns true if Forebay accepts the address. An address is a host with an optional port, or a
/// socket.
fn is_address(address: &str) -> bool {
    let is_host = |c: char| c.is_ascii_alphanumeric() || "._-:[]".contains(c);
    match address.strip_prefix("unix:") {
        Some(path) => path.starts_with('/') && path.len() < 100 && !path.contains(['$', '{']),
        None => {
            let port = address.rsplit_once(':').filter(|_| has_port(address));
            let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
            !address.is_empty()
                && address.chars().all(is_host)
                && port.is_none_or(|(host, port)| !host.is_empty() && is_port(port))
        }
    }
}

/// Returns the value of the key `to` for an address or the name of an upstream. An error says why
/// there is none.
pub fn to(cx: &mut Cx<'_>, address: &str, protocol: BackendProtocol) -> Result<String, String> {
    if let Some(upstream) = cx.http.every("upstream").find(|found| found.arg(0) == address) {
        return group(cx, upstream, protocol);
    }
    if let Some(split) = split_of(cx, address) {
        return canary(cx, split, protocol);
    }
    if is_address(address) {
        return Ok(protocol.url(address));
    }
    Err(format!("\"{address}\" is no address that Forebay can have"))
}

/// Returns `@NAME`, the value of the key `to` for an upstream. Adds the group to the draft on its
/// first use. The text of an error says what the user must do.
fn group(
    cx: &mut Cx<'_>,
    upstream: &Directive,
    protocol: BackendProtocol,
) -> Result<String, String> {
    let name = match cx.groups.iter().find(|(name, _)| name == upstream.arg(0)) {
        Some((name, used)) if *used != protocol => format!("{name}-{protocol:?}").to_lowercase(),
        _ => upstream.arg(0).to_owned(),
    };
    if cx.draft.upstreams.iter().any(|(other, _)| *other == name) {
        return Ok(format!("@{name}"));
    }
    upstream.settle();
    let mut table = Table::default();
    let servers = servers(cx, upstream, protocol, &mut table)?;
    table.0.insert(0, ("to".into(), Value::List(servers)));
    settings(cx, upstream, protocol, &mut table);
    cx.groups.push((upstream.arg(0).to_owned(), protocol));
    cx.draft.upstreams.push((name.clone(), table));
    Ok(format!("@{name}"))
}

/// Returns the servers of an upstream. Sets the limits on failures and on connections if all
/// servers have the same limits. The text of an error says what the user must do.
fn servers(
    cx: &mut Cx<'_>,
    upstream: &Directive,
    protocol: BackendProtocol,
    table: &mut Table,
) -> Result<Vec<Value>, String> {
    let (mut found, mut limits) = (Vec::new(), Vec::new());
    for server in upstream.inside().iter().filter(|inner| inner.name == "server") {
        server.settle();
        if !is_address(server.arg(0)) {
            cx.note(server, "write the address of this server in `to`");
            continue;
        }
        let mut entry = Table::default().with("url", protocol.url(server.arg(0)));
        let mut limit = (None, None, None, None);
        for argument in &server.args[1..] {
            match argument.split_once('=').unwrap_or((argument, "")) {
                ("weight", number) => {
                    entry.set_some("weight", number.parse::<u64>().ok().map(|n| n.clamp(1, 256)));
                }
                ("backup", _) => entry.set("backup", true),
                ("down", _) => entry.set("activation", "stopped"),
                ("max_fails", number) => limit.0 = number.parse::<u64>().ok(),
                ("fail_timeout", time) => limit.1 = duration(time),
                ("max_conns", number) => limit.2 = number.parse::<u64>().ok().filter(|&n| n > 0),
                ("slow_start", time) => limit.3 = duration(time).filter(|time| time != "0s"),
                ("resolve" | "route", _) => {}
                _ => drop(cx.note(server, format!("`{argument}` has no key of a server in `to`"))),
            }
        }
        limits.push((limit, server));
        let is_plain = entry.0.len() == 1;
        found.push(if is_plain { entry.0.remove(0).1 } else { entry.into() });
    }
    match limits.first() {
        Some(((fails, time, connections, slow), _))
            if limits.iter().all(|(l, _)| *l == limits[0].0) =>
        {
            table.set_some("max_fails", *fails);
            table.set_some("fail_timeout", time.clone().filter(|time| time != "0s"));
            table.set_some("max_connections", *connections);
            table.set_some("slow_start", slow.clone());
        }
        Some((_, server)) => {
            cx.note(
                server,
                "limits on failures and connections, and slow starts, hold for a whole group: choose them there",
            );
        }
        None => {}
    }
    match found.len() {
        0 => Err(format!("the upstream \"{}\" has no server", upstream.arg(0))),
        65.. => Err(format!("the upstream \"{}\" has more than 64 servers", upstream.arg(0))),
        _ => Ok(found),
    }
}

fn settings(cx: &mut Cx<'_>, upstream: &Directive, protocol: BackendProtocol, table: &mut Table) {
    let is_stream = matches!(protocol, BackendProtocol::Stream | BackendProtocol::StreamTls);
    let is_http = protocol != BackendProtocol::Plain;
    let is_setting =
        |inner: &&Directive| inner.name != "server" && !super::needless::is_needless(&inner.name);
    for inner in upstream.inside().iter().filter(is_setting) {
        inner.settle();
        match inner.name.as_str() {
            "least_conn" if is_http => table.set("balance", "least-connections"),
            "hash" if is_stream && hash_key(inner.arg(0)).as_deref() == Some("{client}") => {
                table.set("balance", "hash");
            }
            "hash" | "keepalive" | "sticky" | "least_time" if is_stream => {
                cx.note(inner, "connections go to each server in turn: see `balance`");
            }
            "least_time" if is_http => table.set("balance", "least-time"),
            "random" if is_http && inner.arg(0) == "two" && is_by_connections(inner.arg(1)) => {
                table.set("balance", "random-two");
            }
            // Forebay's default distributes requests by weight, as `random` does.
            "random" if is_http && inner.args.is_empty() => {}
            "keepalive" if is_http => table.set_some("keepalive", inner.arg(0).parse::<u64>().ok()),
            // Forebay itself chooses the number of idle connections to applications, so the line
            // needs no key.
            "keepalive" => {}
            "ip_hash" if is_http => table.set("balance", "hash"),
            "hash" if is_http && hash_key(inner.arg(0)).is_some() => {
                table.set("balance", "hash");
                table.set_some("hash_key", hash_key(inner.arg(0)));
            }
            "hash" | "sticky" if is_http => {
                let next = "requests go to each server in turn: `sticky = { cookie = \"NAME\" }` keeps clients on one";
                cx.note(inner, next);
            }
            _ => drop(cx.note(inner, "Forebay selects servers by `balance`: remove the line")),
        }
    }
}

/// Returns true if `random two` with this method compares the connections of two servers, as
/// Forebay does.
fn is_by_connections(method: &str) -> bool {
    ["", "least_conn"].contains(&method)
}

/// Returns the placeholder for the variable of a `hash` directive, or `None` if there is no
/// placeholder.
fn hash_key(text: &str) -> Option<String> {
    let of = |prefix: &str| text.strip_prefix(prefix).filter(|name| !name.contains('$'));
    match text {
        "$remote_addr" | "$binary_remote_addr" => Some("{client}".to_owned()),
        "$request_uri" | "$uri$is_args$args" => Some("{uri}".to_owned()),
        "$uri" | "$document_uri" => Some("{path}".to_owned()),
        "$host" | "$http_host" => Some("{host}".to_owned()),
        _ => of("$http_")
            .map(|name| format!("{{header.{}}}", name.replace('_', "-")))
            .or_else(|| of("$cookie_").map(|name| format!("{{cookie.{name}}}")))
            .or_else(|| of("$arg_").map(|name| format!("{{query.{name}}}"))),
    }
}

/// Returns the `split_clients` block that sets the variable `address`. Returns `None` if there is
/// no such block, or if `address` is not a variable.
fn split_of<'a>(cx: &Cx<'a>, address: &str) -> Option<&'a Directive> {
    let mut splits = cx.http.every("split_clients");
    splits.find(|split| address.starts_with('$') && split.arg(1) == address)
}

/// Adds a group with all servers of a `split_clients` block to the draft. The percentage of a part
/// of the block becomes the weight of the part's servers. Returns `@NAME`, the value of the key
/// `to` for the group. Returns an error if a part has no valid address, or if the block has more
/// than 64 servers or none.
fn canary(cx: &mut Cx<'_>, split: &Directive, protocol: BackendProtocol) -> Result<String, String> {
    let name = split.arg(1).trim_start_matches('$').to_owned();
    if cx.draft.upstreams.iter().any(|(other, _)| *other == name) {
        return Ok(format!("@{name}"));
    }
    let percent =
        |part: &Directive| part.name.strip_suffix('%').and_then(|n| n.parse::<f64>().ok());
    let given: f64 = split.inside().iter().filter_map(percent).sum();
    let mut to = Vec::new();
    for part in split.inside() {
        let share = percent(part).unwrap_or((100.0 - given).max(0.0));
        let upstream = cx.http.every("upstream").find(|found| found.arg(0) == part.arg(0));
        let addresses: Vec<&str> = match upstream {
            Some(upstream) => {
                upstream.settle();
                let servers = upstream.inside().iter().filter(|inner| inner.name == "server");
                servers.inspect(|server| server.settle()).map(|server| server.arg(0)).collect()
            }
            None => vec![part.arg(0)],
        };
        let weight = (share / addresses.len().max(1) as f64).round().clamp(1.0, 256.0) as u64;
        for address in addresses {
            if !is_address(address) {
                return Err(format!("\"{address}\" of {} is no address", split.line()));
            }
            to.push(Table::default().with("url", protocol.url(address)).with("weight", weight));
        }
    }
    if to.is_empty() || to.len() > 64 {
        return Err(format!("{} has no servers", split.line()));
    }
    split.settle_all();
    cx.note(split, "clients are not kept in their part: `sticky = { cookie = \"NAME\" }` of the group does that");
    cx.draft.upstreams.push((name.clone(), Table::default().with("to", to)));
    Ok(format!("@{name}"))
}

#[cfg(test)]
mod tests {
    use super::hash_key;

    #[test]
    fn keys_of_hash_become_placeholders() {
        for (text, expected) in [
            ("$binary_remote_addr", Some("{client}")),
            ("$request_uri", Some("{uri}")),
            ("$http_x_user", Some("{header.x-user}")),
            ("$cookie_id", Some("{cookie.id}")),
            ("$arg_user", Some("{query.user}")),
            ("$cookie_a$cookie_b", None),
            ("$unknown", None),
        ] {
            assert_eq!(hash_key(text).as_deref(), expected, "{text}");
        }
    }
}
