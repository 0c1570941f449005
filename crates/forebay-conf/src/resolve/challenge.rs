//! Resolves `challenge` of a route.

use std::time::Duration;

use super::effect::no_effect;
use super::peer;
use super::proxies::networks;
use super::signed_url::secret;
use super::value::{optional_time, time_above_zero, within};
use super::when::when;
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, BoolOr, OneOrMany};
use crate::plan::{Challenge, Crawler};

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
    let mut when = typed.when.as_ref().map(|at| when(context, at)).transpose()?.map(Box::new);
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
        verified: typed.verified.as_ref().map_or_else(Vec::new, crawlers),
        exempt,
        exempt_lists,
        feeds: typed.feeds.as_ref().is_some_and(|at| at.value),
        secret: match &typed.secret {
            Some(at) => Some(secret(&at.with(&at.value), false)?),
            None => None,
        },
    }))
}

fn crawlers(typed: &At<OneOrMany<file::Crawler>>) -> Vec<Crawler> {
    let crawler = |at: &At<&file::Crawler>| match at.value {
        file::Crawler::Googlebot => Crawler::Googlebot,
        file::Crawler::Bingbot => Crawler::Bingbot,
        file::Crawler::Applebot => Crawler::Applebot,
        file::Crawler::Yandexbot => Crawler::Yandexbot,
        file::Crawler::Baiduspider => Crawler::Baiduspider,
        file::Crawler::Seznambot => Crawler::Seznambot,
    };
    typed.items().iter().map(crawler).collect()
}
