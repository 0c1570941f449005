//! Stored replies of all routes, bounded by bytes.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use forebay_admin::{CacheRow, Purge};
use forebay_net::head::Request;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use super::aliases::{ALIAS_SIZE, Aliases};
use super::disk::index::{EntryName, FIRST_EPOCH};
use super::disk::{Disk, Spill};
use super::purging::{CachedRoute, PurgedReply, Purging, RouteKeys};
use super::resource::{Resource, Unstorable};
use super::resource_key::{ChangedKeys, Key, KeyHash};
use super::running::{Fetch, Running, Seeking, Wait};
use super::stored::{Stored, StoredBody};

/// Lifetime in seconds of replies that are not worth a file.
const SHORT: i64 = 5;
/// A reply may have at most the size of the store, divided by this number.
const SHARE: usize = 16;
/// Assumed average size of an entry, in bytes, for the size of the store's tables.
const USUAL_SIZE: usize = 8 * 1024;

/// Maximum number of entries that the tables can hold at the start.
const MOST_TABLED: usize = 1 << 18;

/// The store of replies in memory, with the optional store on disk.
pub struct Store {
    resources: Cache<Key, Arc<Resource>, ByBytes, RandomState, EvictedAliases>,
    /// Requests to origins whose replies may be stored.
    fetches: Mutex<Fetches>,
    capacity: u64,
    /// The store on disk, if there is one.
    disk: Option<Arc<Disk>>,
    /// Bytes of bodies that are arriving.
    arriving: AtomicU64,
    /// Keys of the routes, for purges by URL.
    routes: RouteKeys,
    /// Counters.
    pub counts: Counts,
}

/// Counter of the bytes of a body that is arriving. The total size of all arriving bodies is at
/// most the size of the store.
pub struct Arriving {
    store: Arc<Store>,
    bytes: Cell<u64>,
}

impl Arriving {
    /// Reserves memory for this many more bytes. Returns false if there is not enough memory.
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
    /// Requests answered by the origin without an attempt to store the reply, for example because
    /// the last reply could not be stored.
    pub passed: AtomicU64,
}

impl Counts {
    /// Adds 1 to a counter.
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Running requests to origins, and the number of removals. A reply moves between memory and disk
/// only under the lock of this struct, so that a removal does not miss the reply.
#[derive(Debug, Default)]
struct Fetches {
    running: Running,
    /// Number of removals. If it has changed since a reply was read from the disk, the reply is
    /// not put into memory.
    removals: u64,
    /// Number of removals that are running.
    purging: usize,
    /// Aliases of the requests and of the replies in memory.
    aliases: Aliases,
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
    /// The request asks the origin, and may store the reply.
    Leads(Lead),
    /// Another request asks the origin, and this one waits.
    Waits(Wait),
    /// Another request asks the origin, but the reply to it may take long. So this request asks the
    /// origin, too, and the reply to this request is not stored.
    Passes,
}

/// The role of a request that asks the origin and may store the reply. Other requests may wait for
/// this reply, unless the request asks apart. When this value is dropped, they continue.
pub struct Lead {
    store: Arc<Store>,
    key: Key,
    fetch: Arc<Fetch>,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Arc<Resource>> for ByBytes {
    fn weight(&self, key: &Key, resource: &Arc<Resource>) -> u64 {
        let bytes: usize = resource.variants.iter().map(|stored| stored.size()).sum();
        let alias = key.alias_hash().map_or(0, |_| ALIAS_SIZE);
        (key.len() + bytes + alias + 128) as u64
    }
}

/// Collects the aliases that an insertion evicts.
#[derive(Clone)]
struct EvictedAliases;

impl Lifecycle<Key, Arc<Resource>> for EvictedAliases {
    type RequestState = Vec<Key>;

    fn begin_request(&self) -> Vec<Key> {
        Vec::new()
    }

