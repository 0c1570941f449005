//! The store that several machines with the same sites share ([`Store`]): entries with a lifetime,
//! locks with a lease, counts of rate limits, and messages to all machines.
//!
//! - `directory` keeps all this in files of a directory, usually of a shared file system;
//! - `redis` speaks to a server with the Redis protocol;
//! - `seal` encrypts entries and messages with the key of the configuration.
//!
//! All functions block, for at most a few seconds. Only background threads call them: a request
//! never waits for the store. Forebay checks everything that it reads from the store, because other
//! programs may write to the store.
#![forbid(unsafe_code)]

mod backend;
mod directory;
mod name;
mod redis;
mod seal;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_conf::{SharedStore, StorePlace};

use backend::{Batch, StoreBackend};
pub use backend::{Change, Count, Cursor, Expected, Messages};
pub use seal::Derivation;
use seal::Seal;

/// Maximum size of an entry or a message in bytes. A certificate with its key has a few kilobytes.
pub const LARGEST_ENTRY: usize = 256 * 1024;

/// Maximum number of counts in a batch. While the script that adds the counts runs, Redis serves no
/// other client.
pub const LARGEST_BATCH: usize = 500;

/// Reason why an operation failed.
#[derive(Debug)]
pub enum StoreError {
    /// The store cannot be reached, or did not answer in time.
    Away(String),
    /// The store has refused the operation.
    Refused(String),
    /// The store returned content that Forebay has not written.
    Content(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) => write!(f, "the store cannot be reached: {why}"),
            Self::Refused(why) => write!(f, "the store refuses: {why}"),
            Self::Content(why) => write!(f, "the store has an unusable entry: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// An entry of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// The content, decrypted.
    pub value: Vec<u8>,
    /// The content as the store has it, for [`Store::replace`].
    stored: Vec<u8>,
}

/// Handle of the shared store, for all threads.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    backend: Box<dyn StoreBackend>,
    seal: Option<Seal>,
    place: String,
    /// Name of this process as the owner of locks and of batches.
    owner: String,
    /// Number of the last batch of counts.
    batches: AtomicU64,
    noticed: Mutex<Noticed>,
}

/// Failures that have already been logged.
#[derive(Default)]
struct Noticed {
    is_away: bool,
    /// Errors other than an unreachable store, and the times at which they were logged.
    errors: Vec<(String, Instant)>,
}

/// Time after which an error that remains is logged again. Without this pause, the error would be
/// logged every few seconds, at each repetition of the operation.
const REMINDER: Duration = Duration::from_secs(3600);
/// Maximum number of logged errors that are remembered.
const MOST_NOTICED: usize = 100;

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.0.place)
    }
}

impl Store {
    /// Creates the handle. Connects to nothing yet.
    ///
    /// # Errors
    /// Fails if the certificates of `store_ca` cannot be used.
    pub fn new(settings: &SharedStore) -> Result<Self, String> {
        let backend: Box<dyn StoreBackend> = match &settings.place {
            StorePlace::Directory(path) => Box::new(directory::Directory::new(path)),
            StorePlace::Redis(server) => Box::new(redis::Redis::new(server)?),
        };
        let seal = settings.key.as_ref().map(|key| Seal::new(key.as_bytes()));
        let place = settings.place.to_string();
        let owner = name::of_this_process();
        let (batches, noticed) = (AtomicU64::new(0), Mutex::default());
        Ok(Self(Arc::new(Inner { backend, seal, place, owner, batches, noticed })))
    }

    /// Returns true if `other` is a clone of this handle.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the directory of the store, or its URL without the password.
    pub fn place(&self) -> &str {
        &self.0.place
    }

    /// Returns the [`Derivation`] of further keys from `store_key`. Returns `None` if no key is
    /// configured.
    pub fn derivation(&self) -> Option<Derivation> {
        self.0.seal.as_ref().map(Seal::derivation)
    }

    /// Checks that the store can be used: writes, reads and removes an entry. Fails if one of these
    /// operations fails.
    pub fn probe(&self) -> Result<(), StoreError> {
        let name = format!("probe/{}", self.0.owner);
        self.put(&name, b"probe", Some(Duration::from_secs(60)))?;
        let found = self.get(&name)?;
        self.remove(&name)?;
        match found {
            Some(StoreEntry { value, .. }) if value == b"probe" => Ok(()),
            _ => Err(StoreError::Content("it does not return what was written".to_owned())),
        }
    }

    /// Returns the entry of this name. Returns `None` if the entry does not exist or has expired.
    pub fn get(&self, name: &str) -> Result<Option<StoreEntry>, StoreError> {
        let stored = self.0.backend.get(name::checked(name)?)?;
        let Some(stored) = stored else { return Ok(None) };
        let value = self.open(name, &stored)?;
        Ok(Some(StoreEntry { value, stored }))
    }

    /// Sets an entry, which exists for `life` or until it is removed.
    pub fn put(&self, name: &str, value: &[u8], life: Option<Duration>) -> Result<(), StoreError> {
        self.change(name, value, Expected::Anything, life).map(drop)
    }

    /// Sets an entry if its content still equals `before`. If `before` is `None`, sets the entry
    /// only if it does not exist. If the condition is not met, changes nothing and returns false.
    pub fn replace(
        &self,
        name: &str,
        before: Option<&StoreEntry>,
        value: &[u8],
        life: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let expected = before.map_or(Expected::Nothing, |before| Expected::Content(&before.stored));
        self.change(name, value, expected, life)
    }

