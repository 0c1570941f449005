//! Resolves `cache` of a route.

use std::time::Duration;

use super::Resolution;
use super::template::{Known, shared_key, template};
use super::value::{optional_time, size, text, time};
use crate::error::Problem;
use crate::file::{self, At, BoolOr};
use crate::plan::{Action, Cache, CookieName, Template};

/// Default of `key`.
const KEY: &str = "{scheme}{host}{uri}";
/// Default of `max_size`, in bytes.
const MAX_SIZE: u64 = 1024 * 1024;

/// Resolves `cache`. Returns `None` if the route stores no replies. For files and fixed replies,
/// returns an error, because Forebay sends them faster than it finds a stored reply. If these
/// routes have `cache` only from `[defaults]`, returns `None`.
pub(super) fn cache(
    typed: &Option<At<BoolOr<file::Cache>>>,
    action: &Action,
    is_default: impl Fn(&At<BoolOr<file::Cache>>) -> bool,
    known: Known<'_>,
) -> Resolution<Option<Cache>> {
    let default = file::Cache::default();
    let (at, table) = match typed {
        None | Some(At { value: BoolOr::Bool(false), .. }) => return Ok(None),
        Some(at @ At { value: BoolOr::Bool(true), .. }) => (at, &default),
        Some(at @ At { value: BoolOr::Table(table), .. }) => (at, table),
    };
    if !has_slow_replies(action) {
        return if is_default(at) { Ok(None) } else { Err(useless(at)) };
    }
    Ok(Some(Cache {
        valid: optional_time(&table.valid)?,
        stale_while_revalidate: time(&table.stale_while_revalidate, Duration::ZERO)?,
        stale_if_error: time(&table.stale_if_error, Duration::ZERO)?,
        key: key(at, &table.key, known)?,
        max_size: usize::try_from(size(&table.max_size)?.unwrap_or(MAX_SIZE)).unwrap_or(usize::MAX),
        private_cookies: private_cookies(table)?,
        set_cookie: table.set_cookie.as_ref().is_some_and(|at| at.value),
    }))
}

fn has_slow_replies(action: &Action) -> bool {
    match action {
        Action::Files(_)
        | Action::Respond(_)
        | Action::Redirect(_)
        | Action::Moved(_)
        | Action::Rewrite => false,
        Action::Cgi(_)
        | Action::Fastcgi(_)
        | Action::AppServer(_)
        | Action::Ajp(_)
        | Action::Proxy(_)
        | Action::App(_) => true,
    }
}

fn useless<T>(at: &At<T>) -> Problem {
    Problem::new(&at.span, "`cache` makes no difference here").help(
        "it stores replies of applications and servers; files and fixed replies cost less than a \
         lookup: leave it out",
    )
}

fn key<T>(cache: &At<T>, typed: &Option<At<String>>, known: Known<'_>) -> Resolution<Template> {
    let Some(at) = typed else { return template(KEY, cache, known) };
    let key = shared_key(at, known)?;
    if key.constant().is_some() {
        return Err(Problem::new(&at.span, "all requests would get the same reply")
            .help("use placeholders that tell the replies apart, such as \"{host}{uri}\""));
    }
    Ok(key)
}

/// Checks `private_cookies`. Without it, every cookie is private.
fn private_cookies(table: &file::Cache) -> Resolution<Vec<CookieName>> {
    let Some(list) = &table.private_cookies else {
        return Ok(vec![CookieName::Prefix(String::new())]);
    };
    let name = |at: &At<&String>| {
        let name = text(at)?;
        let is_plain = |c: char| c.is_ascii_graphic() && !"=;,\"*".contains(c);
        let (bare, is_prefix) = name.strip_suffix('*').map_or((name, false), |bare| (bare, true));
        if !bare.chars().all(is_plain) {
            return Err(Problem::new(&at.span, format!("\"{name}\" is not the name of a cookie"))
                .help("write a name such as \"session\", or the start of names: \"wp_*\""));
        }
        let bare = bare.to_owned();
        Ok(if is_prefix { CookieName::Prefix(bare) } else { CookieName::Exact(bare) })
    };
    list.items().iter().map(name).collect()
}