    fn on_evict(&self, evicted: &mut Vec<Key>, key: Key, _resource: Arc<Resource>) {
        if key.alias_hash().is_some() {
            evicted.push(key);
        }
    }
}

impl Store {
    /// Creates a store for at most `capacity` bytes in memory. `disk` is the store on disk for
    /// replies that do not fit into memory.
    pub fn new(capacity: u64, disk: Option<Arc<Disk>>) -> Arc<Self> {
        // The tables are allocated here for this number of entries, so limit the number.
        let entries =
            (usize::try_from(capacity).unwrap_or(usize::MAX) / USUAL_SIZE).min(MOST_TABLED);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(entries.max(16))
            .weight_capacity(capacity)
            .shards(SHARDS)
            .build()
            .expect("all required options are set");
        let hashes = RandomState::default();
        let resources = Cache::with_options(options, ByBytes, hashes, EvictedAliases);
        let (fetches, counts) = (Mutex::default(), Counts::default());
        let arriving = AtomicU64::new(0);
        let routes = RouteKeys::default();
        Arc::new(Self { resources, fetches, capacity, disk, arriving, routes, counts })
    }

    /// Sets the routes of a configuration, so that a purge by URL finds the replies of these
    /// routes.
    pub fn set_routes(&self, routes: Vec<CachedRoute>) {
        self.routes.set(routes);
    }

    /// Returns the maximum size of a reply in memory, in bytes.
    pub fn most(&self) -> usize {
        Self::most_of(self.capacity)
    }

    /// Returns the maximum size of a reply in memory, in bytes, for a store of this size.
    pub fn most_of(capacity: u64) -> usize {
        usize::try_from(capacity).unwrap_or(usize::MAX) / SHARE
    }

    /// Returns the store on disk, if there is one.
    pub fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    fn fetches(&self) -> MutexGuard<'_, Fetches> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum total size of the replies in memory, in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Looks up the reply for `request` in memory, if `may_use` allows it. `names_user` is true if
    /// the request names a user. Without a reply, the result says if the request must ask the
    /// origin at once.
    pub fn find(
        &self,
        key: &[u8],
        (request, names_user): (&Request, bool),
        may_use: impl Fn(&Stored) -> bool,
    ) -> CacheLookup {
        let Some(resource) = self.resource(key) else { return CacheLookup::Nothing };
        match resource.find(request, may_use) {
            Some(stored) => CacheLookup::Reply(stored.clone()),
            None if resource.passing.includes(names_user) => CacheLookup::Passing,
            None => CacheLookup::Nothing,
        }
    }

    /// Returns the replies in memory for `key`, or `None` if there are no replies.
    pub fn resource(&self, key: &[u8]) -> Option<Arc<Resource>> {
        self.resources.get(key)
    }

    /// Records that a request has found a reply in memory. Once in each epoch (`Index::epoch`),
    /// gives the reply to the disk, or marks its entry on disk as used. `key` returns the key of
    /// the reply.
    pub fn note_hit(&self, stored: &Arc<Stored>, key: impl FnOnce() -> Key) {
        if let Some(disk) = &self.disk
            && stored.on_disk.renew(disk.epoch())
        {
            let key = key();
            let _fetches = self.fetches();
            let resource = self.resources.peek(&key);
            let is_stored = |other: &Arc<Stored>| Arc::ptr_eq(other, stored);
            if resource.is_some_and(|resource| resource.variants.iter().any(is_stored)) {
                give(disk, &key, stored);
            }
        }
    }

    /// Puts a resource into memory, and updates the list of aliases.
    fn put(&self, fetches: &mut Fetches, key: &Key, resource: Resource) {
        let evicted = self.resources.insert_with_lifecycle(key.clone(), Arc::new(resource));
        self.list_alias(fetches, key);
        evicted.iter().for_each(|key| self.list_alias(fetches, key));
    }

    /// Removes a resource from memory. A reply for this resource that is arriving now is not
    /// stored.
    fn remove(&self, fetches: &mut Fetches, key: &Key) {
        fetches.running.outdate(key);
        self.resources.remove(key);
        self.list_alias(fetches, key);
    }

