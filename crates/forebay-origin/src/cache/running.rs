//! Requests to origins whose replies may be stored.
//!
//! Requests with the same key and the same values for `Vary` can wait for each other: the first one
//! asks the origin. A request asks *apart* if the reply to another request was of no use to it. No
//! request waits for one that asks apart. So several requests for one key can run at once, and each
//! may store its reply.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::resource_key::Key;

/// The running requests of all keys.
#[derive(Debug, Default)]
pub struct Running {
    by_key: HashMap<Key, OfKey>,
    /// Number of the last request.
    last: u64,
}

/// The running requests of one key.
#[derive(Debug, Default)]
struct OfKey {
    /// Requests that others wait for, by the hash of their values for `Vary`.
    awaited: HashMap<u64, Arc<Fetch>>,
    /// Number of running requests.
    count: usize,
    /// Number of the last request before the last change of the resource.
    outdated: u64,
}

/// A request to an origin.
#[derive(Debug)]
pub struct Fetch {
    /// Number of the request. Requests that begin later have larger numbers.
    pub number: u64,
    /// Hash of the values for `Vary`.
    variant: u64,
    /// True if the request names a user.
    pub names_user: bool,
    /// Closed when the request has ended.
    ended: Semaphore,
    /// True if the origin has answered or has failed, and the resource has not changed since.
    has_answer: AtomicBool,
    /// True if other requests do not wait for this request. Either the end of the request depends
    /// on the client, or its reply can probably not be stored.
    is_slow: AtomicBool,
}

/// Properties of a request that seeks a reply of the origin.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seeking {
    /// True if the request names a user.
    pub names_user: bool,
    /// Hash of the values for the names in `Vary` of the stored replies.
    pub variant: u64,
    /// True if the request asks the origin at once, because the reply to another request is
    /// probably of no use to it.
    pub is_apart: bool,
}

/// Waits for the request of another client.
pub struct Wait(Arc<Fetch>);

/// End of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The origin has answered the other request, or has failed.
    Answered,
    /// The other request has ended without an answer of the origin, or the resource has changed
    /// meanwhile.
    Aborted,
    /// The reply takes too long.
    Slow,
}

impl Running {
    /// Returns the request that a request with these properties waits for.
    pub fn awaited(&self, key: &Key, seeking: Seeking) -> Option<&Arc<Fetch>> {
        let awaited = &self.by_key.get(key).filter(|_| !seeking.is_apart)?.awaited;
        awaited.get(&seeking.variant)
    }

    /// Adds a request that asks the origin. If `is_slow` is true, other requests do not wait for
    /// it.
    pub fn begin(&mut self, key: &Key, seeking: Seeking, is_slow: bool) -> Arc<Fetch> {
        self.last += 1;
        let fetch = Arc::new(Fetch {
            number: self.last,
            variant: seeking.variant,
            names_user: seeking.names_user,
            ended: Semaphore::new(0),
            has_answer: false.into(),
            is_slow: is_slow.into(),
        });
        let of_key = self.by_key.entry(key.clone()).or_default();
        of_key.count += 1;
        if !seeking.is_apart {
            of_key.awaited.insert(seeking.variant, fetch.clone());
        }
        fetch
    }

    /// Removes a request that has ended. The caller then calls [`Fetch::end`].
    pub fn remove(&mut self, key: &Key, fetch: &Arc<Fetch>) {
        let Some(of_key) = self.by_key.get_mut(key) else { return };
        if fetch.number <= of_key.outdated {
            // The reply was not stored, but the next one can be.
            fetch.has_answer.store(false, Ordering::Relaxed);
        }
        of_key.count -= 1;
        if of_key.count == 0 {
            self.by_key.remove(key);
        } else if of_key.awaited.get(&fetch.variant).is_some_and(|other| Arc::ptr_eq(other, fetch))
        {
            of_key.awaited.remove(&fetch.variant);
        }
    }

    /// Returns true if a request for `key` is running.
    pub fn contains(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Records that the resource has changed. Replies to its running requests are not stored.
    pub fn outdate(&mut self, key: &Key) {
        if let Some(of_key) = self.by_key.get_mut(key) {
            of_key.outdated = self.last;
        }
    }

    /// Records that all resources may have changed.
    pub fn outdate_all(&mut self) {
        self.by_key.values_mut().for_each(|of_key| of_key.outdated = self.last);
    }

    /// Returns true if the resource has changed since the request began.
    pub fn is_outdated(&self, key: &Key, fetch: &Fetch) -> bool {
        self.by_key.get(key).is_some_and(|of_key| fetch.number <= of_key.outdated)
    }
}

impl Fetch {
    /// Records that the origin has answered, or has failed.
    pub fn note_answer(&self) {
        self.has_answer.store(true, Ordering::Relaxed);
    }

    /// Records that other requests do not wait for this request.
    pub fn note_slow(&self) {
        self.is_slow.store(true, Ordering::Relaxed);
    }

    /// Returns true if other requests do not wait for this request.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Ends the wait of other requests.
    pub fn end(&self) {
        self.ended.close();
    }
}

impl Wait {
    /// Creates the wait for a request.
    pub fn new(fetch: Arc<Fetch>) -> Self {
        Self(fetch)
    }

    /// Waits until the other request has ended, for at most the time `limit`.
    pub async fn ended(self, limit: Duration) -> WaitEnd {
        // The semaphore never gets permits, so `acquire` returns only when it is closed.
        let has_ended = tokio::time::timeout(limit, self.0.ended.acquire()).await.is_ok();
        if !has_ended || self.0.is_slow() {
            WaitEnd::Slow
        } else if self.0.has_answer.load(Ordering::Relaxed) {
            WaitEnd::Answered
        } else {
            WaitEnd::Aborted
        }
    }
}
