//! Translates `listen` and `server_name`.

use super::Cx;
use super::scope::Scope;
use super::syntax::Directive;
use crate::pattern::{Use, classify};

/// A listener of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address and port, or the socket, in Forebay's form.
    pub address: String,
    pub is_tls: bool,
    /// True if `default_server` is given.
    pub is_default: bool,
    pub is_quic: bool,
    pub has_proxy_protocol: bool,
}

/// Returns `1.3` if `ssl_protocols` names no older version of TLS. Otherwise returns `None`,
/// because Forebay's default applies.
pub fn min_version(scope: &Scope<'_>) -> Option<&'static str> {
    let older = ["TLSv1", "TLSv1.1", "TLSv1.2"];
    let is_older = |name: &String| older.iter().any(|older| name.eq_ignore_ascii_case(older));
    let protocols = scope.nearest("ssl_protocols")?;
    (!protocols.args.iter().any(is_older)).then_some("1.3")
}

/// Returns the listeners of each server. A server without `listen` listens on port 80.
pub fn listeners(cx: &mut Cx<'_>, servers: &[&Directive]) -> Vec<Vec<Listener>> {
    let mut all: Vec<Vec<Listener>> = Vec::new();
    for server in servers {
        let listens: Vec<&Directive> =
            server.inside().iter().filter(|d| d.name == "listen").collect();
        let mut found: Vec<Listener> = Vec::new();
        for listen in &listens {
            listen.settle();
            let Some(listener) = listener(server, listen) else {
                cx.note(listen, "write an address and a port in `listen`");
                continue;
            };
            match found.iter_mut().find(|other| other.address == listener.address) {
                // `listen 443 ssl` and `listen 443 quic` are one listener in Forebay.
                Some(other) => {
                    other.is_tls |= listener.is_tls;
                    other.is_quic |= listener.is_quic;
                    other.is_default |= listener.is_default;
                }
                None => found.push(listener),
            }
        }
        if found.is_empty() {
            found.push(Listener::plain("0.0.0.0:80"));
        }
        all.push(found);
    }
    join_wildcards(&mut all);
    agree(&mut all);
    all
}

impl Listener {
    fn plain(address: &str) -> Self {
        Self {
            address: address.into(),
            is_tls: false,
            is_default: false,
            is_quic: false,
            has_proxy_protocol: false,
        }
    }

    /// Returns the listener in Forebay's form.
    pub fn written(&self) -> String {
        if self.is_tls { format!("https://{}", self.address) } else { self.address.clone() }
    }

    /// Returns the port; `None` for a Unix socket.
    fn port(&self) -> Option<&str> {
        if self.address.starts_with("unix:") {
            return None;
        }
        self.address.rsplit(':').next()
    }

    /// Returns a listener without TLS that only this machine can use. It has the same port, or port
    /// 8080 in place of a socket.
    pub fn on_loopback(&self) -> String {
        format!("127.0.0.1:{}", self.port().unwrap_or("8080"))
    }
}

fn listener(server: &Directive, listen: &Directive) -> Option<Listener> {
    let options = &listen.args[1.min(listen.args.len())..];
    let has = |name: &str| options.iter().any(|option| option == name);
    let switches: Vec<_> = server.inside().iter().filter(|d| d.name == "ssl").collect();
    switches.iter().for_each(|ssl| ssl.settle());
    let is_ssl = switches.iter().any(|ssl| ssl.arg(0) == "on");
    Some(Listener {
        address: address(listen.arg(0))?,
        is_tls: has("ssl") || has("quic") || is_ssl,
        is_default: has("default_server") || has("default"),
        is_quic: has("quic"),
        has_proxy_protocol: has("proxy_protocol"),
    })
}

/// Returns the address of `listen` in Forebay's form. Returns `None` for a host name other than
/// `localhost`, and for a text that is no address.
pub fn address(text: &str) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return path.starts_with('/').then(|| text.to_owned());
    }
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_port(text) {
        return Some(format!("0.0.0.0:{text}"));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && (!host.contains(':') || host.ends_with(']')) => {
            (host, port)
        }
        _ => (text, "80"),
    };
    let host = match host {
        "*" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        host => host,
    };
    let address = format!("{host}:{port}");
    address.parse::<std::net::SocketAddr>().ok().map(|address| address.to_string())
}