    /// Lists a key that is an alias (see `resource_key.rs`), if a reply for this key is in memory or
    /// arriving. Otherwise removes the alias from the list.
    fn list_alias(&self, fetches: &mut Fetches, key: &Key) {
        if key.alias_hash().is_none() {
            return;
        }
        let has_replies = |resource: Arc<Resource>| !resource.variants.is_empty();
        let is_live =
            fetches.running.contains(key) || self.resources.peek(key).is_some_and(has_replies);
        fetches.aliases.set(key, is_live);
    }

    /// Returns the number of removals so far, for [`Self::promote`].
    pub fn removals(&self) -> u64 {
        self.fetches().removals
    }

    /// Puts a reply from the disk into memory. Does nothing if the body is not in memory, or if the
    /// memory has the same variant. Also does nothing if a removal is running, or has ended since
    /// `removals` was read.
    pub fn promote(&self, key: &Key, stored: &Arc<Stored>, removals: u64) {
        if stored.body.in_memory().is_none() {
            return;
        }
        let mut fetches = self.fetches();
        if fetches.removals != removals || fetches.purging > 0 {
            return;
        }
        let before = self.resources.peek(key);
        let mut resource = before.map_or_else(Resource::default, |before| Resource::clone(&before));
        // The reply in memory is as new as the one on disk, or newer.
        if resource.variants.iter().any(|other| other.variant == stored.variant) {
            return;
        }
        resource.add(stored.clone());
        self.put(&mut fetches, key, resource);
    }

    /// Returns the hash of the values that `request` has for the names in `Vary` of the replies in
    /// memory.
    pub fn variant(&self, key: &Key, request: &Request) -> u64 {
        self.resources.peek(key).map_or(0, |resource| resource.variant(request))
    }

    /// Returns the role of a request for `key`.
    pub fn role(self: &Arc<Self>, key: &Key, seeking: Seeking) -> Role {
        let mut fetches = self.fetches();
        // A slow request that names a user says nothing about requests without a user.
        let binds =
            |fetch: &&Arc<Fetch>| !fetch.is_slow() || !fetch.names_user || seeking.names_user;
        if let Some(fetch) = fetches.running.awaited(key, seeking).filter(binds) {
            return if fetch.is_slow() {
                Role::Passes
            } else {
                Role::Waits(Wait::new(fetch.clone()))
            };
        }
        let resource = self.resources.peek(key);
        let is_slow =
            resource.is_some_and(|resource| resource.passing.is_probed(seeking.names_user));
        let fetch = fetches.running.begin(key, seeking, is_slow);
        self.list_alias(&mut fetches, key);
        Role::Leads(Lead { store: self.clone(), key: key.clone(), fetch })
    }

    /// Removes the replies for resources that have changed. Replies for these resources that are
    /// arriving now are not stored.
    pub fn invalidate(&self, changes: &ChangedKeys) {
        {
            let mut fetches = self.fetches();
            self.remove_changed(&mut fetches, changes);
            if self.disk.is_none() {
                return;
            }
            // Until the entries are removed from disk, no request may put them into memory.
            fetches.purging += 1;
        }
        if let Some(disk) = &self.disk {
            disk.invalidate(changes);
        }
        let mut fetches = self.fetches();
        fetches.purging -= 1;
        fetches.removals += 1;
        self.remove_changed(&mut fetches, changes);
    }

    fn remove_changed(&self, fetches: &mut Fetches, changes: &ChangedKeys) {
        for key in &changes.keys {
            self.remove(fetches, key);
        }
        for group in &changes.groups {
            for key in fetches.aliases.in_group(group) {
                self.remove(fetches, &key);
            }
        }
    }

    /// Removes the replies that `purge` includes, or ends their lifetime. Returns the number of
    /// these replies.
    pub fn purge(&self, purge: &Purge) -> usize {
        let purge = &self.routes.prepare(purge);
        {
            let mut fetches = self.fetches();
            fetches.purging += 1;
            fetches.removals += 1;
            // The tags of replies that are now arriving are unknown, so none of these replies is
            // stored.
            fetches.running.outdate_all();
        }
        let (mut count, names) = self.purge_memory(purge);
        // A request may have found a purged reply in memory, and may be giving it to the disk. This
        // lock waits for the request, so that the purge of the disk finds the reply.
        drop(self.fetches());
        if let Some(disk) = &self.disk {
            count += disk.purge(purge, &names);
        }
        let mut fetches = self.fetches();
        fetches.purging -= 1;
        fetches.removals += 1;
        count
    }

