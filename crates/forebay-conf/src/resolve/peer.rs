//! Parses the addresses of listeners, backends and clients.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::value::text;
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::At;
use crate::key::FromText;
use crate::key::paths::{in_directory, socket};
use crate::plan::{Address, Backend, Clients, HostPattern, HttpVersion, Listen, Scheme};

/// Parses a listener: `address:port`, `:port`, a bare port, `unix:path`, or `fd:name`, with an
/// optional prefix `https://` or `ajp://`.
pub(crate) fn listen(context: &Context<'_>, typed: &At<impl AsRef<str>>) -> Resolution<Listen> {
    let text = text(typed)?;
    for scheme in ["https://", "ajp://"] {
        let Some(socket) = text.strip_prefix(scheme) else { continue };
        if let Some(address) = socket.strip_suffix('/').filter(|rest| !rest.contains('/')) {
            return Err(Problem::new(&typed.span, format!("cannot listen on \"{text}\""))
                .help(format!("leave off the last slash: \"{scheme}{address}\"")));
        }
        return match listen(context, &typed.with(socket))? {
            Listen::Https(_)
            | Listen::Ajp(_)
            | Listen::Stream(_)
            | Listen::Udp(_)
            | Listen::Http3(_) => {
                let message = format!("another scheme follows {scheme}");
                Err(Problem::new(&typed.span, message)
                    .help("a listener speaks one protocol: \"https://\", \"ajp://\" or neither"))
            }
            socket if scheme == "ajp://" => Ok(Listen::Ajp(Box::new(socket))),
            socket => Ok(Listen::Https(Box::new(socket))),
        };
    }
    if let Some(name) = text.strip_prefix("fd:") {
        return named(typed, name);
    }
    match text.strip_prefix("unix:") {
        Some(path) => {
            let path = typed.with(path);
            in_directory(context.sources, &path)?;
            Ok(Listen::Unix(socket(context.sources, &path)?))
        }
        None if text.starts_with('/') => {
            Err(Problem::new(&typed.span, format!("cannot listen on \"{text}\""))
                .help(format!("a Unix socket is written \"unix:{text}\"")))
        }
        None => Ok(Listen::Tcp(socket_address(&typed.with(text))?)),
    }
}

/// Parses the name in `fd:name`. The allowed characters are those of systemd
/// (sd_pid_notify_with_fds(3)).
fn named(typed: &At<impl AsRef<str>>, name: &str) -> Resolution<Listen> {
    let is_allowed = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b':';
    if name.is_empty() || name.len() > 255 || !name.bytes().all(is_allowed) {
        let message = format!("\"fd:{name}\" names no socket of a service manager");
        return Err(Problem::new(&typed.span, message)
            .help("write the FileDescriptorName= of the socket unit, such as \"fd:web\""));
    }
    Ok(Listen::Named(name.to_owned()))
}

/// Parses an IP address and port, or a port for all addresses.
pub(super) fn socket_address(typed: &At<&str>) -> Resolution<SocketAddr> {
    let text = typed.value;
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let all = text.strip_prefix(':').or_else(|| text.strip_prefix("*:")).unwrap_or(text);
    if !all.is_empty() && all.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port(typed, all, 0)?));
    }
    let problem = Problem::new(&typed.span, format!("cannot listen on \"{text}\""));
    if text.parse::<IpAddr>().is_ok() {
        let address = if text.contains(':') { format!("[{text}]") } else { text.to_owned() };
        return Err(problem.label("no port").help(format!("add one: \"{address}:8080\"")));
    }
    if text.contains("://") {
        return Err(problem.help(
            "leave off the scheme and the path: \"127.0.0.1:8080\"; with TLS: \
             \"https://127.0.0.1:8443\"; for web servers that speak AJP: \"ajp://127.0.0.1:8009\"",
        ));
    }
    if let Some((host, digits)) = text.rsplit_once(':') {
        let number = port(typed, digits, 0)?;
        let address = if host == "localhost" { "127.0.0.1" } else { "0.0.0.0" };
        return Err(problem
            .label("not an IP address")
            .help(format!("listeners have addresses, not names: \"{address}:{number}\"")));
    }
    Err(problem.help("write \"127.0.0.1:8080\", or \":8080\" for all addresses"))
}

/// Parses the address of an application: `host:port` or `unix:path`.
pub(super) fn address(context: &Context<'_>, typed: &At<impl AsRef<str>>) -> Resolution<Address> {
    let text = text(typed)?;
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Address::Unix(socket(context.sources, &typed.with(path))?));
    }
    if text.starts_with('/') {
        return Err(Problem::new(&typed.span, format!("\"{text}\" is a path, not an address"))
            .help(format!("a Unix socket is written \"unix:{text}\"")));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return Err(Problem::new(&typed.span, format!("\"{text}\" is a URL, not an address"))
            .help(format!("leave off {scheme}://, as in \"{}\"", rest.trim_end_matches('/'))));
    }
    host_and_port(&typed.with(text), None).map(Address::Tcp)
}

