//! Builds the mirrors of routes, and reads their counters.

use std::rc::Rc;

use forebay_admin::MirrorRow;
use forebay_conf::{Action, Route};
use forebay_net::thread::Thread;
use forebay_origin::mirror::MirroredOrigin;
use forebay_server::exchange::Origin;

use super::Origins;
use super::shared::Shared;
use super::tables::Pools;

impl Origins {
    /// Returns the counts of copied requests for each route with `mirror`.
    pub(super) fn mirrors(&self) -> Vec<MirrorRow> {
        let sites = self.plan.sites.iter().zip(&self.shared).enumerate();
        let rows = sites.flat_map(|(site, (plan, shared))| {
            let routes = plan.routes.iter().zip(shared).enumerate();
            routes.filter_map(move |(at, (route, shared))| {
                let counts = shared.mirror_state.as_ref()?.counts();
                Some(MirrorRow { site: site + 1, route: at + 1, line: route.line, counts })
            })
        });
        rows.collect()
    }

    /// Returns `origin`. If the route has `mirror`, wraps `origin` in an origin that copies
    /// requests. Exception: a route that only rewrites paths gets no wrapper, because another route
    /// answers its requests.
    pub(super) fn mirrored(
        &self,
        route: &Route,
        origin: Box<dyn Origin>,
        shared: &Shared,
        (thread, pools): (&Rc<Thread>, &Pools),
    ) -> Box<dyn Origin> {
        let mirror = route.mirror.as_ref().filter(|_| route.action != Action::Rewrite);
        let Some((settings, state)) = mirror.zip(shared.mirror_state.as_ref()) else {
            return origin;
        };
        let server = self.proxy(&settings.proxy, &shared.mirror, (thread, pools));
        let (settings, state, thread) = (settings.clone(), state.clone(), thread.clone());
        let origin = (origin, route.passes_on());
        Box::new(MirroredOrigin::new(origin, Box::new(server), settings, state, thread))
    }
}