    /// Purges the memory. Returns the number of purged replies, and the names of the entries that
    /// these replies may have on disk.
    fn purge_memory(&self, purging: &Purging) -> (usize, HashSet<EntryName>) {
        let (mut count, mut names) = (0, HashSet::new());
        for (key, resource) in self.resources.iter() {
            let is_meant = |stored: &Stored| purging.includes(&PurgedReply::of(stored, &key));
            if !resource.variants.iter().any(|stored| is_meant(stored)) {
                continue;
            }
            // Without the lock, a request that stores a reply for the same key at this moment would
            // put purged variants back.
            let mut fetches = self.fetches();
            let Some(resource) = self.resources.peek(&key) else { continue };
            let mut left = Resource { variants: Vec::new(), ..Resource::clone(&resource) };
            let mut purged = 0;
            for stored in &resource.variants {
                if !is_meant(stored) {
                    left.variants.push(stored.clone());
                    continue;
                }
                purged += 1;
                if self.disk.is_some() {
                    let variant = stored.variant.hash();
                    names.insert(EntryName { key: key.hash(), variant });
                }
                if purging.purge.is_soft {
                    left.variants.push(Arc::new(stored.expired()));
                }
            }
            count += purged;
            if left.variants.is_empty() {
                self.resources.remove(&key);
                self.list_alias(&mut fetches, &key);
            } else {
                self.put(&mut fetches, &key, left);
            }
        }
        (count, names)
    }

    /// Returns the counts that `/status` shows.
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
            disk: self.disk.as_ref().map(|disk| disk.status()),
        }
    }
}

/// Gives a reply to the disk, if the reply lives long enough. If the disk has the reply, only marks
/// its entry as used.
fn give(disk: &Disk, key: &Key, stored: &Arc<Stored>) {
    if stored.outlives(SHORT) && !disk.touch(key, stored) && !disk.write(key, stored) {
        // The disk has not taken the reply, so the next request tries again.
        stored.on_disk.clear();
    }
}

/// Parts of the store with separate locks. There are only a few parts, because the largest reply
/// (1/16 of the store) has to fit into one of them.
const SHARDS: usize = 4;

impl Lead {
    /// Returns a new counter of memory for the arriving body.
    pub fn arriving(&self) -> Arriving {
        Arriving { store: self.store.clone(), bytes: Cell::new(0) }
    }

    /// Returns the number of the request, for [`Stored::number`].
    pub fn number(&self) -> u64 {
        self.fetch.number
    }

    /// Records that the origin has answered, or has failed.
    pub fn note_answer(&self) {
        self.fetch.note_answer();
    }

    /// Stores the reply. Does nothing if the reply was removed while it arrived. The new reply
    /// replaces `replaced`, and a stored reply with the same variant.
    pub fn store(&self, stored: &Arc<Stored>, replaced: Option<&Arc<Stored>>) {
        let mut fetches = self.store.fetches();
        if self.is_outdated(&fetches, stored) {
            return;
        }
        let mut resource = self.resource_without(stored, replaced);
        // After a change of `Vary`, the entry on disk has the old names of fields, so it is removed
        // below. A request may have read this entry already. `promote` compares the number of
        // removals, so that this request does not put the entry into memory.
        let is_moved = replaced.is_some_and(|replaced| replaced.variant != stored.variant);
        fetches.removals += u64::from(is_moved);
        match stored.body {
            StoredBody::File(_) if !is_moved => {
                resource.add(Arc::new(Stored::clone(stored).for_memory()));
            }
            StoredBody::Named(_) if !is_moved => resource.add(stored.clone()),
            StoredBody::Memory(_) => resource.add(stored.clone()),
            StoredBody::File(_) | StoredBody::Named(_) => {}
        }
        self.store.put(&mut fetches, &self.key, resource);
        let Some(disk) = &self.store.disk else { return };
        match replaced {
            Some(replaced) if !is_moved && replaced.body.is_same(&stored.body) => {
                // The origin has confirmed the reply, so the disk has the right body. The head on
                // disk is stale, and will be confirmed again if the memory forgets the reply.
                if replaced.on_disk.get() {
                    stored.on_disk.renew(FIRST_EPOCH);
                }
            }
            _ => self.replace_on_disk(disk, stored, replaced),
        }
    }

