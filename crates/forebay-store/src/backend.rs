//! The operations that a kind of store implements.

use std::time::Duration;

use crate::StoreError;

/// A kind of store. Names are already checked.
pub trait StoreBackend: Send + Sync {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets an entry. Returns false, and changes nothing, if its content is not the expected one.
    fn set(&self, name: &str, change: Change<'_>) -> Result<bool, StoreError>;

    fn remove(&self, name: &str) -> Result<(), StoreError>;

    fn lock(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, StoreError>;

    fn unlock(&self, name: &str, owner: &str) -> Result<(), StoreError>;

    /// Adds the counts of a batch to a limit. Changes nothing if the store already has this batch,
    /// or a later one of the same owner.
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

/// Counts that a machine adds to a limit together.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The process that has counted.
    pub owner: &'a str,
    /// Larger than the numbers of all earlier batches of this owner.
    pub number: u64,
    pub counts: &'a [Count],
}

/// Requests that a machine has admitted for one key of a rate limit since its last exchange with
/// the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Hash of the key.
    pub key: u64,
    /// The number of admitted requests, multiplied by the time from one request to the next at the
    /// rate.
    pub step: Duration,
    /// Maximum time by which the key's due time may be ahead of the current time.
    pub most: Duration,
}

/// Place of a reader in a channel: the last message in Redis, all read messages in a directory.
/// `None` before the first read.
#[derive(Clone, Debug, Default)]
pub struct Cursor(pub(crate) Option<Vec<String>>);

/// Messages that a reader has not read before.
#[derive(Debug, Default)]
pub struct Messages {
    pub found: Vec<Vec<u8>>,
    /// Reasons why messages were skipped.
    pub skipped: Vec<String>,
}
