//! Stored replies of all routes, bounded by bytes.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_admin::{CacheRow, Purge};
use forebay_net::head::Request;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::stored::Stored;

/// Maximum number of variants of one resource. A further variant replaces the oldest.
const VARIANTS: usize = 32;
/// Time during which requests do not wait for each other after a reply that could not be stored.
const PASSING: Duration = Duration::from_secs(10);
/// A reply may have at most the size of the store, divided by this number.
const SHARE: usize = 16;
/// Assumed average size of an entry, in bytes, for the size of the store's tables.
const USUAL_SIZE: usize = 8 * 1024;

/// Maximum number of entries that the tables can hold at the start.
const MOST_TABLED: usize = 1 << 18;

/// Key of a resource.
pub type Key = Box<[u8]>;

/// Stored replies of one key.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// Replies, the oldest first.
    variants: Vec<Arc<Stored>>,
    /// Time until which requests go to the origin at once, because the last reply for this key
    /// could not be stored.
    passes_until: Option<Instant>,
}

/// The store.
pub struct Store {
    resources: Cache<Key, Arc<Resource>, ByBytes>,
    /// Requests to origins whose replies may be stored.
    fetches: Mutex<HashMap<Key, Arc<Fetch>>>,
    capacity: u64,
    /// Bytes of bodies that are arriving.
    arriving: AtomicU64,
    /// Counters.
    pub counts: Counts,
}

/// Bytes of a body that is arriving. All arriving bodies together have at most the size of the
/// store.
pub struct Arriving {
    store: Arc<Store>,
    bytes: Cell<u64>,
}

impl Arriving {
    /// Returns true if there is memory for this many more bytes.
    pub fn reserve(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let before = self.store.arriving.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.store.capacity {
            self.store.arriving.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes.set(self.bytes.get() + bytes);
        true
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.store.arriving.fetch_sub(self.bytes.get(), Ordering::Relaxed);
    }
}

/// Numbers of requests, by the source of the answer.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests answered with a stored reply, without the origin.
    pub hits: AtomicU64,
    /// Requests answered by the origin, because no usable reply was stored.
    pub misses: AtomicU64,
    /// Requests answered with a stored reply that the origin confirmed.
    pub confirmed: AtomicU64,
    /// Requests answered with a stale reply.
    pub stale: AtomicU64,
    /// Requests answered by the origin, because the request cannot use the store, or because the
    /// last reply could not be stored.
    pub passed: AtomicU64,
}

impl Counts {
    /// Counts a request.
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A request to an origin. Other requests wait for it.
#[derive(Debug)]
struct Fetch {
    /// Closed when the request has ended.
    ended: Semaphore,
    /// True if the resource changed after the request was sent.
    is_outdated: std::sync::atomic::AtomicBool,
}

/// Result of a lookup.
#[derive(Debug)]
pub enum CacheLookup {
    /// A reply, fresh or stale.
    Reply(Arc<Stored>),
    /// No reply, and the origin's reply can probably not be stored.
    Passing,
    /// No reply.
    Nothing,
}

/// Role of a request that needs the origin.
pub enum Role {
    /// The request asks the origin, and other requests wait for it.
    Leads(Lead),
    /// Another request asks the origin, and this one waits.
    Waits(Wait),
}

/// The role of the request that asks the origin. When this value is dropped, the waiting requests
/// continue.
pub struct Lead {
    store: Arc<Store>,
    key: Key,
    fetch: Arc<Fetch>,
}

/// Waits for the request of another client.
pub struct Wait(Arc<Fetch>);

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Arc<Resource>> for ByBytes {
    fn weight(&self, key: &Key, resource: &Arc<Resource>) -> u64 {
        let bytes: usize = resource.variants.iter().map(|stored| stored.size()).sum();
        (key.len() + bytes + 128) as u64
    }
}

impl Store {
    /// Creates a store for at most this number of bytes.
    pub fn new(capacity: u64) -> Arc<Self> {
        // The tables are allocated at once, so their size is limited.
        let entries =
            (usize::try_from(capacity).unwrap_or(usize::MAX) / USUAL_SIZE).min(MOST_TABLED);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(entries.max(16))
            .weight_capacity(capacity)
            .shards(SHARDS)
            .build()
            .expect("all required options are set");
        let resources =
            Cache::with_options(options, ByBytes, Default::default(), Default::default());
        let (fetches, counts) = (Mutex::default(), Counts::default());
        Arc::new(Self { resources, fetches, capacity, arriving: AtomicU64::new(0), counts })
    }

    /// Returns the maximum size of a reply in bytes.
    pub fn most(&self) -> usize {
        usize::try_from(self.capacity).unwrap_or(usize::MAX) / SHARE
    }

