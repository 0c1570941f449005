//! Translates `stream` blocks: servers for TCP and UDP.
//!
//! If a line may restrict access and has no translation, its server is left out. Forebay then does
//! not listen at the server's addresses, and admits no client that nginx refuses.

use super::access::{Gate, addresses};
use super::listeners::{address, is_host, min_version};
use super::scope::Scope;
use super::syntax::Directive;
use super::upstreams::{BackendProtocol, to};
use super::{Cx, names, unread};
use crate::draft::DraftStream;
use crate::files;
use crate::units::duration;
use crate::value::Table;

/// Translates all servers of a `stream` block.
pub fn translate<'a>(cx: &mut Cx<'a>, main: &'a [Directive], block: &'a Directive) {
    let scope = Scope::new(main).inside(block.inside());
    // Groups are looked up in this block, not in `http`.
    let http = std::mem::replace(&mut cx.http, scope.clone());
    for server in block.inside().iter().filter(|found| found.name == "server") {
        match one_server(cx, &scope.inside(server.inside()), server) {
            Ok(streams) => {
                let mut comments = vec![format!("{}: server", server.place)];
                comments.extend(unread::report(cx, &scope.blocks(), server.inside()));
                for keys in streams {
                    let (place, comments) = (server.place.clone(), comments.clone());
                    cx.draft.streams.push(DraftStream { place, comments, keys });
                }
            }
            Err(why) => {
                let next = format!("{why}; until then Forebay does not listen here");
                let comment = cx.note(server, next);
                cx.draft.comments.push(comment);
                // Forebay does not listen for this server, so the note is about all its lines.
                server.settle_all();
            }
        }
    }
    let comments = unread::report(cx, &[main], block.inside());
    cx.draft.comments.extend(comments);
    cx.http = http;
}

/// Returns true for a directive that may refuse clients, and has no translation.
fn restricts(directive: &Directive) -> bool {
    let name = directive.name.as_str();
    let is_off = directive.arg(0) == "off";
    !is_off && (names::restricts(name) || name.starts_with("js_") || name.starts_with("ssl_crl"))
}

/// Returns the streams of a server. An error says what to do about a server without a translation.
fn one_server<'a>(
    cx: &mut Cx<'a>,
    scope: &Scope<'a>,
    server: &'a Directive,
) -> Result<Vec<Table>, String> {
    if let Some(found) = scope.all_levels().find(|directive| restricts(directive)) {
        return Err(format!("`{}` may refuse clients, and has no translation", found.line()));
    }
    let Listeners { listen, is_tls, is_proxied } = listeners(server)?;
    let mut keys = Table::default().with("listen", listen);
    if is_tls {
        keys.set("tls", certificate(cx, scope)?);
    }
    clients(cx, scope, is_proxied, &mut keys)?;
    // By default, nginx closes silent connections after 10 minutes.
    let idle = scope.value("proxy_timeout").map_or(Some("10m".into()), duration);
    keys.set_some("idle_timeout", idle.filter(|time| time != "0s"));
    let settings = server_settings(cx, scope);
    let pass = scope.of_own("proxy_pass");
    let pass =
        pass.ok_or("the server has no `proxy_pass`: write the answer of the server in `to`")?;
    let protocol =
        if scope.is_on("proxy_ssl") { BackendProtocol::StreamTls } else { BackendProtocol::Stream };
    let targets = targets(cx, scope, pass)?;
    let mut streams = Vec::new();
    for (sni, target) in targets {
        let servers = to(cx, &target, protocol)?;
        let mut stream = keys.clone();
        if !sni.is_empty() {
            stream.set("sni", sni);
        }
        match servers.strip_prefix('@') {
            Some(group) => {
                let group = group_with(cx, group, &settings);
                stream.set("to", format!("@{group}"));
            }
            None => {
                for (key, value) in &settings.0 {
                    let key = if key == "tls" { "server_tls" } else { key };
                    stream.set(key, value.clone());
                }
                stream.set("to", servers);
            }
        }
        streams.push(stream);
    }
    Ok(streams)
}

/// The listeners of a server.
struct Listeners {
    listen: Vec<String>,
    is_tls: bool,
    is_proxied: bool,
}

