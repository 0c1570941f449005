//! Resolves the servers that requests are passed to: those of a route, and the groups
//! `[upstream.NAME]` that routes name.

mod backends;
mod health;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::tls::backend_tls;
use super::value::{is_token, optional_time_above_zero, required, text, time_above_zero, within};
use super::{Context, MOST_PROBLEMS, Resolution, keep};
use crate::error::Problem;
use crate::file::{self, At, File, OneOrMany, TextOr, Time};
use crate::key::{no_effect, template};
use crate::plan::{
    Backend, BackendTls, Balance, HttpVersion, ProxyHeader, Scheme, StatusRetry, Sticky, Template,
    Upstream,
};
use crate::suggest;
use backends::backends;

/// The first character of a group's name in `to`.
const GROUP: char = '@';

/// The value of `to`, as the user typed it.
type To = At<OneOrMany<TextOr<file::Backend>>>;

/// The keys about servers, as the user typed them in a route or in `[upstream.NAME]`.
pub(super) struct Keys<'a> {
    to: &'a Option<To>,
    balance: &'a Option<At<Balance>>,
    hash_key: &'a Option<At<String>>,
    sticky: &'a Option<At<file::Sticky>>,
    max_fails: &'a Option<At<u32>>,
    fail_timeout: &'a Option<Time>,
    recover_time: &'a Option<Time>,
    slow_start: &'a Option<Time>,
    retry: &'a Option<At<StatusRetry>>,
    health: &'a Option<At<file::Health>>,
    keepalive: &'a Option<At<usize>>,
    max_connections: &'a Option<At<usize>>,
    send_proxy: &'a Option<At<ProxyHeader>>,
    connect_timeout: &'a Option<Time>,
    http_version: &'a Option<At<HttpVersion>>,
    strict: &'a Option<At<bool>>,
    tls: &'a Option<At<file::BackendTls>>,
}

impl<'a> Keys<'a> {
    /// Returns the keys of a route that may only have `to` and `max_connections`.
    pub fn of(to: &'a Option<To>, max_connections: &'a Option<At<usize>>) -> Self {
        Self {
            to,
            balance: &None,
            hash_key: &None,
            sticky: &None,
            max_fails: &None,
            fail_timeout: &None,
            recover_time: &None,
            slow_start: &None,
            retry: &None,
            health: &None,
            keepalive: &None,
            max_connections,
            send_proxy: &None,
            connect_timeout: &None,
            http_version: &None,
            strict: &None,
            tls: &None,
        }
    }

    /// Returns the names and positions of the typed keys, except `to`.
    fn given(&self) -> impl Iterator<Item = (&'static str, &'a Range<usize>)> {
        fn span<T>(typed: &Option<At<T>>) -> Option<&Range<usize>> {
            typed.as_ref().map(|at| &at.span)
        }
        let keys = [
            ("balance", span(self.balance)),
            ("hash_key", span(self.hash_key)),
            ("sticky", span(self.sticky)),
            ("max_fails", span(self.max_fails)),
            ("fail_timeout", span(self.fail_timeout)),
            ("recover_time", span(self.recover_time)),
            ("slow_start", span(self.slow_start)),
            ("retry", span(self.retry)),
            ("health", span(self.health)),
            ("keepalive", span(self.keepalive)),
            ("max_connections", span(self.max_connections)),
            ("send_proxy", span(self.send_proxy)),
            ("connect_timeout", span(self.connect_timeout)),
            ("http_version", span(self.http_version)),
            ("strict", span(self.strict)),
            ("tls", span(self.tls)),
        ];
        keys.into_iter().filter_map(|(key, span)| Some((key, span?)))
    }
}

/// Builds `Keys` from a table that has all these keys.
macro_rules! all_keys {
    ($($table:ty),*) => {$(
        impl<'a> From<&'a $table> for Keys<'a> {
            fn from(table: &'a $table) -> Self {
                Self {
                    to: &table.to,
                    balance: &table.balance,
                    hash_key: &table.hash_key,
                    sticky: &table.sticky,
                    max_fails: &table.max_fails,
                    fail_timeout: &table.fail_timeout,
                    recover_time: &table.recover_time,
                    slow_start: &table.slow_start,
                    retry: &table.retry,
                    health: &table.health,
                    keepalive: &table.keepalive,
                    max_connections: &table.max_connections,
                    send_proxy: &table.send_proxy,
                    connect_timeout: &table.connect_timeout,
                    http_version: &table.http_version,
                    strict: &table.strict,
                    tls: &table.tls,
                }
            }
        }
    )*};
}