    /// Returns the limit in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the reply for `request`, if `may_use` allows it.
    pub fn find(
        &self,
        key: &[u8],
        request: &Request,
        may_use: impl Fn(&Stored) -> bool,
    ) -> CacheLookup {
        let Some(resource) = self.resources.get(key) else { return CacheLookup::Nothing };
        // Take the newest reply that matches (RFC 9111 section 4.1).
        let mut variants = resource.variants.iter().rev();
        match variants.find(|stored| may_use(stored) && stored.variant.matches(request)) {
            Some(stored) => CacheLookup::Reply(stored.clone()),
            None if resource.passes_until.is_some_and(|until| Instant::now() < until) => {
                CacheLookup::Passing
            }
            None => CacheLookup::Nothing,
        }
    }

    /// Returns the role of a request for `key`.
    pub fn role(self: &Arc<Self>, key: &Key) -> Role {
        let mut fetches = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fetch) = fetches.get(key) {
            return Role::Waits(Wait(fetch.clone()));
        }
        let fetch = Arc::new(Fetch { ended: Semaphore::new(0), is_outdated: false.into() });
        fetches.insert(key.clone(), fetch.clone());
        Role::Leads(Lead { store: self.clone(), key: key.clone(), fetch })
    }

    /// Removes the replies for `key`. A reply that is arriving now is not stored.
    pub fn invalidate(&self, key: &[u8]) {
        if let Some(fetch) = self.fetches.lock().unwrap_or_else(PoisonError::into_inner).get(key) {
            fetch.is_outdated.store(true, Ordering::Relaxed);
        }
        self.resources.remove(key);
    }

    /// Removes replies, or ends their lifetime. Returns their number.
    pub fn purge(&self, purge: &Purge) -> usize {
        // The tags of replies that are now arriving are unknown, so none of these replies is
        // stored.
        for fetch in self.fetches.lock().unwrap_or_else(PoisonError::into_inner).values() {
            fetch.is_outdated.store(true, Ordering::Relaxed);
        }
        let mut count = 0;
        for (key, resource) in self.resources.iter() {
            let mut left = Resource { variants: Vec::new(), ..Resource::clone(&resource) };
            for stored in &resource.variants {
                if !stored.is_meant(&purge.what) {
                    left.variants.push(stored.clone());
                } else if purge.is_soft {
                    left.variants.push(Arc::new(stored.expired()));
                }
            }
            let meant = resource.variants.iter().filter(|stored| stored.is_meant(&purge.what));
            match meant.count() {
                0 => continue,
                purged => count += purged,
            }
            if left.variants.is_empty() {
                self.resources.remove(&key);
            } else {
                self.resources.insert(key, Arc::new(left));
            }
        }
        count
    }

    /// Returns the counts for the administrator.
    pub fn status(&self) -> CacheRow {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheRow {
            replies: self.resources.len(),
            bytes: self.resources.weight(),
            capacity: self.capacity,
            hits: of(&self.counts.hits),
            misses: of(&self.counts.misses),
            confirmed: of(&self.counts.confirmed),
            stale: of(&self.counts.stale),
            passed: of(&self.counts.passed),
        }
    }
}

/// Parts of the store with separate locks. There are only a few parts, because the largest reply
/// (1/16 of the store) has to fit into one of them.
const SHARDS: usize = 4;

impl Lead {
    /// Returns the counter of memory for the arriving body.
    pub fn arriving(&self) -> Arriving {
        Arriving { store: self.store.clone(), bytes: Cell::new(0) }
    }

    /// Stores the reply. The new reply replaces `replaced`, and a reply for the same request
    /// fields.
    pub fn store(&self, stored: &Arc<Stored>, replaced: Option<&Arc<Stored>>) {
        if self.fetch.is_outdated.load(Ordering::Relaxed) {
            return;
        }
        let before = self.store.resources.get(&self.key);
        let mut resource = before.map_or_else(Resource::default, |before| Resource::clone(&before));
        resource.passes_until = None;
        resource.variants.retain(|other| {
            let is_replaced = replaced.is_some_and(|replaced| Arc::ptr_eq(replaced, other));
            !is_replaced && other.variant != stored.variant
        });
        if resource.variants.len() == VARIANTS {
            resource.variants.remove(0);
        }
        resource.variants.push(stored.clone());
        self.store.resources.insert(self.key.clone(), Arc::new(resource));
    }

    /// Records that the reply could not be stored.
    pub fn pass(&self) {
        let before = self.store.resources.get(&self.key);
        let mut resource = before.map_or_else(Resource::default, |before| Resource::clone(&before));
        resource.passes_until = Some(Instant::now() + PASSING);
        self.store.resources.insert(self.key.clone(), Arc::new(resource));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.store.fetches.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.fetch.ended.close();
    }
}

impl Wait {
    /// Waits until the other request has ended. Returns false after `limit`.
    pub async fn ended(self, limit: Duration) -> bool {
        // The semaphore never gets permits, so `acquire` returns only when it is closed.
        tokio::time::timeout(limit, self.0.ended.acquire()).await.is_ok()
    }
}
