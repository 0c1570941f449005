//! The keys of `jwt`, which the routes and threads share.

use std::sync::Arc;

use forebay_conf::{Jwt, Plan};
use forebay_origin::access::{KeyError, TokenKeys};

use super::Starts;

/// Reads the keys of all routes with `jwt`, by site and route. A route without `jwt` has `None`.
/// Routes with equal settings share their keys. After a reload, a route with an unchanged `jwt`
/// keeps the keys that were read from its URL. Fails if keys cannot be read.
pub(super) fn token_keys(
    plan: &Plan,
    starts: Starts<'_>,
) -> Result<Vec<Vec<Option<Arc<TokenKeys>>>>, KeyError> {
    fn routes(plan: &Plan) -> impl Iterator<Item = Option<&Jwt>> {
        plan.sites.iter().flat_map(|site| &site.routes).map(|route| route.access.jwt.as_ref())
    }
    let mut known: Vec<(&Jwt, Arc<TokenKeys>)> = Vec::new();
    if let Some(previous) = starts.previous() {
        let keys = previous.token_keys.iter().flatten();
        let are_kept = matches!(starts, Starts::Changing(_));
        let kept = routes(&previous.plan).zip(keys).filter_map(|(jwt, keys)| {
            let jwt = jwt.filter(|jwt| are_kept || jwt.url().is_some())?;
            Some((jwt, keys.clone()?))
        });
        known.extend(kept);
    }
    let mut all = Vec::new();
    for site in &plan.sites {
        let mut of_site = Vec::new();
        for route in &site.routes {
            let Some(jwt) = &route.access.jwt else {
                of_site.push(None);
                continue;
            };
            let same = known.iter().find(|(other, _)| *other == jwt);
            let keys = match same {
                Some((_, keys)) => keys.clone(),
                None => Arc::new(TokenKeys::load(jwt)?),
            };
            known.push((jwt, keys.clone()));
            of_site.push(Some(keys));
        }
        all.push(of_site);
    }
    Ok(all)
}