all_keys!(file::Proxy, file::Upstream);

impl<'a> From<&'a file::Relay> for Keys<'a> {
    fn from(table: &'a file::Relay) -> Self {
        Self {
            balance: &table.balance,
            max_fails: &table.max_fails,
            fail_timeout: &table.fail_timeout,
            recover_time: &table.recover_time,
            slow_start: &table.slow_start,
            health: &table.health,
            send_proxy: &table.send_proxy,
            connect_timeout: &table.connect_timeout,
            tls: &table.server_tls,
            ..Self::of(&table.to, &table.max_connections)
        }
    }
}

impl<'a> From<&'a file::Ajp> for Keys<'a> {
    fn from(table: &'a file::Ajp) -> Self {
        Self {
            balance: &table.balance,
            hash_key: &table.hash_key,
            sticky: &table.sticky,
            max_fails: &table.max_fails,
            fail_timeout: &table.fail_timeout,
            recover_time: &table.recover_time,
            keepalive: &table.keepalive,
            connect_timeout: &table.connect_timeout,
            ..Self::of(&table.to, &table.max_connections)
        }
    }
}

/// Returns the groups of the file by name, and the names of the groups that no route uses.
pub(super) fn groups(
    context: &Context<'_>,
    file: &File,
    problems: &mut Vec<Problem>,
) -> (BTreeMap<String, Arc<Upstream>>, Vec<String>) {
    let users = users(file);
    let (mut groups, mut unused) = (BTreeMap::new(), Vec::new());
    for (name, typed) in &file.upstream {
        if problems.len() >= MOST_PROBLEMS {
            break;
        }
        let keys = Keys::from(&**typed);
        let resolve = |scheme| upstream(context, scheme, &typed.span, &keys);
        let outcome = match users.get(name.as_str()).map(Vec::as_slice) {
            Some([(scheme, first), rest @ ..]) => {
                match rest.iter().find(|(other, _)| other != scheme) {
                    Some((other, span)) => Err(two_schemes(name, (*scheme, first), (*other, span))),
                    None => resolve(*scheme),
                }
            }
            _ => {
                unused.push(name.clone());
                // No route shows the protocol of the servers, so accept the group if it is correct
                // for HTTP or for FastCGI.
                resolve(Scheme::Http)
                    .or_else(|problem| resolve(Scheme::Fastcgi).map_err(|_| problem))
            }
        };
        // A group with a problem becomes an empty group, so that the routes that name the group do
        // not report a second problem.
        let group = keep(outcome, problems).unwrap_or_else(|| Upstream::new(Vec::new()));
        groups.insert(name.clone(), Arc::new(Upstream { name: Some(name.clone()), ..group }));
    }
    (groups, unused)
}

/// Returns for each group the protocols that routes expect from its servers, with the positions in
/// the file.
fn users(file: &File) -> BTreeMap<&str, Vec<(Scheme, &Range<usize>)>> {
    let mut users = BTreeMap::<_, Vec<_>>::new();
    let routes = file.site.iter().flatten().flat_map(|site| site.route.iter().flatten());
    for route in routes {
        let proxied = route.proxy.as_ref().and_then(|at| match &at.value {
            TextOr::Text(text) => Some((text.strip_prefix(GROUP)?, &at.span)),
            TextOr::Table(table) => named(&table.to),
        });
        let ajp = route.ajp.as_ref().and_then(|at| match &at.value {
            TextOr::Text(text) => Some((text.strip_prefix(GROUP)?, &at.span)),
            TextOr::Table(table) => named(&table.to),
        });
        let mirror = route.mirror.as_ref().and_then(|at| match &at.value {
            TextOr::Text(text) => Some((text.strip_prefix(GROUP)?, &at.span)),
            TextOr::Table(table) => named(&table.to),
        });
        let keys = route.jwt.as_ref().and_then(|at| at.jwks.as_ref()).and_then(|at| {
            let (name, _) = at.strip_prefix(GROUP)?.split_once('/')?;
            Some((name, &at.span))
        });
        let all = [
            (Scheme::Http, mirror),
            (Scheme::Http, keys),
            (Scheme::Fastcgi, route.fastcgi.as_ref().and_then(|at| named(&at.to))),
            (Scheme::Scgi, route.scgi.as_ref().and_then(|at| named(&at.to))),
            (Scheme::Uwsgi, route.uwsgi.as_ref().and_then(|at| named(&at.to))),
            (Scheme::Ajp, ajp),
            (Scheme::Http, proxied),
        ];
        for (scheme, named) in all {
            if let Some((name, span)) = named {
                users.entry(name).or_default().push((scheme, span));
            }
        }
    }
    for (name, span) in file.stream.iter().flatten().filter_map(|stream| named(&stream.to)) {
        users.entry(name).or_default().push((Scheme::Stream, span));
    }
    users
}

