//! Addresses of servers and networks.

use crate::network::network;

/// Returns an address of `reverse_proxy` as a URL. Returns `None` if Forebay does not accept the
/// address.
pub fn url(text: &str) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix/") {
        return path.starts_with('/').then(|| format!("unix:{path}"));
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let rest = rest.trim_end_matches('/');
    let rest = if rest.starts_with(':') { format!("127.0.0.1{rest}") } else { rest.to_owned() };
    let is_host = |c: char| c.is_ascii_alphanumeric() || "._-:[]".contains(c);
    let is_plain = !rest.is_empty() && rest.chars().all(is_host);
    let port = rest.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let is_port = port.is_none_or(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
    (is_plain && is_port && matches!(scheme, "http" | "https" | "h2c"))
        .then(|| format!("{scheme}://{rest}"))
}

/// Returns networks in Forebay's form; `None` if one of them is no network.
pub fn networks(args: &[String]) -> Option<Vec<String>> {
    let private =
        ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "fd00::/8", "::1"];
    let mut list: Vec<String> = Vec::new();
    for who in args {
        if who == "private_ranges" {
            list.extend(private.map(str::to_owned));
        } else {
            list.push(network(who)?);
        }
    }
    Some(list)
}