/// Joins the IPv4 and the IPv6 wildcard of a port to one listener. For these wildcards, nginx has
/// two sockets, and Forebay has one.
fn join_wildcards(all: &mut [Vec<Listener>]) {
    let is_v6 = |listener: &Listener| listener.address.starts_with("[::]:");
    let ports: Vec<String> = all
        .iter()
        .flatten()
        .filter(|listener| is_v6(listener))
        .filter_map(|listener| listener.port().map(str::to_owned))
        .collect();
    for listeners in all {
        for listener in listeners.iter_mut() {
            let is_wildcard = is_v6(listener) || listener.address.starts_with("0.0.0.0:");
            let port = listener.port().unwrap_or_default().to_owned();
            if is_wildcard && ports.contains(&port) {
                listener.address = format!(":{port}");
            }
        }
        let mut joined: Vec<Listener> = Vec::new();
        for listener in listeners.drain(..) {
            match joined.iter_mut().find(|other| other.address == listener.address) {
                Some(other) => {
                    other.is_tls |= listener.is_tls;
                    other.is_quic |= listener.is_quic;
                    other.is_default |= listener.is_default;
                }
                None => joined.push(listener),
            }
        }
        *listeners = joined;
    }
}

/// Gives all listeners of one address the same settings for TLS and for the PROXY protocol, because
/// these listeners are one socket.
fn agree(all: &mut [Vec<Listener>]) {
    let found: Vec<Listener> = all.iter().flatten().cloned().collect();
    for listener in all.iter_mut().flatten() {
        let same = || found.iter().filter(|other| other.address == listener.address);
        let (is_tls, has_proxy) =
            (same().any(|other| other.is_tls), same().any(|other| other.has_proxy_protocol));
        listener.is_tls = is_tls;
        listener.has_proxy_protocol = has_proxy;
    }
}

/// Returns the host names of a server. Leaves out names that match nothing, such as `_`. A name
/// without a translation gets a note, and becomes `not-translated.invalid`.
pub fn names(cx: &mut Cx<'_>, server: &Directive) -> Vec<String> {
    let mut found = Vec::new();
    let directives = server.inside().iter().filter(|d| d.name == "server_name");
    for directive in directives {
        directive.settle();
        for name in &directive.args {
            let names = hosts(cx, name);
            if names.is_empty() && !matches!(name.as_str(), "_" | "" | "--") {
                let next = "name the hosts in `hosts`: names, or `*.` before a name, which also takes \
                            names with several labels";
                cx.note(directive, next);
                // Without a name the site would answer for every host.
                found.push("not-translated.invalid".to_owned());
            }
            if name.starts_with('~') && !name.starts_with("~^") && !names.is_empty() {
                cx.note(directive, "the expression also takes longer names: add them to `hosts`");
            }
            found.extend(names);
        }
    }
    found.dedup();
    found
}

fn hosts(cx: &Cx<'_>, name: &str) -> Vec<String> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    if let Some(regex) = name.strip_prefix('~') {
        return of_regex(cx, regex);
    }
    if let Some(domain) = name.strip_prefix('.').filter(|domain| is_host(domain)) {
        return vec![domain.to_owned(), format!("*.{domain}")];
    }
    let plain = name.strip_prefix("*.").unwrap_or(&name);
    if is_host(plain) && plain != "_" || name.starts_with('[') { vec![name] } else { Vec::new() }
}

/// Returns the hosts of an expression such as `^(?<sub>.+)\.example\.org$`. Returns no hosts if the
/// expression has no translation.
fn of_regex(cx: &Cx<'_>, regex: &str) -> Vec<String> {
    let Some((_, end)) = regex.trim_end_matches('$').split_once(")\\.") else {
        // `classify` reads expressions for paths, so put a slash before the name. The result shows
        // whether the expression matches only fixed names.
        let text = format!("^/{}", regex.trim_start_matches('^'));
        let found = classify(&text, false, cx.keys, Use::Exact).ok();
        let paths = found.map(|found| found.matcher.paths).unwrap_or_default();
        let hosts = paths.iter().map(|path| path.trim_start_matches('/').to_owned());
        let hosts: Vec<String> = hosts.collect();
        return if hosts.iter().all(|host| is_host(host)) { hosts } else { Vec::new() };
    };
    let domain = end.replace("\\.", ".");
    // The host `*.example.org` takes all names that end with `.example.org`, even names with
    // further dots. So only an expression that matches all of these names has a translation.
    if is_host(&domain) && is_any_text(regex) { vec![format!("*.{domain}")] } else { Vec::new() }
}

/// Returns true if an expression begins with a group for any text, and ends with `$`.
fn is_any_text(regex: &str) -> bool {
    let Some((group, _)) = regex.strip_prefix("^(").and_then(|rest| rest.split_once(")\\.")) else {
        return false;
    };
    let inner = group.rsplit_once('>').map_or(group, |(_, inner)| inner);
    let inner = inner.strip_prefix("?:").unwrap_or(inner);
    matches!(inner, ".+" | ".*") && regex.ends_with('$')
}

/// Returns true if Forebay accepts the host name.
pub fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    !name.is_empty() && name.split('.').all(is_label)
}
