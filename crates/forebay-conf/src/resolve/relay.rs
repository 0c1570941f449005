//! Resolves `[[stream]]`. No two streams may have the same pair of listener and server name.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;

use super::peer;
use super::proxies::proxies;
use super::tls::stream_tls;
use super::upstream::{Keys, of_route};
use super::value::optional_time_above_zero;
use super::{Context, MOST_PROBLEMS, Resolution, keep};
use crate::error::Problem;
use crate::file::{self, At, File};
use crate::key::{no_effect, not_empty};
use crate::plan::{
    Access, Address, Clients, HostPattern, Listen, NetworkList, Relay, Scheme, Site, Upstream,
};

/// Resolves all streams. Returns the streams without a problem, and adds the problems of the others
/// to `problems`.
pub(super) fn relays(
    context: &Context<'_>,
    file: &File,
    sites: &[Arc<Site>],
    problems: &mut Vec<Problem>,
) -> Vec<Relay> {
    let mut listeners = Listeners::default();
    let mut relays = Vec::new();
    for typed in file.stream.iter().flatten() {
        if problems.len() >= MOST_PROBLEMS {
            break;
        }
        let relay = relay(context, file, typed).and_then(|relay| {
            listeners.claim(&relay, typed, sites)?;
            Ok(relay)
        });
        relays.extend(keep(relay, problems));
    }
    relays
}

fn relay(context: &Context<'_>, file: &File, typed: &At<file::Relay>) -> Resolution<Relay> {
    let listen = listen(context, typed)?;
    let sni = names(typed)?;
    let tls = typed.tls.as_ref().map(|at| stream_tls(context, at, &sni)).transpose()?;
    let proxy_protocol = typed.proxy_protocol.as_ref().is_some_and(|at| at.value);
    if let (Some(at), false) = (&typed.trusted_proxies, proxy_protocol) {
        let help = "leave it out, or add proxy_protocol = true";
        return Err(no_effect(&at.span, "trusted_proxies", "without `proxy_protocol`", help));
    }
    let items = typed.trusted_proxies.as_ref().map(At::items).unwrap_or_default();
    let (trusted_proxies, proxy_lists) = proxies(context, &items)?;
    let keys = Keys::from(&**typed);
    let upstream = of_route(context, file, Scheme::Stream, &typed.span, &keys)?;
    if listen.iter().any(Listen::is_udp) {
        fits_udp(typed, &listen, &upstream)?;
    }
    Ok(Relay {
        listen,
        sni,
        tls,
        upstream,
        idle_timeout: optional_time_above_zero(&typed.idle_timeout)?,
        proxy_protocol,
        trusted_proxies,
        proxy_lists,
        access: Access {
            allow: typed.allow.clone(),
            deny: typed.deny.clone(),
            ..Access::default()
        },
        line: context.line(typed.span.start),
        file: context.sources.included(typed.span.start).map(str::to_owned),
    })
}

fn listen(context: &Context<'_>, typed: &At<file::Relay>) -> Resolution<Vec<Listen>> {
    let items = typed.listen.as_ref().map(At::items).unwrap_or_default();
    if items.is_empty() {
        return Err(Problem::new(&typed.span, "this stream listens nowhere")
            .label("needs `listen`")
            .help("say where: listen = \"127.0.0.1:5432\""));
    }
    let listen = |at: &At<&file::NumberOrText>| {
        if let Some(address) = at.value.0.strip_prefix("udp://") {
            let address = peer::socket_address(&at.with(address))?;
            return Ok(Listen::Stream(Box::new(Listen::Udp(address))));
        }
        match peer::listen(context, &at.with(&at.value.0))? {
            Listen::Https(_) | Listen::Ajp(_) => {
                let message = format!("a stream cannot listen on \"{}\"", at.value.0);
                Err(Problem::new(&at.span, message).help(
                "leave off the scheme: \"127.0.0.1:5432\"; the key `tls` has a stream's certificate",
            ))
            }
            socket => Ok(Listen::Stream(Box::new(socket))),
        }
    };
    items.iter().map(listen).collect()
}

/// Checks that the keys and servers of a stream with a UDP listener are possible over UDP.
fn fits_udp(typed: &At<file::Relay>, listen: &[Listen], upstream: &Upstream) -> Resolution<()> {
    let tcp_only = [
        ("sni", typed.sni.as_ref().map(|at| &at.span)),
        ("tls", typed.tls.as_ref().map(|at| &at.span)),
        ("server_tls", typed.server_tls.as_ref().map(|at| &at.span)),
        ("proxy_protocol", typed.proxy_protocol.as_ref().map(|at| &at.span)),
    ];
    if let Some((key, span)) = tcp_only.into_iter().find_map(|(key, span)| Some((key, span?))) {
        let help = "leave it out, or give the TCP listeners a stream of their own";
        return Err(no_effect(span, key, "on a stream with UDP", help));
    }
    let span = typed.to.as_ref().map_or(&typed.span, |at| &at.span);
    if upstream.send_proxy.is_some() {
        return Err(Problem::new(span, "`send_proxy` is for TCP, and this stream has UDP")
            .help("leave it out, or give the TCP listeners a stream of their own"));
    }
    if let Some(server) = upstream.to.iter().find(|server| server.https) {
        let message = format!("tls://{} is for TCP, and this stream has UDP", server.address);
        return Err(Problem::new(span, message)
            .help("leave off tls://, or give the TCP listeners a stream of their own"));
    }
    if upstream.health.is_some() && listen.iter().all(Listen::is_udp) {
        return Err(Problem::new(
            span,
            "`health` opens a TCP connection, and this stream has only UDP",
        )
        .help("leave it out: a server that refuses datagrams is left out by itself"));
    }
    match upstream.addresses().find(|address| matches!(address, Address::Unix(_))) {
        Some(unix) => Err(Problem::new(span, format!("{unix} does not take UDP"))
            .help("give the server's address and port, such as \"127.0.0.1:53\"")),
        None => Ok(()),
    }
}

