//! Stored replies of one key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_net::head::Request;
use tokio::time::Instant;

use super::stored::Stored;
use super::vary::Variant;

/// Maximum number of variants of one resource. A further variant replaces the oldest.
const VARIANTS: usize = 32;
/// Time during which requests do not wait for each other after a reply that could not be stored.
const PASSING: Duration = Duration::from_secs(10);

/// Stored replies of one key.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// Replies, the oldest first.
    pub variants: Vec<Arc<Stored>>,
    pub passing: Passing,
}

/// Decides which requests *pass*: they ask the origin without waiting for another request, because
/// the last reply could not be stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passing {
    /// All requests pass until this time.
    all: Option<Instant>,
    /// Requests that name a user pass until this time.
    users: Option<Instant>,
    /// True if the last reply was an error of the origin, so that the next one may be stored.
    has_failed: bool,
}

/// Reason why a reply could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstorable {
    /// The reply itself forbids its storage, for example with `private`.
    Reply,
    /// The reply is an error of the origin.
    Error,
    /// The request names a user. Requests that name no user may get a reply that can be stored.
    User,
}

impl Resource {
    /// Adds the newest reply. If there are too many replies, removes the oldest one.
    pub fn add(&mut self, stored: Arc<Stored>) {
        if self.variants.len() == VARIANTS {
            self.variants.remove(0);
        }
        self.variants.push(stored);
    }

    /// Returns the newest reply that matches `request` (RFC 9111 section 4.1) and that `may_use`
    /// allows, or `None`.
    pub fn find(
        &self,
        request: &Request,
        may_use: impl Fn(&Stored) -> bool,
    ) -> Option<&Arc<Stored>> {
        let mut variants = self.variants.iter().rev();
        variants.find(|stored| may_use(stored) && stored.variant.matches(request))
    }

    /// Returns the hash of the values that `request` has for the names in `Vary` of all replies.
    pub fn variant(&self, request: &Request) -> u64 {
        let names = self.variants.iter().flat_map(|stored| stored.variant.names());
        let names: BTreeSet<&str> = names.collect();
        Variant::hash_for(names, request)
    }
}

impl Passing {
    /// Records that a reply was stored. `names_user` is true if its request names a user. The reply
    /// to a request without a user says nothing about users, so their requests pass as before.
    pub fn note_stored(&mut self, names_user: bool) {
        let users = self.users.filter(|_| !names_user);
        *self = Self { users, ..Self::default() };
    }

    /// Records that a reply could not be stored.
    pub fn record(&mut self, why: Unstorable) {
        let end = Some(Instant::now() + PASSING);
        match why {
            Unstorable::User => self.users = end,
            Unstorable::Reply | Unstorable::Error => {
                (self.all, self.has_failed) = (end, why == Unstorable::Error);
            }
        }
    }

    /// Lets the next request ask the origin for a reply to store. Other requests do not wait for
    /// this reply, and ask the origin at the same time.
    pub fn probe(&mut self) {
        (self.all, self.has_failed) = (Some(Instant::now()), false);
    }

    /// Returns true if a request must now ask the origin without waiting for other requests. Its
    /// reply is then not stored. `names_user` is true if the request names a user.
    pub fn includes(&self, names_user: bool) -> bool {
        let lasts = |end: Option<Instant>| end.is_some_and(|end| Instant::now() < end);
        lasts(self.all) || names_user && lasts(self.users)
    }

    /// Returns true if the last reply could not be stored, however long ago, so that the next reply
    /// can probably not be stored, either. Other requests then do not wait for the next reply. An
    /// error of the origin does not count as such a reply.
    pub fn is_probed(&self, names_user: bool) -> bool {
        self.all.is_some() && !self.has_failed || names_user && self.users.is_some()
    }
}
