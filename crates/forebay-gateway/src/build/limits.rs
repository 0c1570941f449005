//! The state of rate limits.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_conf::{Plan, Rate, RateLimit};
use forebay_net::counters::RouteLabels;
use forebay_origin::access::{ConcurrencyLimiter, RateLimiter, SharedKeys};

use super::labels::labels_of;
use crate::fleet::SharedLimit;

/// Creates the state of all rate limits by site and route. A limit keeps its state if the previous
/// configuration has an equal limit at the same position. The position consists of the indices of
/// site, route and limit. The hosts of the site and `keys` must be equal, too. With `keys`, the
/// limits share their counts with other machines.
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
                    before.limit() == limit
                        && before.is_shared_by(keys)
                        && before.is_of_site(&in_site.hosts)
                };
                let before = before.filter(is_same).cloned();
                before.unwrap_or_else(|| {
                    let limiter = RateLimiter::new(limit.clone(), keys.cloned());
                    Arc::new(limiter.of_site(&in_site.hosts))
                })
            });
            limits.collect()
        });
        routes.collect()
    });
    sites.collect()
}

/// Creates the counts of all limits of running requests by site and route. As with
/// [`limiters`], equal limits at the same position keep their state.
pub fn concurrency_limiters(
    plan: &Plan,
    previous: Option<&[Vec<Vec<Arc<ConcurrencyLimiter>>>]>,
) -> Vec<Vec<Vec<Arc<ConcurrencyLimiter>>>> {
    let sites = plan.sites.iter().enumerate().map(|(site, in_site)| {
        let routes = in_site.routes.iter().enumerate().map(|(at, route)| {
            let limits = route.access.concurrency_limits.iter().enumerate();
            let limits = limits.map(|(number, limit)| {
                let before = previous.and_then(|sites| sites.get(site)?.get(at)?.get(number));
                let before = before.filter(|before| before.is_of(limit, &in_site.hosts)).cloned();
                let new = || Arc::new(ConcurrencyLimiter::new(limit.clone(), &in_site.hosts));
                before.unwrap_or_else(new)
            });
            limits.collect()
        });
        routes.collect()
    });
    sites.collect()
}

/// Returns all rate limits with their names in the store. A name is a hash of the site's name, the
/// route's name, the limit's index in the route, and the rules of the limit. The order of sites and
/// routes does not matter. If these values are equal for several limits, a further number in the
/// hash distinguishes the limits.
pub fn shared_limits(
    plan: &Plan,
    limiters: &[Vec<Vec<Arc<RateLimiter>>>],
    keys: &SharedKeys,
) -> Vec<SharedLimit> {
    let mut shared = Vec::new();
    let mut twins: HashMap<String, usize> = HashMap::new();
    for (site, limiters) in plan.sites.iter().zip(limiters) {
        for (route, limiters) in site.routes.iter().zip(limiters) {
            for (number, limiter) in limiters.iter().enumerate() {
                let RouteLabels { site, route } = labels_of(site, route);
                let limit = limiter.limit();
                let RateLimit { rate: Rate { requests, period }, key, delay, .. } = limit;
                let (period, burst) = (period.as_nanos(), limit.burst());
                let rules = format!(
                    "{site}\n{route}\n{number}\n{requests}/{period}ns burst {burst} delay {delay} key {key}"
                );
                let twin = twins.entry(rules.clone()).or_default();
                let name = keys.hash(format!("{rules}\n{twin}").as_bytes());
                *twin += 1;
                let name = format!("{name:016x}");
                shared.push(SharedLimit { name, limiter: limiter.clone() });
            }
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn each_limit_has_its_own_name() {
        let route = |methods: &str| {
            format!(
                "[[site.route]]\npath = \"/a\"\nmethods = [\"{methods}\"]\nrespond = \"x\"\n\
                 rate_limit = {{ rate = \"1/s\" }}\n"
            )
        };
        let site = |port: u16| {
            let routes = route("GET") + &route("POST");
            format!("[[site]]\nlisten = \":{port}\"\nhosts = [\"h.example\"]\n{routes}")
        };
        let text = site(80) + &site(81);
        let plan = forebay_conf::parse(&text, "site.toml", Path::new("/")).unwrap();
        let keys = SharedKeys::new(b"key");
        let all = limiters(&plan, None, Some(&keys));
        let names = |limits: Vec<SharedLimit>| limits.into_iter().map(|limit| limit.name);
        let found: Vec<_> = names(shared_limits(&plan, &all, &keys)).collect();
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), 4, "{found:?}");
        // Other machines have the same names.
        let other = limiters(&plan, None, Some(&keys));
        assert!(names(shared_limits(&plan, &other, &keys)).eq(found));
    }
}
