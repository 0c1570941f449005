//! Resolves `[server]`.

use std::net::{IpAddr, SocketAddr};

use super::peer::{host, listen, socket_address};
use super::store::store;
use super::value::{no_control, size, text, time, within};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, NumberOrText, OneOrMany};
use crate::key::no_effect;
use crate::key::paths::{directory, path};
use crate::plan::{CacheDisk, HostPattern, Listen, Server, SocketAccess};

/// Checks `[server]` and adds the defaults.
pub(super) fn server(
    context: &Context<'_>,
    typed: &file::Server,
    is_exported: bool,
) -> Resolution<Server> {
    let default = Server::default();
    let admin = typed.admin.as_ref().map(|at| admin(context, at)).transpose()?;
    let admin_access = admin_access(typed, admin.as_ref())?;
    Ok(Server {
        threads: typed.threads.as_ref().map(|at| within(at, 1..=1024)).transpose()?,
        affinity: typed.affinity.as_ref().is_none_or(|at| at.value),
        admin,
        admin_access,
        admin_hosts: admin_hosts(typed)?,
        admin_token: admin_token(typed)?,
        timing: typed.timing.as_ref().is_some_and(|at| at.value),
        route_metrics: route_metrics(typed, is_exported)?,
        timeouts: typed.timeouts.clone(),
        limits: typed.limits.clone(),
        user: name(&typed.user)?,
        group: name(&typed.group)?,
        app_user: name(&typed.app_user)?,
        spool_dir: typed.spool_dir.as_ref().map(|at| directory(context.sources, at)).transpose()?,
        dns_servers: dns_servers(&typed.dns_servers)?,
        cache_memory: cache_memory(&typed.cache_memory)?.unwrap_or(default.cache_memory),
        cache_disk: cache_disk(context, typed)?,
        store: store(context, typed)?.map(Box::new),
        grace: time(&typed.grace, default.grace)?,
        drain_delay: time(&typed.drain_delay, default.drain_delay)?,
    })
}

/// Returns the memory for stored replies in bytes, or `None` if the user typed no size. The
/// smallest accepted value is enough for replies of usual size.
fn cache_memory(typed: &Option<file::Size>) -> Resolution<Option<u64>> {
    const LEAST: u64 = 1024 * 1024;
    match (typed, size(typed)?) {
        (Some(at), Some(bytes)) => within(&at.with(bytes), LEAST..=1 << 50).map(Some),
        _ => Ok(None),
    }
}

/// Returns the directory and the size of the cache on disk. Returns `None` if Forebay stores
/// replies only in memory.
fn cache_disk(context: &Context<'_>, typed: &file::Server) -> Resolution<Option<CacheDisk>> {
    // The smallest accepted size. It is enough for several replies of the largest usual size.
    const LEAST: u64 = 16 * 1024 * 1024;
    const DEFAULT: u64 = 1 << 30;
    match (&typed.cache_dir, &typed.cache_disk) {
        (None, None) => Ok(None),
        (None, Some(size)) => {
            let help = "add the directory: cache_dir = \"/var/cache/forebay\"";
            Err(no_effect(&size.span, "cache_disk", "without `cache_dir`", help))
        }
        (Some(dir), typed) => {
            let dir = path(context.sources, dir)?;
            let size = match (typed, size(typed)?) {
                (Some(at), Some(bytes)) => within(&at.with(bytes), LEAST..=1 << 43)?,
                _ => DEFAULT,
            };
            Ok(Some(CacheDisk { dir, size }))
        }
    }
}

fn dns_servers(typed: &Option<At<OneOrMany<String>>>) -> Resolution<Vec<SocketAddr>> {
    let server = |typed: &At<&String>| {
        let text = typed.value;
        let address = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| (ip, 53).into()));
        address.map_err(|_| {
            Problem::new(&typed.span, format!("\"{text}\" is not the address of a DNS server"))
                .help("write an IP address, with a port if it is not 53: \"127.0.0.1:53\"")
        })
    };
    typed.iter().flat_map(At::items).map(|at| server(&at)).collect()
}