/// Returns the name of the first group in `to`, with the position of `to`. Returns `None` if `to`
/// names no group.
fn named(to: &Option<To>) -> Option<(&str, &Range<usize>)> {
    let to = to.as_ref()?;
    to.items().iter().find_map(|item| match item.value {
        TextOr::Text(text) => Some((text.strip_prefix(GROUP)?, &to.span)),
        TextOr::Table(_) => None,
    })
}

fn two_schemes(
    name: &str,
    (first, also): (Scheme, &Range<usize>),
    (second, span): (Scheme, &Range<usize>),
) -> Problem {
    Problem::new(span, format!("[upstream.{name}] is used with two protocols"))
        .label(format!("by `{}` here", second.key()))
        .also(also, format!("and by `{}` here", first.key()))
        .help("a server speaks one protocol: give each a group of its own")
}

/// Returns the servers of a route. `to` lists the servers, or names the group that has them.
pub(super) fn of_route(
    context: &Context<'_>,
    file: &File,
    scheme: Scheme,
    table: &Range<usize>,
    keys: &Keys<'_>,
) -> Resolution<Arc<Upstream>> {
    let items = keys.to.as_ref().map(At::items).unwrap_or_default();
    let Some(at) = items.iter().find(|item| is_group(item.value)) else {
        return upstream(context, scheme, table, keys).map(Arc::new);
    };
    let TextOr::Text(text) = at.value else {
        return upstream(context, scheme, table, keys).map(Arc::new);
    };
    let name = text.strip_prefix(GROUP).unwrap_or_default();
    let Some((group, typed)) = context.groups.get(name).zip(file.upstream.get(name)) else {
        return Err(unknown(&at.with(name), file));
    };
    if items.len() > 1 {
        let message = format!("\"{text}\" is a group, and must be the only entry");
        return Err(Problem::new(&at.span, message)
            .help(format!("leave the others out, or put them into [upstream.{name}]")));
    }
    if let Some((key, span)) = keys.given().next() {
        let of_group = Keys::from(&**typed);
        let problem =
            Problem::new(span, format!("`{key}` belongs to the group, for all routes to it"));
        let twice = of_group.given().find(|(other, _)| *other == key);
        return Err(match twice {
            Some((_, also)) => problem.also(also, "given here").help("leave it out of the route"),
            None => problem.help(format!("move it to [upstream.{name}]")),
        });
    }
    Ok(group.clone())
}

fn is_group(typed: &TextOr<file::Backend>) -> bool {
    matches!(typed, TextOr::Text(text) if text.starts_with(GROUP))
}

fn unknown(typed: &At<&str>, file: &File) -> Problem {
    let problem = Problem::new(&typed.span, format!("there is no upstream \"{}\"", typed.value));
    match suggest::nearest(typed.value, file.upstream.keys().map(String::as_str)) {
        Some(name) => problem
            .label(format!("did you mean \"@{name}\"?"))
            .help(format!("groups are tables of the file: [upstream.{name}] is one")),
        None => problem
            .label("no such group in this file")
            .help("add a table for it, with the servers in `to`: [upstream.NAME]"),
    }
}

