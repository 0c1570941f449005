//! The operations that a kind of store implements.

use std::time::Duration;

use crate::StoreError;

/// A kind of store: a directory or Redis. The caller has validated all names (`name::checked`).
pub trait StoreBackend: Send + Sync {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets an entry if the entry has the expected content. Otherwise, changes nothing and returns
    /// false.
    fn set(&self, name: &str, change: Change<'_>) -> Result<bool, StoreError>;

    fn remove(&self, name: &str) -> Result<(), StoreError>;

    fn lock(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, StoreError>;

    fn unlock(&self, name: &str, owner: &str) -> Result<(), StoreError>;

    /// Adds the counts of a batch to the rate limit named `limit`. Adds nothing if the store
    /// already has this batch, or a later batch of the same owner. Returns for each count the time
    /// from now until its key is due (GCRA), even if nothing was added.
    fn advance(&self, limit: &str, batch: &Batch<'_>) -> Result<Vec<Duration>, StoreError>;

    fn publish(&self, channel: &str, message: &[u8]) -> Result<(), StoreError>;

    fn messages(
        &self,
        channel: &str,
        cursor: &mut Cursor,
        wait: Duration,
    ) -> Result<Messages, StoreError>;
}

/// A new content of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub value: &'a [u8],
    pub expected: Expected<'a>,
    pub life: Option<Duration>,
}

/// The content that an entry must have before a change.
#[derive(Clone, Copy, Debug)]
pub enum Expected<'a> {
    Anything,
    Nothing,
    Content(&'a [u8]),
}

/// Counts that one process adds to a rate limit in one operation.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The process that has counted.
    pub owner: &'a str,
    /// Larger than the numbers of all earlier batches of this owner.
    pub number: u64,
    pub counts: &'a [Count],
}

/// Requests that a machine has admitted for one key of a rate limit, and has not yet counted in the
/// store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Hash of the key.
    pub key: u64,
    /// Number of admitted requests, multiplied by the interval of the rate limit. At a limit of 10
    /// requests per second, 3 requests are 300 ms.
    pub step: Duration,
    /// Maximum time from now until the key's due time. The store reduces a later due time.
    pub most: Duration,
}

/// Position of a reader in a channel. With Redis, it is the ID of the last message that was read.
/// With a directory, it is the names of all messages that were read. `None` before the first read.
#[derive(Clone, Debug, Default)]
pub struct Cursor(pub(crate) Option<Vec<String>>);

/// Messages that a reader has not read before.
#[derive(Debug, Default)]
pub struct Messages {
    pub found: Vec<Vec<u8>>,
    /// Reasons why messages were skipped.
    pub skipped: Vec<String>,
}
