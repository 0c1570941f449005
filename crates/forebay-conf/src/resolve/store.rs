//! Resolves the keys of the shared store in `[server]`.

use percent_encoding::percent_decode_str;

use super::value::text;
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self as typed, At};
use crate::key::no_effect;
use crate::key::paths::{file, path};
use crate::plan::{RedisServer, Secret, SharedStore, StorePlace};

/// The port of Redis (IANA).
const PORT: u16 = 6379;
/// The shortest `store_key`, in characters. A base64 or hexadecimal text of this length has at
/// least 128 random bits.
const SHORTEST_KEY: usize = 32;

const HELP: &str = "write a directory, or redis://HOST:PORT/DB, such as \
                    \"redis://{env.REDIS_USER}:{env.REDIS_PASSWORD}@10.0.0.5:6379/0\"";

pub(super) fn store(
    context: &Context<'_>,
    server: &typed::Server,
) -> Resolution<Option<SharedStore>> {
    let Some(at) = &server.store else {
        for (name, key) in [("store_key", &server.store_key), ("store_ca", &server.store_ca)] {
            if let Some(at) = key {
                let help = "leave it out, or set `store`";
                return Err(no_effect(&at.span, name, "without `store`", help));
            }
        }
        return Ok(None);
    };
    let url = text(at)?;
    let place = match url.split_once("://") {
        None => StorePlace::Directory(path(context.sources, at)?),
        Some(("redis", rest)) => StorePlace::Redis(redis(at, rest, false)?),
        Some(("rediss", rest)) => StorePlace::Redis(redis(at, rest, true)?),
        // The URL may contain a password, so the message does not show it.
        Some(_) => {
            return Err(Problem::new(&at.span, "the scheme of this URL is unknown").help(HELP));
        }
    };
    let key = server.store_key.as_ref().map(key).transpose()?;
    if key.is_none() && matches!(place, StorePlace::Redis(_)) {
        let problem = Problem::new(&at.span, "a store in Redis needs a `store_key`");
        return Err(problem.help(
            "private keys are in the store, and whoever reads the database could use them: write \
             the output of `openssl rand -base64 32` to a file that all machines have, and set \
             store_key = \"{file./etc/forebay/store.key}\"",
        ));
    }
    Ok(Some(SharedStore { place: with_ca(context, place, &server.store_ca)?, key }))
}

fn with_ca(
    context: &Context<'_>,
    place: StorePlace,
    typed: &Option<At<String>>,
) -> Resolution<StorePlace> {
    match (place, typed) {
        (StorePlace::Redis(server), Some(at)) if server.is_tls => {
            Ok(StorePlace::Redis(RedisServer { ca: Some(file(context.sources, at)?), ..server }))
        }
        (_, Some(at)) => {
            let help = "leave it out, or set `store` to a rediss:// URL";
            Err(no_effect(&at.span, "store_ca", "without a store over TLS", help))
        }
        (place, None) => Ok(place),
    }
}

fn key(typed: &At<String>) -> Resolution<Secret> {
    let key = text(typed)?.trim();
    if key.len() < SHORTEST_KEY {
        return Err(Problem::new(&typed.span, "this key has fewer than 32 characters")
            .help("use the output of: openssl rand -base64 32"));
    }
    Ok(Secret::new(key.to_owned()))
}

/// Parses the part of the URL after `redis://`. A password from a file may contain any character, so
/// the last `@` ends it.
fn redis(at: &At<String>, rest: &str, is_tls: bool) -> Resolution<RedisServer> {
    let wrong = |message: &str| Problem::new(&at.span, message).help(HELP);
    let (login, place) = rest.rsplit_once('@').map_or((None, rest), |(a, b)| (Some(a), b));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let database = match database {
        "" => 0,
        number => number.parse().map_err(|_| wrong("the database is not a number"))?,
    };
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| wrong("a `]` is missing"))?;
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => authority.split_once(':').map_or((authority, Some("")), |(a, b)| (a, Some(b))),
    };
    let port = match port {
        Some("") => PORT,
        port => port
            .and_then(|port| port.parse().ok())
            .filter(|port| *port > 0)
            .ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?,
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if host.is_empty() || !host.chars().all(is_host) {
        return Err(wrong("the host is neither a name nor an address"));
    }
    let (user, password) = match login {
        None => (None, None),
        Some(login) => login.split_once(':').map_or((None, Some(login)), |(user, password)| {
            ((!user.is_empty()).then_some(user), Some(password))
        }),
    };
    let decode = |text: &str| {
        let text = percent_decode_str(text.trim()).decode_utf8();
        text.map(String::from).map_err(|_| wrong("the user or password is not UTF-8"))
    };
    Ok(RedisServer {
        host: host.to_owned(),
        port,
        database,
        user: user.map(decode).transpose()?,
        password: password.map(decode).transpose()?.map(Secret::new),
        is_tls,
        ca: None,
    })
}
