//! Redirects of many old addresses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// New addresses by old ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPages {
    /// The file that they were read from.
    pub file: PathBuf,
    /// The entries. Threads share them.
    pub entries: Arc<MovedEntries>,
}

/// Entries by decoded path, without and with a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedEntries {
    pub(crate) by_path: BTreeMap<Vec<u8>, Moved>,
    pub(crate) by_query: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Moved>>,
}

/// The new address of an old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// A URL, or a path that begins with one slash: printable ASCII.
    pub to: String,
    /// The status of the redirect.
    pub status: u16,
    /// The client's query is appended: neither address has one.
    pub keeps_query: bool,
}

impl MovedPages {
    /// Returns the new address of a decoded path. An entry with this query precedes one without a
    /// query.
    pub fn find(&self, path: &[u8], query: &[u8]) -> Option<&Moved> {
        let entries = &*self.entries;
        let exact = || entries.by_query.get(path)?.get(query);
        let exact = if query.is_empty() { None } else { exact() };
        exact.or_else(|| entries.by_path.get(path))
    }
}

impl MovedEntries {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.by_path.len() + self.by_query.values().map(BTreeMap::len).sum::<usize>()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