/// Parses the administrator's listener: an address and port, or a Unix socket.
fn admin(context: &Context<'_>, typed: &At<NumberOrText>) -> Resolution<Listen> {
    let typed = typed.with(&typed.0);
    let address = typed.with(text(&typed)?);
    if address.value.starts_with("unix:") {
        return listen(context, &address);
    }
    Ok(Listen::Tcp(socket_address(&address)?))
}

/// Returns mode and group of the Unix socket in `admin`. Other users never get access, because the
/// socket needs no token.
fn admin_access(typed: &file::Server, admin: Option<&Listen>) -> Resolution<SocketAccess> {
    let keys = [("admin_mode", &typed.admin_mode), ("admin_group", &typed.admin_group)];
    let given = keys.iter().find_map(|(key, at)| Some((key, at.as_ref()?)));
    if let (Some((key, at)), false) = (given, matches!(admin, Some(Listen::Unix(_)))) {
        let help = "listen on a Unix socket: admin = \"unix:/run/forebay/admin.sock\"";
        return Err(no_effect(&at.span, key, "without a Unix socket in `admin`", help));
    }
    let mode = match typed.admin_mode.as_ref().map(|at| (at, at.value.as_str())) {
        None | Some((_, "0600" | "600")) => 0o600,
        Some((_, "0660" | "660")) => 0o660,
        Some((at, other)) => {
            let message = format!("\"{other}\" is not a mode of the administrator's socket");
            return Err(Problem::new(&at.span, message).help(
                "write \"0600\", or \"0660\" together with admin_group; other users get no access",
            ));
        }
    };
    Ok(SocketAccess { mode, user: None, group: name(&typed.admin_group)? })
}

fn admin_hosts(typed: &file::Server) -> Resolution<Vec<String>> {
    let Some(at) = &typed.admin_hosts else { return Ok(Vec::new()) };
    if typed.admin.is_none() {
        let help = "leave it out, or set the address: admin = \"127.0.0.1:9100\"";
        return Err(no_effect(&at.span, "admin_hosts", "without `admin`", help));
    }
    let name = |typed: &At<&String>| match host(typed)? {
        HostPattern::Exact(name) => Ok(name),
        _ => Err(Problem::new(&typed.span, format!("\"{}\" is not one host name", typed.value))
            .help("name each host in full, such as \"status.example.org\"")),
    };
    at.items().iter().map(name).collect()
}

/// Returns the value of `route_metrics`. If it is true, the pages of `admin` must show the counters of
/// routes, or a collector must get them.
fn route_metrics(typed: &file::Server, is_exported: bool) -> Resolution<bool> {
    let Some(at) = typed.route_metrics.as_ref().filter(|at| at.value) else { return Ok(false) };
    if typed.admin.is_none() && !is_exported {
        let help = "set the address for /metrics: admin = \"127.0.0.1:9100\"";
        return Err(no_effect(&at.span, "route_metrics", "without `admin`", help));
    }
    Ok(true)
}

/// Returns the secret of `admin_token`, or `None` if the user typed none. The accepted characters
/// need no escapes in a header field, a form or a command line.
fn admin_token(typed: &file::Server) -> Resolution<Option<String>> {
    let Some(at) = &typed.admin_token else { return Ok(None) };
    if typed.admin.is_none() {
        let help = "leave it out, or set the address: admin = \"127.0.0.1:9100\"";
        return Err(no_effect(&at.span, "admin_token", "without `admin`", help));
    }
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '&' | '%' | '+');
    if at.len() < 16 || !at.chars().all(is_plain) {
        return Err(Problem::new(&at.span, "this token could be guessed, or is hard to send")
            .help("use at least 16 letters, digits or signs, such as from: openssl rand -hex 16"));
    }
    Ok(Some(at.value.clone()))
}

/// Returns the name of a user or group. The name need not exist yet, because Forebay looks it up
/// later.
pub(super) fn name(typed: &Option<At<String>>) -> Resolution<Option<String>> {
    let Some(at) = typed else { return Ok(None) };
    let name = no_control(text(at)?, at)?;
    Ok(Some(name.to_owned()))
}