fn listeners(server: &Directive) -> Result<Listeners, String> {
    let mut found = Listeners { listen: Vec::new(), is_tls: false, is_proxied: false };
    for listen in server.inside().iter().filter(|inner| inner.name == "listen") {
        listen.settle();
        let has = |name: &str| listen.args.iter().skip(1).any(|option| option == name);
        let unclear = || format!("write an address and one port instead of `{}`", listen.line());
        let has_port =
            listen.arg(0).rsplit(':').next().is_some_and(|port| {
                listen.arg(0).starts_with("unix:") || port.parse::<u16>().is_ok()
            });
        let address = address(listen.arg(0)).filter(|_| has_port).ok_or_else(unclear)?;
        let address = if has("udp") { format!("udp://{address}") } else { address };
        if !found.listen.contains(&address) {
            found.listen.push(address);
        }
        found.is_tls |= has("ssl");
        found.is_proxied |= has("proxy_protocol");
    }
    if found.listen.is_empty() {
        return Err("the server has no `listen`: write an address and a port".into());
    }
    let udp = found.listen.iter().filter(|address| address.starts_with("udp://")).count();
    if udp > 0 && (found.is_tls || found.is_proxied) {
        return Err("UDP has no TLS and no PROXY header: give it a stream of its own".into());
    }
    Ok(found)
}

/// Returns the table `tls` with the certificate for clients. The text of an error says what the
/// user must do.
fn certificate(cx: &mut Cx<'_>, scope: &Scope<'_>) -> Result<Table, String> {
    if scope.value("ssl_verify_client").is_some_and(|verify| verify != "off") {
        return Err("name the authority for client certificates in `client_ca` of `tls`".into());
    }
    let mut tls = Table::default();
    for (name, key) in [("ssl_certificate", "certificate"), ("ssl_certificate_key", "key")] {
        let file = scope.value(name).ok_or("the server has no certificate: set `tls`")?;
        let file = files::below(&cx.dir, file);
        if !files::is_readable(&file) {
            return Err(format!("{file} cannot be read here: copy it, and set {key} of `tls`"));
        }
        tls.set(key, file);
    }
    tls.set_some("min_version", min_version(scope));
    Ok(tls)
}

/// Sets the keys about the addresses of clients. The text of an error says what the user must do.
fn clients(
    cx: &mut Cx<'_>,
    scope: &Scope<'_>,
    is_proxied: bool,
    keys: &mut Table,
) -> Result<(), String> {
    let mut gate = Gate::default();
    addresses(cx, &scope.any(&["allow", "deny"]), &mut gate);
    if gate.closed.is_some() {
        return Err("a rule about addresses has no translation".into());
    }
    let trusted: Vec<&str> = scope
        .all("set_real_ip_from")
        .iter()
        .map(|from| if from.arg(0) == "unix:" { "unix" } else { from.arg(0) })
        .collect();
    if is_proxied {
        // Without trusted proxies, nginx applies the access rules to the address of the proxy.
        // Forebay would apply them to the address in the PROXY header, which any client could
        // forge.
        if trusted.is_empty() && !gate.keys.is_empty() {
            return Err("name the proxies in `trusted_proxies`, so that no client sends its own \
                        address in a PROXY header"
                .into());
        }
        keys.set("proxy_protocol", true);
        if !trusted.is_empty() {
            keys.set("trusted_proxies", trusted);
        }
    }
    keys.0.extend(gate.keys.0);
    Ok(())
}

/// Returns the servers of a `proxy_pass`, each with the server names (SNI) that its clients send.
/// An empty list means all other clients. The text of an error says what the user must do.
fn targets(
    cx: &mut Cx<'_>,
    scope: &Scope<'_>,
    pass: &Directive,
) -> Result<Vec<(Vec<String>, String)>, String> {
    let target = pass.arg(0);
    if !target.contains('$') {
        let names: Vec<String> = scope.of_own("server_name").map_or_else(Vec::new, |names| {
            names.args.iter().filter(|name| !matches!(name.as_str(), "_" | "")).cloned().collect()
        });
        let sni = names.iter().map(|name| server_names(name)).collect::<Result<Vec<_>, _>>()?;
        return Ok(vec![(sni.concat(), target.to_owned())]);
    }
    let map = scope.every("map").find(|map| map.arg(1) == target);
    let map = map.ok_or_else(|| format!("write the address that {target} stands for in `to`"))?;
    if map.arg(0) != "$ssl_preread_server_name" {
        return Err(format!("`{}` does not select by server name (`sni`)", map.line()));
    }
    if !scope.is_on("ssl_preread") {
        return Err("without `ssl_preread on`, no server name is known".into());
    }
    let mut found: Vec<(Vec<String>, String)> = Vec::new();
    for entry in map.inside() {
        let (name, server) = (entry.name.as_str(), entry.arg(0));
        let is_empty = server.is_empty() || server.contains('$');
        let names = match name {
            "hostnames" | "volatile" => continue,
            "default" => Ok(Vec::new()),
            "include" => Err("copy the file of this line, and import again".to_owned()),
            name => server_names(name),
        };
        match names {
            Ok(names) if !is_empty => match found
                .iter_mut()
                .find(|(known, other)| other == server && !known.is_empty() && !names.is_empty())
            {
                Some((known, _)) => known.extend(names),
                None => found.push((names, server.to_owned())),
            },
            Ok(_) => drop(cx.note(entry, "clients with this server name are refused")),
            Err(why) => drop(cx.note(entry, format!("{why}; clients with this name are refused"))),
        }
    }
    map.settle_all();
    if found.is_empty() {
        return Err(format!("`{}` names no server", map.line()));
    }
    Ok(found)
}