fn names(typed: &At<file::Relay>) -> Resolution<Vec<HostPattern>> {
    let Some(at) = &typed.sni else { return Ok(vec![HostPattern::Any]) };
    not_empty(
        &at.items(),
        &at.span,
        "",
        "give names such as \"db.example.org\", or leave `sni` out for all clients",
    )?;
    let name = |at: &At<&String>| match peer::host(at)? {
        HostPattern::Any => Err(Problem::new(&at.span, "\"*\" is every name")
            .help("leave `sni` out: the stream then has all names that no other stream has")),
        HostPattern::Exact(name) if name.starts_with('[') || name.parse::<Ipv4Addr>().is_ok() => {
            Err(Problem::new(&at.span, "TLS clients name hosts, never addresses")
                .help("give a host name, such as \"db.example.org\""))
        }
        name => Ok(name),
    };
    at.items().iter().map(name).collect()
}

/// The listeners of all streams so far.
#[derive(Default)]
struct Listeners {
    /// The position of the stream that has each pair of listener and name.
    names: HashMap<(Listen, String), Range<usize>>,
    /// `proxy_protocol` of each listener, and the position that set it first.
    proxied: HashMap<Listen, (bool, Range<usize>)>,
    /// `trusted_proxies` of each listener, and the position that set them first.
    trusted: HashMap<Listen, (Proxies, Range<usize>)>,
}

/// Trusted proxies, and lists of further ones.
type Proxies = (Vec<Clients>, Vec<Arc<NetworkList>>);

impl Listeners {
    fn claim(
        &mut self,
        relay: &Relay,
        typed: &At<file::Relay>,
        sites: &[Arc<Site>],
    ) -> Resolution<()> {
        let span = typed.listen.as_ref().map_or(&typed.span, |at| &at.span);
        for listen in &relay.listen {
            let is_any_port = matches!(
                listen.socket(), Listen::Tcp(at) | Listen::Udp(at) if at.port() == 0
            );
            let is_same = |other: &Listen| match (other.socket(), listen.socket()) {
                (Listen::Http3(other), Listen::Udp(address)) => other == address,
                (other, socket) => other == socket,
            };
            if !is_any_port && sites.iter().flat_map(|site| &site.listen).any(is_same) {
                return Err(Problem::new(span, format!("a site listens on {listen}, too"))
                    .help("give the stream a port of its own"));
            }
            let proxied = typed.proxy_protocol.as_ref().map_or(span, |at| &at.span);
            let first = (relay.proxy_protocol, proxied.clone());
            let (first, also) = self.proxied.entry(listen.clone()).or_insert(first);
            if *first != relay.proxy_protocol {
                return Err(Problem::new(proxied, format!("two streams on {listen} differ"))
                    .label(format!("`proxy_protocol` is {} here", relay.proxy_protocol))
                    .also(also, format!("and {first} here"))
                    .help("all streams of a listener take PROXY headers, or none does"));
            }
            self.claim_proxies(listen, relay, typed)?;
            for name in &relay.sni {
                self.claim_name(listen, name, typed.sni.as_ref().map_or(span, |at| &at.span))?;
            }
        }
        Ok(())
    }

    /// Checks that all streams of a listener trust the same proxies. The listener reads the PROXY
    /// header before the server name that selects the stream, so it cannot check the proxies of one
    /// stream.
    fn claim_proxies(
        &mut self,
        listen: &Listen,
        relay: &Relay,
        typed: &At<file::Relay>,
    ) -> Resolution<()> {
        let span = typed.trusted_proxies.as_ref().map_or(&typed.span, |at| &at.span);
        let all = (relay.trusted_proxies.clone(), relay.proxy_lists.clone());
        let first = (all.clone(), span.clone());
        let (first, also) = self.trusted.entry(listen.clone()).or_insert(first);
        if *first == all {
            return Ok(());
        }
        Err(Problem::new(span, format!("two streams on {listen} trust different proxies"))
            .label("this stream")
            .also(also, "and the first one")
            .help("give them the same `trusted_proxies`, or listeners of their own"))
    }

    fn claim_name(
        &mut self,
        listen: &Listen,
        name: &HostPattern,
        span: &Range<usize>,
    ) -> Resolution<()> {
        let name = match name {
            HostPattern::Exact(name) => name.clone(),
            HostPattern::Suffix(suffix) => format!("*{suffix}"),
            HostPattern::Any => "*".into(),
        };
        let Some(first) = self.names.insert((listen.clone(), name.clone()), span.clone()) else {
            return Ok(());
        };
        let problem = match &*name {
            "*" => Problem::new(span, format!("two streams without `sni` listen on {listen}")),
            name => Problem::new(span, format!("\"{name}\" on {listen} is taken already")),
        };
        Err(problem
            .label("given a second time")
            .also(&first, "first given here")
            .help("give each stream names (`sni`) or a listener of its own"))
    }
}
