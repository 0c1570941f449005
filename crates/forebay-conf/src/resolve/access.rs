//! The rules of a route that let a request in: challenges, tokens, limits, and another server's word.

use std::ops::Range;
use std::time::Duration;

use super::action::app;
use super::app_server::{fastcgi, scgi, uwsgi};
use super::proxies::networks;
use super::proxy::ajp;
use super::reply::request_headers;
use super::upstream::{Keys, of_route};
use super::value::{is_token, optional_time, required, text, time_above_zero, variables, within};
use super::{Context, Resolution, peer};
use crate::error::Problem;
use crate::file::{self, At, BoolOr, Copied, File, Kind, OneOrMany, TextOr};
use crate::key::{no_effect, template};
use crate::plan::{
    Action, Ajp, AppServer, Challenge, Fastcgi, ForwardAuth, HostField, Proxy, Redirects, Scheme,
    Scope,
};

const DIFFICULTY: u8 = 16;
const DELAY: Duration = Duration::from_secs(10);
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Browsers keep no cookie for longer.
const MAX_LIFETIME: Duration = Duration::from_secs(400 * 24 * 3600);
/// A page that is older cannot be answered.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// Returns `None` for `challenge = false`.
pub(super) fn challenge(
    context: &Context<'_>,
    typed: &At<BoolOr<file::Challenge>>,
) -> Resolution<Option<Challenge>> {
    let defaults = file::Challenge::default();
    let typed = match &typed.value {
        BoolOr::Bool(false) => return Ok(None),
        BoolOr::Bool(true) => &defaults,
        BoolOr::Table(table) => table,
    };
    let requires_javascript = typed.require_javascript.as_ref().is_some_and(|at| at.value);
    let delay = optional_time(&typed.delay)?;
    if let (Some(at), Some(delay)) = (&typed.delay, delay) {
        if requires_javascript {
            let help = "leave one of the two keys out";
            return Err(no_effect(&at.span, "delay", "beside `require_javascript`", help));
        }
        if !(Duration::from_secs(1)..=MAX_DELAY).contains(&delay) {
            return Err(Problem::new(&at.span, "a delay is from 1 s to 10 minutes")
                .help("to refuse visitors without JavaScript, write require_javascript = true"));
        }
    }
    let lifetime = time_above_zero(&typed.lifetime, LIFETIME)?;
    if let Some(at) = typed.lifetime.as_ref().filter(|_| lifetime > MAX_LIFETIME) {
        return Err(Problem::new(&at.span, "browsers keep a cookie for at most 400 days")
            .help("give at most \"400d\""));
    }
    let mut when = typed.when.clone().map(Box::new);
    if let Some(when) = &mut when {
        when.is_rule = true;
    }
    let items = typed.exempt.as_ref().map(At::items).unwrap_or_default();
    let (exempt, exempt_lists) = networks(context, &items, peer::clients)?;
    Ok(Some(Challenge {
        difficulty: match &typed.difficulty {
            Some(at) => within(at, 1..=32)?,
            None => DIFFICULTY,
        },
        delay: (!requires_javascript).then(|| delay.unwrap_or(DELAY)),
        lifetime,
        when,
        verified: match &typed.verified {
            Some(at) => at.items().iter().map(|at| *at.value).collect(),
            None => Vec::new(),
        },
        exempt,
        exempt_lists,
        feeds: typed.feeds.as_ref().is_some_and(|at| at.value),
        secret: typed.secret.clone(),
    }))
}

/// Default of `timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn forward_auth(
    context: &Context<'_>,
    file: &File,
    typed: &At<TextOr<file::ForwardAuth>>,
    known: Scope<'_>,
) -> Resolution<ForwardAuth> {
    let short;
    let table = match &typed.value {
        TextOr::Text(url) => {
            let to = Some(typed.with(url.clone()));
            short = file::ForwardAuth { to, ..file::ForwardAuth::default() };
            &short
        }
        TextOr::Table(table) => table,
    };
    let (server, target) = server(context, file, (&typed.span, table))?;
    if let (Action::Proxy(_) | Action::Ajp(_), Some(at)) = (&server, table.params.values().next()) {
        let help = "write `request_headers`: these servers get fields, and no parameters";
        return Err(no_effect(&at.span, "params", "with `to` and `ajp`", help));
    }
    variables(&table.params)?;
    let params = table.params.iter();
    let params = params.map(|(name, at)| Ok((name.clone(), template(&at.value, &at.span, known)?)));
    Ok(ForwardAuth {
        server,
        target,
        copy: table.copy.as_ref().map_or(Ok(Vec::new()), copied)?,
        user: table.user.as_ref().map(|at| field_name(&at.with(&at.value))).transpose()?,
        params: params.collect::<Resolution<_>>()?,
        request_headers: request_headers(&table.request_headers, known)?,
    })
}

/// The application of `perl_gate`. One without a handler that decides would permit every request.
pub(super) fn perl_gate(file: &File, at: &At<String>) -> Resolution<ForwardAuth> {
    let name = app(file, at)?;
    let table = &file.app[&name].value;
    if !matches!(table.kind, Some(At { value: Kind::ModPerl, .. })) {
        let message = format!("[app.{name}] has no access handlers");
        return Err(Problem::new(&at.span, message).help(
            "name an application of kind \"mod-perl\"; a server can decide with `forward_auth`",
        ));
    }
    let has = |phase: &str| table.phases.all().iter().any(|(name, _)| *name == phase);
    let requires = table.auth.as_ref().is_some_and(|auth| auth.require.is_some());
    let decides = requires || has("PerlAccessHandler") || has("PerlHeaderParserHandler");
    if !decides || !requires && (has("PerlAuthenHandler") || has("PerlAuthzHandler")) {
        let message = format!("[app.{name}] would permit every request");
        return Err(Problem::new(&at.span, message).help(
            "give it `auth` with `require`, such as \"valid-user\", without which `authen` and \
             `authz` do not run; or handlers in `phases.access`",
        ));
    }
    Ok(ForwardAuth::of_app(name))
}