    fn change(
        &self,
        name: &str,
        value: &[u8],
        expected: Expected<'_>,
        life: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let value = self.close(name, value)?;
        if value.len() > LARGEST_ENTRY {
            return Err(StoreError::Refused(format!("{name} would be larger than 256 KiB")));
        }
        self.0.backend.set(name::checked(name)?, Change { value: &value, expected, life })
    }

    /// Removes an entry, if it exists.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.0.backend.remove(name::checked(name)?)
    }

    /// Takes the lock `name`, or extends it if this process has the lock already. Returns false if
    /// another process has the lock. Without a further call, the lock ends after `lease`, so that
    /// the lock of a dead process becomes free.
    pub fn lock(&self, name: &str, lease: Duration) -> Result<bool, StoreError> {
        self.0.backend.lock(name::checked(name)?, &self.0.owner, lease)
    }

    /// Ends the lock if this process has it.
    pub fn unlock(&self, name: &str) -> Result<(), StoreError> {
        self.0.backend.unlock(name::checked(name)?, &self.0.owner)
    }

    /// Returns a number for a batch of counts. Each number is larger than all earlier ones of this
    /// process.
    pub fn next_batch(&self) -> u64 {
        self.0.batches.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds `counts`, at most [`LARGEST_BATCH`], to the rate limit `limit`. As in GCRA, the store
    /// has a due time for each key. Each admitted request delays the due time of its key by the
    /// interval between two requests at the rate of the limit. Returns for each count the time from
    /// now until the due time of its key.
    ///
    /// After an error other than [`StoreError::Refused`], the store may have added the counts. The
    /// caller then sends the batch again with the same number, before later batches. The store adds
    /// each batch only once.
    pub fn advance(
        &self,
        limit: &str,
        number: u64,
        counts: &[Count],
    ) -> Result<Vec<Duration>, StoreError> {
        if counts.len() > LARGEST_BATCH {
            return Err(StoreError::Refused(format!("{} counts are too many", counts.len())));
        }
        let batch = Batch { owner: &self.0.owner, number, counts };
        self.0.backend.advance(name::checked(limit)?, &batch)
    }

    /// Sends a message to all machines that read this channel. Messages are kept for an hour, so that a
    /// machine that could not reach the store receives them later.
    pub fn publish(&self, channel: &str, message: &[u8]) -> Result<(), StoreError> {
        let message = self.close(channel, message)?;
        if message.len() > LARGEST_ENTRY {
            return Err(StoreError::Refused("a message would be larger than 256 KiB".to_owned()));
        }
        self.0.backend.publish(name::checked(channel)?, &message)
    }

    /// Returns the messages of a channel after `cursor`, and moves `cursor`. Waits up to `wait` for
    /// the first message. A new cursor begins after the existing messages.
    ///
    /// Skips messages that cannot be read or decrypted. `unusable` receives the reason for each
    /// skipped message.
    pub fn messages(
        &self,
        channel: &str,
        cursor: &mut Cursor,
        wait: Duration,
        mut unusable: impl FnMut(StoreError),
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let Messages { found, skipped } =
            self.0.backend.messages(name::checked(channel)?, cursor, wait)?;
        skipped.into_iter().for_each(|why| unusable(StoreError::Content(why)));
        let mut messages = Vec::new();
        for stored in found {
            match self.open(channel, &stored) {
                Ok(message) => messages.push(message),
                Err(error) => unusable(error),
            }
        }
        Ok(messages)
    }

    /// Records the outcome of an operation. Returns a line for the log when the store becomes
    /// unreachable or reachable again. For an error of a reachable store, returns a line unless the
    /// same line was logged in the last hour. Otherwise returns `None`.
    pub fn notice<T>(&self, outcome: &Result<T, StoreError>) -> Option<String> {
        let mut noticed = self.0.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_away = matches!(outcome, Err(StoreError::Away(_)));
        let was_away = std::mem::replace(&mut noticed.is_away, is_away);
        match outcome {
            Err(error @ StoreError::Away(_)) if !was_away => Some(format!(
                "store {}: {error}; this machine serves on, with what it knows",
                self.0.place
            )),
            Err(error @ (StoreError::Refused(_) | StoreError::Content(_))) => {
                let line = format!("store {}: {error}", self.0.place);
                noticed.errors.retain(|(_, at)| at.elapsed() < REMINDER);
                let is_new = noticed.errors.iter().all(|(known, _)| *known != line);
                if is_new && noticed.errors.len() < MOST_NOTICED {
                    noticed.errors.push((line.clone(), Instant::now()));
                }
                is_new.then_some(line)
            }
            _ if was_away && !is_away => {
                Some(format!("store {}: it can be reached again", self.0.place))
            }
            _ => None,
        }
    }

    fn close(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        match &self.0.seal {
            Some(seal) => seal.close(name, value),
            None => Ok(value.to_vec()),
        }
    }

    fn open(&self, name: &str, stored: &[u8]) -> Result<Vec<u8>, StoreError> {
        match &self.0.seal {
            None => Ok(stored.to_vec()),
            Some(seal) => seal.open(name, stored).ok_or_else(|| {
                StoreError::Content(format!(
                    "{name} is not encrypted with this `store_key`: give all machines the same \
                     key, or remove the entry"
                ))
            }),
        }
    }
}