/// Resolves servers that speak `scheme`. `table` is the position of the table that has the keys.
fn upstream(
    context: &Context<'_>,
    scheme: Scheme,
    table: &Range<usize>,
    keys: &Keys<'_>,
) -> Resolution<Upstream> {
    all_have_effect(scheme, keys)?;
    let mut default = Upstream::new(backends(context, scheme, table, keys.to)?);
    for backend in &mut default.to {
        if scheme == Scheme::Http {
            backend.version = version(keys, backend)?;
        }
    }
    let tls = by_tls(context, scheme, keys, &default.to)?;
    let sticky = match keys.sticky {
        Some(at) => Some(sticky(at, &default.to)?),
        None => sessions(scheme, &default.to),
    };
    let fail_timeout = time_above_zero(keys.fail_timeout, default.fail_timeout)?;
    Ok(Upstream {
        balance: keys.balance.as_ref().map(|at| at.value).unwrap_or_default(),
        hash_key: hash_key(context, keys)?,
        sticky,
        max_fails: match keys.max_fails {
            Some(at) => within(at, 0..=1_000_000)?,
            None => default.max_fails,
        },
        fail_timeout,
        recover_time: time_above_zero(keys.recover_time, fail_timeout)?,
        slow_start: optional_time_above_zero(keys.slow_start)?,
        retry: keys.retry.as_ref().map(|at| at.value.clone()),
        health: keys
            .health
            .as_ref()
            .map(|at| health::health(scheme, at, &default.to))
            .transpose()?,
        keepalive: keys.keepalive.as_ref().map(|at| within(at, 0..=1_000_000)).transpose()?,
        max_connections: match keys.max_connections {
            Some(at) => Some(within(at, 1..=1_000_000)?),
            None => None,
        },
        send_proxy: send_proxy(keys)?,
        connect_timeout: optional_time_above_zero(keys.connect_timeout)?,
        strict: keys.strict.as_ref().is_some_and(|at| at.value),
        tls,
        ..default
    })
}

/// Returns the text whose hash selects a server. Returns `None` without `balance = "hash"`, and an
/// error for `hash_key` without `balance = "hash"`.
fn hash_key(context: &Context<'_>, keys: &Keys<'_>) -> Resolution<Option<Template>> {
    let known = context.scope;
    let balance = keys.balance.as_ref().filter(|at| at.value == Balance::Hash);
    match (keys.hash_key, balance) {
        (Some(at), None) => Err(no_effect(
            &at.span,
            "hash_key",
            "without `balance = \"hash\"`",
            "add balance = \"hash\", or leave it out",
        )),
        (Some(at), Some(_)) => template(text(at)?, &at.span, known).map(Some),
        (None, Some(balance)) => template("{client}", &balance.span, known).map(Some),
        (None, None) => Ok(None),
    }
}

/// Returns the version of HTTP for `backend`, from `http_version` or from the scheme of the URL.
fn version(keys: &Keys<'_>, backend: &Backend) -> Resolution<HttpVersion> {
    let is_h2c = backend.version == HttpVersion::Http2;
    let version = match keys.http_version.as_ref().map(|at| (at.value, &at.span)) {
        Some((HttpVersion::Http11, span)) if is_h2c => {
            return Err(Problem::new(span, "h2c:// servers speak HTTP/2 only")
                .help("write http:// instead, or leave `http_version` out"));
        }
        Some((HttpVersion::Negotiated, span)) if !backend.https => {
            let message = "without TLS a server cannot choose the version of HTTP";
            return Err(Problem::new(span, message)
                .label(format!("{} has no TLS", backend.address))
                .help("write \"2\" if it speaks HTTP/2, or leave `http_version` out"));
        }
        Some((version, _)) => version,
        None if backend.https => HttpVersion::Negotiated,
        None => backend.version,
    };
    if version == HttpVersion::Http2
        && !backend.https
        && let Some(at) = keys.send_proxy
    {
        let message =
            "a PROXY header names one client, but several clients share an HTTP/2 connection";
        return Err(Problem::new(&at.span, message)
            .label(format!("{} speaks HTTP/2", backend.address))
            .help(
                "leave it out, as `X-Forwarded-For` or `Forwarded` names the client of each \
                 request, or speak HTTP/1.1 to the server, by http://",
            ));
    }
    Ok(version)
}

