//! Explains a connection of a stream.

use std::net::{IpAddr, Ipv4Addr};

use forebay_conf::{Backend, Clients, HostPattern, Listen, Plan, ProxyHeader, Relay};
use forebay_server::host_index::HostIndex;

use super::{Explanation, QuestionError};

/// Returns the explanation of a connection to `address` (`host:port`) over TCP or UDP, as lines of
/// text. If the host is a name, the client sends it as the server name (SNI). The client's address
/// is 127.0.0.1.
pub(super) fn explain(plan: &Plan, address: &str, is_udp: bool) -> Result<String, QuestionError> {
    let address = address.trim_end_matches('/');
    let (host, port) = parse(address).ok_or_else(|| {
        let shown = super::printable(address.as_bytes());
        QuestionError::new(format!("\"{shown}\" is not a host and a port; write tcp://host:port"))
    })?;
    let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let name = if ip.is_none() { host.to_ascii_lowercase() } else { String::new() };
    let Some(listen) = listener(plan, ip, port, is_udp) else {
        let protocol = if is_udp { "UDP " } else { "" };
        return Err(QuestionError::new(format!("no stream listens on {protocol}port {port}")));
    };
    let mut text = Explanation::default();
    text.item("listener", listen.to_string().as_bytes());
    let here: Vec<_> = plan.relays.iter().filter(|relay| relay.listen.contains(listen)).collect();
    let needs_hello = here.iter().any(|relay| relay.needs_hello());
    if needs_hello && !name.is_empty() {
        text.item("sni", name.as_bytes());
    }
    let names = HostIndex::new(here.iter().map(|relay| &relay.sni[..]));
    match names.find(name.as_bytes()) {
        Some(found) => relay(here[found.item], needs_hello, &mut text),
        None => text.item("answer", b"closed: no stream here has this server name"),
    }
    Ok(text.text)
}

fn relay(relay: &Relay, needs_hello: bool, text: &mut Explanation) {
    let file = relay.file.as_ref().map(|file| format!(" of {file}")).unwrap_or_default();
    let why = match (&relay.sni[..], needs_hello) {
        ([HostPattern::Any], false) => "all connections of the listener",
        ([HostPattern::Any], true) => "no other stream of the listener has this server name",
        _ => "the server name is in `sni`",
    };
    text.item("stream", format!("line {}{file}: {why}", relay.line).as_bytes());
    if !relay.access.admits(Some(Ipv4Addr::LOCALHOST.into())) {
        return text.item("answer", b"closed: `allow` or `deny` refuses 127.0.0.1");
    }
    let has_rules = [&relay.access.allow, &relay.access.deny].iter().any(|rule| !rule.is_empty());
    if has_rules && relay.access.allow != [Clients::All] {
        text.item("access", b"127.0.0.1 is admitted");
    }
    let tls: &[u8] = match (&relay.tls, needs_hello) {
        (Some(_), _) => b"ends here, the servers get the decrypted bytes",
        (None, true) => b"is passed on unread",
        (None, false) => b"all bytes are passed on unread",
    };
    text.item("tls", tls);
    let servers: Vec<_> = relay.upstream.to.iter().map(server).collect();
    text.item("servers", servers.join(" or ").as_bytes());
    if let Some(version) = relay.upstream.send_proxy {
        let version = if version == ProxyHeader::V1 { "1" } else { "2" };
        text.item("announced", format!("by a PROXY header of version {version}").as_bytes());
    }
}

fn server(backend: &Backend) -> String {
    let scheme = if backend.https { "tls://" } else { "" };
    format!("{scheme}{}", backend.address)
}

/// Returns the host and the port of an address. Returns `None` if the address is invalid.
fn parse(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
    let port = port.parse().ok()?;
    (!host.is_empty() && host.chars().all(is_host)).then_some((host, port))
}

/// Returns the stream listener on this port. Prefers a listener with this IP address. Returns
/// `None` if no stream listens on this port.
fn listener(plan: &Plan, ip: Option<IpAddr>, port: u16, is_udp: bool) -> Option<&Listen> {
    let fits = |listen: &&Listen, exact: bool| match listen.socket() {
        Listen::Tcp(at) | Listen::Udp(at) if listen.is_udp() == is_udp => {
            let has_ip = at.ip().is_unspecified() || ip.is_none_or(|ip| ip == at.ip());
            (at.port() == port || at.port() == 0) && (has_ip || !exact)
        }
        _ => false,
    };
    let all = || plan.relays.iter().flat_map(|relay| &relay.listen);
    all().find(|listen| fits(listen, true)).or_else(|| all().find(|listen| fits(listen, false)))
}
