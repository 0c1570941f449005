//! The state of rate limits.

use std::sync::Arc;

use forebay_conf::Plan;
use forebay_net::counters::RouteLabels;
use forebay_origin::access::{RateLimiter, SharedKeys};

use super::labels::labels_of;
use crate::fleet::SharedLimit;

/// Creates the state of all rate limits by site and route. A limit keeps its state if the previous
/// configuration has an equal limit with the same number in the same route. With `keys`, other machines
/// learn of the requests.
pub fn limiters(
    plan: &Plan,
    previous: Option<&[Vec<Vec<Arc<RateLimiter>>>]>,
    keys: Option<&SharedKeys>,
) -> Vec<Vec<Vec<Arc<RateLimiter>>>> {
    let sites = plan.sites.iter().enumerate().map(|(site, in_site)| {
        let routes = in_site.routes.iter().enumerate().map(|(at, route)| {
            let limits = route.access.rate_limits.iter().enumerate();
            let limits = limits.map(|(number, limit)| {
                let before = previous.and_then(|sites| sites.get(site)?.get(at)?.get(number));
                let is_same = |before: &&Arc<RateLimiter>| {
                    before.limit() == limit && before.is_shared() == keys.is_some()
                };
                let before = before.filter(is_same).cloned();
                before.unwrap_or_else(|| Arc::new(RateLimiter::new(limit.clone(), keys.cloned())))
            });
            limits.collect()
        });
        routes.collect()
    });
    sites.collect()
}

/// Returns all rate limits with their names in the store. A name depends on the site, the route and the
/// rules of the limit, not on the order of sites and routes.
pub fn shared_limits(
    plan: &Plan,
    limiters: &[Vec<Vec<Arc<RateLimiter>>>],
    keys: &SharedKeys,
) -> Vec<SharedLimit> {
    let mut shared = Vec::new();
    for (site, limiters) in plan.sites.iter().zip(limiters) {
        for (route, limiters) in site.routes.iter().zip(limiters) {
            for (number, limiter) in limiters.iter().enumerate() {
                let RouteLabels { site, route } = labels_of(site, route);
                let rules = format!("{site}\n{route}\n{number}\n{:?}", limiter.limit());
                let name = format!("{:016x}", keys.hash(rules.as_bytes()));
                shared.push(SharedLimit { name, limiter: limiter.clone() });
            }
        }
    }
    shared
}