/// Returns the TLS settings for servers, and checks that no other key excludes TLS.
fn by_tls(
    context: &Context<'_>,
    scheme: Scheme,
    keys: &Keys<'_>,
    to: &[Backend],
) -> Resolution<BackendTls> {
    let is_stream = scheme == Scheme::Stream;
    let url = if is_stream { "tls://" } else { "https://" };
    if !to.iter().any(|backend| backend.https) {
        let help = format!("write {url} before their addresses, or leave it out");
        return match keys.tls {
            Some(at) => Err(no_effect(&at.span, "tls", "on servers without TLS", &help)),
            None => Ok(BackendTls::default()),
        };
    }
    if let Some(at) = keys.send_proxy {
        let message = format!("`send_proxy` is not available for {url} servers in this version");
        return Err(Problem::new(&at.span, message).help("leave it out"));
    }
    keys.tls.as_ref().map_or_else(|| Ok(BackendTls::default()), |at| backend_tls(context, at))
}

/// Returns the default of `sticky` for servlet containers: the cookie JSESSIONID, because a session
/// exists only in the container that made it. Returns `None` if a server has no `route`, or does
/// not speak AJP.
fn sessions(scheme: Scheme, to: &[Backend]) -> Option<Sticky> {
    let has_routes = scheme == Scheme::Ajp && to.iter().all(|backend| backend.route.is_some());
    has_routes.then(|| Sticky { cookie: "JSESSIONID".into(), routes: true })
}

/// Checks that each key has an effect on servers that speak `scheme`.
fn all_have_effect(scheme: Scheme, keys: &Keys<'_>) -> Resolution<()> {
    let help = |key| match (scheme, key) {
        (Scheme::Http, _) => None,
        (Scheme::Ajp, "sticky") | (Scheme::Stream, "health" | "send_proxy" | "tls") => None,
        (Scheme::Stream, "hash_key") => {
            Some("leave it out: the hash of the client's address selects the server of a stream")
        }
        (Scheme::Stream, "keepalive") => {
            Some("leave it out: each client of a stream has a connection of its own")
        }
        (_, "sticky" | "retry" | "health" | "send_proxy" | "http_version" | "strict" | "tls") => {
            Some("leave it out: it is for HTTP servers")
        }
        (Scheme::Scgi | Scheme::Uwsgi, "keepalive") => {
            Some("leave it out: each request has a connection of its own")
        }
        _ => None,
    };
    match keys.given().find_map(|(key, span)| Some((key, span, help(key)?))) {
        Some((key, span, help)) => {
            let why = format!("on servers that speak {}", scheme.key());
            Err(no_effect(span, key, &why, help))
        }
        None => Ok(()),
    }
}

fn send_proxy(keys: &Keys<'_>) -> Resolution<Option<ProxyHeader>> {
    let Some(at) = keys.send_proxy else { return Ok(None) };
    if let Some(keepalive) = keys.keepalive.as_ref().filter(|keepalive| keepalive.value > 0) {
        return Err(Problem::new(&keepalive.span, "no connection is kept with `send_proxy`")
            .label("keeps none")
            .also(&at.span, "each connection is one client's")
            .help("leave `keepalive` out"));
    }
    Ok(Some(at.value))
}

fn sticky(typed: &At<file::Sticky>, to: &[Backend]) -> Resolution<Sticky> {
    let cookie = sticky_cookie(&typed.cookie, &typed.span)?;
    let routes = typed.routes.unwrap_or(false);
    if routes && let Some(without) = to.iter().find(|backend| backend.route.is_none()) {
        let message = format!("the server {} has no route", without.authority);
        return Err(Problem::new(&typed.span, message)
            .help("write { url = \"...\", route = \"...\" } in `to`, as its jvmRoute says"));
    }
    Ok(Sticky { cookie, routes })
}

/// Returns the name of the cookie that binds a client to a server or process.
pub(super) fn sticky_cookie(
    typed: &Option<At<String>>,
    table: &std::ops::Range<usize>,
) -> Resolution<String> {
    let cookie = required(typed, table, "cookie", "\"JSESSIONID\"")?;
    let name = text(cookie)?;
    if !is_token(name) {
        return Err(Problem::new(&cookie.span, format!("\"{name}\" cannot name a cookie"))
            .help("a name consists of letters, digits and some signs, such as \"JSESSIONID\""));
    }
    Ok(name.to_owned())
}