    /// Completes a large reply on disk, which replaces the reply `replaced`. If a change or purge
    /// of the resource came while the large reply arrived, discards the large reply.
    pub fn store_large(&self, spill: Spill, stored: &Stored, replaced: Option<&Arc<Stored>>) {
        let mut fetches = self.store.fetches();
        if self.is_outdated(&fetches, stored) {
            return;
        }
        let is_moved = replaced.is_some_and(|replaced| replaced.variant != stored.variant);
        fetches.removals += u64::from(is_moved);
        let resource = self.resource_without(stored, replaced);
        self.store.put(&mut fetches, &self.key, resource);
        spill.set_variant(&stored.variant);
        if let Some(disk) = &self.store.disk {
            self.remove_other(disk, stored, replaced);
        }
        // A removal from now on cancels the job of the spill, so the rest needs no lock: a slow disk
        // would make the requests of all threads wait.
        drop(fetches);
        spill.finish(&self.key, stored);
    }

    /// Removes a reply that the origin no longer permits Forebay to store.
    pub fn remove(&self, stale: &Arc<Stored>) {
        let mut fetches = self.store.fetches();
        // A request that has already read the entry from disk must not put it into memory.
        fetches.removals += 1;
        let mut resource = self.resource_without(stale, Some(stale));
        // The origin has permitted the last reply for one client only. The next reply may be for
        // one client, too, so other requests do not wait for the next reply.
        resource.passing.probe();
        self.store.put(&mut fetches, &self.key, resource);
        if let Some(disk) = &self.store.disk {
            disk.supersede(&self.entry_name(stale));
        }
    }

    /// Returns the store on disk and the hash of the key. Returns `None` if there is no store on
    /// disk.
    pub fn disk(&self) -> Option<(Arc<Disk>, KeyHash)> {
        Some((self.store.disk.clone()?, self.key.hash()))
    }

    /// Returns true if the reply `stored` must not be stored: the resource has changed since the
    /// request began, or the reply to a later request is already stored.
    fn is_outdated(&self, fetches: &Fetches, stored: &Stored) -> bool {
        let is_later =
            |other: &Arc<Stored>| other.number > stored.number && other.variant == stored.variant;
        let resource = self.store.resources.peek(&self.key);
        fetches.running.is_outdated(&self.key, &self.fetch)
            || resource.is_some_and(|resource| resource.variants.iter().any(is_later))
    }

    /// Returns the resource in memory without the replies that `stored` replaces.
    fn resource_without(&self, stored: &Stored, replaced: Option<&Arc<Stored>>) -> Resource {
        let before = self.store.resources.get(&self.key);
        let mut resource = before.map_or_else(Resource::default, |before| Resource::clone(&before));
        resource.passing.note_stored(self.fetch.names_user);
        resource.variants.retain(|other| {
            let is_replaced = replaced.is_some_and(|replaced| Arc::ptr_eq(replaced, other));
            !is_replaced && other.variant != stored.variant
        });
        resource
    }

    /// Removes the replaced replies from the disk. Gives the new reply to the disk if a recent
    /// request was for the same resource.
    fn replace_on_disk(&self, disk: &Disk, stored: &Arc<Stored>, replaced: Option<&Arc<Stored>>) {
        disk.supersede(&self.entry_name(stored));
        self.remove_other(disk, stored, replaced);
        if disk.admits(&self.key.hash()) && stored.on_disk.renew(disk.epoch()) {
            give(disk, &self.key, stored);
        }
    }

    /// Removes the replaced reply from the disk if its entry has another name than the entry of
    /// `stored`, because `Vary` has changed.
    fn remove_other(&self, disk: &Disk, stored: &Stored, replaced: Option<&Arc<Stored>>) {
        let other = replaced.map(|replaced| self.entry_name(replaced));
        if let Some(other) = other.filter(|other| *other != self.entry_name(stored)) {
            disk.supersede(&other);
        }
    }

