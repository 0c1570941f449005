//! Limits on the number of requests with the same key that run at once (`concurrency_limit`).
//!
//! All threads share the counts. A key is in the table only while a request with it runs, so the
//! table has at most as many keys as requests run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_conf::{ConcurrencyLimit, HostPattern};
use forebay_net::head::Request;

use super::rate_limit::{KeyPart, key_texts};

/// A limit, with the number of running requests of each key.
pub struct ConcurrencyLimiter {
    limit: ConcurrencyLimit,
    key: Vec<KeyPart>,
    hosts: Vec<HostPattern>,
    hasher: RandomState,
    running: Mutex<HashMap<u64, u32>>,
}

/// A place of a running request. The drop gives it back.
struct Place {
    limiter: Arc<ConcurrencyLimiter>,
    key: u64,
}

impl ConcurrencyLimiter {
    /// Creates the state of a limit of a site with these names. Requests to all other hosts share a
    /// counter.
    pub fn new(limit: ConcurrencyLimit, hosts: &[HostPattern]) -> Self {
        Self {
            key: limit.key.parts().iter().map(KeyPart::of).collect(),
            limit,
            hosts: hosts.to_vec(),
            hasher: RandomState::new(),
            running: Mutex::default(),
        }
    }

    /// Returns true if this is the state of `limit` for a site with these names.
    pub fn is_of(&self, limit: &ConcurrencyLimit, hosts: &[HostPattern]) -> bool {
        self.limit == *limit && self.hosts == hosts
    }

    /// Takes a place for each key of the request. Returns `None`, and takes none, if a key has
    /// `max` running requests.
    fn enter(self: &Arc<Self>, request: &Request) -> Option<Vec<Place>> {
        let texts = key_texts(&self.key, &self.hosts, request);
        let mut places = Vec::with_capacity(texts.len());
        for text in texts {
            let key = self.hasher.hash_one(text);
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let count = running.entry(key).or_default();
            let has_room = *count < self.limit.max;
            *count += u32::from(has_room);
            // The drop of the places takes the lock again.
            drop(running);
            if !has_room {
                return None;
            }
            places.push(Place { limiter: self.clone(), key });
        }
        Some(places)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.limiter.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = running.entry(self.key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Takes a place within each limit. Returns the places, which the request must hold until its end.
/// Returns `None` if a limit is reached.
pub fn enter(
    limits: &[Arc<ConcurrencyLimiter>],
    request: &Request,
) -> Option<Box<dyn std::any::Any>> {
    let places: Option<Vec<_>> = limits.iter().map(|limit| limit.enter(request)).collect();
    places.map(|places| Box::new(places) as Box<dyn std::any::Any>)
}
