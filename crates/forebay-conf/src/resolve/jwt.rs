//! Resolves `jwt` of a route.

use std::time::Duration;

use super::forward_auth::field_name;
use super::value::{is_token, text, time};
use super::{Context, Resolution, path};
use crate::error::Problem;
use crate::file::{self, At, OneOrMany, Table};
use crate::plan::{Jwt, JwtKeys, PUBLIC_ALGORITHMS, SECRET_ALGORITHMS, Secret, TokenSource};

/// Default of `leeway`.
const LEEWAY: Duration = Duration::from_secs(60);

/// The shortest secret in bytes: the output of SHA-256 (RFC 7518 section 3.2).
const SHORTEST_SECRET: usize = 32;

/// Resolves `jwt`.
pub(super) fn jwt(context: &Context<'_>, typed: &At<Table<file::Jwt>>) -> Resolution<Jwt> {
    let keys = keys(context, typed)?;
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

fn keys(context: &Context<'_>, typed: &At<Table<file::Jwt>>) -> Resolution<JwtKeys> {
    match (&typed.key, &typed.secret, &typed.jwks) {
        (Some(file), None, None) => path::file(context, file).map(JwtKeys::Pem),
        (None, Some(at), None) => secret(at).map(JwtKeys::Secret),
        (None, None, Some(file)) => set(context, file),
        (None, None, None) => Err(Problem::new(&typed.span, "no key verifies the tokens")
            .label("needs `key`, `secret` or `jwks`")
            .help(
                "add key = \"public.pem\", secret = \"{file.jwt-secret}\" or jwks = \"keys.json\"",
            )),
        _ => Err(Problem::new(&typed.span, "`key`, `secret` and `jwks` exclude each other")
            .help("keep one of them; `jwks` may have several keys")),
    }
}

fn set(context: &Context<'_>, typed: &At<String>) -> Resolution<JwtKeys> {
    let name = text(typed)?;
    if name.contains("://") {
        return Err(Problem::new(&typed.span, "Forebay reads keys from a file, not from a URL")
            .help(format!("save them regularly: `curl -fo keys.json {name}`, then reload")));
    }
    path::file(context, typed).map(JwtKeys::Set)
}

fn secret(typed: &At<String>) -> Resolution<Secret> {
    let secret = text(typed)?;
    if secret.len() < SHORTEST_SECRET {
        return Err(Problem::new(&typed.span, "this secret has fewer than 32 bytes").help(
            "a short secret can be guessed from one token: use the output of `openssl rand -hex 32`",
        ));
    }
    Ok(Secret::new(secret.to_owned()))
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
fn source(typed: &At<Table<file::Jwt>>) -> Resolution<TokenSource> {
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
    if at.items().is_empty() {
        return Err(Problem::new(&at.span, "this list is empty")
            .help("give at least one value, or leave the key out"));
    }
    at.items().iter().map(|item| text(item).map(str::to_owned)).collect()
}