    fn entry_name(&self, stored: &Stored) -> EntryName {
        EntryName { key: self.key.hash(), variant: stored.variant.hash() }
    }

    /// Ends the wait of other requests, so that they ask the origin. Until this request has ended,
    /// new requests ask the origin at once, too.
    pub fn let_others_pass(&self) {
        {
            let _fetches = self.store.fetches();
            self.fetch.note_slow();
        }
        self.fetch.end();
    }

    /// Records that the reply could not be stored, and why.
    pub fn pass(&self, why: Unstorable) {
        // The lock prevents a removal between the copy of the resource and its return to the store.
        let mut fetches = self.store.fetches();
        let before = self.store.resources.peek(&self.key);
        let mut resource = before.map_or_else(Resource::default, |before| Resource::clone(&before));
        resource.passing.record(why);
        self.store.put(&mut fetches, &self.key, resource);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let mut fetches = self.store.fetches();
        fetches.running.remove(&self.key, &self.fetch);
        self.store.list_alias(&mut fetches, &self.key);
        drop(fetches);
        self.fetch.end();
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::caching::{Freshness, ReplyControl};
    use forebay_wire::http1::{RequestHead, RequestParser};

    use super::super::stored::Arrival;
    use super::*;

    fn request(fields: &str) -> Request {
        let bytes = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        RequestParser::default().parse(&bytes, &mut head).unwrap();
        let address: std::net::SocketAddr = "192.0.2.7:4000".parse().unwrap();
        Request::new(bytes, head, address.into(), address)
    }

    /// A request reads a reply from disk. Then the origin confirms this reply for another request,
    /// and says that it varies.
    #[test]
    fn a_reply_whose_vary_has_changed_does_not_return_from_disk() {
        let store = Store::new(1 << 20, None);
        let key = Key::from("/");
        let freshness = Freshness { initial_age: 0, lifetime: 60, is_explicit: true };
        let reply = |lines: &[u8], request: &Request| {
            let arrival =
                Arrival { status: 200, lines, control: ReplyControl::default(), freshness };
            Arc::new(Stored::new(&arrival, request, b"text".to_vec()))
        };
        let [german, french] = ["de", "fr"].map(|l| request(&format!("Accept-Language: {l}\r\n")));
        let before = reply(b"", &german);
        let removals = store.removals();
        let Role::Leads(lead) = store.role(&key, Seeking::default()) else {
            panic!("no other request")
        };
        lead.store(&reply(b"Vary: Accept-Language\r\n", &german), Some(&before));
        store.promote(&key, &before, removals);
        let find = |request| store.find(&key, (request, false), |_| true);
        assert!(matches!(find(&german), CacheLookup::Reply(_)));
        assert!(matches!(find(&french), CacheLookup::Nothing));
    }

    fn stored(body: usize) -> Arc<Stored> {
        let freshness = Freshness { initial_age: 0, lifetime: 60, is_explicit: true };
        let control = ReplyControl::default();
        let arrival = Arrival { status: 200, lines: b"", control, freshness };
        Arc::new(Stored::new(&arrival, &request(""), vec![b'x'; body]))
    }

    fn lead(store: &Arc<Store>, key: &Key) -> Lead {
        let Role::Leads(lead) = store.role(key, Seeking::default()) else {
            panic!("no other request")
        };
        lead
    }

    fn alias(plain: &str, own: usize) -> Key {
        let half = (own as u64).to_be_bytes();
        Key::new(format!("{plain}{own}").into_bytes(), plain.len(), || half)
    }

    #[test]
    fn the_list_of_aliases_has_only_those_in_memory() {
        let store = Store::new(1 << 20, None);
        for own in 0..3000 {
            lead(&store, &alias("/", own)).store(&stored(1000), None);
            assert_eq!(store.fetches().aliases.len(), store.resources.len());
        }
        assert!(store.resources.len() < 1000 && store.status().bytes <= 1 << 20);
        // A reply that is not stored, or is too large for the memory.
        drop(lead(&store, &alias("/", 3000)));
        lead(&store, &alias("/", 3001)).pass(Unstorable::Reply);
        lead(&store, &alias("/", 3002)).store(&stored(1 << 20), None);
        let has_replies = |(_, resource): &(Key, Arc<Resource>)| !resource.variants.is_empty();
        let with_replies = store.resources.iter().filter(has_replies).count();
        assert_eq!(store.fetches().aliases.len(), with_replies);
        store.purge(&Purge { what: forebay_admin::Purged::All, is_soft: false });
        assert_eq!(store.fetches().aliases.len(), 0);
    }

    fn numbered(lead: &Lead) -> Arc<Stored> {
        Arc::new(Stored { number: lead.number(), ..Stored::clone(&stored(10)) })
    }

    #[test]
    fn of_several_replies_for_one_key_the_one_to_the_last_request_stays() {
        let store = Store::new(1 << 20, None);
        let key = Key::from("/");
        let apart = || {
            let seeking = Seeking { is_apart: true, ..Seeking::default() };
            let Role::Leads(lead) = store.role(&key, seeking) else { panic!("it asks apart") };
            lead
        };
        let leads = [apart(), lead(&store, &key), apart()];
        assert!(matches!(store.role(&key, Seeking::default()), Role::Waits(_)));
        let replies = leads.each_ref().map(numbered);
        let kept = |reply| {
            let resource = store.resource(&key).unwrap();
            resource.variants.len() == 1 && Arc::ptr_eq(&resource.variants[0], reply)
        };
        leads[1].store(&replies[1], None);
        leads[0].store(&replies[0], None);
        assert!(kept(&replies[1]));
        leads[2].store(&replies[2], Some(&replies[0]));
        assert!(kept(&replies[2]));
        // A change outdates all requests that have begun before it, and no later ones.
        let mut changes = ChangedKeys::default();
        changes.add(key.clone());
        drop(leads);
        let leads = [apart(), apart()];
        store.invalidate(&changes);
        let late = apart();
        leads.iter().for_each(|lead| lead.store(&numbered(lead), None));
        assert!(store.resource(&key).is_none());
        let reply = numbered(&late);
        late.store(&reply, None);
        assert!(kept(&reply));
        drop((leads, late));
        let _ = lead(&store, &key);
        assert!(!store.fetches().running.contains(&key));
    }

    #[test]
    fn a_slow_request_of_a_user_delays_no_others() {
        let store = Store::new(1 << 20, None);
        let key = Key::from("/");
        let role = |names_user| store.role(&key, Seeking { names_user, ..Seeking::default() });
        let Role::Leads(user) = role(true) else { panic!("no other request") };
        user.let_others_pass();
        assert!(matches!(role(true), Role::Passes));
        let Role::Leads(anonymous) = role(false) else { panic!("it waits for a user") };
        assert!(matches!(role(false), Role::Waits(_)));
        drop(user);
        assert!(matches!(role(false), Role::Waits(_)));
        drop(anonymous);
        assert!(matches!(role(false), Role::Leads(_)));
        assert!(!store.fetches().running.contains(&key));
    }

    #[test]
    fn a_change_outdates_aliases_that_are_arriving() {
        let store = Store::new(1 << 20, None);
        let [one, other, third] = [("/a", 1), ("/a", 2), ("/b", 3)].map(|(p, own)| alias(p, own));
        let leads = [&one, &other, &third].map(|key| lead(&store, key));
        let mut changes = ChangedKeys::default();
        changes.add(Key::from("/a"));
        store.invalidate(&changes);
        leads.iter().for_each(|lead| lead.store(&stored(10), None));
        drop(leads);
        let is_stored = |key: &Key| store.resource(key).is_some();
        assert_eq!([&one, &other, &third].map(is_stored), [false, false, true]);
        assert_eq!(store.fetches().aliases.len(), 1);
        let mut changes = ChangedKeys::default();
        changes.groups.insert(super::super::resource_key::Group::Own(3_u64.to_be_bytes()));
        store.invalidate(&changes);
        assert!(!is_stored(&third));
    }
}
