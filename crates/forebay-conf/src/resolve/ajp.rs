//! Resolves AJP 1.3: routes to servlet containers, and listeners that act as a container.

use std::collections::HashMap;
use std::ops::Range;

use super::effect::no_effect;
use super::upstream::of_route;
use super::value::{optional_time_above_zero, size, text};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, File, Size, Table, TextOr};
use crate::plan::{Ajp, AjpFront, Listen, Ping, Scheme, Secret};

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
        secret: secret(&table.secret)?,
        packet_size: packet_size(&table.packet_size, "packetSize of Tomcat's connector")?,
        ping: match table.ping {
            Some(file::Ping::Connect) => Ping::Connect,
            Some(file::Ping::Always) => Ping::Always,
            Some(file::Ping::Off) | None => Ping::Off,
        },
        reply_timeout: optional_time_above_zero(&table.reply_timeout)?,
    })
}

/// The requirements of each listener, and the position in the file that set them first.
pub(super) type AjpFronts = HashMap<Listen, (AjpFront, Range<usize>)>;

/// Returns the requirements of a site's `ajp://` listeners, or `None` if the site has no such
/// listener. A listener does not know the site until it has read the request, so all sites of a
/// listener must have the same requirements.
pub(super) fn front(
    site: &At<Table<file::Site>>,
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
        secret: secret(&site.ajp_secret)?,
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

pub(super) fn secret(typed: &Option<At<String>>) -> Resolution<Option<Secret>> {
    typed.as_ref().map(|at| Ok(Secret::new(text(at)?.to_owned()))).transpose()
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
