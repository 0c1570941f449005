//! Translates `Listen`, and the addresses of `VirtualHost`, to listeners.

use std::net::{IpAddr, SocketAddr};

use super::Cx;
use super::sections::all;
use super::syntax::Directive;

/// The TLS of a host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HostTls {
    /// The host has no TLS.
    Off,
    /// The host has TLS and a certificate.
    Certified,
    /// The host has TLS but no certificate that Forebay can use. Such a host listens on loopback
    /// only.
    Uncertified,
}

/// An address of `Listen` or `VirtualHost`. `None` means all addresses, or all ports.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Endpoint {
    ip: Option<IpAddr>,
    port: Option<u16>,
}

/// Returns the listeners of a host: one for each `Listen` line that fits an address of the host.
/// For a `VirtualHost` with an address that no `Listen` line has, Apache opens no socket.
pub fn listen(cx: &mut Cx<'_>, host: Option<&Directive>, tls: HostTls) -> Vec<String> {
    let lines = all(&[cx.main], "Listen");
    let opened: Vec<Endpoint> = lines.iter().filter_map(|line| place(line.arg(0))).collect();
    let mut wanted = Vec::new();
    for text in host.iter().flat_map(|host| &host.args) {
        match place(text) {
            Some(place) => wanted.push(place),
            None => by_name(cx, host, &opened, name_and_port(text).1, &mut wanted),
        }
    }
    if host.is_none() {
        wanted.push(Endpoint { ip: None, port: None });
    }
    let mut found: Vec<String> = Vec::new();
    for want in wanted {
        if lines.is_empty() {
            // A file that has only one site has no `Listen` lines, so use the addresses of the
            // host.
            add(&mut found, want, tls);
        }
        for open in &opened {
            let ip = match (want.ip, open.ip) {
                (Some(want), Some(open)) if want != open && !open.is_unspecified() => continue,
                (want, open) => want.or(open),
            };
            let port = match (want.port, open.port) {
                (Some(want), Some(open)) if want != open => continue,
                (want, open) => want.or(open),
            };
            add(&mut found, Endpoint { ip, port }, tls);
        }
    }
    found
}

/// Returns the host names among the addresses of a `VirtualHost`.
pub fn names(host: &Directive) -> Vec<String> {
    let of_name = |text: &&String| place(text).is_none();
    host.args.iter().filter(of_name).map(|text| name_and_port(text).0.to_lowercase()).collect()
}

/// Returns the address of a `VirtualHost`, without its host name.
fn of_host(text: &str) -> Endpoint {
    place(text).unwrap_or_else(|| Endpoint { ip: None, port: name_and_port(text).1 })
}

/// Adds the addresses of a host whose address is a name. Apache looks the name up. The import uses
/// the addresses of the `Listen` lines. If these are all addresses, the host listens on this
/// machine only, because the name may have a private address.
fn by_name(
    cx: &mut Cx<'_>,
    host: Option<&Directive>,
    opened: &[Endpoint],
    port: Option<u16>,
    wanted: &mut Vec<Endpoint>,
) {
    let is_open = |open: &&Endpoint| port.is_none() || open.port == port;
    let known = |open: &&Endpoint| open.ip.is_some_and(|ip| !ip.is_unspecified());
    let before = wanted.len();
    wanted.extend(opened.iter().filter(is_open).filter(known));
    if wanted.len() == before && opened.iter().any(|open| is_open(&open)) {
        wanted.push(Endpoint { ip: Some(IpAddr::from([127, 0, 0, 1])), port });
        if let Some(host) = host {
            let next = "the name is not looked up, so the site listens on this machine only: write \
                        the address in `listen`";
            cx.note(host, next);
        }
    }
}

fn name_and_port(text: &str) -> (&str, Option<u16>) {
    match text.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().ok()),
        None => (text, None),
    }
}

/// Adds a note on each `Listen` line that belongs to no virtual host.
pub fn note_unused(cx: &mut Cx<'_>, hosts: &[&Directive]) {
    let wanted: Vec<Endpoint> =
        hosts.iter().flat_map(|host| &host.args).map(|text| of_host(text)).collect();
    for line in all(&[cx.main], "Listen") {
        let is_used = place(line.arg(0)).is_some_and(|open| {
            let shares = |want: &Endpoint| want.port.is_none() || want.port == open.port;
            hosts.is_empty() || wanted.iter().any(shares)
        });
        if is_used {
            line.settle();
        } else {
            let next = "the main server answers here: write a site with this address in `listen`";
            cx.note(line, next);
        }
    }
}

/// Adds a listener to `found` in Forebay's form, unless `found` has it.
fn add(found: &mut Vec<String>, place: Endpoint, tls: HostTls) {
    let usual_port = if tls == HostTls::Off { 80 } else { 443 };
    let port = place.port.unwrap_or(usual_port);
    let address = match place.ip {
        Some(ip) => SocketAddr::new(ip, port).to_string(),
        None => format!(":{port}"),
    };
    let listen = match tls {
        HostTls::Off => address,
        HostTls::Certified => format!("https://{address}"),
        HostTls::Uncertified => format!("127.0.0.1:{port}"),
    };
    if !found.contains(&listen) {
        found.push(listen);
    }
}

/// Parses an address such as `8080`, `*:80`, `_default_:443`, `10.0.0.1` or `[::1]:80`. Returns
/// `None` for a host name other than `localhost`.
fn place(text: &str) -> Option<Endpoint> {
    if let Ok(port) = text.parse() {
        return Some(Endpoint { ip: None, port: Some(port) });
    }
    let (address, port) = match text.rsplit_once(':') {
        Some((address, "*")) => (address, None),
        Some((address, port)) if !address.contains(':') || address.ends_with(']') => {
            (address, Some(port.parse().ok()?))
        }
        _ => (text, None),
    };
    let bare = address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let ip = match bare.unwrap_or(address) {
        "*" | "_default_" | "" => None,
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        text => Some(text.parse().ok()?),
    };
    Some(Endpoint { ip, port })
}
