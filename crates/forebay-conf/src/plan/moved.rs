//! Redirects of many old addresses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Redirects from old to new addresses, read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPages {
    /// The file that the redirects were read from.
    pub file: PathBuf,
    /// The redirects. All threads share them.
    pub entries: Arc<MovedEntries>,
}

/// Redirects by decoded path. Old addresses without a query are in `by_path`, those with a query in
/// `by_query`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedEntries {
    pub(crate) by_path: BTreeMap<Vec<u8>, Moved>,
    pub(crate) by_query: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Moved>>,
}

/// The new address for one old address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// A URL, or a path that begins with one slash. The text is printable ASCII.
    pub to: String,
    /// The status of the redirect.
    pub status: u16,
    /// True if the client's query is appended, because neither the old nor the new address has a
    /// query.
    pub keeps_query: bool,
}

impl MovedPages {
    /// Returns the new address for a decoded path and a query. An entry with exactly this query has
    /// precedence over an entry without a query. Returns `None` if there is no entry for the path.
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
