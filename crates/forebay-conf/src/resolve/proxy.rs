//! Resolves a route to HTTP servers, with its changes to requests and replies.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::upstream::{Keys, of_route};
use super::value::{optional_time_above_zero, required, size, text, time_above_zero, within};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, File, OneOrMany, Size, TextOr};
use crate::key::no_effect;
use crate::plan::{Ajp, AjpFront, Listen, Mirror, Proxy, Redirects, Scheme};

/// Checks `proxy` and adds the defaults.
pub(super) fn proxy(
    context: &Context<'_>,
    file: &File,
    typed: &At<TextOr<file::Proxy>>,
) -> Resolution<Proxy> {
    let default = Proxy::new(Vec::new());
    let table = match &typed.value {
        TextOr::Text(url) => {
            let to = Some(typed.with(file::OneOrMany::One(TextOr::Text(url.clone()))));
            let keys = Keys::of(&to, &None);
            return Ok(Proxy {
                upstream: of_route(context, file, Scheme::Http, &typed.span, &keys)?,
                ..default
            });
        }
        TextOr::Table(table) => table,
    };
    Ok(Proxy {
        upstream: of_route(context, file, Scheme::Http, &typed.span, &table.into())?,
        host: table.host.unwrap_or_default(),
        strip_prefix: strip_prefix(&table.strip_prefix)?,
        decodes_path: table.decode_path.unwrap_or_default(),
        redirect: table.redirect.unwrap_or_default(),
        reply_timeout: optional_time_above_zero(&table.reply_timeout)?,
        tunnel_idle: optional_time_above_zero(&table.tunnel_idle)?,
    })
}

pub(super) fn strip_prefix(typed: &Option<At<String>>) -> Resolution<Option<String>> {
    match typed {
        Some(at) if !text(at)?.starts_with('/') => {
            Err(Problem::new(&at.span, format!("\"{}\" is not a path", at.value))
                .help(format!("a path begins with a slash: \"/{}\"", at.value)))
        }
        Some(at) if at.contains(['*', '?', '#']) => {
            Err(Problem::new(&at.span, format!("\"{}\" is not a path", at.value))
                .help("give the plain beginning of the path, such as \"/shop\""))
        }
        typed => Ok(typed.as_ref().map(|at| at.value.clone())),
    }
}

/// Checks `ajp` and adds the defaults.
pub(super) fn ajp(
    context: &Context<'_>,
    file: &File,
    typed: &At<TextOr<file::Ajp>>,
) -> Resolution<Ajp> {
    let only_address;
    let table: &file::Ajp = match &typed.value {
        TextOr::Text(address) => {
            let to = typed.with(file::OneOrMany::One(TextOr::Text(address.clone())));
            only_address = file::Ajp { to: Some(to), ..file::Ajp::default() };
            &only_address
        }
        TextOr::Table(table) => table,
    };
    Ok(Ajp {
        upstream: of_route(context, file, Scheme::Ajp, &typed.span, &table.into())?,
        secret: table.secret.clone(),
        packet_size: packet_size(&table.packet_size, "packetSize of Tomcat's connector")?,
        ping: table.ping.unwrap_or_default(),
        reply_timeout: optional_time_above_zero(&table.reply_timeout)?,
    })
}

/// The requirements of each listener, and the position in the file that set them first.
pub(super) type AjpFronts = HashMap<Listen, (AjpFront, Range<usize>)>;

/// Returns the requirements of a site's `ajp://` listeners, or `None` if the site has no such
/// listener. A listener does not know the site until it has read the request, so all sites of a
/// listener must have the same requirements.
pub(super) fn front(
    site: &At<file::Site>,
    listen: &[Listen],
    ajp_fronts: &mut AjpFronts,
) -> Resolution<Option<AjpFront>> {
    let spans = [
        ("ajp_secret", site.ajp_secret.as_ref().map(|at| &at.span)),
        ("ajp_packet_size", site.ajp_packet_size.as_ref().map(|at| &at.span)),
    ];
    let typed = spans.into_iter().find_map(|(key, span)| Some((key, span?)));
    if !listen.iter().any(Listen::is_ajp) {
        let Some((key, span)) = typed else { return Ok(None) };
        let help = "listen for web servers that speak it: listen = \"ajp://127.0.0.1:8009\"";
        return Err(no_effect(span, key, "without an ajp:// listener", help));
    }
    let front = AjpFront {
        secret: site.ajp_secret.as_ref().map(|at| at.value.clone()),
        packet_size: packet_size(&site.ajp_packet_size, "max_packet_size of mod_jk")?,
    };
    let listen_span = site.listen.as_ref().map_or(&site.span, |at| &at.span);
    for listen in listen.iter().filter(|listen| listen.is_ajp()) {
        if front.secret.is_none() && !is_local(listen.socket()) {
            return Err(Problem::new(listen_span, format!("{listen} is open without a secret"))
                .label("any peer that reaches it could pose as any client and user")
                .help(
                    "set `ajp_secret`, and the same in mod_jk (`secret` of the worker) or \
                       mod_proxy_ajp (`secret=` of ProxyPass), or listen on 127.0.0.1",
                ));
        }
        let span = typed.map_or(listen_span, |(_, span)| span);
        let (first, also) =
            ajp_fronts.entry(listen.clone()).or_insert_with(|| (front.clone(), span.clone()));
        if *first != front {
            return Err(Problem::new(span, format!("two sites on {listen} differ"))
                .label("one secret and packet size here")
                .also(also, "and others here")
                .help("all sites of a listener have the same `ajp_secret` and `ajp_packet_size`"));
        }
    }
    Ok(Some(front))
}