/// The server that decides, and the path and query that it gets.
fn server(
    context: &Context<'_>,
    file: &File,
    (span, table): (&Range<usize>, &file::ForwardAuth),
) -> Resolution<(Action, String)> {
    let timeout = Some(time_above_zero(&table.timeout, TIMEOUT)?);
    let spans = [
        table.to.as_ref().map(|at| &at.span),
        table.fastcgi.as_ref().map(|at| &at.span),
        table.scgi.as_ref().map(|at| &at.span),
        table.uwsgi.as_ref().map(|at| &at.span),
        table.ajp.as_ref().map(|at| &at.span),
    ];
    if let [_, second, ..] = spans.into_iter().flatten().collect::<Vec<_>>()[..] {
        return Err(Problem::new(second, "another server decides already").help("keep one of them"));
    }
    let server = if let Some(typed) = &table.fastcgi {
        let own = fastcgi(context, file, typed)?;
        Action::Fastcgi(Fastcgi { reply_timeout: own.reply_timeout.or(timeout), ..own })
    } else if let Some(typed) = &table.scgi {
        let own = scgi(context, file, typed)?;
        Action::AppServer(AppServer { reply_timeout: own.reply_timeout.or(timeout), ..own })
    } else if let Some(typed) = &table.uwsgi {
        let own = uwsgi(context, file, typed)?;
        Action::AppServer(AppServer { reply_timeout: own.reply_timeout.or(timeout), ..own })
    } else if let Some(typed) = &table.ajp {
        let own = ajp(context, file, typed)?;
        Action::Ajp(Ajp { reply_timeout: own.reply_timeout.or(timeout), ..own })
    } else {
        let url = required(&table.to, span, "to", "\"http://127.0.0.1:4180/oauth2/auth\"")?;
        if let Some(at) = &table.path {
            return Err(no_effect(&at.span, "path", "with `to`", "append it to the URL"));
        }
        let (server, target) = divide(text(url)?);
        let to = Some(url.with(OneOrMany::One(TextOr::Text(server.to_owned()))));
        let proxy = Proxy {
            upstream: of_route(context, file, Scheme::Http, span, &Keys::of(&to, &None))?,
            host: table.host.unwrap_or(HostField::Backend),
            // The server's redirects lead the client to other hosts, so they are not rewritten.
            redirect: Redirects::Off,
            strip_prefix: None,
            decodes_path: false,
            reply_timeout: timeout,
            tunnel_idle: None,
        };
        return Ok((Action::Proxy(proxy), is_target(target, &url.span)?));
    };
    if table.host.is_some() {
        let help = "leave it out: the server gets the client's own";
        return Err(no_effect(span, "host", "without `to`", help));
    }
    let target = match &table.path {
        Some(at) => is_target(text(at)?, &at.span)?,
        None => "/".to_owned(),
    };
    Ok((server, target))
}

fn is_target(target: &str, span: &Range<usize>) -> Resolution<String> {
    let is_plain = target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if target.starts_with('/') && is_plain {
        return Ok(target.to_owned());
    }
    Err(Problem::new(span, format!("\"{target}\" is not a path"))
        .help("begin it with a slash, percent-encode it, and leave out `#`"))
}

/// Returns the names of request fields, each with the name of the answer's field.
fn copied(typed: &At<Copied>) -> Resolution<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    match &typed.value {
        Copied::Named(list) => {
            for at in typed.with(list.clone()).items() {
                let name = field_name(&at)?;
                pairs.push((name.clone(), name));
            }
        }
        Copied::Renamed(table) => {
            for (name, at) in table {
                let name = field_name(&at.with(name))?;
                if let Some((other, _)) =
                    pairs.iter().find(|(other, _)| other.eq_ignore_ascii_case(&name))
                {
                    let message = format!("{other} and {name} are one header");
                    return Err(Problem::new(&at.span, message).help("give each header once"));
                }
                pairs.push((name, field_name(&at.with(&at.value))?));
            }
        }
    }
    Ok(pairs)
}

/// Splits a URL into two parts: the server, and the path with the query. Without a path, the second
/// part is `/`.
pub(super) fn divide(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    match url[start..].find(['/', '?']) {
        // The text after `unix:` is the path of a socket, so the URL has no path for requests.
        _ if url.starts_with("unix:") => (url, "/"),
        Some(at) if url[start + at..].starts_with('/') => url.split_at(start + at),
        _ => (url, "/"),
    }
}

/// Checks the name of a request field in `copy`, which gets its value from an answer or from a
/// claim of a token.
pub(super) fn field_name(at: &At<&String>) -> Resolution<String> {
    let name = text(at)?;
    // These fields frame the message, or belong to the connection, so `copy` must not set them.
    const REFUSED: [&str; 9] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let is_plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !is_token(name) || !is_plain(name) || REFUSED.contains(&&*name.to_ascii_lowercase()) {
        return Err(Problem::new(&at.span, format!("\"{name}\" cannot be copied"))
            .help("name a field such as \"Remote-User\": letters, digits and hyphens"));
    }
    Ok(name.to_owned())
}
