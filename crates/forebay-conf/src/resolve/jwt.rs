//! Resolves `jwt` of a route.

use std::net::IpAddr;
use std::time::Duration;

use super::access::{divide, field_name};
use super::upstream::{Keys, of_route};
use super::value::{is_token, text, time, time_above_zero};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, File, OneOrMany, TextOr, Time};
use crate::key::{no_effect, not_empty, paths};
use crate::plan::{
    Address, Backend, HostField, Jwt, JwtKeys, KeyUrl, PUBLIC_ALGORITHMS, Proxy, Redirects,
    SECRET_ALGORITHMS, Scheme, TokenSource,
};

/// Default of `leeway`.
const LEEWAY: Duration = Duration::from_secs(60);

/// Default of `refresh`.
const REFRESH: Duration = Duration::from_secs(3600);
/// The shortest `refresh`.
const SHORTEST_REFRESH: Duration = Duration::from_secs(30);

pub(super) fn jwt(context: &Context<'_>, file: &File, typed: &At<file::Jwt>) -> Resolution<Jwt> {
    let keys = keys(context, file, typed)?;
    if let (Some(at), false) = (&typed.refresh, matches!(keys, JwtKeys::Url(_))) {
        let help = "give a URL in `jwks`, or leave it out";
        return Err(no_effect(&at.span, "refresh", "on keys without a URL", help));
    }
    let is_secret = matches!(keys, JwtKeys::Secret(_));
    let copy = typed
        .copy
        .iter()
        .map(|(name, claim)| Ok((field_name(&claim.with(name))?, text(claim)?.to_owned())));
    let require =
        typed.require.iter().map(|(claim, values)| Ok((claim.clone(), texts(Some(values))?)));
    Ok(Jwt {
        keys,
        algorithms: algorithms(&typed.algorithms, is_secret)?,
        issuer: texts(typed.issuer.as_ref())?,
        audience: texts(typed.audience.as_ref())?,
        leeway: time(&typed.leeway, LEEWAY)?,
        source: source(typed)?,
        copy: copy.collect::<Resolution<_>>()?,
        user: typed.user.as_ref().map(|at| text(at).map(str::to_owned)).transpose()?,
        require: require.collect::<Resolution<_>>()?,
    })
}

fn keys(context: &Context<'_>, whole: &File, typed: &At<file::Jwt>) -> Resolution<JwtKeys> {
    match (&typed.key, &typed.secret, &typed.jwks) {
        (Some(file), None, None) => paths::file(context.sources, file).map(JwtKeys::Pem),
        (None, Some(secret), None) => Ok(JwtKeys::Secret(secret.clone())),
        (None, None, Some(at)) if at.contains("://") || at.starts_with('@') => {
            url(context, whole, at, &typed.refresh).map(|url| JwtKeys::Url(Box::new(url)))
        }
        (None, None, Some(file)) => paths::file(context.sources, file).map(JwtKeys::Set),
        (None, None, None) => Err(Problem::new(&typed.span, "no key verifies the tokens")
            .label("needs `key`, `secret` or `jwks`")
            .help(
                "add key = \"public.pem\", secret = \"{file.jwt-secret}\" or jwks = \"keys.json\"",
            )),
        _ => Err(Problem::new(&typed.span, "`key`, `secret` and `jwks` exclude each other")
            .help("keep one of them; `jwks` may have several keys")),
    }
}

/// Resolves a URL of keys. The URL must have TLS or lead to this machine. Otherwise, anyone on the
/// network path could replace the keys.
fn url(
    context: &Context<'_>,
    file: &File,
    typed: &At<String>,
    refresh: &Option<Time>,
) -> Resolution<KeyUrl> {
    let (server, target) = divide(text(typed)?);
    if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(Problem::new(&typed.span, format!("\"{target}\" is not a path"))
            .help("percent-encode it, and leave out `#`"));
    }
    let to = Some(typed.with(OneOrMany::One(TextOr::Text(server.to_owned()))));
    let upstream = of_route(context, file, Scheme::Http, &typed.span, &Keys::of(&to, &None))?;
    if let Some(plain) = upstream.to.iter().find(|backend| !backend.https && !is_here(backend)) {
        let message = format!("keys from {} could be forged on their way", plain.authority);
        return Err(Problem::new(&typed.span, message)
            .label("has no TLS")
            .help("write https://; http:// is for servers of this machine, such as 127.0.0.1"));
    }
    let refresh = time_above_zero(refresh, REFRESH)?;
    if refresh < SHORTEST_REFRESH {
        return Err(Problem::new(&typed.span, "keys are read at most once in 30 seconds")
            .help("give `refresh` a time of at least \"30s\", or leave it out"));
    }
    Ok(KeyUrl {
        proxy: Proxy {
            upstream,
            host: HostField::Backend,
            redirect: Redirects::Off,
            strip_prefix: None,
            decodes_path: false,
            reply_timeout: None,
            tunnel_idle: None,
        },
        target: target.to_owned(),
        refresh,
    })
}

fn is_here(backend: &Backend) -> bool {
    match &backend.address {
        Address::Unix(_) => true,
        Address::Tcp(address) => {
            let host = address.rsplit_once(':').map_or(&address[..], |(host, _)| host);
            let host = host.trim_matches(['[', ']']);
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
    }
}

/// Checks the names of algorithms. Secrets and public keys have different algorithms, so a client
/// cannot use the public key as a secret.
fn algorithms(typed: &Option<At<OneOrMany<String>>>, is_secret: bool) -> Resolution<Vec<String>> {
    let (own, others) = if is_secret {
        (&SECRET_ALGORITHMS[..], &PUBLIC_ALGORITHMS[..])
    } else {
        (&PUBLIC_ALGORITHMS[..], &SECRET_ALGORITHMS[..])
    };
    let names = texts(typed.as_ref())?;
    let wrong = names.iter().find(|name| !own.contains(&name.as_str()));
    let (Some(at), Some(name)) = (typed, wrong) else { return Ok(names) };
    let message = match (others.contains(&name.as_str()), is_secret) {
        (false, _) => format!("\"{name}\" is not an algorithm that Forebay verifies"),
        (true, true) => format!("{name} needs a public key, not a secret"),
        (true, false) => format!("{name} needs a secret, not a public key"),
    };
    let help = format!("choose from {}, or leave the key out", own.join(", "));
    Err(Problem::new(&at.span, message).help(help))
}

/// Returns the part of a request that contains the token: a field, by default `Authorization`, or a
/// cookie.
fn source(typed: &At<file::Jwt>) -> Resolution<TokenSource> {
    let at = match (&typed.header, &typed.cookie) {
        (Some(_), Some(cookie)) => {
            return Err(Problem::new(&cookie.span, "`cookie` has no effect beside `header`")
                .help("keep one of the two"));
        }
        (None, None) => return Ok(TokenSource::Header("Authorization".to_owned())),
        (Some(at), None) | (None, Some(at)) => at,
    };
    let name = text(at)?;
    if !is_token(name) {
        return Err(Problem::new(&at.span, format!("\"{name}\" is not a name"))
            .help("write a name such as \"X-Token\""));
    }
    let name = name.to_owned();
    let is_header = typed.header.is_some();
    Ok(if is_header { TokenSource::Header(name) } else { TokenSource::Cookie(name) })
}

fn texts(typed: Option<&At<OneOrMany<String>>>) -> Resolution<Vec<String>> {
    let Some(at) = typed else { return Ok(Vec::new()) };
    not_empty(&at.items(), &at.span, "", "give at least one value, or leave the key out")?;
    at.items().iter().map(|item| text(item).map(str::to_owned)).collect()
}