/// Returns true if only programs of this machine can reach the listener.
fn is_local(socket: &Listen) -> bool {
    match socket {
        Listen::Tcp(address) => address.ip().to_canonical().is_loopback(),
        Listen::Unix(_) => true,
        // Only the service manager knows the address of a socket that `fd:NAME` names, so the
        // socket counts as reachable from outside.
        _ => false,
    }
}

/// Returns the packet size in bytes. The default and smallest size is 8192, Tomcat's default. The
/// largest size is that of Tomcat's documentation. `elsewhere` is the setting of the peer that must
/// have the same value.
fn packet_size(typed: &Option<Size>, elsewhere: &str) -> Resolution<usize> {
    let (Some(at), Some(size)) = (typed, size(typed)?) else { return Ok(8192) };
    match usize::try_from(size) {
        Ok(size @ 8192..=65_536) => Ok(size),
        _ => Err(Problem::new(&at.span, format!("packets of {size} bytes cannot be sent"))
            .help(format!("write 8192 to 65536, and the same as {elsewhere}"))),
    }
}

/// Default of `max_body`. Forebay keeps this much of a body in memory even without a mirror.
const MAX_BODY: u64 = 64 * 1024;
/// The largest accepted `max_body`. Forebay keeps the copies of bodies in memory.
const LARGEST_BODY: u64 = 64 * 1024 * 1024;
/// Default of `max_requests`.
const MAX_REQUESTS: usize = 64;
/// Default of `timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The value of `per_million` that selects all requests.
const MILLION: f64 = 1e6;

pub(super) fn mirror(
    context: &Context<'_>,
    file: &File,
    typed: &At<TextOr<file::Mirror>>,
) -> Resolution<Mirror> {
    let short;
    let table = match &typed.value {
        TextOr::Text(url) => {
            let to = Some(typed.with(OneOrMany::One(TextOr::Text(url.clone()))));
            short = file::Mirror { to, ..file::Mirror::default() };
            &short
        }
        TextOr::Table(table) => table,
    };
    required(&table.to, &typed.span, "to", "\"http://127.0.0.1:8001\"")?;
    let keys = Keys::of(&table.to, &None);
    let upstream = of_route(context, file, Scheme::Http, &typed.span, &keys)?;
    let timeout = time_above_zero(&table.timeout, TIMEOUT)?;
    let max_requests = table.max_requests.as_ref();
    Ok(Mirror {
        proxy: Proxy {
            upstream,
            host: table.host.unwrap_or_default(),
            redirect: Redirects::Off,
            strip_prefix: None,
            decodes_path: false,
            reply_timeout: Some(timeout),
            tunnel_idle: None,
        },
        per_million: table.percent.as_ref().map_or(Ok(MILLION as u32), per_million)?,
        max_body: max_body(&table.max_body)?,
        max_requests: max_requests.map_or(Ok(MAX_REQUESTS), |at| within(at, 1..=100_000))?,
        timeout,
        credentials: table.credentials.as_ref().is_some_and(|at| at.value),
    })
}

fn per_million(typed: &At<f64>) -> Resolution<u32> {
    let number = (typed.value * (MILLION / 100.0)).round();
    // NaN is outside of the range, so it is an error, too.
    if (1.0..=MILLION).contains(&number) {
        return Ok(number as u32);
    }
    Err(Problem::new(&typed.span, format!("{} is not a percentage of requests", typed.value))
        .help("give a number from 0.0001 to 100, or leave `mirror` out"))
}

fn max_body(typed: &Option<file::Size>) -> Resolution<usize> {
    let bytes = size(typed)?.unwrap_or(MAX_BODY);
    match typed {
        Some(at) if bytes > LARGEST_BODY => {
            Err(Problem::new(&at.span, "copies of bodies this large do not fit into memory")
                .help("the most is \"64M\""))
        }
        _ => Ok(usize::try_from(bytes).unwrap_or(usize::MAX)),
    }
}
