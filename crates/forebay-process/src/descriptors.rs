//! Gives child processes the limit on open descriptors that Forebay found at its start, not the
//! gateway's higher limit. Programs that use `select`, or that close all possible descriptors,
//! become slow or fail under a high limit.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

static FOUND: OnceLock<Rlimit> = OnceLock::new();

/// Records this process's limit on open descriptors. Call this before Forebay raises the limit.
/// Later calls do nothing.
pub fn record_descriptors() {
    let _ = FOUND.set(getrlimit(Resource::Nofile));
}

/// Returns the recorded soft limit on open descriptors if Forebay has raised the limit. Returns
/// `None` if Forebay has not raised the limit, or if the recorded soft limit is infinite.
pub fn found_descriptors() -> Option<u64> {
    let found = FOUND.get()?;
    found.current.filter(|_| getrlimit(Resource::Nofile) != *found)
}

/// Returns the recorded soft limit on open descriptors, or the current soft limit if none is
/// recorded. `None` means that the limit is infinite.
pub fn started_descriptors() -> Option<u64> {
    FOUND.get().copied().unwrap_or_else(|| getrlimit(Resource::Nofile)).current
}

/// Sets the limit on open descriptors of `process` to the recorded limit. Call this immediately
/// after the start of the process. Before this call, the process may see the gateway's higher
/// limit. A change of the limit before the start would require a `fork`, which is slow for large
/// processes.
pub fn give_back_descriptors(process: Pid) {
    let Some(found) = FOUND.get() else { return };
    if getrlimit(Resource::Nofile) != *found {
        // A process that has already ended needs no limit.
        let _ = prlimit(Some(process), Resource::Nofile, *found);
    }
}