/// Returns the names of `sni` for a name of nginx. Returns an error if the text is no host name.
fn server_names(name: &str) -> Result<Vec<String>, String> {
    let name = name.trim_start_matches('\\').to_ascii_lowercase();
    let plain = name.strip_prefix("*.").or_else(|| name.strip_prefix('.')).unwrap_or(&name);
    let is_address = plain.parse::<std::net::IpAddr>().is_ok();
    if !is_host(plain) || is_address {
        return Err(format!("\"{name}\" is no name for `sni`: write host names"));
    }
    Ok(match name.strip_prefix('.') {
        Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
        None => vec![name],
    })
}

/// Returns the keys of an upstream group for the settings of connections to servers.
fn server_settings(cx: &mut Cx<'_>, scope: &Scope<'_>) -> Table {
    let mut settings = Table::default();
    if scope.is_on("proxy_protocol") {
        settings.set("send_proxy", "v1");
    }
    // Mark these lines as read: after a failure, Forebay tries another server even without a key.
    ["proxy_next_upstream", "proxy_next_upstream_timeout", "proxy_next_upstream_tries"]
        .iter()
        .for_each(|name| drop(scope.all(name)));
    let connect = scope.value("proxy_connect_timeout").and_then(duration);
    settings.set_some("connect_timeout", connect.filter(|time| time != "0s"));
    if !scope.is_on("proxy_ssl") {
        return settings;
    }
    let mut tls = Table::default();
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
            let next =
                format!("the file {file} cannot be read here: add {key} to the TLS settings");
            cx.note(directive, next);
        }
    }
    let name = scope.value("proxy_ssl_name").filter(|name| !name.contains('$'));
    tls.set_some("server_name", name);
    if let Some(directive) = scope.nearest("proxy_ssl").filter(|_| !scope.is_on("proxy_ssl_verify"))
    {
        let text = "nginx accepts any certificate of these servers. Forebay verifies them: name \
                    their authority with `ca` if it is not a public one.";
        let comment = format!("{}: {text}", directive.place);
        if !cx.draft.comments.contains(&comment) {
            cx.draft.comments.push(comment);
        }
    }
    if !tls.is_empty() {
        settings.set("tls", tls);
    }
    settings
}

/// Returns the name of a group with the servers of the upstream `name` and with `settings`. In
/// nginx, servers with different settings may use one upstream. So each combination of settings
/// needs its own group. Adds the group to the draft on its first use.
fn group_with(cx: &mut Cx<'_>, name: &str, settings: &Table) -> String {
    let known = |wanted: &str| cx.draft.upstreams.iter().find(|(name, _)| name == wanted);
    let Some((_, plain)) = known(name).filter(|_| !settings.is_empty()) else {
        return name.to_owned();
    };
    let mut table = plain.clone();
    settings.0.iter().for_each(|(key, value)| table.set(key, value.clone()));
    let mut names = (2..).map(|number| format!("{name}-{number}"));
    let free = names.find(|name| known(name).is_none_or(|(_, other)| *other == table));
    let free = free.unwrap_or_else(|| name.to_owned());
    if known(&free).is_none() {
        cx.draft.upstreams.push((free.clone(), table));
    }
    free
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    #[test]
    fn tls_13_alone_stays_alone() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cert.pem", "key.pem"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let file = dir.path().join("nginx.conf");
        for (protocols, is_13_only) in
            [("TLSv1.3", true), ("TLSv1.2 TLSv1.3", false), ("TLSv1 TLSv1.1", false)]
        {
            let tls = format!(
                "ssl_certificate cert.pem; ssl_certificate_key key.pem; ssl_protocols {protocols};"
            );
            for text in [
                format!("http {{ server {{ listen 8443 ssl; {tls} return 200 a; }} }}"),
                format!("stream {{ server {{ listen 8444 ssl; {tls} proxy_pass 127.0.0.1:9; }} }}"),
            ] {
                std::fs::write(&file, format!("events {{}}\n{text}\n")).unwrap();
                let toml = import(Language::Nginx, &file).unwrap().toml;
                assert!(toml.contains("cert.pem"), "{toml}");
                assert_eq!(toml.contains("min_version = \"1.3\""), is_13_only, "{toml}");
            }
        }
    }
}
