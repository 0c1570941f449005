//! The store of replies, and the part of it that a route uses.

use std::rc::Rc;
use std::sync::Arc;

use forebay_conf::{CacheDisk, Plan};
use forebay_net::log::ErrorLog;
use forebay_origin::cache::{CachedRoute, Disk, SiteReplies, Store};

/// Returns the store of replies, or `None` if no route stores replies. A reload keeps the store if
/// the size and the directory of the cache are unchanged. An error says why the directory cannot be
/// used.
pub fn store(
    plan: &Plan,
    errors: &ErrorLog,
    previous: Option<&Arc<Store>>,
) -> Result<Option<Arc<Store>>, String> {
    let mut routes = plan.sites.iter().flat_map(|site| &site.routes);
    if !routes.any(|route| route.cache.is_some()) {
        return Ok(None);
    }
    let capacity = plan.server.cache_memory;
    let most = Store::most_of(capacity) as u64;
    let before = previous.and_then(|store| store.disk());
    let disk = match &plan.server.cache_disk {
        None => None,
        Some(CacheDisk { dir, size }) => match before.filter(|disk| disk.is_at(dir, *size, most)) {
            Some(disk) => Some(disk.clone()),
            None => Some(Disk::open(dir, *size, most, errors)?),
        },
    };
    let has_disk = |store: &&Arc<Store>| match (store.disk(), &disk) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    };
    let kept = previous.filter(|store| store.capacity() == capacity).filter(has_disk);
    let store = kept.cloned().unwrap_or_else(|| Store::new(capacity, disk));
    let routes = plan.sites.iter().flat_map(|site| &site.routes);
    let cached = routes.filter_map(|route| {
        let cache = route.cache.as_ref()?;
        Some(CachedRoute::new(&zone(route), &cache.key, &route.matcher))
    });
    store.set_routes(cached.collect());
    Ok(Some(store))
}

/// A text that is unique to a route and its settings. After a change of the route, its stored
/// replies are not used any more.
pub fn zone(route: &forebay_conf::Route) -> String {
    route.fingerprint.to_string()
}

/// Returns the stored replies of a site's routes.
pub fn of_site(site: &forebay_conf::Site, store: &Arc<Store>) -> Rc<SiteReplies> {
    let cached = |route| Some((zone(route), route.cache.as_ref()?));
    SiteReplies::new(store, site.routes.iter().filter_map(cached))
}

/// Returns a text that says in what places replies are stored, for `explain`.
pub fn places(plan: &Plan) -> String {
    let memory = format!("in memory ({} bytes)", plan.server.cache_memory);
    match &plan.server.cache_disk {
        None => format!("{memory} until Forebay ends"),
        Some(CacheDisk { dir, size }) => {
            let dir = dir.display();
            format!("{memory}; after the second request also in {dir} ({size} bytes)")
        }
    }
}