/// Parses the URL of an HTTP server: `http://host[:port]`, `https://host[:port]`,
/// `h2c://host[:port]` or `unix:path`.
pub(crate) fn backend(context: &Context<'_>, typed: &At<impl AsRef<str>>) -> Resolution<Backend> {
    let text = text(typed)?;
    if let Some(path) = text.strip_prefix("unix:") {
        let address = Address::Unix(socket(context.sources, &typed.with(path))?);
        return Ok(plain(address, "localhost"));
    }
    let problem = Problem::new(&typed.span, format!("\"{text}\" is not the URL of a server"));
    let (https, h2c) = (text.strip_prefix("https://"), text.strip_prefix("h2c://"));
    let Some(rest) = https.or(h2c).or_else(|| text.strip_prefix("http://")) else {
        return Err(match text.split_once("://") {
            Some((scheme, _)) => problem.label(format!("cannot speak {scheme}")).help(
                "a proxy speaks http://, https:// and h2c://; FastCGI has a key of its own, \
                 `fastcgi`",
            ),
            None if text.contains([':', '.', '/']) => {
                problem.help(format!("write \"http://{text}\""))
            }
            None => problem.help(format!(
                "write \"http://{text}\", or \"@{text}\" for the group [upstream.{text}]"
            )),
        });
    };
    if rest.contains(['?', '#', '@']) {
        return Err(problem.help("a URL here has a host and a port only: \"http://host:port\""));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(problem.label(format!("has the path /{path}")).help(format!(
            "requests keep their path (or lose `strip_prefix`): write \"http://{authority}\""
        )));
    }
    let port = if https.is_some() { 443 } else { 80 };
    let address = Address::Tcp(host_and_port(&typed.with(authority), Some(port))?);
    let version = if h2c.is_some() { HttpVersion::Http2 } else { HttpVersion::Http11 };
    Ok(Backend { https: https.is_some(), version, ..plain(address, authority) })
}

fn plain(address: Address, authority: &str) -> Backend {
    Backend::new(Scheme::Http, address, authority.to_owned())
}

/// Parses the clients of a rule: an address or a network, `unix` or `all`.
pub(super) fn clients(typed: &At<impl AsRef<str>>) -> Resolution<Clients> {
    Clients::from_text(text(typed)?, &typed.span)
}

/// Parses a trusted proxy: an address or a network, or `unix`.
pub(super) fn proxy(typed: &At<impl AsRef<str>>) -> Resolution<Clients> {
    match clients(typed)? {
        Clients::All => Err(Problem::new(&typed.span, "\"all\" proxies cannot be trusted")
            .label("any client could choose its address")
            .help("name the proxies: addresses such as \"10.0.0.1\", or \"unix\"")),
        clients => Ok(clients),
    }
}

/// Parses `host:port`. If the port is missing, adds the port `default`. Without a `default`, a
/// missing port is an error.
fn host_and_port(typed: &At<&str>, default: Option<u16>) -> Resolution<String> {
    let text = typed.value;
    let problem = Problem::new(&typed.span, format!("\"{text}\" is not a host and a port"));
    let (host, digits) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((v6, behind)) if v6.parse::<Ipv6Addr>().is_ok() => (&text[..v6.len() + 2], behind),
            _ => return Err(problem.help("only an IPv6 address has brackets: \"[::1]:9000\"")),
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if !host.starts_with('[') && digits.matches(':').count() > 1 {
        return Err(problem.help("an IPv6 address goes in brackets: \"[::1]:9000\""));
    }
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if host.is_empty() || (!host.starts_with('[') && !host.bytes().all(named)) {
        return Err(problem.help("write a name or an address, then a port: \"127.0.0.1:9000\""));
    }
    match (digits.strip_prefix(':'), default) {
        (Some(digits), _) => Ok(format!("{host}:{}", port(typed, digits, 1)?)),
        (None, Some(default)) if digits.is_empty() => Ok(format!("{host}:{default}")),
        (None, None) if host.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(problem.label("no host").help(format!("write \"127.0.0.1:{host}\"")))
        }
        _ => Err(problem.label("no port").help(format!("add one: \"{host}:9000\""))),
    }
}

fn port<T>(typed: &At<T>, digits: &str, least: u16) -> Resolution<u16> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse::<u16>() {
        Ok(port) if plain && port >= least => Ok(port),
        _ => {
            let problem = Problem::new(&typed.span, format!("\"{digits}\" is not a port"));
            Err(problem.help(format!("a port is a number from {least} to 65535")))
        }
    }
}

/// Checks the name of a host: exact, with `*.` for all of its subdomains, or `*` for every host.
pub(super) fn host(typed: &At<&String>) -> Resolution<HostPattern> {
    let typed_text = text(typed)?;
    let host = typed_text.strip_suffix('.').unwrap_or(typed_text).to_ascii_lowercase();
    let problem = Problem::new(&typed.span, format!("\"{typed_text}\" is not a host name"));
    if host == "*" {
        return Ok(HostPattern::Any);
    }
    if host.starts_with('[') {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        return match inner.map(str::parse::<std::net::Ipv6Addr>) {
            Some(Ok(address)) => Ok(HostPattern::Exact(format!("[{address}]"))),
            _ => Err(problem.help("only an IPv6 address has brackets, without a port: \"[::1]\"")),
        };
    }
    let name = host.strip_prefix("*.").unwrap_or(&host);
    if name.contains("://") || name.contains('/') {
        return Err(problem.help("leave off scheme and path: \"example.org\""));
    }
    if name.contains(':') {
        return Err(problem.help("leave off the port: it is given in `listen`"));
    }
    if name.contains('*') {
        return Err(problem.help("a `*` stands for the first part only: \"*.example.org\""));
    }
    if !name.is_ascii() {
        return Err(problem.help("write the ASCII form that browsers send, which begins with xn--"));
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if !name.split('.').all(label) {
        return Err(problem.help("a name is letters, digits and hyphens, with dots between"));
    }
    Ok(match host.strip_prefix('*') {
        Some(suffix) => HostPattern::Suffix(suffix.to_owned()),
        None => HostPattern::Exact(host),
    })
}
