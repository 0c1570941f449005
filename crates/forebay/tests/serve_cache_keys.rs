//! Many keys in a small store on disk: the bounds hold, and each reply is the one for its key. The
//! script `examples/cache/keys` does the same with 10 million requests.

#[path = "../../../examples/cache/keys.rs"]
mod keys;
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_testkit::folder::Folder;
use forebay_testkit::port::free_port;
use support::serve;

/// The smallest limits that Forebay accepts.
const LIMITS: keys::Limits = keys::Limits { memory: 1 << 20, disk: 16 << 20 };
const REQUESTS: u64 = 6_000;
const KEYS: u64 = 2_000;

#[test]
fn many_keys_stay_within_the_bounds_and_get_their_own_replies() {
    let asked = Arc::<AtomicU64>::default();
    let backend = keys::start_backend(&asked).unwrap();
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let folder = Folder::new();
    let cache = folder.path().join("cache");
    let forebay = serve(folder, &keys::configuration(LIMITS, (backend, admin), &cache));
    let take = || keys::Sample::take(admin, forebay.process.id(), &cache);
    let load = keys::Load::new(forebay.address, REQUESTS, KEYS);
    keys::run(&load, || take().unwrap().check(LIMITS, false)).unwrap();
    let last = keys::quiet(LIMITS, take).unwrap();
    assert_eq!(load.done.load(Ordering::Relaxed), REQUESTS);
    assert!(load.different() > 1500 && last.files > 200, "{last:?}");
    assert!(last.hits > 500 && last.disk_hits > 20, "{last:?}");
    assert!(asked.load(Ordering::Relaxed) + last.hits >= REQUESTS, "{last:?}");
}
