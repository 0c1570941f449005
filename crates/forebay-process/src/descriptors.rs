//! Gives child processes the limit on open descriptors that Forebay found at its start, not the
//! gateway's higher limit. Programs that use `select`, or that close all possible descriptors,
//! become slow or fail under a high limit.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

static FOUND: OnceLock<Rlimit> = OnceLock::new();

/// Records the limit before it is raised. Later calls do nothing.
pub fn record_descriptors() {
    let _ = FOUND.set(getrlimit(Resource::Nofile));
}

/// Returns the recorded soft limit if the limit has been raised since. Otherwise returns `None`.
pub fn found_descriptors() -> Option<u64> {
    let found = FOUND.get()?;
    found.current.filter(|_| getrlimit(Resource::Nofile) != *found)
}

/// Returns the recorded soft limit. If none is recorded, returns the current one. `None` means no
/// limit.
pub fn started_descriptors() -> Option<u64> {
    FOUND.get().copied().unwrap_or_else(|| getrlimit(Resource::Nofile)).current
}

/// Gives a process that has just started the recorded limit. Before this call, the process may see
/// the gateway's limit. A change before the start would require a `fork`, which is slow for large
/// processes.
pub fn give_back_descriptors(process: Pid) {
    let Some(found) = FOUND.get() else { return };
    if getrlimit(Resource::Nofile) != *found {
        // A process that has already ended needs no limit.
        let _ = prlimit(Some(process), Resource::Nofile, *found);
    }
}
